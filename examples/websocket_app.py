"""A guarded stream over a WebSocket, on FastAPI: `uvicorn websocket_app:app`, with the package `wsproto` installed.

    python websocket_reader.py ws://localhost:8000/chat Tell me a story
    python websocket_reader.py ws://localhost:8000/chats/seven Tell me a story      # one that outlives its connection
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fastapi import FastAPI
from starlette.requests import HTTPConnection

from streamguard import SourceFailed
from streamguard.adapters.fastapi import Opening, StreamGuard, guarded_websocket
from streamguard.log.memory import MemoryLog


async def generate(text: str) -> AsyncIterator[str]:
    for word in text.split():
        await asyncio.sleep(0)  # the next token is computed
        if word == "break":
            raise SourceFailed("model_broke", "the model broke", retryable=True)
        yield word + " "


def who(connection: HTTPConnection, action: str) -> str | None:
    return connection.headers.get("x-user", "ann")  # an application's session, or token; None is no


app = FastAPI()
guard = StreamGuard(MemoryLog(), authorize=who)


@app.websocket("/chat")
@guarded_websocket()
async def chat(opening: Opening) -> AsyncIterator[str]:
    return generate(opening.body["text"])


@app.websocket("/chats/{chat}")
@guard.websocket(name=lambda websocket: websocket.path_params["chat"])
async def lasting(opening: Opening) -> AsyncIterator[str]:
    return generate(opening.body["text"])


guard.install(app, "/streams")
