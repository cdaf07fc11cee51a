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
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from types import CellType, FrameType
from typing import Any, Final

from streamguard.adapters.transport import keep_transport

__all__ = [
    "ASGIApp",
    "Message",
    "Receive",
    "Scope",
    "SealMiddleware",
    "Send",
    "UnsealedResponse",
    "mark_aborted",
    "require_seal",
]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_KEY: Final = "streamguard.seal"
_BASE: Final = "starlette.middleware.base"
_MAX_WRAPPED: Final = 200  # objects looked at; a dozen are usual


class UnsealedResponse(RuntimeError):
    """A BaseHTTPMiddleware outside of every seal would turn an aborted stream into a clean end."""

    def __init__(self) -> None:
        super().__init__(
            "a middleware of `@app.middleware('http')` or BaseHTTPMiddleware would end an aborted stream cleanly. "
            "Add the line `app.add_middleware(SealMiddleware)` (from streamguard.adapters.asgi) after every other "
            "add_middleware, so that it is outermost; in a mounted application, to the one that mounts it. "
            "Or pass unsealed='allow' and rely on the terminal frame alone."
        )


class _Seal:
    """The mark in the scope. `exposed`: a BaseHTTPMiddleware stands outside of this and every outer seal."""

    __slots__ = ("aborted", "exposed", "outer")

    def __init__(self, exposed: bool, outer: _Seal | None) -> None:
        self.exposed = exposed
        self.outer = outer
        self.aborted = False


class SealMiddleware:
    """Pure ASGI, one attribute look-up a message. Add it last, so that it is outermost."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        outer: _Seal | None = scope.get(_KEY)
        seal = _Seal(_base_middleware(receive, send) if outer is None else outer.exposed, outer)
        scope[_KEY] = seal
        if outer is None:
            keep_transport(scope, receive)

        async def sealed_send(message: Message) -> None:
            if seal.aborted and message["type"] == "http.response.body" and not message.get("more_body", False):
                return  # a layer between the stream and here tries to end it cleanly
            await send(message)

        await self.app(scope, receive, sealed_send)


def mark_aborted(scope: Scope) -> None:
    """Say that the response of this scope must not end cleanly."""
    seal: _Seal | None = scope.get(_KEY)
    while seal is not None:  # every one: a BaseHTTPMiddleware may stand between two
        seal.aborted = True
        seal = seal.outer


def require_seal(scope: Scope, receive: Receive, send: Send) -> None:
    """Raise UnsealedResponse where an abort could not reach the reader."""
    seal: _Seal | None = scope.get(_KEY)
    if _base_middleware(receive, send) if seal is None else seal.exposed:
        raise UnsealedResponse


def _base_middleware(receive: Receive, send: Send) -> bool:
    """Whether a BaseHTTPMiddleware stands between the server and the caller."""
    return _made_there(receive) or _made_there(send) or _on_the_stack()


def _made_there(start: object) -> bool:
    """Whether a function of that middleware is among what `start` wraps: closures, partials, bound methods."""
    seen: set[int] = set()
    waiting = [start]
    while waiting and len(seen) < _MAX_WRAPPED:
        found = waiting.pop()
        if id(found) in seen or isinstance(found, type):
            continue
        seen.add(id(found))
        if getattr(found, "__module__", None) == _BASE and callable(found):
            return True
        waiting += map(_contents, getattr(found, "__closure__", None) or ())
        waiting += [getattr(found, name, None) for name in ("func", "__self__", "send", "_send", "receive", "_receive")]
        waiting += getattr(found, "args", ()) if isinstance(found, functools.partial) else ()
        waiting += getattr(found, "keywords", {}).values() if isinstance(found, functools.partial) else ()
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
