"""WebSockets of aiohttp, for `websocket.py`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import WSMsgType, web

from streamguard.adapters.aiohttp_bridge import scope_of
from streamguard.adapters.websocket import SUBPROTOCOL, SocketEndpoint

__all__ = ["AiohttpSocket", "handler_of"]


class AiohttpSocket:
    """A WebSocket that was prepared."""

    def __init__(self, websocket: web.WebSocketResponse, transport: Any) -> None:
        self._websocket = websocket
        self.transport = transport

    async def receive(self) -> str | None:
        if self._websocket.closed:
            return None
        message = await self._websocket.receive()
        if message.type is WSMsgType.TEXT:
            return str(message.data)
        return "" if message.type is WSMsgType.BINARY else None

    async def send(self, message: str | bytes) -> None:
        if self._websocket.closed:
            raise BrokenPipeError("the reader has left")
        await (self._websocket.send_str(message) if isinstance(message, str) else self._websocket.send_bytes(message))

    async def close(self, code: int, reason: str) -> None:
        await self._websocket.close(code=code, message=reason.encode())


def handler_of(
    endpoint: SocketEndpoint, more: Callable[[web.Request], Mapping[str, Any]]
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """What a route is given; `more` is what a request's scope holds beside its own facts."""

    async def serve(request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        why = endpoint.refused(headers, deflates=False)
        if why is not None:
            raise web.HTTPForbidden(text=why)
        # Nothing is compressed: who reads text of which others choose a part must not learn the rest by its length.
        websocket = web.WebSocketResponse(protocols=[SUBPROTOCOL], compress=False, timeout=1.0)
        await websocket.prepare(request)
        socket = AiohttpSocket(websocket, request.transport)
        await endpoint.serve(socket, request, scope_of(request, more(request)))
        return websocket

    return serve
