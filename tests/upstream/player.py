"""A server that answers every request with the same events, for the sources of every API, over real sockets.

    player = Player()
    with serving(player.app) as server: ...

What it sends is set before it is asked: `events`, each the text of one, under a `status`; then it ends, or hangs.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from tests.adapters.servers import Gate

__all__ = ["CHAT", "Player", "chat", "named", "unnamed"]


class Player:
    """See the module. `asked` is the last request's path, headers and JSON; `closed` opens when a server that `hangs`
    was told to stop."""

    def __init__(self) -> None:
        self.app = Starlette(routes=[Route("/{path:path}", self._answer, methods=["POST"])])
        self.plays()

    def plays(self, *events: str, hangs: bool = False, status: int = 200) -> None:
        self.events = events
        self.hangs = hangs
        self.status = status
        self.asked: tuple[str, dict[str, str], Any] = ("", {}, None)
        self.reached = Gate()
        self.closed = Gate()

    async def _answer(self, request: Request) -> StreamingResponse:
        self.asked = (request.url.path, dict(request.headers), await request.json())
        return StreamingResponse(self._played(), self.status, media_type="text/event-stream")

    async def _played(self) -> AsyncIterator[str]:
        for event in self.events:
            yield event
        if self.hangs:
            self.reached.open()
            try:
                await Gate()
            finally:
                self.closed.open()


def unnamed(*payloads: Any) -> Sequence[str]:
    """Events of these payloads; text is data as it is."""
    return [f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n" for data in payloads]


def named(*payloads: dict[str, Any]) -> Sequence[str]:
    """Events named as their payload's type."""
    return [f"event: {data['type']}\ndata: {json.dumps(data)}\n\n" for data in payloads]


def chat(content: str | None = None, reason: str | None = None, index: int = 0, **delta: Any) -> dict[str, Any]:
    """A chat chunk of one choice."""
    fields = {**({} if content is None else {"content": content}), **delta}
    choice = {"index": index, "delta": fields, "finish_reason": reason}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


CHAT = unnamed(chat("He", role="assistant"), chat("llo"), chat(reason="stop"), "[DONE]")
