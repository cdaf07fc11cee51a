"""What slow readers cost: the process that serves them in memory, and the readers beside them in time.

A source would make 10 MB a second, and its reader takes 10 kB a second, on each server, by each way: direct, through a
buffer, and through a log in memory or in a file, ahead of its reader by no more than was said. The server is a process
of its own. Looked at are the resident memory of all its processes, against what it was after a stream that was read at
full speed, and how much the source was asked for. A source that waits for its reader may be ahead by what was
configured and by what server and system hold for a connection; one that was not told to wait generates into a log as
far as it goes, and there the log's bound counts.

Then 50 readers that read, beside one that does not and without it, in turn: how long a token takes from where it is
made to a reader that reads.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from tests.adapters.servers import Connection
from tests.proofs.registry import Result, Run, Table, proof
from tests.stacks.processes import Process, running
from tests.stacks.slow import BUFFER

__all__ = ["Slow", "beside", "slow", "slow_readers", "within"]

MIB: Final = 1024 * 1024
SERVERS: Final = {"uvicorn": "uvicorn-httptools", "hypercorn": "hypercorn-h1", "granian": "granian-h1"}
APP: Final = "tests.stacks.slow:app"
SECONDS: Final = 60.0
RATE: Final = 10e6  # bytes a second that a source would make
TAKES: Final = 10e3  # bytes a second that a reader takes
MARGIN: Final = 8 * MIB
WARM: Final = 8e6  # bytes of a stream that is read at full speed first
SMALL: Final = 4096  # bytes of a reader's receive buffer
KEPT: Final = 16 * MIB  # of a stream in a log in memory
AHEAD: Final = MIB  # how far a source is generated into a log ahead of its reader
BOUNDS: Final = {
    "direct": 0, "buffered": BUFFER, "logged, in memory": AHEAD, "logged, in a file": AHEAD,
    "logged, without max_ahead": KEPT,
}  # fmt: skip
WAITS: Final = ("direct", "buffered", "logged, in memory", "logged, in a file")  # where a source waits for its reader
GOOD: Final = 50
TOKENS: Final = 20  # a second, for each good reader
ROUNDS: Final = 5
ROUND: Final = 2.0  # seconds
_RECEIVED: Final = re.compile(rb'"(\d+\.\d{6}) ')


def resident(pid: int) -> int:
    """Bytes of memory that the processes of a session have, together."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int((folder / "stat").read_text().rpartition(")")[2].split()[3]) == pid:
                found = re.search(r"^VmRSS:\s+(\d+) kB", (folder / "status").read_text(), re.MULTILINE)
                total += 1024 * int(found[1]) if found else 0  # one that has ended has none
        except OSError:  # it has ended meanwhile
            continue
    return total


def books(process: Process) -> Any:
    with urllib.request.urlopen(f"{process.url}/books", timeout=30) as answer:
        return json.load(answer)


@attrs.define
class Slow:
    """What became of one slow reader, in bytes. `half`: what its source had made, and it taken, at half of the time."""

    way: str
    grown: int = 0
    made: int = 0
    taken: int = 0
    half: tuple[int, int] = (0, 0)
    ended: bool = False

    @property
    def paused(self) -> bool:
        """Whether the source made no more than its reader took, in the second half of the time; to within what a system
        lets its writers wait for, which is a third of some megabytes."""
        return self.made - self.half[0] <= self.taken - self.half[1] + 2 * MIB

    @property
    def good(self) -> bool:
        ahead = self.made - self.taken <= BOUNDS[self.way] + MARGIN and self.paused and not self.ended
        return self.grown <= BOUNDS[self.way] + MARGIN and (self.way not in WAITS or ahead)


def within(way: str, folder: str) -> dict[str, Any]:
    """The environment of a server for one of the ways."""
    found: dict[str, Any] = {"STREAMGUARD_TEST_KEPT": str(KEPT)}
    if way == "logged, in a file":
        found["STREAMGUARD_TEST_LOG"] = str(Path(folder) / "streams.db")
    if way in WAITS:
        found["STREAMGUARD_TEST_AHEAD"] = str(AHEAD)
    return found


def _take(connection: Connection, found: Slow, since: float, until: float) -> None:
    """Take TAKES bytes a second."""
    while (now := time.monotonic()) < until:
        if now < (due := since + found.taken / TAKES):
            time.sleep(min(due, until) - now)
            continue
        try:
            piece = connection.socket.recv(int(TAKES / 10))
        except OSError:
            piece = b""
        if not piece:
            found.ended = True
            return
        found.taken += len(piece)


def slow(server: str, way: str, seconds: float, folder: str) -> Slow:
    """Read slowly from a server for so many seconds."""
    found, path = Slow(way), f"/{way.partition(',')[0]}"
    with running(SERVERS[server], APP, **within(way, folder)) as process:
        with urllib.request.urlopen(f"{process.url}{path}?rate=1e9&size={WARM}", timeout=60) as answer:
            while answer.read(MIB):
                pass
        time.sleep(0.2)
        before, made = resident(process.pid), books(process)["made"]
        with Connection(process.port, receive_buffer=SMALL) as connection:
            since = time.monotonic()
            until = since + seconds
            connection.get(f"{path}?rate={RATE}", streamguard="v=1")
            taking = threading.Thread(target=_take, args=(connection, found, since, until))
            taking.start()
            while (left := until - time.monotonic()) > 0:
                found.grown = max(found.grown, resident(process.pid) - before)
                if found.half == (0, 0) and left < seconds / 2:
                    found.half = (books(process)["made"] - made, found.taken)
                time.sleep(min(0.25, left))
            taking.join()
            found.made = books(process)["made"] - made
            found.grown = max(found.grown, resident(process.pid) - before)
    return found


def _rows(ways: Sequence[str], folder: str, say: Callable[[str], None]) -> tuple[bool, list[list[object]]]:
    """All servers at once, by each of the ways."""
    plan = [(server, way) for way in ways for server in SERVERS]
    results: dict[tuple[str, str], Slow] = {}

    def run(server: str, way: str) -> None:
        place = Path(folder) / f"{server}-{way.replace(' ', '-')}"
        place.mkdir()
        results[server, way] = slow(server, way, SECONDS, str(place))

    threads = [threading.Thread(target=run, args=entry) for entry in plan]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows: list[list[object]] = []
    for server, way in plan:
        found = results[server, way]  # absent where its thread failed, which printed why
        made, taken = found.made / 1e6, found.taken / 1e6
        rows.append([server, way, BOUNDS[way] / MIB, round(found.grown / MIB, 1), round(made, 1), round(taken, 2)])
        rows[-1] += ["yes" if found.paused else "no", "yes" if not found.ended else "no"]
        say(f"{rows[-1]}")
    return all(found.good for found in results.values()), rows


async def _good(port: int, path: str, delays: list[float], until: float) -> None:
    """Read a stream of stamps, and note how old each is. The first does not count: with it comes the request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {path}?rate={TOKENS} HTTP/1.1\r\nhost: t\r\nstreamguard: v=1\r\n\r\n".encode())
        first = True
        while (left := until - time.monotonic()) > 0:
            try:
                line = await asyncio.wait_for(reader.readline(), left)
            except asyncio.TimeoutError:  # no built-in one before Python 3.11
                return
            assert line, "the connection of a reader that reads ended"
            now = time.monotonic()
            if match := _RECEIVED.search(line):
                delays += [] if first else [now - float(match[1])]
                first = False
    finally:
        writer.transport.abort()


async def _round(port: int, path: str, count: int, seconds: float) -> float:
    """The 99th percentile of all delays of so many readers, in seconds."""
    delays: list[float] = []
    tasks = []
    until = time.monotonic() + seconds + count / 200
    for _ in range(count):  # not all at once: else all of their tokens were
        tasks.append(asyncio.ensure_future(_good(port, path, delays, until)))
        await asyncio.sleep(1 / 200)
    await asyncio.gather(*tasks)
    return statistics.quantiles(delays, n=100)[98]


def _stalled(process: Process, way: str) -> Connection:
    """A reader that takes nothing, once its source, or what is sent of it, has come to rest."""
    connection = Connection(process.port, receive_buffer=SMALL)
    connection.get(f"/{way}?rate={5 * RATE}&size={MARGIN}", streamguard="v=1")
    connection.until(b"\r\n\r\n")
    made = -1
    while (now := books(process)["made"]) != made:
        made = now
        time.sleep(0.3)
    return connection


def beside(server: str, way: str, *, count: int = GOOD, rounds: int = ROUNDS, seconds: float = ROUND) -> list[float]:
    """Medians of the rounds' 99th percentiles, in seconds: without a reader that stalls, and with one."""
    alone: list[float] = []
    with_one: list[float] = []
    path = "/paced" if way == "direct" else f"/{way}/paced"
    with running(SERVERS[server], APP, STREAMGUARD_TEST_KEPT=str(64 * MIB)) as process:
        asyncio.run(_round(process.port, path, count, min(1.0, seconds)))
        for _ in range(rounds):
            alone.append(asyncio.run(_round(process.port, path, count, seconds)))
            with _stalled(process, way):
                with_one.append(asyncio.run(_round(process.port, path, count, seconds)))
    return [statistics.median(alone), statistics.median(with_one)]


@proof(claim="A slow reader costs no more memory than was configured, and its neighbours nothing.", minutes=7)
def slow_readers(run: Run) -> Result:
    shown, rows, neighbours = True, [], []
    for ways in (WAITS[:2], WAITS[2:], ["logged, without max_ahead"]):
        with tempfile.TemporaryDirectory() as folder:
            good, found = _rows(ways, folder, run.say)
        shown &= good
        rows += found
    for server in SERVERS:
        for way in ("direct", "logged"):
            alone, with_one = beside(server, way)
            shown &= with_one <= 1.5 * alone + 0.005
            neighbours.append([server, way, round(1000 * alone, 2), round(1000 * with_one, 2)])
            run.say(f"{neighbours[-1]}")
    taken = ("made, MB", "taken, MB", "source paused", "still read")
    columns = ("server", "path", "configured bound, MiB", "memory grew by, MiB", *taken)
    title = f"a source of {RATE / 1e6:g} MB a second, a reader of {TAKES / 1e3:g} kB a second, {SECONDS:g} s"
    besides = ("server", "path", "p99 without, ms", "p99 beside one that stalls, ms")
    return Result(
        shown,
        [
            Table(columns, rows, title=title),
            Table(besides, neighbours, title=f"{GOOD} readers of {TOKENS} tokens a second"),
        ],
        notes=[
            "Memory: the most that all processes of the server had resident above what they had after a stream that "
            f"was read at full speed; shown where it is within the bound and {MARGIN // MIB} MiB.",
            "Direct has no bound of its own: the server's buffers are all. Made and not taken lies in the system's "
            "buffers where a source waits.",
            f"Logged: `max_ahead={AHEAD}`. Without it a source that generates into a log waits for nobody, and the "
            "bound is the log's own. A reader that is so far behind that the log has trimmed what it needs is sent a "
            "`bye` behind what is on its way, and a 410 where it comes back.",
            f"Medians of {ROUNDS} rounds of {ROUND:g} s, with and without in turn; from where a token is made to its "
            "reader. Shown where the second is at most 1.5 times the first and 5 ms.",
        ],
        packages=["uvicorn", "httptools", "hypercorn", "granian", "starlette"],
    )
