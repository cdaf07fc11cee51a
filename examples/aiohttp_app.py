"""aiohttp: a guarded handler, and a chat whose answers outlive their connections: `python aiohttp_app.py`.

    curl -N --json '{"text": "Tell me a story"}' localhost:8000/chat
    curl -N --json '{"text": "Tell me a story"}' localhost:8000/chats/seven
    curl -N 'localhost:8000/streams?name=ann:seven' -H 'x-user: ann'        # a reloaded page, from the start
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web

from streamguard import Detach, SourceFailed
from streamguard.adapters.aiohttp import StreamGuard, guarded
from streamguard.log.memory import MemoryLog


async def generate(text: str) -> AsyncIterator[str]:
    for word in text.split():
        await asyncio.sleep(0)  # the next token is computed
        if word == "break":
            raise SourceFailed("model_broke", "the model broke", retryable=True)
        yield word + " "


def who(request: web.Request, action: str) -> str | None:
    return request.headers.get("x-user", "ann")  # an application's session, or token; None is no


guard = StreamGuard(MemoryLog(), authorize=who, on_disconnect=Detach(grace=60))


@guarded
async def chat(request: web.Request) -> AsyncIterator[str]:
    return generate((await request.json())["text"])


@guard.stream(name=lambda request: f"ann:{request.match_info['chat']}")
async def lasting(request: web.Request) -> AsyncIterator[str]:
    return generate((await request.json())["text"])


app = web.Application()
guard.install(app, "/streams", ready="/ready")
app.add_routes([web.post("/chat", chat), web.post("/chats/{chat}", lasting)])

if __name__ == "__main__":
    web.run_app(app, host="127.0.0.1", port=8000)
