"""Django: a guarded answer as a StreamingHttpResponse, and a decorator for views, under ASGI and WSGI.

    @guarded
    async def chat(request):
        async for token in model.generate(request.GET["prompt"]):
            yield token

and the same for streams that outlive their connections:

    guard = StreamGuard(MemoryLog(), authorize=who)

    @guard.stream
    async def chat(request): ...

    guard.install(urlpatterns, "/streams")

Under ASGI an async source runs in a task of the request's, and `application = SealMiddleware(get_asgi_application())`
is what aborts a stream that did not complete without a traceback in the server's log. A plain generator has a thread of
its own everywhere, and database connections of its own there, which are closed when it is. Responses name a content
coding, `identity`, so that GZipMiddleware leaves them alone: compressed, tokens would wait for one another.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, overload

from streamguard.extras import needs

with needs("django", __name__):
    from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
    from django.core.handlers.asgi import ASGIHandler
    from django.http import FileResponse, HttpRequest, StreamingHttpResponse
    from django.http.response import HttpResponseBase
    from django.urls import re_path

from typing_extensions import Unpack

from streamguard.adapters.blocking import Head
from streamguard.adapters.django_responses import (
    GuardedResponse,
    HeadResponse,
    body_of,
    environ_of,
    on_loop,
    on_thread,
    response_of,
    scope_of,
    thread_dress,
)
from streamguard.adapters.endpoints import RootedSeal, require_path
from streamguard.adapters.logged import LoggedAnswer, logged_endpoint
from streamguard.adapters.loop_bridge import SEND, LoopBridge, LoopHead, answered
from streamguard.adapters.options import AnswerOptions, Options, StreamNames, StreamOptions, no_endpoint
from streamguard.adapters.pool import is_function
from streamguard.adapters.returned import NotGuarded, streams_unguarded
from streamguard.adapters.seal import ASGIApp, Message, Receive, Scope, Send
from streamguard.adapters.seal import SealMiddleware as Seal
from streamguard.adapters.threaded import Guarding, Logging, ThreadGuard, bridged, drained, logged_head
from streamguard.app import Action, Authorize
from streamguard.core.arguments import shown
from streamguard.runtime.configured import principal_of
from streamguard.runtime.drain import GRACE
from streamguard.runtime.source import Producer

__all__ = ["GuardedResponse", "SealMiddleware", "StreamGuard", "drained", "guarded"]

logger = logging.getLogger("streamguard")

View = Callable[..., Any]

_WHOLE: Final = "JsonResponse(…)"  # for an answer that does not stream


@overload
def guarded(view: View, /) -> View: ...
@overload
def guarded(**options: Unpack[Options]) -> Callable[[View], View]: ...
def guarded(view: View | None = None, /, **named: Unpack[Options]) -> Any:
    """Guard a view that yields, or that returns something to iterate, `def` or `async def`. Options as in
    AnswerOptions:

        @guarded
        @guarded(dialect="openai", flush=EveryTokens(8))

    A response that the view returns passes. A view with a plain `yield` runs on a thread of its own, under WSGI unless
    `own_thread=False`.
    """
    options = AnswerOptions.of(None, named)
    ways = Guarding(options, thread_dress(options), _WHOLE), Guarding(options, on_loop, _WHOLE)
    return functools.partial(_wrapped, ways) if view is None else _wrapped(ways, view)


def _wrapped(ways: tuple[Guarding, Guarding], view: View) -> View:
    """The view, guarded: in the first way under WSGI, in the second under ASGI."""
    if not is_function(view):
        raise TypeError(no_endpoint(view, ways[0].decorator))
    awaited = iscoroutinefunction(view)

    async def asynchronously(request: Any, *args: Any, **kwargs: Any) -> Any:
        async def call() -> Any:
            if awaited:
                return await view(request, *args, **kwargs)
            if inspect.isgeneratorfunction(view) or inspect.isasyncgenfunction(view):
                return view(request, *args, **kwargs)  # which runs nothing
            return await sync_to_async(view)(request, *args, **kwargs)

        with _told():
            return _sent(await answered(ways[1], scope_of(request), request, body_of(request), call, view, _passes))

    def synchronously(request: Any, *args: Any, **kwargs: Any) -> Any:
        call = functools.partial(async_to_sync(view) if awaited else view, request, *args, **kwargs)
        with _told():
            return _sent(ways[0].answer(environ_of(request), request, call, view, _passes))

    @functools.wraps(view)
    async def async_view(request: Any, *args: Any, **kwargs: Any) -> Any:
        serve = asynchronously if hasattr(request, "scope") else sync_to_async(synchronously)
        return await serve(request, *args, **kwargs)

    @functools.wraps(view)
    def sync_view(request: Any, *args: Any, **kwargs: Any) -> Any:
        serve = async_to_sync(asynchronously) if hasattr(request, "scope") else synchronously
        return serve(request, *args, **kwargs)

    return async_view if awaited or inspect.isasyncgenfunction(view) else sync_view


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """What is refused stands in the log: outside of DEBUG Django answers 500 and, as it is set up, writes nothing."""
    try:
        yield
    except NotGuarded as exc:
        logger.error("%s", exc)
        raise


def _sent(answer: Any) -> Any:
    return response_of(answer) if isinstance(answer, (Head, LoopHead)) else answer


def _passes(result: Any) -> bool:
    if not isinstance(result, HttpResponseBase):
        return False
    streams = isinstance(result, StreamingHttpResponse) and not isinstance(result, FileResponse)
    if streams and not isinstance(result, (GuardedResponse, HeadResponse)):
        raise streams_unguarded(result)
    return True


# ---- streams of a log -----------------------------------------------------------------------------


class StreamGuard(ThreadGuard):
    """The application's object, for Django: `authorize(request, action)` is given the request; a plain `def` is called
    on a thread that may use the database."""

    async def principal(self, request: Any, action: Action, by: Authorize | None = None) -> str | None:
        if not hasattr(request, "scope"):
            return await super().principal(request, action, by)
        asked = by or self.authorize
        found = asked if iscoroutinefunction(asked) else sync_to_async(asked)
        return principal_of(await found(request, action))

    @overload
    def stream(self, view: View, /) -> View: ...
    @overload
    def stream(self, /, **options: Unpack[StreamNames]) -> Callable[[View], View]: ...
    def stream(self, view: View | None = None, /, **named: Unpack[StreamNames]) -> Any:
        """Guard a view as `guarded` does, into the log. Options as in AnswerOptions and StreamOptions:

            @guard.stream
            @guard.stream(on_disconnect=Detach(grace=60), name=lambda request: request.resolver_match.kwargs["chat"])

        A view that returns its source is called only for a request that starts a stream.
        """
        def wrap(view: View, both: Any) -> View:
            return _wrapped((Logging(self, both, on_thread, _WHOLE), Logging(self, both, on_loop, _WHOLE)), view)

        return logged_endpoint(self, view, named, wrap)

    def response(
        self,
        request: HttpRequest,
        source: Producer,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        **named: Unpack[StreamNames],
    ) -> Any:
        """The answer of a view that was called already: `source` is opened only if the request starts a stream. Under
        ASGI, `await` it in an async view."""
        more: Any = {"status": status, "headers": list((headers or {}).items())}
        both = StreamOptions.split(named)
        if not hasattr(request, "scope"):
            environ = environ_of(request)
            return response_of(logged_head(self, environ, request, on_thread(source), both=both, **more))
        answer = LoggedAnswer(
            self, on_loop(source), request=request, body=body_of(request), options=both, **more
        )
        bridge = LoopBridge(answer, scope_of(request), body_of(request))
        return _in_either(bridge.begin)

    def install(
        self,
        urlpatterns: list[Any],
        path: str = "/streams",
        *,
        by_id: bool = True,
        close_log: bool = True,
        **named: Unpack[Options],
    ) -> None:
        """Put the endpoints at `path`, before the application's own routes. `by_id`: whether `<path>/<sid>` is served.
        At the process's end the streams that are generated here are let go of, and the log is closed, unless
        `close_log` is False; under ASGI that is at the lifespan's end of what `seal` makes. Options are how streams are
        served there.

        Raises RuntimeError for a guard that is installed already; TypeError and ValueError for arguments that are not
        a list of routes, or a path.
        """
        given: object = urlpatterns
        if not isinstance(given, list):
            raise TypeError(f'guard.install(urlpatterns, "/streams"): urlpatterns is a list; not {shown(given)}')
        require_path(path)
        endpoints = self._endpoints(path, by_id=by_id, close_log=close_log, **named)

        def serve(request: Any) -> Any:
            if hasattr(request, "scope"):
                return _in_either(LoopBridge(endpoints, scope_of(request), body_of(request)).begin)
            return response_of(bridged(endpoints, environ_of(request), request, self, endpoints.options))

        serve.csrf_exempt = True  # type: ignore[attr-defined]  # a POST there is JSON, which a form cannot send
        pattern: Any = re_path(rf"^{path.lstrip('/')}(?:/.*)?$", serve)
        urlpatterns.insert(0, pattern)

    def seal(self, application: ASGIApp, *, close_log: bool = True) -> ASGIApp:
        """An ASGI application with the guard's seal outermost, which also answers the server's lifespan: at its end the
        streams that are generated here are let go of, and the log is closed, with `close_log`.

            application = guard.seal(get_asgi_application())
        """

        return RootedSeal(_Called(application), self, close_log=close_log)


class _Called:
    """Django's own handler, where it is called: what it is called with is known to its answers (`loop_bridge`), and a
    server's lifespan, which it knows nothing of, is answered for it."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application
        self._own = isinstance(application, ASGIHandler)  # a layer round it may want to see every part

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            message: Message = {}
            while message.get("type") != "lifespan.shutdown":
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
            return
        if self._own:
            scope[SEND] = send
        await self._application(scope, receive, send)


class SealMiddleware(Seal):
    """The outermost layer of a Django project under ASGI: `application = SealMiddleware(get_asgi_application())`."""

    def __init__(self, app: ASGIApp, *, grace: float = GRACE, on_sigterm: bool = True) -> None:
        super().__init__(_Called(app), grace=grace, on_sigterm=on_sigterm)


def _in_either(begin: Callable[[], Any]) -> Any:
    """What `begin` answers as a response: at once on a thread that no loop runs on, else to be awaited."""

    async def response() -> Any:
        return response_of(await begin())

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return async_to_sync(response)()
    return response()
