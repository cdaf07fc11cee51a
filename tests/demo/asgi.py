"""One request to an ASGI application, without a server."""

from __future__ import annotations

from typing import Any

import anyio

__all__ = ["sent"]


async def sent(app: Any) -> list[Any]:
    """All that `app` sends to a reader that stays."""
    messages: list[Any] = []
    asked = False

    async def receive() -> Any:
        nonlocal asked
        if asked:
            await anyio.sleep_forever()
        asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        messages.append(message)

    scope = {"type": "http", "method": "GET", "http_version": "1.1", "headers": [], "query_string": b"", "path": "/"}
    await app(scope, receive, send)
    return messages
