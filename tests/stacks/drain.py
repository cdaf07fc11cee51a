"""The application that servers are told to stop under: streams that outlast it, and one that looks what it is like.

    GET /ready     readiness
    GET /looking   a stream that goes on until its process drains; then it asks, from within, for /ready and for a new
                   stream, and ends with what it was answered
    GET /silent    one that says a word and then nothing, and so has no end
    GET /logged    the same into a log

The grace is STREAMGUARD_TEST_GRACE seconds.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from streamguard.adapters.starlette import StreamGuard, guarded
from streamguard.log.memory import MemoryLog

__all__ = ["app", "asked"]

guard = StreamGuard(
    MemoryLog(), authorize=lambda request, action: "ann", grace=float(os.environ.get("STREAMGUARD_TEST_GRACE", "0.3"))
)


async def asked(application: Any, path: str) -> str:
    """The answer to a GET, in one line: its status, and what it says of retries. No server is asked."""
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b"", "http_version": "1.1"}
    await application(scope, receive, send)
    told = [f" {name.decode()}: {value.decode()}" for name, value in sent[0]["headers"] if b"retry" in name]
    return f"{sent[0]['status']}{''.join(sorted(told))}"


@guarded
async def looking(request: Request) -> AsyncIterator[str]:
    yield f"{await asked(app, '/ready')}; "
    while guard.ready:  # noqa: ASYNC110  # the signal wakes nobody here
        await anyio.sleep(0.005)
    for path in ("/ready", "/silent", "/logged"):
        yield f"{path} {await asked(app, path)}; "


@guarded
async def silent(request: Request) -> AsyncIterator[str]:
    yield "word "
    await anyio.sleep_forever()


@guard.stream
async def logged(request: Request) -> AsyncIterator[str]:
    yield "word "
    await anyio.sleep_forever()


app = Starlette(routes=[Route("/looking", looking), Route("/silent", silent), Route("/logged", logged)])
guard.install(app, "/streams", ready="/ready")
