"""What it costs to hand a token from a thread to the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from streamguard.core.errors import StreamGuardError
from streamguard.runtime.buffer import Buffer, HandOver
from tests.benchmarks.paths import WORDS
from tests.proofs.measure import ratio
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["hand_over_per_token"]

COUNT: Final = 50_000  # tokens
PAIRS: Final = 7
MOST: Final = 0.1


async def _ours() -> int:
    buffer = HandOver(Buffer())

    def produce() -> None:
        put, wait_for_room = buffer.put, buffer.wait_for_room
        for index in range(COUNT):
            if not put(WORDS[index % 10]) and not wait_for_room():
                raise StreamGuardError("closed")
        buffer.end()

    threading.Thread(target=produce, daemon=True).start()
    taken = 0
    while True:
        try:
            item = await buffer.take()
        except StopAsyncIteration:
            return taken
        taken += getattr(item, "pieces", 1)


async def _queue() -> int:
    """As it is usually written: a queue of asyncio's, filled through the loop."""
    queue: asyncio.Queue[Any] = asyncio.Queue()
    call = asyncio.get_running_loop().call_soon_threadsafe

    def produce() -> None:
        for index in range(COUNT):
            call(queue.put_nowait, WORDS[index % 10])
        call(queue.put_nowait, None)

    threading.Thread(target=produce, daemon=True).start()
    taken = 0
    while await queue.get() is not None:
        taken += 1
    return taken


def _microseconds(way: Callable[[], Awaitable[int]]) -> Callable[[], float]:
    async def run() -> float:
        start = time.process_time()  # of both threads
        taken = await way()
        seconds = time.process_time() - start
        assert taken == COUNT, f"{taken} of {COUNT} tokens came"
        return seconds / COUNT * 1e6

    return lambda: asyncio.run(run())


@proof(
    claim="A token from a thread to the loop costs at most 0.1 of what asyncio.Queue and call_soon_threadsafe cost.",
    minutes=1,
)
def hand_over_per_token(run: Run) -> Result:
    found = ratio(_microseconds(_ours), _microseconds(_queue), pairs=PAIRS, attempts=10, say=run.say)
    columns = ("µs a token", "µs of the other", "ratio", "of the pairs", "at most")
    row = (found.subject, found.reference, found.median, f"{found.low:.3f} to {found.high:.3f}", MOST)
    return Result(
        found.median <= MOST,
        [Table(columns, [row])],
        [
            f"CPU time of the process for {COUNT:,} tokens, both threads, as fast as the thread can.",
            "Ours waits at its bound of 1,024 items; the queue has none, which spares it the waiting.",
        ],
    )
