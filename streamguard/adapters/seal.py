"""The outermost layer of an ASGI application: no clean end passes for a stream that did not complete.

A response is aborted by returning without its last message. Every server honours that, but Starlette's
BaseHTTPMiddleware (`@app.middleware("http")`) does not pass it on: it ends the body cleanly for the
application. So a layer outside of it must drop that clean end. The stream marks itself in the scope;
the seal looks at the mark.

Where a BaseHTTPMiddleware stands outside every seal, an abort could not arrive, and streams refuse to
start there (`require_seal`). The outermost seal, or a stream that has none, looks for one in two places:
in what it was called with, since that middleware hands on a `receive` and a `send` of its own, perhaps
wrapped by layers in between; and on the call stack, where its `coro` is the outermost frame of the task in
which it runs the application.

The seal sees every answer, so it also tells of an endpoint that was meant to be guarded and is not: `@guarded`
*above* a route's decorator returns a guarded function to nobody, while the route has the function as it was.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from types import CellType, FrameType, FunctionType, MethodType
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

from streamguard.adapters.shutdown import DRAIN, forget, learn
from streamguard.adapters.transport import keep_transport
from streamguard.runtime.drain import GRACE, Draining

__all__ = [
    "ASGIApp",
    "Message",
    "Receive",
    "Scope",
    "SealMiddleware",
    "Send",
    "UnsealedResponse",
    "ended_by_base",
    "is_aborted",
    "is_exposed",
    "is_sealed",
    "mark_aborted",
    "mark_guarded",
    "part_send",
    "remember_guarded",
    "remember_unguarded",
    "require_seal",
    "tell_unguarded",
]

logger = logging.getLogger("streamguard")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_KEY: Final = "streamguard.seal"
_BASE: Final = "starlette.middleware.base"
_WRAPPED: Final = ("func", "__self__", "send", "_send", "receive", "_receive")  # where an object may keep another
_MAX_WRAPPED: Final = 200  # objects looked at; a dozen are usual
_LAYERS: Final = ("starlette._exception_handler", "starlette.middleware.errors")
_STOPPED: Final = ("Task cancelled, timeout graceful shutdown exceeded",)  # what uvicorn cancels requests with
_START: Final = frozenset({None, "type", "http.response.start", True})

# Functions of which `guarded` made guarded ones, and which no route should call.
_unguarded: Final[WeakKeyDictionary[Any, str]] = WeakKeyDictionary()  # each with the decorator that did
# Those that it made, and that were not told of yet.
_made: Final[WeakSet[Any]] = WeakSet()


_REMEDY: Final = (
    "Add the line `app.add_middleware(SealMiddleware)` (from streamguard.adapters.asgi) after every other "
    "add_middleware, so that it is outermost; in a mounted application, to the one that mounts it. With a StreamGuard, "
    "call `guard.install(app, ...)` after every add_middleware: it adds the seal too."
)


class UnsealedResponse(RuntimeError):
    """A BaseHTTPMiddleware outside of every seal would turn an aborted stream into a clean end. `remedy` is what to do,
    in a sentence or two."""

    def __init__(self, remedy: str | None = None) -> None:
        super().__init__(
            "a middleware of `@app.middleware('http')` or BaseHTTPMiddleware would end an aborted stream cleanly. "
            f"{remedy or _REMEDY} Or pass unsealed='allow' and rely on the terminal frame alone."
        )


class _Seal:
    """The mark in the scope. `exposed`: a BaseHTTPMiddleware stands outside of this and every outer seal.

    `looks`: whether the next message is to be looked at, as the first one is, and each one after an abort.
    """

    __slots__ = ("aborted", "exposed", "guarded", "looks", "outer", "remedy")

    def __init__(self, exposed: bool, outer: _Seal | None, remedy: str | None = None) -> None:
        self.exposed = exposed
        self.remedy = remedy
        self.outer = outer
        self.aborted = False
        self.guarded = False
        self.looks = True

    def holds(self, message: Message, scope: Scope) -> bool:
        """Whether `message` must not pass: a layer between the stream and here tries to end it cleanly."""
        if message["type"] == "http.response.start":
            self.looks = self.aborted
            if self.outer is None and not self.guarded:
                tell_unguarded(scope.get("endpoint"))
                _tell_streaming_class(scope)
        return self.aborted and message["type"] == "http.response.body" and not message.get("more_body", False)


class SealMiddleware:
    """Pure ASGI, one attribute look-up a message. Add it last, so that it is outermost.

    It also learns when the process is told to go: streams then have `grace` seconds to end by themselves. `on_sigterm`
    is whether that is learned from SIGTERM.
    """

    remedy: str | None = None  # of who is a seal under another name: what to do where it is not outermost

    def __init__(self, app: ASGIApp, *, grace: float = GRACE, on_sigterm: bool = True) -> None:
        self.app = app
        self.draining = Draining(grace=grace, on_sigterm=on_sigterm)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.draining.on_sigterm:
            learn(self.draining.draining)  # at the lifespan's start, else at the first request
        if scope["type"] == "websocket":
            scope.setdefault(DRAIN, self.draining.draining)
        if scope["type"] != "http":
            await self.app(scope, self._of_a_life(receive) if scope["type"] == "lifespan" else receive, send)
            return
        scope.setdefault(DRAIN, self.draining.draining)
        outer: _Seal | None = scope.get(_KEY)
        seal = _Seal(_base_middleware(receive, send) if outer is None else outer.exposed, outer, self.remedy)
        scope[_KEY] = seal
        if outer is None:
            keep_transport(scope, receive, send)

        def sealed_send(message: Message) -> Awaitable[None]:  # no coroutine: it would be one more at every token
            return _dropped() if seal.looks and seal.holds(message, scope) else send(message)

        try:
            await self.app(scope, receive, sealed_send)
        except asyncio.CancelledError as exc:
            # It came from uvicorn itself, which has nothing more to do with it than to log a traceback of it. Any
            # other goes on: a layer outside, or its time limit, may wait for it.
            if outer is not None or not seal.guarded or exc.args != _STOPPED:
                raise


    def _of_a_life(self, receive: Receive) -> Receive:
        """`receive` of a lifespan: what begins takes streams, though the application was told to go before and is
        started again in its process; what is over learns nothing more."""
        drain = self.draining.draining

        async def received() -> Message:
            message = await receive()
            if message["type"] == "lifespan.startup":
                drain.reset()
            if message["type"] == "lifespan.shutdown":
                forget(drain)
            return message

        return received


def part_send(send: Send) -> Send:
    """`send` for the parts of a body, once the answer has begun: without the layers that look at nothing but its start.

    Starlette has three of them round every endpoint, to learn whether an answer has begun, and each is one more
    coroutine a token. From the first layer that is anything else, an application's own middleware say, all is as it is.
    """
    inner: Send | None = send
    while inner is not None:
        send, inner = inner, _inside(inner)
    return send


def _inside(send: Any) -> Send | None:
    """What `send` hands every part of a body on to, as it is; None where it may do anything else."""
    if not isinstance(send, FunctionType) or "send" not in send.__code__.co_freevars:
        return None
    code = send.__code__
    # A seal holds back ends only. A function of Starlette's that has no other word than those of the start looks at
    # nothing else: another version's may.
    looks_past = send.__module__ in _LAYERS and not code.co_names and _START.issuperset(code.co_consts)
    if not looks_past and send.__module__ != __name__:
        return None
    inner: Send = dict(zip(code.co_freevars, send.__closure__ or (), strict=True))["send"].cell_contents
    return inner


async def _dropped() -> None:
    """What is awaited for a message that did not pass."""


def mark_aborted(scope: Scope) -> None:
    """Say that the response of this scope must not end cleanly."""
    seal: _Seal | None = scope.get(_KEY)
    while seal is not None:  # every one: a BaseHTTPMiddleware may stand between two
        seal.aborted = seal.looks = True
        seal = seal.outer


def is_aborted(scope: Scope) -> bool:
    """Whether a seal lets no clean end of the response of this scope pass."""
    seal: _Seal | None = scope.get(_KEY)
    return seal is not None and seal.aborted


def mark_guarded(scope: Scope) -> None:
    """Say that the response of this scope is a guarded answer."""
    seal: _Seal | None = scope.get(_KEY)
    while seal is not None:
        seal.guarded = True
        seal = seal.outer


def remember_unguarded(endpoint: Any, decorator: str = "@guarded") -> None:
    """Remember that `decorator` made a guarded endpoint of `endpoint`, and of what that wraps."""
    while endpoint is not None:
        function = getattr(endpoint, "__func__", endpoint)  # a method is another object each time
        try:
            _unguarded[function] = decorator
        except TypeError:
            pass  # a few callables can be neither compared nor referred to: they are not told of
        endpoint = getattr(function, "__wrapped__", None)


def remember_guarded(endpoint: Any) -> None:
    """Remember that `endpoint` is a guarded one."""
    _made.add(endpoint)


def _tell_streaming_class(scope: Scope) -> None:
    """One line in the log where FastAPI takes a guarded endpoint for a generator of events, because of its route's
    class: it does not await what the endpoint returns, and fails in words about coroutines."""
    endpoint: Any = scope.get("endpoint")
    kind: Any = getattr(scope.get("route"), "response_class", None)
    if getattr(kind, "__module__", None) == "fastapi.sse" and endpoint in _made:
        _made.discard(endpoint)  # once
        name = kind.__name__
        logger.error("endpoint %r: remove `response_class=%s`: @guarded writes the events", endpoint.__name__, name)


def tell_unguarded(endpoint: Any) -> None:
    """One line in the log where a route's endpoint is a function of which a guarded one was made."""
    function = getattr(endpoint, "__func__", endpoint)
    try:
        decorator = _unguarded.pop(function, None)  # once
    except TypeError:
        return
    if decorator is not None:
        logger.error(
            "the endpoint %r was answered unguarded, though there is a guarded one of it: its route was registered "
            "before; put %s below the route's decorator, directly above the function",
            getattr(function, "__qualname__", function),
            decorator,
        )


def is_exposed(scope: Scope) -> bool:
    """Whether a BaseHTTPMiddleware stands outside of every seal that the request came through."""
    seal: _Seal | None = scope.get(_KEY)
    return seal is not None and seal.exposed


def ended_by_base() -> bool:
    """Whether a BaseHTTPMiddleware is among the callers: it ends a body cleanly, and raises what the application did
    only behind that."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == _BASE:
            return True
        frame = frame.f_back
    return False


def require_seal(scope: Scope, receive: Receive, send: Send) -> None:
    """Raise UnsealedResponse where an abort could not reach the reader."""
    if not is_sealed(scope, receive, send):
        seal: _Seal | None = scope.get(_KEY)
        while seal is not None and seal.remedy is None:
            seal = seal.outer
        raise UnsealedResponse(None if seal is None else seal.remedy)


def is_sealed(scope: Scope, receive: Receive, send: Send) -> bool:
    """Whether no BaseHTTPMiddleware stands where it would end an aborted body cleanly."""
    seal: _Seal | None = scope.get(_KEY)
    return not (_base_middleware(receive, send) if seal is None else seal.exposed)


def _base_middleware(receive: Receive, send: Send) -> bool:
    """Whether a BaseHTTPMiddleware stands between the server and the caller."""
    return _made_there(receive) or _made_there(send) or _on_the_stack()


def _made_there(start: object) -> bool:
    """Whether a function of that middleware is among what `start` wraps: closures, partials, bound methods."""
    seen: set[int] = set()
    waiting = [start]
    while waiting and len(seen) < _MAX_WRAPPED:
        found: Any = waiting.pop()
        if found is None or id(found) in seen or isinstance(found, type):
            continue
        seen.add(id(found))
        if getattr(found, "__module__", None) == _BASE and callable(found):
            return True
        if isinstance(found, FunctionType):
            waiting += map(_contents, found.__closure__ or ())
        elif isinstance(found, MethodType):
            waiting += (found.__func__, found.__self__)
        elif isinstance(found, functools.partial):
            waiting += (found.func, *found.args, *found.keywords.values())
        else:
            waiting += [getattr(found, name, None) for name in _WRAPPED]
    return False


def _contents(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that is not set yet
        return None


def _on_the_stack() -> bool:
    frame: FrameType | None = sys._getframe(3)
    while frame is not None:
        if frame.f_code.co_name == "coro" and frame.f_globals.get("__name__") == _BASE:
            return True
        frame = frame.f_back
    return False
