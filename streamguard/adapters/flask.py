"""Flask: a guarded answer as a Response, and a decorator for views.

    @app.post("/chat")
    @guarded
    def chat():
        for token in model.generate(request.json["prompt"]):
            yield token

and the same for streams that outlive their connections:

    guard = StreamGuard(MemoryLog(), authorize=who)

    @app.post("/chat")
    @guard.stream
    def chat(): ...

    guard.install(app, "/streams")

A source runs in a request context of its own, on its own thread, for as long as it streams: `request` and `session` are
those of the request, `g` is empty, and what the application does at a context's teardown, closing a database say, is
done when the source is closed.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any, Final, overload

from streamguard.extras import needs

with needs("flask", __name__):
    from flask import Flask, Response, current_app, has_request_context, request, request_started
    from flask.globals import request_ctx

from typing_extensions import Unpack

from streamguard.adapters.blocking import BlockingAnswer, Body, Head
from streamguard.adapters.endpoints import require_path
from streamguard.adapters.logged import logged_endpoint
from streamguard.adapters.options import AnswerOptions, Options, StreamNames, StreamOptions, no_endpoint
from streamguard.adapters.pool import is_function
from streamguard.adapters.returned import streams_unguarded
from streamguard.adapters.seal import remember_unguarded, tell_unguarded
from streamguard.adapters.threaded import Guarding, Logging, ThreadGuard, bridged, drained, logged_head
from streamguard.core.arguments import shown
from streamguard.core.errors import Failure
from streamguard.observe.hooks import Outcome
from streamguard.runtime.closing import close, close_sync
from streamguard.runtime.source import Producer, TokenSource

__all__ = ["GuardedResponse", "HeadResponse", "StreamGuard", "drained", "guarded"]

View = Callable[..., Any]

_WHOLE: Final = "jsonify(…)"  # for an answer that does not stream


class HeadResponse(Response):
    """A response whose head and body are settled."""

    default_mimetype = None

    def __init__(self, head: Head) -> None:
        super().__init__(head.body, status=head.status, headers=head.headers)
        self._parts = head.body

    def get_app_iter(self, environ: Any) -> Iterable[bytes]:
        # As it is, and not part by part through a generator that encodes text.
        return Body(self._parts, self.close) if self.is_streamed else super().get_app_iter(environ)


class GuardedResponse(Response):
    """A Flask response that streams a source, guarded; made in a view.

        return GuardedResponse(generate(prompt), dialect="openai", flush=EveryTokens(8))

    Options are those of AnswerOptions; the response can be cancelled, and has its `outcome` at the end. Raises
    TypeError and ValueError for a source that is none, or is spent, as TokenSource does.
    """

    default_mimetype = None

    def __init__(
        self,
        source: Producer,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        *,
        options: AnswerOptions | None = None,
        **named: Unpack[Options],
    ) -> None:
        super().__init__(status=status, headers=dict(headers or {}))
        self.answer = BlockingAnswer(_in_context(source), options=options, **named)
        self._kind = self.answer.options.carrier(None).content_type
        self.headers.setdefault("Content-Type", self._kind)  # for those who look at it before it is sent

    @property
    def outcome(self) -> Outcome | None:
        """How the stream ended; None before."""
        return self.answer.outcome

    def cancel(self, failure: Failure | None = None) -> None:
        """End the stream as `cancelled`. From any thread."""
        self.answer.cancel(failure)

    def __call__(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        answer = self.answer
        answer.status = self.status_code
        ours = ("Content-Type", self._kind)
        answer.headers = [pair for pair in self.headers if pair != ours]
        answer.request = _asked() if has_request_context() else environ
        response = HeadResponse(answer.begin(environ))
        response.call_on_close(self.close)
        return response(environ, start_response)


@overload
def guarded(endpoint: View, /) -> View: ...
@overload
def guarded(**options: Unpack[Options]) -> Callable[[View], View]: ...
def guarded(endpoint: View | None = None, /, **named: Unpack[Options]) -> Any:
    """Guard a view that yields, or that returns something to iterate, `def` or `async def`. Options as in
    AnswerOptions. It stands below the route's decorator, directly above the function:

        @guarded
        @guarded(dialect="openai", flush=EveryTokens(8))

    A response that the view returns passes.
    """
    guarding = Guarding(AnswerOptions.of(None, named), _in_context, _WHOLE)
    return functools.partial(_wrapped, guarding) if endpoint is None else _wrapped(guarding, endpoint)


def _wrapped(guarding: Guarding, endpoint: View) -> View:
    if not is_function(endpoint):
        raise TypeError(no_endpoint(endpoint, guarding.decorator))

    remember_unguarded(endpoint, guarding.decorator)
    with contextlib.suppress(RuntimeError):  # before Flask 2.3 there are signals only beside blinker
        request_started.connect(_look_at_route)

    @functools.wraps(endpoint)
    def view(*args: Any, **kwargs: Any) -> Any:
        asked = _asked()
        # An async view that returns its source is run as Flask runs any.
        function = current_app.ensure_sync(endpoint) if inspect.iscoroutinefunction(endpoint) else endpoint
        call = functools.partial(function, *args, **kwargs)
        answer = guarding.answer(asked.environ, asked, call, endpoint, _passes)
        return HeadResponse(answer) if isinstance(answer, Head) else answer

    return view


def _look_at_route(app: Flask, **more: Any) -> None:
    """Tell of an endpoint that was meant to be guarded: its decorator stands above the route's."""
    if request.endpoint is not None:
        tell_unguarded(app.view_functions.get(request.endpoint))


def _asked() -> Any:
    """The request itself, with its body read: on another thread a view that yields could not do that any more, and read
    from the server's stream a second time, it would be waited for."""
    asked: Any = request._get_current_object()  # type: ignore[attr-defined]
    asked.environ["wsgi.input"] = io.BytesIO(asked.get_data())
    return asked


def _passes(result: Any) -> bool:
    if not isinstance(result, Response):
        return False
    if result.is_streamed and not isinstance(result, (GuardedResponse, HeadResponse)) and not result.direct_passthrough:
        raise streams_unguarded(result)
    return True


def _in_context(source: Any) -> Any:
    """A source in a request context of its own, for as long as it streams; what is none is left as it is."""
    if not has_request_context():
        return source
    TokenSource(source)  # refuses what is no source, or is spent, which could not be seen through what follows
    if isinstance(source, AsyncIterable):
        return _AsyncInContext(request_ctx.copy(), source)
    return _InContext(request_ctx.copy(), source) if isinstance(source, Iterable) else source


class _InContext:
    """A sync source, stepped and closed inside of `context`."""

    def __init__(self, context: Any, source: Iterable[Any]) -> None:
        self._context = context
        self._source = source

    def __iter__(self) -> Iterator[Any]:
        # The application's context first: what the view had is still there, and would be taken for one.
        with self._context.app.app_context(), self._context:
            try:
                yield from self._source
            finally:
                close_sync(self._source)

    def close(self) -> None:
        close_sync(self._source)  # where it was never begun


class _AsyncInContext:
    """The same for an async one."""

    def __init__(self, context: Any, source: AsyncIterable[Any]) -> None:
        self._context = context
        self._source = source

    async def __aiter__(self) -> AsyncIterator[Any]:
        with self._context.app.app_context(), self._context:
            try:
                async for item in self._source:
                    yield item
            finally:
                await close(self._source)

    async def aclose(self) -> None:
        await close(self._source)


class StreamGuard(ThreadGuard):
    """The application's object, for Flask: `authorize(request, action)` is given the request, in its context."""

    @overload
    def stream(self, endpoint: View, /) -> View: ...
    @overload
    def stream(self, /, **options: Unpack[StreamNames]) -> Callable[[View], View]: ...
    def stream(self, endpoint: View | None = None, /, **named: Unpack[StreamNames]) -> Any:
        """Guard a view as `guarded` does, into the log. Options as in AnswerOptions and StreamOptions:

            @guard.stream
            @guard.stream(on_disconnect=Detach(grace=60), name=lambda request: request.view_args["chat"])

        A view that returns its source is called only for a request that starts a stream.
        """
        def wrap(view: View, both: Any) -> View:
            return _wrapped(Logging(self, both, _in_context, _WHOLE), view)

        return logged_endpoint(self, endpoint, named, wrap)

    def response(
        self,
        source: Producer,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        **named: Unpack[StreamNames],
    ) -> Response:
        """The answer of a view that was called already: `source` is opened only if the request starts a stream."""
        asked = _asked()
        more: Any = {"both": StreamOptions.split(named), "status": status, "headers": list((headers or {}).items())}
        return HeadResponse(logged_head(self, asked.environ, asked, _in_context(source), **more))

    def install(
        self,
        app: Flask,
        path: str = "/streams",
        *,
        by_id: bool = True,
        close_log: bool = True,
        **named: Unpack[Options],
    ) -> None:
        """Put the endpoints at `path`, as routes of the application, which its own hooks see. `by_id`: whether
        `<path>/<sid>` is served. At the process's end the streams that are generated here are let go of, and the log is
        closed, unless `close_log` is False. Options are how streams are served there.

        Raises RuntimeError for a guard that is installed already; TypeError and ValueError for arguments that are not
        an application, or a path.
        """
        given: object = app
        if not isinstance(given, Flask):
            raise TypeError(f'guard.install(app, "/streams"): app is a Flask application; not {shown(given)}')
        require_path(path)
        endpoints = self._endpoints(path, by_id=by_id, close_log=close_log, **named)

        def serve(tail: str = "") -> Response:
            asked = _asked()
            return HeadResponse(bridged(endpoints, asked.environ, asked, self, endpoints.options))

        methods = ["GET", "HEAD", "POST", "DELETE", "OPTIONS"]
        app.wsgi_app = drained(app.wsgi_app, self)  # type: ignore[method-assign,assignment]
        for rule in (path, f"{path}/<path:tail>"):
            app.add_url_rule(rule, f"streamguard {rule}", serve, methods=methods, provide_automatic_options=False)
