"""A log in a file: what it costs beside the same rows written by hand, and how late it makes a token.

By hand is what one would write without it: a table with one row a frame, keyed by stream and number, and one with the
tail of each stream; `executemany` into both in transactions of as many frames as the log's had, with the same PRAGMAs.
The log does the same for as many callers, who await each append, and checks epoch, tail and seal. To await costs by
itself, which tells where an append is of one frame: that is also compared with rows by hand that are awaited, by as
many tasks, from one thread that writes all that waits in one transaction.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from streamguard.core.cursor import Cursor, cursor_zero, new_sid
from streamguard.core.dialect import dialect_named
from streamguard.core.flush import Immediate
from streamguard.core.frame import Frame
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.wire import Sse
from streamguard.log.base import Lease, StreamInfo, StreamLog
from streamguard.log.memory import MemoryLog
from streamguard.log.sqlite import SQLiteLog
from streamguard.log.sqlite_blocks import PAGE_SIZE
from streamguard.log.sqlite_book import Book
from streamguard.runtime.lists import FrameLists
from streamguard.testing.log_case import framed
from tests.benchmarks.paths import WORDS
from tests.modules import ROOT
from tests.proofs.measure import ratio
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["sqlite_against_executemany", "sqlite_between_processes", "sqlite_delay", "sqlite_replay"]

STREAMS: Final = 200
FRAMES: Final = 9_600  # of all streams together
TOGETHER: Final = (1, 4, 8, 16)  # frames of one append
BARRED: Final = 4  # from so many on, the claim is about the ratio
MOST: Final = 2.0
TTL: Final = 600.0

RATE: Final = 50  # tokens a second and stream
SECONDS: Final = 4.0
PAIRS: Final = 5
LATE: Final = 20.0  # ms

PRAGMAS: Final = (
    f"page_size = {PAGE_SIZE}", "journal_mode = WAL", "synchronous = NORMAL", "secure_delete = ON",
    "temp_store = MEMORY", "cell_size_check = ON", "wal_autocheckpoint = 0",
)  # fmt: skip


@contextmanager
def _no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="streamguard-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


# ---- against rows written by hand -----------------------------------------------------------------


def _ours(together: int, sizes: list[float]) -> float:
    """CPU µs a frame of the process, all its threads; the frames of a transaction are noted in `sizes`."""
    with _folder() as folder:
        return asyncio.run(_append_all(SQLiteLog(folder / "streams.db"), together, sizes))


async def _append_all(log: SQLiteLog, together: int, sizes: list[float]) -> float:
    each = FRAMES // STREAMS
    leases = [await log.create(StreamInfo(new_sid()), TTL) for _ in range(STREAMS)]
    frames = [framed(cursor_zero(lease.sid), *[b'"token "'] * each) for lease in leases]
    begun = 0
    begin = Book.begin

    def counted(self: Book) -> bool:
        nonlocal begun
        begun += 1
        return begin(self)

    async def one(lease: Lease, frames: list[Frame]) -> None:
        tail = cursor_zero(lease.sid)
        for at in range(0, each, together):
            tail = await log.append(lease, tail, frames[at : at + together])

    Book.begin = counted  # type: ignore[method-assign]
    try:
        with _no_collection():
            start = time.process_time()
            await asyncio.gather(*map(one, leases, frames))
            seconds = time.process_time() - start
    finally:
        Book.begin = begin  # type: ignore[method-assign]
        await log.aclose()
    sizes.append(FRAMES / begun)
    return seconds / FRAMES * 1e6


_Rows = list[tuple[object, ...]]


def _rows(together: int) -> tuple[_Rows, _Rows]:
    """All frames, and the tails that stand behind each append; in the order of the appends."""
    rows: _Rows = [
        (stream, seq, seq * 8, 0x12345678, b'"token "', None, None, None)
        for first in range(1, FRAMES // STREAMS + 1, together)
        for stream in range(STREAMS)
        for seq in range(first, first + together)
    ]
    ends = rows[together - 1 :: together]
    tails = [(row[0], 1, *row[1:4], None, 1e6, 1e6, 0, 0, 0x12345678, 0, 0, 0) for row in ends]
    return rows, tails


@contextmanager
def _tables() -> Iterator[Callable[[_Rows, _Rows], None]]:
    """What stores rows and tails in one transaction, by hand. May be used in another thread."""
    with _folder() as folder:
        connection = sqlite3.connect(folder / "rows.db", isolation_level=None, check_same_thread=False)
        for pragma in PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
        connection.execute(
            'CREATE TABLE frames (stream INTEGER, seq INTEGER, "offset" INTEGER, crc INTEGER, data BLOB, name TEXT, '
            "status TEXT, extra BLOB, PRIMARY KEY (stream, seq)) WITHOUT ROWID"
        )
        connection.execute(
            'CREATE TABLE tails (id INTEGER PRIMARY KEY, epoch, seq, "offset", crc, status, until, touched, first_seq, '
            "first_offset, first_crc, cancelled, signals, crashes)"
        )

        def store(rows: _Rows, tails: _Rows) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO frames VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
            connection.executemany("REPLACE INTO tails VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", tails)
            connection.execute("COMMIT")

        yield store
        connection.close()


def _by_hand(together: int, sizes: list[float]) -> float:
    """The same, for transactions of the size that the log's had last."""
    size = max(together, int(sizes[-1]) // together * together)
    rows, tails = _rows(together)
    with _tables() as store, _no_collection():
        start = time.process_time()
        for at in range(0, len(rows), size):
            store(rows[at : at + size], tails[at // together : (at + size) // together])
        return (time.process_time() - start) / len(rows) * 1e6


def _awaited_by_hand(together: int) -> float:
    """The same, each append awaited, by one task a stream; what waits is stored in one transaction."""
    rows, tails = _rows(together)
    queue: SimpleQueue[Any] = SimpleQueue()

    def answer(calls: list[Any]) -> None:
        for call in calls:
            call[2].set_result(None)

    def write(loop: asyncio.AbstractEventLoop, store: Callable[[_Rows, _Rows], None]) -> None:
        while (found := queue.get()) is not None:
            calls = [found]
            while not queue.empty():
                calls.append(queue.get())
            over = calls[-1] is None
            calls = calls[:-1] if over else calls
            store([row for call in calls for row in call[0]], [call[1] for call in calls])
            loop.call_soon_threadsafe(answer, calls)
            if over:
                break

    async def run(store: Callable[[_Rows, _Rows], None]) -> float:
        loop = asyncio.get_running_loop()

        async def one(stream: int) -> None:
            for number in range(stream, len(tails), STREAMS):
                future = loop.create_future()
                queue.put((rows[number * together : (number + 1) * together], tails[number], future))
                await future

        with ThreadPoolExecutor(1) as pool, _no_collection():
            start = time.process_time()
            writer = loop.run_in_executor(pool, write, loop, store)
            await asyncio.gather(*map(one, range(STREAMS)))
            queue.put(None)
            await writer
            return time.process_time() - start

    with _tables() as store:
        return asyncio.run(run(store)) / len(rows) * 1e6


@proof(
    claim=f"SQLiteLog costs at most {MOST:g} times what executemany of the same rows costs, in transactions of the "
    f"same size, where an append has {BARRED} frames or more; and {MOST:g} times what they cost awaited one by one.",
    minutes=3,
)
def sqlite_against_executemany(run: Run) -> Result:
    columns = (
        "frames an append", "frames a transaction", "by hand", "µs a frame", "µs by hand", "ratio", "of the pairs",
        "at most",
    )  # fmt: skip
    rows: list[tuple[object, ...]] = []
    shown = True
    for together in TOGETHER:
        for way in ("awaited", "in a loop"):
            run.say(f"{together} frames an append, by hand {way}")
            sizes: list[float] = []

            def reference(together: int = together, way: str = way, sizes: list[float] = sizes) -> float:
                return _awaited_by_hand(together) if way == "awaited" else _by_hand(together, sizes)

            found = ratio(
                lambda: _ours(together, sizes),  # noqa: B023  # called within the turn
                reference, pairs=7, attempts=10, say=run.say,
            )  # fmt: skip
            barred = together >= BARRED or way == "awaited"
            shown = shown and (found.median <= MOST or not barred)
            spread = f"{found.low:.2f} to {found.high:.2f}"
            size = round(statistics.median(sizes))
            most = MOST if barred else "none"
            rows.append((together, size, way, found.subject, found.reference, found.median, spread, most))
    return Result(
        shown,
        [Table(columns, rows)],
        [
            f"CPU time of the process, all threads, without a collection of garbage: {STREAMS} streams append as fast "
            "as they can, each awaiting each.",
            "By hand in a loop, nobody awaits anything. Awaited, as many tasks await each a future of each append, and "
            "one thread stores what waits. Nothing is checked in either. An append of one frame is a call to another "
            "thread and back for each row, which costs more than the row.",
        ],
    )


# ---- how late a token is --------------------------------------------------------------------------


async def _late(log: StreamLog, seed: int) -> list[float]:
    """ms from before the append of each frame until its reader has it: STREAMS of RATE, one reader each."""
    chance = random.Random(seed)
    late: list[float] = []

    async def read(zero: Cursor, sent: dict[int, float]) -> None:
        after = zero
        while after.status is None:
            page = await log.read(after)
            now = time.perf_counter()
            for frame in page:
                late.append((now - sent[frame.seq]) * 1e3)
                after = Cursor(after.sid, frame.seq, frame.offset, frame.crc, frame.status)
            if not page:
                await log.wait(after, 1.0)

    async def one(begin: float) -> None:
        lease = await log.create(StreamInfo(new_sid()), TTL)
        tail = zero = cursor_zero(lease.sid)
        sent: dict[int, float] = {}
        reader = asyncio.create_task(read(zero, sent))
        count = int(RATE * SECONDS)
        for number in range(count):
            await asyncio.sleep(begin + number / RATE - time.perf_counter())
            frames = framed(tail, b'"token "', status="complete" if number == count - 1 else None)
            sent[frames[0].seq] = time.perf_counter()
            tail = await log.append(lease, tail, frames)
        await reader

    start = time.perf_counter()
    await asyncio.gather(*(one(start + chance.random()) for _ in range(STREAMS)))
    await log.aclose()
    return sorted(late)


def _percentile(values: list[float], part: float) -> float:
    return values[min(len(values) - 1, int(len(values) * part))]


@proof(claim=f"SQLiteLog adds at most {LATE:g} ms to p99, at {STREAMS} streams of {RATE} tokens a second.", minutes=2)
def sqlite_delay(run: Run) -> Result:
    rows: list[tuple[object, ...]] = []
    added: list[float] = []
    for pair in range(PAIRS):
        with _folder() as folder:
            start = time.process_time()
            ours = asyncio.run(_late(SQLiteLog(folder / "streams.db"), run.seed + pair))
            cpu = time.process_time() - start
        start = time.process_time()
        memory = asyncio.run(_late(MemoryLog(), run.seed + pair))
        cpu -= time.process_time() - start
        added.append(_percentile(ours, 0.99) - _percentile(memory, 0.99))
        figures = [_percentile(values, part) for values in (ours, memory) for part in (0.5, 0.99)]
        rows.append((pair + 1, *figures, added[-1], cpu / len(ours) * 1e6))
        run.say(f"pair {pair + 1}: {added[-1]:.1f} ms more")
    median = statistics.median(added)
    columns = (
        "pair", "SQLite p50, ms", "p99, ms", "memory p50, ms", "p99, ms ", "added to p99, ms", "added CPU, µs a token",
    )  # fmt: skip
    return Result(
        median <= LATE,
        [Table(columns, rows), Table(("added to p99, median, ms", "at most"), [(median, LATE)])],
        ["From before an append until its reader, in the same process, has the frame. One frame an append."],
    )


@proof(claim="A frame reaches a reader in another process within 25 ms (p50) and 100 ms (p99).", minutes=2)
def sqlite_between_processes(run: Run) -> Result:
    rows: list[tuple[object, ...]] = []
    shown = True
    for count, pause in ((600, 0.02), (40, 0.5)):
        with _folder() as folder:
            late = asyncio.run(_from_elsewhere(folder / "streams.db", count, pause))
        p50, p99 = _percentile(late, 0.5), _percentile(late, 0.99)
        shown = shown and p50 <= 25.0 and p99 <= 100.0
        rows.append((count, pause * 1e3, p50, p99, late[-1]))
        run.say(f"every {pause * 1e3:g} ms: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    columns = ("frames", "one every so many ms", "p50, ms", "p99, ms", "latest, ms")
    return Result(
        shown,
        [Table(columns, rows), Table(("p50, at most, ms", "p99, at most, ms"), [(25, 100)])],
        ["From before the append in one process until the read in another has answered."],
    )


async def _from_elsewhere(path: Path, count: int, pause: float) -> list[float]:
    log = SQLiteLog(path)
    command = [sys.executable, "-m", "tests.log.sqlite_child", str(path), "timed", str(count), str(pause)]
    child = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE)
    assert child.stdout is not None
    after = cursor_zero((await child.stdout.readline()).decode().split()[0])
    late: list[float] = []
    while after.status is None:
        await log.wait(after, 30.0)
        for frame in await log.read(after):
            late.append((time.monotonic() - float(frame.data)) * 1e3)
            after = Cursor(after.sid, frame.seq, frame.offset, frame.crc, frame.status)
    await child.wait()
    await log.aclose()
    return sorted(late)


# ---- replay ---------------------------------------------------------------------------------------

REPLAYED: Final = 10_000  # frames
FASTER: Final = 5.0


def _guard() -> CompletionGuard:
    return CompletionGuard(Sse())


async def _live(log: SQLiteLog) -> Cursor:
    """Tokens to frames, appended one by one, and on to a reader's bytes; cursor zero."""
    encoder = FramedEncoder(dialect_named("native"))
    stage = FrameLists(Immediate(), encoder)
    zero = tail = encoder.cursor
    lease = await log.create(StreamInfo(zero.sid), TTL)
    guard = _guard()
    guard.open(zero, own_ids=False, resume=None)
    for index in range(REPLAYED):
        tail = await log.append(lease, tail, stage.push(WORDS[index % len(WORDS)], 0.0))
        after = Cursor(zero.sid, guard.cursor.seq, guard.cursor.offset, guard.cursor.crc)
        for frame in await log.read(after):
            guard.admit(frame)
    await log.append(lease, tail, stage.finish(0.0))
    return zero


async def _replay(log: SQLiteLog, zero: Cursor) -> int:
    guard, after, count = _guard(), zero, 0
    guard.open(zero, own_ids=False, resume=None)
    while page := await log.read(after):
        for frame in page:
            guard.admit(frame)
        last = page[-1]
        after = Cursor(zero.sid, last.seq, last.offset, last.crc)
        count += len(page)
    return count


@proof(claim=f"Replay of {REPLAYED:,} frames is at least {FASTER:g} times faster than they came.", minutes=2)
def sqlite_replay(run: Run) -> Result:
    with _folder() as folder:
        path = folder / "streams.db"
        zeros: list[Cursor] = []

        def timed(work: Callable[[SQLiteLog], object]) -> float:
            async def go() -> float:
                log = SQLiteLog(path)
                await log.find("nothing", None)  # open the file
                start = time.perf_counter()
                await work(log)  # type: ignore[misc]
                seconds = time.perf_counter() - start
                await log.aclose()
                return seconds * 1e6 / REPLAYED

            return asyncio.run(go())

        async def live(log: SQLiteLog) -> None:
            zeros.append(await _live(log))

        async def replay(log: SQLiteLog) -> None:
            assert await _replay(log, zeros[-1]) == REPLAYED + 1

        found = ratio(lambda: timed(live), lambda: timed(replay), pairs=PAIRS, attempts=10, say=run.say)
    columns = ("µs a frame, live", "replayed", "times faster", "of the pairs", "at least")
    row = (found.subject, found.reference, found.median, f"{found.low:.1f} to {found.high:.1f}", FASTER)
    return Result(
        found.median >= FASTER,
        [Table(columns, [row])],
        [
            "Live: a token is encoded, appended, read and written as a reader's bytes before the next one comes.",
            "Replayed: pages of 512 frames, verified as they are read, written as bytes that go nowhere.",
        ],
    )
