"""An application whose sources are far quicker than its readers, and the books of what they were asked for.

    GET /direct, /buffered, /logged     `size` bytes of text (default: no end), at `rate` bytes a second at most
    GET /paced, /logged/paced           a stamp of this machine's monotonic clock, `rate` times a second
    GET /books                          bytes that all sources have made, and what ended how

The log is in memory; with STREAMGUARD_TEST_LOG it is that file. STREAMGUARD_TEST_KEPT is how many bytes of a stream it
keeps, STREAMGUARD_TEST_AHEAD how many its source may be ahead of its reader.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import anyio
import attrs
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from streamguard.adapters.starlette import SealMiddleware, StreamGuard, guarded
from streamguard.app import anyone_with_the_id
from streamguard.log.base import Retention, StreamLog
from streamguard.log.memory import MemoryLog
from streamguard.log.sqlite import SQLiteLog
from streamguard.observe.hooks import Outcome
from streamguard.runtime.buffer import Buffer
from streamguard.runtime.runs import Cancel
from streamguard.runtime.timing import Timing

__all__ = ["BUFFER", "PIECE", "app"]

PIECE: Final = 16 * 1024
BUFFER: Final = 1024 * 1024
_KEPT: Final = int(os.environ.get("STREAMGUARD_TEST_KEPT", str(16 * 1024 * 1024)))
_TEXT: Final = "x" * PIECE


@attrs.define
class Books:
    """`made`: bytes of all sources. `ended`: how many streams did, by their status."""

    made: int = 0
    ended: Counter[str] = attrs.field(factory=Counter)


books = Books()


def _log() -> StreamLog:
    path, retention = os.environ.get("STREAMGUARD_TEST_LOG"), Retention(max_bytes=_KEPT)
    return SQLiteLog(path, retention=retention) if path else MemoryLog(retention)


_ahead: Final = os.environ.get("STREAMGUARD_TEST_AHEAD")
guard = StreamGuard(_log(), authorize=anyone_with_the_id, max_ahead=int(_ahead) if _ahead else None)


def _ended(outcome: Outcome) -> None:
    books.ended[outcome.status] += 1


async def pieces(request: Request) -> AsyncIterator[str]:
    """Text at the rate that is asked for; time in which nobody asked for any is not made up for."""
    size = float(request.query_params.get("size", "inf"))
    step = PIECE / float(request.query_params["rate"])
    due = time.monotonic()
    made = 0
    while made < size:
        books.made += PIECE
        made += PIECE
        yield _TEXT
        due = max(due + step, time.monotonic() - step)
        await anyio.sleep(max(0.0, due - time.monotonic()))


async def stamps(request: Request) -> AsyncIterator[str]:
    step = 1 / float(request.query_params["rate"])
    while True:
        yield f"{time.monotonic():.6f} "
        await anyio.sleep(step)


async def account(request: Request) -> Response:
    return JSONResponse({"made": books.made, "ended": books.ended})


def _routes() -> list[Route]:
    # Where a server shows no transport, a reader that takes a little is not seen to take any, for a minute or two: with
    # the default it would be dropped.
    options: dict[str, Any] = {"timing": Timing(write=300.0, linger=0.05), "on_end": _ended}
    wraps: dict[str, Callable[[Any], Any]] = {
        "/direct": guarded(**options),
        "/buffered": guarded(buffer=Buffer(max_bytes=BUFFER), **options),
        "/logged": guard.stream(on_disconnect=Cancel(), **options),  # a stream that nobody reads is no load
    }
    found = [Route(path, wrap(pieces)) for path, wrap in wraps.items()]
    found += [Route("/paced", wraps["/direct"](stamps)), Route("/logged/paced", wraps["/logged"](stamps))]
    return [*found, Route("/books", account)]


app = Starlette(routes=_routes())
guard.install(app, "/streams")
app.add_middleware(SealMiddleware)
