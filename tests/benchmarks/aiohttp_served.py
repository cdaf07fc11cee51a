"""What a stream costs an aiohttp server: a guarded handler, beside one that writes to a StreamResponse.

As `served`, whose source, readers and counts these are: the bare handler sends as many bytes a token as the guarded
one, one `write` a token, and does nothing else. Each is served by a process of its own, which is this module as a
program: `python -m tests.benchmarks.aiohttp_served WAY LOOP`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Any, Final

from aiohttp import web

from streamguard.adapters.aiohttp import guarded
from tests.benchmarks.served import FRAME, PAIRS, READERS, Served, listening, numbers, source_of
from tests.proofs.measure import ratio
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["LOOPS", "MOST", "WAYS", "aiohttp_per_token", "aiohttp_served"]

LOOPS: Final = ("asyncio", "uvloop")
MOST: Final = 1.5
_COLUMNS: Final = ("aiohttp on", "µs a token", "µs of the bare one", "ratio", "of the pairs", "at most")
_MORE: Final = ("bytes a token", "sleeps a token", "µs once a stream")


async def _bare(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    async for token in source_of({"path": request.path}):
        await response.write((b"data: " + token.encode()).ljust(FRAME - 2) + b"\n\n")
    return response


@guarded
async def _guarded(request: web.Request) -> AsyncIterator[str]:
    return source_of({"path": request.path})


async def _numbers(request: web.Request) -> web.Response:
    return web.Response(text=str(numbers({"path": request.path})))


WAYS: Final[dict[str, Any]] = {"guarded": _guarded, "bare": _bare}


def aiohttp_served(way: str, loop: str) -> AbstractContextManager[int]:
    """aiohttp with a handler of WAYS, as a process; its port."""
    return listening([sys.executable, "-m", __name__, way, loop])


@proof(
    claim="Served by aiohttp, a guarded token costs the server at most 1.5 times the CPU of a bare StreamResponse.",
    minutes=4,
)
def aiohttp_per_token(run: Run) -> Result:
    rows, shown = [], True
    for loop in LOOPS:
        run.say(f"aiohttp on {loop}")
        with aiohttp_served("guarded", loop) as ours, aiohttp_served("bare", loop) as theirs:
            mine, other = Served(ours), Served(theirs)
            found = ratio(mine, other, pairs=PAIRS, say=run.say)
        shown = shown and found.median <= MOST
        spread = f"{found.low:.3f} to {found.high:.3f}"
        rows.append((loop, found.subject, found.reference, found.median, spread, MOST, *mine.more, *other.more))
    columns = (*_COLUMNS, *_MORE, *(f"{name}, bare" for name in _MORE))
    notes = [f"{READERS} streams, as in served-per-token; bytes with head and framing."]
    return Result(shown, [Table(columns, rows)], notes, ["aiohttp", "uvloop"])


async def _serve(way: str) -> None:
    app = web.Application()
    for path in ("/stream", "/brief"):
        app.router.add_get(path, WAYS[way])
    for path in ("/cpu", "/sleeps"):
        app.router.add_get(path, _numbers)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=2048)
    await site.start()
    print(f"running on http://127.0.0.1:{runner.addresses[0][1]}", file=sys.stderr, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    if sys.argv[2] == "uvloop":
        import uvloop

        uvloop.install()
    asyncio.run(_serve(sys.argv[1]))
