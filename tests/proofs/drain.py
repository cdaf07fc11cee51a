"""What becomes of open streams when the process that serves them is told to go.

Two processes of one server over one SQLite file, behind a router that prefers the first. 50 readers, which resume, read
from it; then it gets a SIGTERM, and nothing else. Half of the streams end within the grace, half do not: those are gone
on with by the second process, where somebody says how, and else end as failed. The order is in the streams themselves:
a short one ends only once its process has stopped to be ready.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, Final

import anyio
import attrs

from streamguard.client import ResumePolicy, stream
from streamguard.core.errors import StreamGuardError
from tests.processes.router import Router
from tests.proofs.registry import Result, Run, Table, proof
from tests.stacks.deployed import text_of
from tests.stacks.processes import Process, running

__all__ = ["drain"]

READERS: Final = 50
GRACE: Final = 1.0  # seconds
SERVERS: Final = {
    "uvicorn": ("uvicorn-h11", []),
    "uvicorn --workers 2": ("uvicorn-h11", ["--workers", "2"]),
    "granian": ("granian-h1", []),
    "hypercorn": ("hypercorn-h1", []),
}
_POLICY: Final = ResumePolicy(attempts=50, base=0.05, max_wait=0.5)


@attrs.define
class Reader:
    """One reader: what it has, how often it came back, and how it ended."""

    kind: str
    text: str = ""
    resumes: int = 0
    ended: str = ""

    @property
    def whole(self) -> bool:
        return self.ended == "complete" and self.text == text_of(self.kind)

    @property
    def lost(self) -> bool:
        """Whether it knows that the process is gone which made its stream, and has the beginning of it."""
        return self.ended == "producer_lost" and text_of(self.kind).startswith(self.text)


async def _read(reader: Reader, url: str, begun: anyio.Semaphore) -> None:
    async with stream("GET", url, resume=_POLICY) as answer:
        try:
            async for text in answer.text():
                if not reader.text:
                    begun.release()
                reader.text += text
            reader.ended = "complete"
        except StreamGuardError as exc:
            reader.ended = str(getattr(exc, "code", None) or exc)
        if answer.receipt is not None:
            reader.resumes = answer.receipt.resumes


async def _deploy(url: str, process: Process) -> tuple[list[Reader], float]:
    """All readers; and the seconds from the signal to the last of them."""
    readers = [Reader("short" if number % 2 else "long") for number in range(READERS)]
    begun = anyio.Semaphore(0)
    since = 0.0
    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            for number, reader in enumerate(readers):
                tasks.start_soon(_read, reader, f"{url}/{reader.kind}/{number}", begun)
            for _ in readers:
                await begun.acquire()
            process.terminate()
            since = time.monotonic()
    return readers, time.monotonic() - since


def _row(name: str, resumer: bool) -> tuple[bool, list[object], str]:
    stack, args = SERVERS[name]
    with tempfile.TemporaryDirectory() as folder:
        environment: dict[str, Any] = {
            "STREAMGUARD_TEST_LOG": str(Path(folder) / "streams.db"),
            "STREAMGUARD_TEST_GRACE": str(GRACE),
            "STREAMGUARD_TEST_RESUMER": str(int(resumer)),
        }
        app = "tests.stacks.deployed:app"
        with running(stack, app, args=args, **environment) as old, running(stack, app, args=args, **environment) as new:
            with Router(lambda: [old.port, new.port]) as router:
                readers, seconds = anyio.run(_deploy, router.url, old)
                since = time.monotonic()
                code = old.wait(10.0)
                log = old.log() + new.log()
            exited = seconds + time.monotonic() - since
    short = [reader for reader in readers if reader.kind == "short"]
    long = [reader for reader in readers if reader.kind == "long"]
    finished = sum(reader.whole and not reader.resumes for reader in short)
    gone_on = sum(reader.whole and reader.resumes > 0 for reader in long)
    lost = sum(reader.lost for reader in long)
    good = finished == len(short) and (gone_on if resumer else lost) == len(long) and code in (0, -15)
    wrong = "; ".join({reader.ended for reader in readers if not (reader.whole or reader.lost)})
    row: list[object] = [name, "yes" if resumer else "no", finished, gone_on, lost, str(code), round(exited, 2)]
    return good, row, f"{wrong}\n{log}"


@proof(claim="At SIGTERM streams end within the grace, or at another process; none is cut for good.", minutes=5)
def drain(run: Run) -> Result:
    shown, rows = True, []
    for name in SERVERS:
        for resumer in (True, False):
            good, row, why = _row(name, resumer)
            shown &= good
            rows.append(row)
            run.say(f"{name}, {'with' if resumer else 'without'} a resumer: {row[2:]}" if good else f"{row}: {why}")
    columns = ["server", "a resumer", "short: whole", "long: whole", "long: `producer_lost`", "exit", "after (s)"]
    return Result(
        shown,
        [Table(columns, rows)],
        notes=[
            f"{READERS} readers, half of streams that end within the grace of {GRACE:g} s, half of longer ones.",
            "Short: on one connection, and only once their process was not ready any more.",
            "Long: on two connections, the second to another process over the same file.",
            "After: from the signal until the last reader had its end and the process was gone.",
        ],
        packages=["uvicorn", "granian", "hypercorn", "httpx"],
    )
