"""SQLiteLog in two processes on one file: read beside, killed, stopped, taken over."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.log.base import Lease, LogUnavailable, StreamInfo
from streamguard.log.sqlite import SQLiteLog
from streamguard.testing.log_case import framed
from tests.log.sqlite_child import text
from tests.modules import ROOT

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system stops and kills processes in other ways"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "streams.db"


@pytest.fixture
async def log(path: Path) -> AsyncIterator[SQLiteLog]:
    log = SQLiteLog(path)
    yield log
    await log.aclose()


class Child:
    """`tests.log.sqlite_child`, and what it said."""

    def __init__(self, path: Path, *arguments: object) -> None:
        command = [sys.executable, "-m", "tests.log.sqlite_child", str(path), *map(str, arguments)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def hear(self) -> tuple[str, str]:
        """Its next line: a sid, and what of it."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr and self.process.stderr.read()
        sid, what = line.split()
        return sid, what

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    async def asked(self) -> str:
        self.tell()
        return (await anyio.to_thread.run_sync(self.hear))[1]

    def stop(self) -> None:
        """And wait until it stands."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> list[tuple[str, str]]:
        """With no chance to tidy up; the rest of what it had said."""
        self.process.kill()
        assert self.process.stdout is not None
        whole = self.process.stdout.read().splitlines(keepends=True)
        return [tuple(line.split()) for line in whole if line.endswith("\n")]  # type: ignore[misc]


@contextlib.contextmanager
def child(path: Path, *arguments: object) -> Iterator[Child]:
    found = Child(path, *arguments)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.communicate()


async def lapsed(log: SQLiteLog, sid: str) -> None:
    """Wait for the end of a lease, on the store's clock."""
    with anyio.fail_after(30):
        while (await log.state(sid)).held:  # noqa: ASYNC110  # which tells nobody
            await anyio.sleep(0.02)


async def read_all(log: SQLiteLog, sid: str) -> tuple[list[bytes], Cursor]:
    frames = await log.read(cursor_zero(sid), limit=1_000_000)
    last = frames[-1] if frames else cursor_zero(sid)
    return [frame.data for frame in frames], Cursor(sid, last.seq, last.offset, last.crc)


async def test_a_reader_gets_each_frame_of_another_process_once_and_is_woken(log: SQLiteLog, path: Path) -> None:
    with child(path, "timed", 40, 0.005) as producer:
        after = cursor_zero((await anyio.to_thread.run_sync(producer.hear))[0])
        seen = []
        with anyio.fail_after(60):
            while after.status is None:
                assert await log.wait(after, 30.0)
                for frame in await log.read(after):
                    seen.append(frame.seq)
                    after = Cursor(after.sid, frame.seq, frame.offset, frame.crc, frame.status)
    assert seen == list(range(1, 41))


@pytest.mark.parametrize("seed", range(6))
async def test_what_was_acknowledged_outlives_a_kill_at_any_moment(seed: int, log: SQLiteLog, path: Path) -> None:
    """And what was not is there as a whole or not at all; another process goes on from there."""
    chance = random.Random(seed)
    with child(path, "many", 12) as producer:
        said = [await anyio.to_thread.run_sync(producer.hear) for _ in range(chance.randrange(12, 900))]
        await anyio.sleep(chance.random() * 0.005)
        said += producer.kill()
    acknowledged: dict[str, int] = {}
    for sid, number in said:
        acknowledged[sid] = int(number)
    for sid, count in acknowledged.items():
        state = await log.state(sid)
        found, tail = await read_all(log, sid)
        assert tail == state.tail
        assert len(found) >= count
        assert found == [text(sid, number) for number in range(1, len(found) + 1)]
        assert state.checkpoint is None or state.checkpoint.state == b"%d" % len(found), "frames without their own"
        assert state.checkpoint is not None or not found
        await lapsed(log, sid)
        lease = await log.take_over(sid, 1, 60.0)
        end = await log.append(lease, tail, framed(tail, b"the end", status="complete"))
        assert (await read_all(log, sid))[0] == [*found, b"the end"]
        assert (await log.state(sid)).tail == end


async def test_a_producer_that_slept_through_a_takeover_appends_nothing(log: SQLiteLog, path: Path) -> None:
    with child(path, "told") as producer:
        sid, _ = await anyio.to_thread.run_sync(producer.hear)
        assert await producer.asked() == "1"
        producer.stop()
        await lapsed(log, sid)
        lease = await log.take_over(sid, 1, 60.0)
        _, tail = await read_all(log, sid)
        await log.append(lease, tail, framed(tail, b"from another process"))
        producer.go_on()
        assert await producer.asked() == "LeaseLost"
        assert await producer.asked() == "LeaseLost"
    assert (await read_all(log, sid))[0] == [text(sid, 1), b"from another process"]


async def test_one_that_slept_and_was_not_replaced_goes_on(log: SQLiteLog, path: Path) -> None:
    with child(path, "told") as producer:
        sid, _ = await anyio.to_thread.run_sync(producer.hear)
        producer.stop()
        await lapsed(log, sid)
        producer.go_on()
        assert await producer.asked() == "1"
        assert (await log.state(sid)).held


async def test_two_processes_write_at_once_and_neither_loses_a_frame(log: SQLiteLog, path: Path) -> None:
    with child(path, "many", 6) as one, child(path, "many", 6) as two:
        heard: dict[str, int] = {}
        for _ in range(300):
            for producer in (one, two):
                sid, number = await anyio.to_thread.run_sync(producer.hear)
                heard[sid] = int(number)
        for sid, number in [*one.kill(), *two.kill()]:
            heard[sid] = int(number)
    assert len(heard) == 12
    for sid, count in heard.items():
        found, _ = await read_all(log, sid)
        assert len(found) >= count
        assert found == [text(sid, number) for number in range(1, len(found) + 1)]


async def test_a_signal_reaches_the_process_that_generates(log: SQLiteLog, path: Path) -> None:
    """Here the other way round: this one generates, and the other cancels."""
    script = (
        "import asyncio, sys\n"
        "from streamguard.log.sqlite import SQLiteLog\n"
        "async def main():\n"
        "    log = SQLiteLog(sys.argv[1])\n"
        "    await log.signal(sys.argv[2], 'cancel', b'why')\n"
        "    await log.aclose()\n"
        "asyncio.run(main())\n"
    )
    lease = await log.create(StreamInfo("a" * 22), 60.0)
    heard = []

    async def listen() -> None:
        heard.extend(await log.signals(lease.sid, 0, 60.0))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen)
            await anyio.run_process([sys.executable, "-c", script, str(path), lease.sid], cwd=ROOT)
    assert [(one.number, one.kind, one.payload) for one in heard] == [(1, "cancel", b"why")]
    assert (await log.state(lease.sid)).cancelled


STRUCK = """
import asyncio, signal, sys, threading
from streamguard.core.cursor import cursor_zero
from streamguard.log.base import StreamInfo
from streamguard.log.sqlite import SQLiteLog
from streamguard.log.sqlite_book import Book
from streamguard.testing.crash import crash_at
from streamguard.testing.log_case import framed

path, sid, when, kind = sys.argv[1:]

async def main():
    log = SQLiteLog(path)
    lease = await log.create(StreamInfo(sid), 60.0)
    zero = cursor_zero(sid)
    first = framed(zero, b"one")
    tail = await log.append(lease, zero, first)
    commit = Book.commit

    def strike():
        # This very thread: a signal to the process may stop another one first, and this one goes on meanwhile.
        signal.pthread_kill(threading.get_ident(), getattr(signal, kind))

    def struck(book):
        if when == "committed, not acknowledged":
            commit(book)
        strike()

    if when == "written, not committed":
        crash_at("inside-group-commit", then=strike)
    else:
        Book.commit = struck
    await log.append(lease, tail, framed(tail, b"two" * 2000, b"three"), checkpoint=b"here")

asyncio.run(main())
"""


@pytest.mark.parametrize("when", ["not written", "written, not committed", "committed, not acknowledged"])
async def test_a_kill_at_a_step_of_the_commit_leaves_all_of_an_append_or_nothing(
    when: str, log: SQLiteLog, path: Path
) -> None:
    sid = "k" * 22
    command = [sys.executable, "-c", STRUCK, str(path), sid, when, "SIGKILL"]
    ended = await anyio.run_process(command, cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGKILL
    found, tail = await read_all(log, sid)
    state = await log.state(sid)
    if when == "committed, not acknowledged":
        assert found == [b"one", b"two" * 2000, b"three"]
        assert state.checkpoint is not None
        assert state.checkpoint.at == tail
    else:
        assert found == [b"one"]
        assert state.checkpoint is None
    repeated = framed(cursor_zero(sid), b"one", b"two" * 2000, b"three")
    after = Cursor(sid, 1, 3, repeated[0].crc)
    end = await log.append(Lease(sid, 1, 60.0), after, repeated[1:])
    assert (end.seq, (await read_all(log, sid))[0]) == (3, [b"one", b"two" * 2000, b"three"])


@contextlib.contextmanager
def standing(path: Path, sid: str) -> Iterator[None]:
    """Beside a process that was stopped in the middle of a transaction, and is killed in the end."""
    command = [sys.executable, "-c", STRUCK, str(path), sid, "written, not committed", "SIGSTOP"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as stopped:
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            yield
        finally:
            stopped.kill()


async def test_a_process_that_stands_in_a_transaction_keeps_others_from_writing_not_from_reading(
    log: SQLiteLog, path: Path
) -> None:
    sid = "s" * 22
    with standing(path, sid):
        assert (await read_all(log, sid))[0] == [b"one"]
        with anyio.fail_after(30), pytest.raises(LogUnavailable, match="kept the file locked"):
            await log.signal(sid, "cancel")
    await log.signal(sid, "cancel")
    assert (await log.state(sid)).cancelled
    assert (await read_all(log, sid))[0] == [b"one"]
