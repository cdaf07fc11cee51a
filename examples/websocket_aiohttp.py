"""The same on aiohttp: `python websocket_aiohttp.py`.

    python websocket_reader.py ws://localhost:8000/chat Tell me a story
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web

from streamguard.adapters.aiohttp import Opening, guarded_websocket


@guarded_websocket(origins=["https://shop.example"])
async def chat(opening: Opening) -> AsyncIterator[str]:
    for word in opening.body["text"].split():
        await asyncio.sleep(0)  # the next token is computed
        yield word + " "


app = web.Application()
app.add_routes([web.get("/chat", chat)])

if __name__ == "__main__":
    web.run_app(app, host="127.0.0.1", port=8000)
