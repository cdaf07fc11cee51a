"""What streams cost a process while they wait: memory, and the CPU of their heartbeats.

Each source yields one token, and then waits. So do thousands of streams at once, each over a connection of its own to
one uvicorn process, fresh for each measurement. A guarded stream and one of sse-starlette send a sign of life every
15 s, which is what both do by default. Starlette's StreamingResponse sends none, and is shown to say what of the memory
is the server's own: connection, request and task.
"""

from __future__ import annotations

import asyncio
import statistics
from typing import Final

import attrs
from starlette.responses import StreamingResponse

from tests.benchmarks.load import answer, ask, hold, holding
from tests.benchmarks.served import allow_files, answering, served, streaming_app
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["STREAMS", "WAYS", "Idle", "idle", "idle_streams"]

STREAMS: Final = 5_000
SECONDS: Final = 60.0
ROUNDS: Final = 3
WAYS: Final = {
    "guarded": "tests.benchmarks.served",
    "sse-starlette": "tests.benchmarks.served",
    "streaming": __name__,
}
MOST_MEMORY: Final = 1.5
MOST_CPU: Final = 1.25

streaming = answering(streaming_app(StreamingResponse))


@attrs.frozen
class Idle:
    """What one stream of a way costs: kB, and in the time looked at microseconds of CPU and bytes."""

    memory: float
    cpu: float
    received: float


def idle(way: str, streams: int = STREAMS, seconds: float = SECONDS, http: str = "h11", loop: str = "asyncio") -> Idle:
    """Of so many streams of a fresh server that wait for so long."""

    async def run(port: int, before: float) -> Idle:
        async with holding(port, "/wait", streams) as load:
            memory, cpu = await answer(port, "/memory"), await answer(port, "/cpu")
            received = load.received
            await asyncio.sleep(seconds)
            cpu = await answer(port, "/cpu") - cpu
            assert load.ended == 0, f"{load.ended} streams ended"
        return Idle((memory - before) / streams / 1e3, cpu / streams * 1e6, (load.received - received) / streams)

    with served(way, http, loop, WAYS[way]) as port:
        hold(port, "/wait", 20, "/memory")  # warm
        return asyncio.run(run(port, ask(port, "/memory")))


def _median(found: list[Idle]) -> Idle:
    return Idle(*(statistics.median(column) for column in zip(*map(attrs.astuple, found), strict=True)))


@proof(
    claim=f"Of {STREAMS:,} streams that wait, a guarded one holds at most {MOST_MEMORY:g} times the memory of one of "
    f"sse-starlette, and its heartbeats cost at most {MOST_CPU:g} times the CPU.",
    minutes=15,
)
def idle_streams(run: Run) -> Result:
    allow_files(STREAMS + 200)
    found: dict[str, list[Idle]] = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way, those in found.items():
            those.append(idle(way))
            run.say(f"{way}: {those[-1].memory:.1f} kB, {those[-1].cpu:.0f} µs, {those[-1].received:.0f} bytes")
    middle = {way: _median(those) for way, those in found.items()}
    pairs = list(zip(found["guarded"], found["sse-starlette"], strict=True))
    memory = statistics.median(mine.memory / other.memory for mine, other in pairs)
    cpu = statistics.median(mine.cpu / other.cpu for mine, other in pairs)
    rows = [
        (way, one.memory, one.cpu, one.cpu * STREAMS / SECONDS / 1e4, round(one.received))
        for way, one in middle.items()
    ]
    columns = ("way", "kB a stream", f"µs a stream in {SECONDS:g} s", "% of a core", "bytes a stream")
    bars = [("memory", memory, MOST_MEMORY), ("CPU of heartbeats", cpu, MOST_CPU)]
    return Result(
        all(ratio <= most for _, ratio, most in bars),
        [
            Table(columns, rows, f"{STREAMS:,} streams of one process that wait for {SECONDS:g} s"),
            Table(("guarded, by sse-starlette", "ratio", "at most"), bars),
        ],
        [
            "Resident memory that the streams added to a fresh server, connection included; medians of "
            f"{ROUNDS} rounds. uvicorn with h11 and asyncio."
        ],
        ["uvicorn", "starlette", "sse-starlette", "h11"],
    )
