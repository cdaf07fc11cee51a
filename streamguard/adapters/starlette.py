"""Starlette: a guarded answer as a Response, and a decorator for endpoints.

    @guarded
    async def tokens(request):
        yield "Hello"

    app = Starlette(routes=[Route("/", tokens)])
    app.add_middleware(SealMiddleware)

and the same for streams that outlive their connections:

    guard = StreamGuard(MemoryLog(), authorize=who)

    @guard.stream
    async def tokens(request): ...

    guard.install(app, "/streams")
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterable, Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Final, overload

from streamguard.extras import needs

with needs("starlette", __name__):
    from starlette.applications import Starlette
    from starlette.background import BackgroundTask
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.websockets import WebSocket

from typing_extensions import Unpack

from streamguard.adapters.admitting import Place, admitted_request
from streamguard.adapters.asgi import SealMiddleware, request_facts
from streamguard.adapters.bodies import body_of, read_body, unasked
from streamguard.adapters.endpoints import Endpoints, RootedSeal, require_path
from streamguard.adapters.logged import Claim, logged_endpoint, make_claim, with_slot
from streamguard.adapters.options import AnswerOptions, Options, StreamNames, StreamOptions
from streamguard.adapters.readiness import Readiness
from streamguard.adapters.returned import guarded_twice, own_response
from streamguard.adapters.shutdown import drain_of
from streamguard.adapters.starlette_responses import (
    AnswerResponse,
    GuardedResponse,
    ReconnectResponse,
    ResumableResponse,
)
from streamguard.adapters.starlette_websocket import endpoint_of
from streamguard.adapters.websocket import Opening, SocketEndpoint
from streamguard.adapters.wrapping import Called, found, let_go, wrap
from streamguard.app import StreamGuard as BaseGuard
from streamguard.core.arguments import shown
from streamguard.runtime.source import Producer

__all__ = [
    "GuardedResponse",
    "Guarding",
    "Opening",
    "ReconnectResponse",
    "ResumableResponse",
    "SealMiddleware",
    "StreamGuard",
    "guarded",
    "guarded_websocket",
    "wrap_endpoint",
]

# What can be guarded: a function that yields, or one that returns something to iterate; `async def` or `def`.
Streaming = Callable[..., AsyncIterable[Any] | Iterable[Any] | Awaitable[Any]]
Endpoint = Callable[[Request], Awaitable[Response]]
Wrapped = Callable[..., Awaitable[Response]]
OnSocket = Callable[[Opening], "AsyncIterable[Any] | Iterable[Any] | Awaitable[Any]"]
SocketRoute = Callable[[WebSocket], Awaitable[None]]

# The names under which an adapter may pass the request, and the response that dependencies may write to, to a
# wrapped endpoint that does not ask for them.
REQUEST: Final = "streamguard_request"
RESPONSE: Final = "streamguard_response"

class Guarding:
    """What `wrap` makes of a source here: a guarded answer for one connection."""

    decorator = "@guarded"
    whole = "JSONResponse(…)"
    logs = False

    def __init__(self, options: AnswerOptions) -> None:
        self.options = options

    def called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Called:
        asked, given = kwargs.pop(REQUEST, None), kwargs.pop(RESPONSE, None) or found(Response, args, kwargs)
        own = found(Request, args, kwargs)
        return Called(asked or own, own is not None, given)

    async def read(self, request: Request) -> None:
        await read_body(request)

    def runs(self, request: Request) -> bool:
        """Not where the answer is a refusal, or has no body."""
        scope = request.scope
        return request.method != "HEAD" and request_facts(scope).cursor is None and drain_of(scope).ready

    async def look(self, request: Request | None) -> Claim | None:
        admission = self.options.limits
        if admission is None or request is None or not self.runs(request):
            return None
        facts, prepare = request_facts(request.scope), functools.partial(read_body, request)
        drain = drain_of(request.scope)
        place = await admitted_request(admission, facts, request, request.receive, prepare, drain=drain)
        return Claim(facts, slot=place.slot, refused=place.refused)

    def is_response(self, result: Any) -> bool:
        return isinstance(result, Response)

    async def passed(self, endpoint: Any, result: Any, claim: Claim | None) -> Response:
        """With the slot where it streams under no other limits; else it needs none."""
        if self.logs and isinstance(result, GuardedResponse):
            await result.answer.source.aclose()
            raise guarded_twice(endpoint)
        response: Response = own_response(result)
        if claim is not None and isinstance(response, GuardedResponse) and response.answer.options.limits is None:
            response.answer.place = Place(claim.slot)
        else:
            let_go(claim)
        return response

    async def answered(self, source: Any, called: Called, claim: Claim | None) -> AnswerResponse[Any]:
        response = self.response(source, called.request, claim)
        if called.request is not None:
            response.answer.refused = unasked(called.request, self.options.dialect.name)
        return _dressed(response, called.request, called.given)

    def response(self, source: Any, request: Request | None, claim: Claim | None) -> AnswerResponse[Any]:
        response = GuardedResponse(source, options=self.options)
        if claim is not None:
            response.answer.place = Place(claim.slot, claim.refused)
        return response


class _Logging(Guarding):
    """The same into a guard's log."""

    decorator = "@guard.stream"
    logs = True

    def __init__(self, guard: BaseGuard, options: tuple[StreamOptions, AnswerOptions]) -> None:
        super().__init__(options[1])
        self.guard = guard
        self.both = options

    async def look(self, request: Request | None) -> Claim | None:
        asked = self._require(request)
        claim = await make_claim(self.guard, asked, asked.scope, functools.partial(body_of, asked))
        return await with_slot(self.guard, claim, asked, asked.receive, functools.partial(read_body, asked))

    def response(self, source: Any, request: Request | None, claim: Claim | None) -> AnswerResponse[Any]:
        return ResumableResponse(self.guard, self._require(request), source, claim=claim, options=self.both)

    @staticmethod
    def _require(request: Request | None) -> Request:
        if request is None:
            raise TypeError("an endpoint under guard.stream is called with its Request, and this one was not")
        return request


def _dressed(response: AnswerResponse[Any], request: Request | None, given: Response | None) -> AnswerResponse[Any]:
    """`response` as FastAPI dresses an answer: its route's status, and what was set on the injected response."""
    status = getattr(request.scope.get("route"), "status_code", None) if request is not None else None
    if given is not None:
        response.raw_headers.extend(given.raw_headers)
        status = given.status_code or status
    if status is not None:
        response.status_code = int(status)
    return response


def wrap_endpoint(endpoint: Callable[..., Any], guarding: Guarding) -> Wrapped:
    """See `wrap`, in the types of this framework."""
    return wrap(endpoint, guarding)


@overload
def guarded(endpoint: Streaming, /) -> Endpoint: ...
@overload
def guarded(**options: Unpack[Options]) -> Callable[[Streaming], Endpoint]: ...
def guarded(endpoint: Streaming | None = None, /, **named: Unpack[Options]) -> Any:
    """Guard an endpoint that yields, or that returns an iterable, `async def` or `def`. Options as in AnswerOptions:

        @guarded
        @guarded(dialect="openai", flush=EveryTokens(8))

    The request's body is read before an endpoint that yields begins; one that returns its source reads it
    itself, as it likes.
    """
    guarding = Guarding(AnswerOptions.of(None, named))
    if endpoint is not None:
        return wrap_endpoint(endpoint, guarding)
    return functools.partial(wrap_endpoint, guarding=guarding)


def guarded_websocket(*, origins: Collection[str] = (), **named: Unpack[Options]) -> Callable[[OnSocket], SocketRoute]:
    """Guard an endpoint whose stream goes over a WebSocket: a function of an Opening that yields, or returns its
    source. `origins` are the pages of other origins that may open one. Other options as in AnswerOptions:

        @guarded_websocket()
        async def chat(opening):
            async for token in generate(opening.body["text"]):
                yield token

        Starlette(routes=[WebSocketRoute("/chat", chat)])
    """
    options = AnswerOptions.of(None, named)
    return lambda function: endpoint_of(SocketEndpoint(function, options, origins))


class StreamGuard(BaseGuard):
    """The application's object, for Starlette: `authorize(request, action)` is given a Request."""

    def request_of(self, scope: Any, receive: Any) -> Request:
        return Request(scope, receive)

    @overload
    def stream(self, endpoint: Streaming, /) -> Wrapped: ...
    @overload
    def stream(self, /, **options: Unpack[StreamNames]) -> Callable[[Streaming], Wrapped]: ...
    def stream(self, endpoint: Streaming | None = None, /, **named: Unpack[StreamNames]) -> Any:
        """Guard an endpoint as `guarded` does, into the log. Options as in AnswerOptions and StreamOptions:

            @guard.stream
            @guard.stream(on_disconnect=Detach(grace=60), name=lambda request: request.path_params["chat"])

        An endpoint that returns its source is called only for a request that starts a stream.
        """
        def wrap(endpoint: Streaming, both: Any) -> Wrapped:
            return self._wrap(endpoint, _Logging(self, both))

        return logged_endpoint(self, endpoint, named, wrap)

    def websocket(
        self, *, origins: Collection[str] = (), **named: Unpack[StreamNames]
    ) -> Callable[[OnSocket], SocketRoute]:
        """Guard an endpoint as `guarded_websocket` does, into the log; `authorize` is given the WebSocket."""
        stream, options = StreamOptions.split(named)
        return lambda function: endpoint_of(SocketEndpoint(function, options, origins, self, stream))

    def _wrap(self, endpoint: Streaming, guarding: Guarding) -> Wrapped:
        return wrap_endpoint(endpoint, guarding)

    def response(
        self,
        request: Request,
        source: Producer,
        status_code: int = 200,
        headers: Mapping[str, str] | None = None,
        background: BackgroundTask | None = None,
        **named: Unpack[StreamNames],
    ) -> ResumableResponse:
        """The answer of an endpoint that was called already: `source` is opened only if the request starts a stream."""
        return ResumableResponse(self, request, source, status_code, headers, background, **named)

    def reconnect(self, request: Request, name: str, **named: Unpack[Options]) -> ReconnectResponse:
        """The answer to a page that was loaded again and asks for its chat by name: the newest stream of that name,
        from its start and then live; 204 where it has ended, or there is none. Options are how it is served there:

            @app.get("/api/chat/{chat}/stream")
            async def again(request: Request, chat: str):
                return guard.reconnect(request, chat)

        Raises TypeError and ValueError for a name that is none.
        """
        return ReconnectResponse(self, request, name, **named)

    def install(
        self,
        app: Starlette,
        path: str = "/streams",
        *,
        by_id: bool = True,
        close_log: bool = True,
        ready: str | None = None,
        **named: Unpack[Options],
    ) -> None:
        """Put the endpoints at `path`, before every other route, and the seal outermost: call it after every
        `add_middleware`. `by_id`: whether `<path>/<sid>` is served. At the application's shutdown the streams that are
        generated here are let go of, and the log is closed, unless `close_log` is False: for a log that is used
        elsewhere too, or an application that is started again in one process, as tests do. `ready` is a path that
        answers 200, and 503 as soon as the process is told to go. Options are how streams are served there.

        Raises RuntimeError for a guard that is installed already, and for a path that is another guard's; TypeError
        and ValueError for arguments that are not an application, or a path.
        """
        given: object = app
        if not isinstance(given, Starlette):
            what = "a Starlette or FastAPI application: its seal stands round all of it, so a router will not do"
            raise TypeError(f'guard.install(app, "/streams"): app is {what}; not {shown(given)}')
        require_path(path)
        if self.path is not None:
            raise RuntimeError(f"this guard is installed already, at {self.path}")
        for route in app.router.routes:
            if isinstance(route, Route) and isinstance(route.endpoint, Endpoints) and route.path == path:
                raise RuntimeError(f"another guard is at {path} already; give this one a path of its own")
        endpoints = Endpoints(self, path, by_id=by_id, request_of=self.request_of, **named)
        for address in (f"{path}/{{tail:path}}", path):
            app.router.routes.insert(0, Route(address, endpoints, include_in_schema=False))
        if ready is not None:
            app.router.routes.insert(0, Route(ready, Readiness(self), include_in_schema=False))
        app.add_middleware(RootedSeal, guard=self, close_log=close_log)
