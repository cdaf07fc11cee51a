"""Time to first token over loopback: a guarded endpoint against an unguarded one that flushes every token.

Both are Starlette endpoints on uvicorn over the same source, which yields its first token at once. A request
goes out on a connection that is open already; the clock stops when the first token's bytes are there. One
measurement is the median of many requests. The servers are processes of their own, so that the client's
wake-ups do not wait for the interpreter that serves.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

from streamguard.adapters.starlette import SealMiddleware, guarded
from tests.adapters.servers import Connection
from tests.modules import ROOT
from tests.proofs.measure import ratio
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["PARSERS", "time_to_first_token"]

REQUESTS: Final = 60  # of one measurement
PAIRS: Final = 7
MOST: Final = 1.0  # milliseconds above the unguarded one
FIRST: Final = "first-token"
PARSERS: Final = ("h11", "httptools")


async def _tokens() -> AsyncIterator[str]:
    yield FIRST
    for _ in range(3):
        await asyncio.sleep(0.001)
        yield " more"


async def _unguarded(request: Any) -> StreamingResponse:
    async def body() -> AsyncIterator[str]:
        async for token in _tokens():
            yield f"data: {token}\n\n"

    return StreamingResponse(body(), media_type="text/event-stream")


@guarded
async def _guarded(request: Any) -> AsyncIterator[str]:
    async for token in _tokens():
        yield token


unguarded = Starlette(routes=[Route("/", _unguarded)])
sealed = Starlette(routes=[Route("/", _guarded)])
sealed.add_middleware(SealMiddleware)


@contextmanager
def _served(app: str, http: str) -> Iterator[int]:
    """uvicorn with `app` of this module, as a process; its port."""
    command = [sys.executable, "-m", "uvicorn", f"{__name__}:{app}", "--port", "0", "--http", http, "--no-access-log"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = next(filter(None, (re.search(r"running on http://[\d.]+:(\d+)", line) for line in process.stderr)))
        yield int(found[1])
    finally:
        process.terminate()
        process.communicate(timeout=10)


def _milliseconds(port: int) -> Callable[[], float]:
    def request() -> float:
        with Connection(port) as connection:
            start = time.perf_counter()
            connection.get(accept="text/event-stream", connection="close")
            connection.until(FIRST.encode())
            seconds = time.perf_counter() - start
            connection.rest()
        return seconds * 1e3

    return lambda: statistics.median(request() for _ in range(REQUESTS))


@proof(claim="A guarded endpoint's first token comes at most 1 ms after that of an unguarded one.", minutes=2)
def time_to_first_token(run: Run) -> Result:
    rows = []
    shown = True
    for http in PARSERS:
        run.say(f"uvicorn with {http}")
        with _served("sealed", http) as ours, _served("unguarded", http) as theirs:
            found = ratio(_milliseconds(ours), _milliseconds(theirs), pairs=PAIRS, say=run.say)
        above = found.subject - found.reference
        shown = shown and above <= MOST
        rows.append((f"uvicorn, {http}", PAIRS * REQUESTS, found.subject, found.reference, above, MOST))
    columns = ("server", "requests each", "ms, guarded", "ms, unguarded", "ms above", "at most")
    return Result(shown, [Table(columns, rows)], ["Medians of medians."], ["uvicorn", "starlette", "h11", "httptools"])
