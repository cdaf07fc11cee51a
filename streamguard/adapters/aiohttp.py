"""aiohttp: the same verbs, for handlers.

    @guarded
    async def tokens(request):
        yield "Hello"

    app = web.Application()
    app.router.add_get("/", tokens)

and the same for streams that outlive their connections:

    guard = StreamGuard(MemoryLog(), authorize=who)

    @guard.stream
    async def tokens(request): ...

    guard.install(app, "/streams")

Nothing stands between a handler and the socket that could end an aborted answer cleanly, so there is no seal. The
stream runs inside the handler, as aiohttp's own streams do: what a middleware opened is open for as long.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterable, Awaitable, Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Final, overload

from streamguard.extras import needs

with needs("aiohttp", __name__):
    from aiohttp import web

from typing_extensions import Unpack

from streamguard.adapters.admitting import Place, admitted_request
from streamguard.adapters.aiohttp_bridge import (
    REQUEST,
    GuardedStream,
    body_of,
    heard,
    read_body,
    scope_of,
    served,
    unasked,
)
from streamguard.adapters.aiohttp_websocket import handler_of
from streamguard.adapters.asgi import GuardedAnswer, request_facts
from streamguard.adapters.endpoints import Endpoints, require_path
from streamguard.adapters.logged import Claim, LoggedAnswer, logged_endpoint, make_claim, with_slot
from streamguard.adapters.options import AnswerOptions, Options, StreamNames, StreamOptions
from streamguard.adapters.readiness import Readiness
from streamguard.adapters.reading import ROOT
from streamguard.adapters.returned import guarded_twice, registered_before, streams_unguarded
from streamguard.adapters.shutdown import DRAIN, drain_of, forget
from streamguard.adapters.websocket import Opening, SocketEndpoint
from streamguard.adapters.wrapping import Called, found, let_go, near, wrap
from streamguard.app import StreamGuard as BaseGuard
from streamguard.core.arguments import shown
from streamguard.core.errors import Failure
from streamguard.observe.hooks import Outcome
from streamguard.runtime.drain import GRACE, Draining
from streamguard.runtime.source import Producer

__all__ = ["GuardedResponse", "Guarding", "Opening", "StreamGuard", "drained", "guarded", "guarded_websocket"]

Streaming = Callable[..., AsyncIterable[Any] | Iterable[Any] | Awaitable[Any]]
OnSocket = Callable[[Opening], "AsyncIterable[Any] | Iterable[Any] | Awaitable[Any]"]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# Whether the handler that runs is under guard.stream. Each request has a task, and so a context, of its own.
_LOGGED: Final[ContextVar[bool]] = ContextVar("streamguard_logged", default=False)
# What may take a stream's place: responses that are whole, what we made, and a WebSocket of the handler's own.
_WHOLE: Final = (web.Response, web.FileResponse, web.WebSocketResponse, GuardedStream)
_DRAINING: Final = web.AppKey("streamguard_draining", Draining)


class GuardedResponse:
    """The answer of a handler that is no decorated one: it streams a source, guarded.

        response = GuardedResponse(generate(prompt), dialect="openai", flush=EveryTokens(8))
        return await response.serve(request)

    Options are those of AnswerOptions. It can be cancelled, and has its `outcome` at the end. Raises TypeError and
    ValueError for a source that is none, or is spent, as TokenSource does.
    """

    def __init__(
        self,
        source: Producer,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        *,
        options: AnswerOptions | None = None,
        **named: Unpack[Options],
    ) -> None:
        given = (headers or {}).items()
        self.answer: GuardedAnswer | LoggedAnswer = GuardedAnswer(
            source, status=status, headers=given, options=options, **named
        )

    @property
    def outcome(self) -> Outcome | None:
        """How the stream ended; None before."""
        return self.answer.outcome

    def cancel(self, failure: Failure | None = None) -> None:
        """End the stream as `cancelled`."""
        self.answer.cancel(failure)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Stream it, and return what the handler is to return."""
        if _LOGGED.get() and isinstance(self.answer, GuardedAnswer):
            await self.answer.source.aclose()
            raise guarded_twice(request.match_info.handler)
        self.answer.request = request
        return await served(self.answer, request, scope_of(request, self._more(request)))

    def _more(self, request: web.Request) -> dict[str, Any]:
        return _more(request)


class _LoggedResponse(GuardedResponse):
    """The same into a guard's log; `guard.response` makes it."""

    def __init__(self, guard: StreamGuard, answer: LoggedAnswer) -> None:
        self.guard = guard
        self.answer = answer

    def _more(self, request: web.Request) -> dict[str, Any]:
        return self.guard.facts()


class Guarding:
    """What `wrap` makes of a source here: a guarded answer for one connection."""

    decorator = "@guarded"
    whole = "web.json_response(…)"
    logs = False

    def __init__(self, options: AnswerOptions) -> None:
        self.options = options

    def called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Called:
        view = found(web.View, args, kwargs)
        request = found(web.Request, args, kwargs) if view is None else view.request
        if request is None:
            raise TypeError("a guarded handler is called with its Request, and this one was not")
        return Called(request)

    async def read(self, request: web.Request) -> None:
        await read_body(request)

    def runs(self, request: web.Request) -> bool:
        """Not where the answer is a refusal, or has no body."""
        scope = scope_of(request, self.more(request))
        return request.method != "HEAD" and request_facts(scope).cursor is None and drain_of(scope).ready

    async def look(self, request: web.Request) -> Claim | None:
        admission = self.options.limits
        if admission is None or not self.runs(request):
            return None
        scope = scope_of(request, self.more(request))
        facts, prepare = request_facts(scope), functools.partial(read_body, request)
        with heard(request) as bridge:
            drain = drain_of(scope)
            place = await admitted_request(admission, facts, request, bridge.receive, prepare, drain=drain)
        return Claim(facts, slot=place.slot, refused=place.refused)

    def is_response(self, result: Any) -> bool:
        return isinstance(result, web.StreamResponse)

    async def passed(self, endpoint: Any, result: Any, claim: Claim | None) -> web.StreamResponse:
        if not isinstance(result, _WHOLE):
            # Where it has begun, aiohttp logs what is raised and drops the connection: no clean end is written.
            raise streams_unguarded(result)
        let_go(claim)
        response: web.StreamResponse = result
        return response

    async def answered(self, source: Any, called: Called, claim: Claim | None) -> web.StreamResponse:
        response = self.response(source, called.request, claim)
        response.answer.refused = await unasked(called.request, self.options.dialect.name)
        return await response.serve(called.request)

    def response(self, source: Any, request: web.Request, claim: Claim | None) -> GuardedResponse:
        response = GuardedResponse(source, options=self.options)
        if claim is not None and isinstance(response.answer, GuardedAnswer):
            response.answer.place = Place(claim.slot, claim.refused)
        return response

    def more(self, request: web.Request) -> dict[str, Any]:
        """What a request's scope holds beside its own facts."""
        return _more(request)


class _Logging(Guarding):
    """The same into a guard's log."""

    decorator = "@guard.stream"
    logs = True

    def __init__(self, guard: StreamGuard, options: tuple[StreamOptions, AnswerOptions]) -> None:
        super().__init__(options[1])
        self.guard = guard
        self.both = options

    async def look(self, request: web.Request) -> Claim | None:
        body, read = functools.partial(body_of, request), functools.partial(read_body, request)
        claim = await make_claim(self.guard, request, scope_of(request, self.more(request)), body)
        _LOGGED.set(True)
        with heard(request) as bridge:
            return await with_slot(self.guard, claim, request, bridge.receive, read)

    def response(self, source: Any, request: web.Request, claim: Claim | None) -> GuardedResponse:
        body = functools.partial(body_of, request)
        answer = LoggedAnswer(self.guard, source, request=request, body=body, claim=claim, options=self.both)
        return _LoggedResponse(self.guard, answer)

    def more(self, request: web.Request) -> dict[str, Any]:
        return self.guard.facts()


@overload
def guarded(handler: Streaming, /) -> Handler: ...
@overload
def guarded(**options: Unpack[Options]) -> Callable[[Streaming], Handler]: ...
def guarded(handler: Streaming | None = None, /, **named: Unpack[Options]) -> Any:
    """Guard a handler, or a view's method, that yields, or that returns an iterable, `async def` or `def`. Options as
    in AnswerOptions:

        @guarded
        @guarded(dialect="openai", flush=EveryTokens(8))

    The request's body is read before a handler that yields begins; one that returns its source reads it itself, as it
    likes.
    """
    guarding = Guarding(AnswerOptions.of(None, named))
    return functools.partial(_wrapped, guarding) if handler is None else _wrapped(guarding, handler)


def _wrapped(guarding: Guarding, handler: Streaming) -> Handler:
    for routes in near(handler, web.RouteTableDef):
        if any(getattr(route, "handler", None) is handler for route in routes):
            raise registered_before(handler, guarding.decorator)
    return wrap(handler, guarding)


def guarded_websocket(*, origins: Collection[str] = (), **named: Unpack[Options]) -> Callable[[OnSocket], Handler]:
    """Guard a handler whose stream goes over a WebSocket: a function of an Opening that yields, or returns its source.
    `origins` are the pages of other origins that may open one. Other options as in AnswerOptions:

        @guarded_websocket()
        async def chat(opening):
            async for token in generate(opening.body["text"]):
                yield token

        app.router.add_get("/chat", chat)
    """
    options = AnswerOptions.of(None, named)
    return lambda function: handler_of(SocketEndpoint(function, options, origins), _more)


def drained(app: web.Application, *, grace: float = GRACE, ready: str | None = None) -> Draining:
    """Let the streams of an application's guarded handlers end in order when it shuts down: new ones are refused from
    then on, and those that run have `grace` seconds. A guard that is installed does so by itself. `ready` is a path
    that answers 200, and 503 from the moment at which that begins.

    aiohttp gives its handlers `shutdown_timeout` seconds: of `run_app`, or of an AppRunner.
    """
    return _drained(app, Draining(grace=grace), ready)


class StreamGuard(BaseGuard):
    """The application's object, for aiohttp: `authorize(request, action)` is given a `web.Request`."""

    resource: web.AbstractResource | None = None  # the endpoints', once they are installed

    @overload
    def stream(self, handler: Streaming, /) -> Handler: ...
    @overload
    def stream(self, /, **options: Unpack[StreamNames]) -> Callable[[Streaming], Handler]: ...
    def stream(self, handler: Streaming | None = None, /, **named: Unpack[StreamNames]) -> Any:
        """Guard a handler as `guarded` does, into the log. Options as in AnswerOptions and StreamOptions:

            @guard.stream
            @guard.stream(on_disconnect=Detach(grace=60), name=lambda request: request.match_info["chat"])

        A handler that returns its source is called only for a request that starts a stream.
        """
        return logged_endpoint(self, handler, named, lambda function, both: _wrapped(_Logging(self, both), function))

    def websocket(
        self, *, origins: Collection[str] = (), **named: Unpack[StreamNames]
    ) -> Callable[[OnSocket], Handler]:
        """Guard a handler as `guarded_websocket` does, into the log; `authorize` is given the request."""
        stream, options = StreamOptions.split(named)

        def wrapped(function: OnSocket) -> Handler:
            return handler_of(SocketEndpoint(function, options, origins, self, stream), lambda request: self.facts())

        return wrapped

    def response(
        self,
        request: web.Request,
        source: Producer,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        **named: Unpack[StreamNames],
    ) -> GuardedResponse:
        """The answer of a handler that was called already: `source` is opened only if the request starts a stream.

        return await guard.response(request, generate(prompt)).serve(request)
        """
        body, given = functools.partial(body_of, request), (headers or {}).items()
        answer = LoggedAnswer(self, source, status=status, headers=given, request=request, body=body, **named)
        return _LoggedResponse(self, answer)

    def install(
        self,
        app: web.Application,
        path: str = "/streams",
        *,
        by_id: bool = True,
        close_log: bool = True,
        ready: str | None = None,
        **named: Unpack[Options],
    ) -> None:
        """Put the endpoints at `path`: call it before a route is added that matches any path. When the application
        shuts down its streams drain, then those that are generated here are let go of, and the log is closed, unless
        `close_log` is False. `by_id`: whether `<path>/<sid>` is served. `ready` is a path that answers 200, and 503 as
        soon as the process is told to go. Options are how streams are served there.

        Raises RuntimeError for a guard that is installed already, and for a path that is another's; TypeError and
        ValueError for arguments that are not an application, or a path.
        """
        given: object = app
        if not isinstance(given, web.Application):
            raise TypeError(f'guard.install(app, "/streams"): app is a web.Application; not {shown(given)}')
        require_path(path)
        if self.path is not None:
            raise RuntimeError(f"this guard is installed already, at {self.path}")
        if any(resource.canonical == path for resource in app.router.resources()):
            raise RuntimeError(f"there is a route at {path} already; give this guard a path of its own")
        endpoints = Endpoints(self, path, by_id=by_id, request_of=lambda scope, _: scope[REQUEST], **named)

        async def serve(request: web.Request) -> web.StreamResponse:
            return await served(endpoints, request, scope_of(request, self.facts()))

        self.resource = app.router.add_route("*", path, serve).resource
        app.router.add_route("*", f"{path}/{{tail:.*}}", serve)
        _drained(app, self, ready)

        async def opened(app: web.Application) -> None:
            await self.require_open()

        async def closed(app: web.Application) -> None:
            await self.aclose(close_log=close_log)

        app.on_startup.append(opened)
        app.on_cleanup.insert(0, closed)  # before the application's own, whose resources its sources use

    def facts(self) -> dict[str, Any]:
        """What a scope of this guard's holds: its drain, and where the application with the endpoints is mounted."""
        at = "" if self.resource is None else self.resource.canonical
        root = at[: len(at) - len(self.path or "")]
        return {DRAIN: self.draining, ROOT: root, "root_path": root}


def _drained(app: web.Application, draining: Draining, ready: str | None) -> Draining:
    async def begin(app: web.Application) -> None:
        draining.draining.reset()

    async def drain(app: web.Application) -> None:
        draining.drain()

    async def over(app: web.Application) -> None:
        forget(draining.draining)

    app[_DRAINING] = draining
    app.on_startup.append(begin)
    app.on_shutdown.append(drain)
    app.on_cleanup.append(over)
    if ready is not None:
        answer = Readiness(draining)

        async def serve(request: web.Request) -> web.StreamResponse:
            return await served(answer, request, scope_of(request, {}))

        app.router.add_get(ready, serve)
    return draining


def _more(request: web.Request) -> dict[str, Any]:
    draining = request.config_dict.get(_DRAINING)
    return {} if draining is None else {DRAIN: draining.draining}
