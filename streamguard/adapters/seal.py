"""The outermost layer of an ASGI application: no clean end passes for a stream that did not complete.

A response is aborted by returning without its last message. Every server honours that, but Starlette's
BaseHTTPMiddleware (`@app.middleware("http")`) does not pass it on: it ends the body cleanly for the
application. So a layer outside of it must drop that clean end. The stream marks itself in the scope;
the seal looks at the mark.

Where a BaseHTTPMiddleware stands outside every seal, an abort could not arrive, and streams refuse to
start there (`require_seal`). It is found on the call stack: that middleware runs the application in a
task of its own whose outermost frame is its `coro`, so walking from a layer outward ends either at a
seal or at that frame.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

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
        seal = _Seal(_exposed(scope), scope.get(_KEY))
        scope[_KEY] = seal

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


def require_seal(scope: Scope) -> None:
    """Raise UnsealedResponse where an abort could not reach the reader."""
    if _exposed(scope):
        raise UnsealedResponse


def _exposed(scope: Scope) -> bool:
    """Whether a BaseHTTPMiddleware stands outward of the calling layer with no seal outside of it."""
    outer: _Seal | None = scope.get(_KEY)
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code is _SEAL_CODE:
            break  # that seal has looked further out already
        if code.co_name == "coro" and frame.f_globals.get("__name__") == "starlette.middleware.base":
            return outer is None or outer.exposed
        frame = frame.f_back  # type: ignore[assignment]
    return outer is not None and outer.exposed


_SEAL_CODE: Final = SealMiddleware.__call__.__code__
