"""The third experiment: a stream that is cut again and again, and goes on each time.

One answer after another is read through a proxy that ends its first `CUTS` connections at a random byte, half of them
by a reset. The server keeps its frames in a log, the client comes back with its last cursor. What counts is whether
the text that it has at the end is the one that was generated, to the character.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import anyio
import attrs

from streamguard import client
from streamguard.client import ResumePolicy
from streamguard.core.errors import StreamGuardError
from streamguard.demo.model import long_answer
from streamguard.demo.servers import LabError, serving
from streamguard.testing.proxy import HEAD, FaultProxy, Plan

__all__ = ["CUTS", "LOGS", "ResumeResult", "ResumeRow", "installed", "run"]

CUTS: Final = 10  # of each answer
LOGS: Final = ("memory", "sqlite", "redis")
ANSWERS: Final = 5  # with each log
_FIRST, _LAST = 200, 1_500  # bytes of the body after which a connection is cut


@attrs.frozen
class ResumeRow:
    """One log: `identical` answers of so many, the cuts that they met, how often they were resumed, frames that came
    twice and were dropped, and seconds for all. `why_not` says why a log was not tried."""

    log: str
    answers: int = 0
    identical: int = 0
    cuts: int = 0
    resumes: int = 0
    duplicates: int = 0
    seconds: float = 0.0
    why_not: str | None = None


@attrs.frozen
class ResumeResult:
    """What became of all answers."""

    seed: int
    rows: list[ResumeRow]

    @property
    def kept(self) -> bool:
        """Whether every answer that was read is the one that was generated."""
        return all(row.identical == row.answers for row in self.rows)


def installed(log: str) -> str | None:
    """Why a log cannot be tried here, or None."""
    if log == "redis" and find_spec("redis") is None:
        return 'not installed: pip install "streamguard-io[redis]"'
    if log == "redis" and shutil.which("redis-server") is None:
        return "no redis-server on the path"
    return None


async def run(seed: int, answers: int | None, *, start: Callable[[str, int], Callable[[], object]]) -> ResumeResult:
    """Read `answers` answers from each log that is installed. Raises LabError if a server does not start."""
    count = ANSWERS if answers is None else answers
    rows: dict[str, ResumeRow] = {}

    async def one(log: str) -> None:
        why_not = installed(log)
        if why_not is None:
            step = start(f"cut and resumed, log in {log}", count)
            with _store(log) as address, serving("resumable", argument=address) as addresses:
                rows[log] = await _row(log, addresses["resumable"], seed, count, step)
        else:
            rows[log] = ResumeRow(log, why_not=why_not)

    # At once, since most of the time is a client's waiting before it comes back.
    async with anyio.create_task_group() as tasks:
        for log in LOGS:
            tasks.start_soon(one, log)
    return ResumeResult(seed, [rows[log] for log in LOGS])


async def _row(log: str, address: str, seed: int, count: int, step: Callable[[], object]) -> ResumeRow:
    rows: list[ResumeRow] = []
    began = time.monotonic()

    async def one(number: int) -> None:
        rows.append(await _read(log, address, seed, number))
        step()

    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(one, number)
    return ResumeRow(
        log,
        count,
        sum(row.identical for row in rows),
        sum(row.cuts for row in rows),
        sum(row.resumes for row in rows),
        sum(row.duplicates for row in rows),
        round(time.monotonic() - began, 2),
    )


async def _read(log: str, address: str, seed: int, number: int) -> ResumeRow:
    """One answer, through a proxy that cuts its first connections."""
    rng = random.Random(f"{seed}/{number}/cuts")
    plans = [
        Plan(cut_at=rng.randint(_FIRST, _LAST), after=HEAD, end=rng.choice(["fin", "reset"])) for _ in range(CUTS)
    ]
    parts = urlsplit(address)
    assert parts.hostname is not None
    assert parts.port is not None
    async with FaultProxy(
        parts.hostname, parts.port, plan=lambda index: plans[index] if index < CUTS else Plan()
    ) as proxy:
        url = f"{proxy.url}/answer?seed={seed}&number={number}"
        policy = ResumePolicy(base=0.01)
        text = ""
        async with client.stream("GET", url, resume=policy) as reading:
            try:
                text = await reading.read()
            except StreamGuardError:
                text = reading.received
        cuts = sum(passage.ended == "cut" for passage in proxy.history)
    receipt = reading.receipt
    same = text == "".join(long_answer(seed, number).tokens)
    return ResumeRow(log, 1, int(same), cuts, receipt.resumes, receipt.duplicates)


@contextmanager
def _store(log: str) -> Iterator[str]:
    """Where the log keeps its frames, as the server process is told."""
    with tempfile.TemporaryDirectory() as folder:
        if log == "memory":
            yield "memory:"
        elif log == "sqlite":
            yield f"sqlite:{Path(folder) / 'streams.db'}"
        else:
            path = Path(folder) / "redis.sock"
            options = ["--port", "0", "--unixsocket", str(path), "--save", "", "--dir", folder]
            with subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL) as server:
                try:
                    deadline = time.monotonic() + 10.0
                    while not path.exists():
                        if server.poll() is not None or time.monotonic() > deadline:
                            raise LabError("redis-server did not start")
                        time.sleep(0.01)
                    yield f"redis:unix://{path}"
                finally:
                    server.terminate()
