"""A guarded answer without a framework: `uvicorn asgi_app:app`.

    curl -N localhost:8000/Tell/me/a/story

One GuardedAnswer serves one request; it is an ASGI application itself. Its frames travel as one JSON object
a line here (`wire="ndjson"`), with the same checks as in server-sent events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import unquote

from streamguard.adapters.asgi import AnswerOptions, GuardedAnswer
from streamguard.adapters.seal import Receive, Scope, Send

OPTIONS = AnswerOptions(wire="ndjson", http10="buffer")


async def generate(prompt: str) -> AsyncIterator[str]:
    for word in prompt.split("/"):
        await asyncio.sleep(0)  # the next token is computed
        yield unquote(word) + " "


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        return
    await GuardedAnswer(generate(scope["path"].strip("/")), options=OPTIONS)(scope, receive, send)
