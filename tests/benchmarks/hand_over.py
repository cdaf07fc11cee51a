"""What it costs to hand a token from a thread to the event loop, and how much later one comes through a buffer."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final

from streamguard.core.errors import StreamGuardError
from streamguard.runtime.buffer import Buffer, HandOver
from streamguard.runtime.source import TokenSource
from tests.benchmarks.load import STAMP, stamp
from tests.benchmarks.paths import WORDS
from tests.proofs.measure import ratio
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["delay_of_one_token", "hand_over_per_token"]

COUNT: Final = 50_000  # tokens
PAIRS: Final = 7
MOST: Final = 0.1
SINGLE: Final = 1_000  # tokens, each by itself
PAUSE: Final = 0.002  # seconds between two of them
ROUNDS: Final = 5
LATER: Final = 100.0  # microseconds


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


async def _model() -> AsyncIterator[str]:
    for _ in range(SINGLE):
        await asyncio.sleep(PAUSE)
        yield stamp()


def _thread() -> Iterator[str]:
    for _ in range(SINGLE):
        time.sleep(PAUSE)
        yield stamp()


async def _delay(source: TokenSource) -> float:
    """Microseconds from `yield` to whoever iterates, the median."""
    delays = []
    async with source as tokens:
        async for token in tokens:
            now = time.monotonic_ns()  # of a reader that was late, and is given several as one
            delays += [(now - int(at)) / 1e3 for at in STAMP.findall(str(token).encode())]
    assert len(delays) == SINGLE
    return statistics.median(delays)


@proof(
    claim="A single token comes less than 100 µs later through the buffer, from a task or from a thread.",
    minutes=1,
)
def delay_of_one_token(run: Run) -> Result:
    ways: dict[str, Callable[[], TokenSource]] = {
        "an async generator, without a buffer": lambda: TokenSource(_model()),
        "an async generator, through a buffer": lambda: TokenSource(_model(), buffer=Buffer()),
        "a generator on a thread, which always has one": lambda: TokenSource(_thread()),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, make in ways.items():
            found[name].append(asyncio.run(_delay(make())))
    medians = {name: statistics.median(delays) for name, delays in found.items()}
    direct, *through = medians.values()
    rows = [(name, delay, delay - direct, LATER) for name, delay in medians.items()]
    return Result(
        all(delay - direct < LATER for delay in through),
        [Table(("source", "µs, median", "µs later", "at most"), rows)],
        [f"{SINGLE} tokens, {PAUSE * 1e3:g} ms apart, so that each finds the reader asleep; {ROUNDS} times."],
    )
