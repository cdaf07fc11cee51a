"""A chat whose answers outlive their connections: `uvicorn resumable_app:app`.

    curl -N -H 'x-user: ann' --json '{"text": "Tell me a long story"}' localhost:8000/chats/seven
    curl -N -H 'x-user: ann' 'localhost:8000/streams?name=seven'           # a reloaded page, from the start
    curl    -H 'x-user: ann' 'localhost:8000/streams/status?name=seven'
    curl -X DELETE -H 'x-user: ann' 'localhost:8000/streams?name=seven'    # stop it

The log is in memory: one process, and streams that end with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request
from pydantic import BaseModel

from streamguard import Detach
from streamguard.adapters.fastapi import StreamGuard
from streamguard.log.memory import MemoryLog


class Prompt(BaseModel):
    text: str
    pace: float = 0.05  # seconds a word


def who(request: Request, action: str) -> str | None:
    return request.headers.get("x-user")  # an application's session, or token; None is no


app = FastAPI()
guard = StreamGuard(MemoryLog(), authorize=who, on_disconnect=Detach(grace=60))


@app.post("/chats/{chat}")
@guard.stream(name=lambda request: request.path_params["chat"])
async def chat(prompt: Prompt) -> AsyncIterator[str]:
    for word in prompt.text.split():
        await asyncio.sleep(prompt.pace)  # the next token is computed
        yield word + " "


guard.install(app, "/streams")
