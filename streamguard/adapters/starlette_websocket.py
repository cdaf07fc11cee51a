"""WebSockets of Starlette and FastAPI, for `websocket.py`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.websockets import WebSocket

from streamguard.adapters.websocket import SUBPROTOCOL, SocketEndpoint

__all__ = ["StarletteSocket", "endpoint_of"]


class StarletteSocket:
    """A WebSocket that was accepted. The raw messages of ASGI: Starlette's own methods keep a state of theirs, by which
    a second close is an error."""

    def __init__(self, websocket: WebSocket) -> None:
        self._receive, self._send = websocket._receive, websocket._send
        server: Any = getattr(websocket._receive, "__self__", None)
        self.transport: Any = getattr(server, "transport", None)
        self._left = False

    async def receive(self) -> str | None:
        if not self._left:
            message = await self._receive()
            if message["type"] == "websocket.receive":
                return message.get("text") or ""
            self._left = True
        return None

    async def send(self, message: str | bytes) -> None:
        if self._left:
            raise BrokenPipeError("the reader has left")
        kind = "text" if isinstance(message, str) else "bytes"
        await self._send({"type": "websocket.send", kind: message})

    async def close(self, code: int, reason: str) -> None:
        if self._left:
            return
        try:
            await self._send({"type": "websocket.close", "code": code, "reason": reason})
        except (OSError, RuntimeError):  # it is closed, or just closing
            pass


def endpoint_of(endpoint: SocketEndpoint) -> Callable[[WebSocket], Awaitable[None]]:
    """What a route is given."""

    async def serve(websocket: WebSocket) -> None:
        headers = {name.lower(): value for name, value in websocket.headers.items()}
        headers["sec-websocket-protocol"] = ",".join(websocket.scope["subprotocols"])  # some take the header out
        await websocket.receive()  # the handshake
        if endpoint.refused(headers, deflates=_may_deflate(websocket)) is not None:
            await websocket._send({"type": "websocket.close", "code": 1008})  # before it was accepted: 403
            return
        await websocket._send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL, "headers": []})
        await endpoint.serve(StarletteSocket(websocket), websocket, websocket.scope)

    return serve


def _may_deflate(websocket: WebSocket) -> bool:
    """Whether messages may be compressed: by uvicorn if it is set to, since it does not always tell what was offered;
    elsewhere if that was."""
    config: Any = getattr(getattr(websocket._receive, "__self__", None), "config", None)
    setting = getattr(config, "ws_per_message_deflate", None)
    if setting is not None:
        return bool(setting)
    return "permessage-deflate" in websocket.headers.get("sec-websocket-extensions", "")
