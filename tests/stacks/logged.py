"""A stream in a log, far larger than what lies between a server and a reader that takes nothing, and the books of it.

    GET /large     so many pieces of 64 KiB
    GET /flow      for each reader that there is: how far it was sent to, and its credit, in bytes
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from streamguard.adapters.starlette import StreamGuard
from streamguard.app import anyone_with_the_id
from streamguard.log.memory import MemoryLog
from streamguard.runtime.timing import Timing

__all__ = ["PIECE", "app"]

PIECE = 64 * 1024
COUNT = 400

guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id)


@guard.stream(timing=Timing(heartbeat=0.4, write=60.0, linger=0.05))
async def large(request: Request) -> AsyncIterator[str]:
    for _ in range(COUNT):
        yield "x" * PIECE


async def flow(request: Request) -> Response:
    return JSONResponse(
        [
            {"sent": reader.position().offset, "limit": reader.flow and reader.flow.credit.limit.bytes}
            for reader in guard.readers
        ]
    )


app = Starlette(routes=[Route("/large", large), Route("/flow", flow)])
guard.install(app, "/streams")
