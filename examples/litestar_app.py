"""Guarded answers in Litestar, through plain ASGI: `uvicorn litestar_app:app`.

    curl -N --json '{"text": "Tell me a story"}' localhost:8000/chat
    curl -N -H 'x-user: ann' --json '{"text": "Tell me a long story"}' localhost:8000/lasting

A handler may return an ASGI application, where its annotation is ASGIApp: a GuardedAnswer is one, and a LoggedAnswer,
whose stream can be resumed at `/streams`. RootedSeal stands outside of all of Litestar.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

from litestar import Litestar, Request, asgi, post
from litestar.params import Body
from litestar.types import ASGIApp, Receive, Scope, Send

from streamguard.adapters.asgi import GuardedAnswer
from streamguard.adapters.endpoints import Endpoints, RootedSeal
from streamguard.adapters.logged import LoggedAnswer
from streamguard.adapters.starlette import StreamGuard
from streamguard.log.memory import MemoryLog


@dataclass
class Prompt:
    text: str


def who(request: Any, action: str) -> str | None:
    return Request(request).headers.get("x-user")  # an application's session, or token; None is no


guard = StreamGuard(MemoryLog(), authorize=who)
endpoints = Endpoints(guard, "/streams")


async def generate(text: str) -> AsyncIterator[str]:
    for word in text.split():
        await asyncio.sleep(0)  # the next token is computed
        yield word + " "


@post("/chat")
async def chat(data: Annotated[Prompt, Body()]) -> ASGIApp:
    return GuardedAnswer(generate(data.text))


@post("/lasting")
async def lasting(data: Annotated[Prompt, Body()], request: Request[Any, Any, Any]) -> ASGIApp:
    return LoggedAnswer(guard, generate(data.text), body=await request.body())


@asgi("/streams", is_mount=True, copy_scope=False)
async def streams(scope: Scope, receive: Receive, send: Send) -> None:
    await endpoints(scope, receive, send)


# Litestar's own logging would take the lines of every logger in the process.
app = RootedSeal(Litestar([chat, lasting, streams], logging_config=None), guard)
