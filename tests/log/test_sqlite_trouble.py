"""A file in trouble: calls say so with a reason, no text is wrong, others go on, and afterwards all works again."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest

from streamguard.core.cursor import Cursor, cursor_zero, new_sid
from streamguard.log.base import Lease, LeaseLost, LogError, LogUnavailable, StreamInfo, UnknownStream
from streamguard.log.sqlite import SQLiteLog
from streamguard.log.sqlite_book import Book
from streamguard.log.sqlite_threads import _LOOKS
from streamguard.testing.log_case import framed
from tests.log.test_sqlite import until

pytestmark = pytest.mark.anyio

TTL = 60.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "streams.db"


@pytest.fixture
async def log(path: Path) -> AsyncIterator[SQLiteLog]:
    log = SQLiteLog(path)
    yield log
    await log.aclose()


async def started(log: SQLiteLog, *data: bytes) -> tuple[Lease, Cursor]:
    lease = await log.create(StreamInfo(new_sid()), TTL)
    zero = cursor_zero(lease.sid)
    return lease, await log.append(lease, zero, framed(zero, *data)) if data else zero


async def texts(log: SQLiteLog, sid: str) -> list[bytes]:
    return [frame.data for frame in await log.read(cursor_zero(sid), limit=100_000)]


async def answer(call: Awaitable[Any], into: dict[str, Any], name: str) -> None:
    try:
        into[name] = await call
    except Exception as exc:
        into[name] = exc


@contextlib.asynccontextmanager
async def busy(log: SQLiteLog, calls: int) -> AsyncIterator[anyio.abc.TaskGroup]:
    """The writer is in the middle of a transaction until the block is left, and so many calls wait for it."""
    gate = threading.Event()
    assert log._threads is not None
    queue = log._threads._writer.queue
    entered = threading.Event()

    def pass_gate(book: Book) -> None:
        entered.set()
        gate.wait(30)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer, log._write(pass_gate), {}, "")
        await until(entered.is_set)
        try:
            yield tasks
            await until(lambda: queue.qsize() >= calls)
        finally:
            gate.set()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """As by another process, in the middle of a transaction."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


# ---- one transaction for many ---------------------------------------------------------------------


async def test_appends_that_wait_together_are_one_transaction_and_a_refused_one_fails_alone(
    log: SQLiteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [await started(log) for _ in range(6)]
    begun: list[int] = []
    begin = Book.begin

    def counted(book: Book) -> bool:
        begun.append(1)
        return begin(book)

    monkeypatch.setattr(Book, "begin", counted)
    answers: dict[str, Any] = {}
    async with busy(log, 6) as tasks:
        for number, (lease, zero) in enumerate(streams):
            stale = attrs.evolve(lease, epoch=7) if number == 3 else lease
            call = log.append(stale, zero, framed(zero, b"%d" % number))
            tasks.start_soon(answer, call, answers, str(number))
    assert len(begun) == 2
    refused = answers.pop("3")
    assert isinstance(refused, LeaseLost)
    assert all(isinstance(tail, Cursor) for tail in answers.values())
    assert [await texts(log, lease.sid) for lease, _ in streams] == [[b"0"], [b"1"], [b"2"], [], [b"4"], [b"5"]]


async def test_what_breaks_a_transaction_fails_alone(log: SQLiteLog, path: Path) -> None:
    """Frames that stand nowhere, and a stream whose block is damaged, beside four that are well."""
    streams = [await started(log, b"a") for _ in range(6)]
    await log.aclose()
    (damaged, _), (wrong, _) = streams[1], streams[4]
    connection = sqlite3.connect(path)
    connection.execute(
        "UPDATE blocks SET data = zeroblob(length(data)) WHERE stream = (SELECT id FROM streams WHERE sid = ?)",
        (damaged.sid,),
    )
    connection.commit()
    connection.close()
    again = SQLiteLog(path)
    await again.find("nothing", None)
    answers: dict[str, Any] = {}
    async with busy(again, 6) as tasks:
        for lease, tail in streams:
            frames = framed(tail, b"b", b"c")[1 if lease is wrong else 0 :]
            tasks.start_soon(answer, again.append(lease, tail, frames), answers, lease.sid)
    assert isinstance(answers.pop(damaged.sid), LogUnavailable)
    assert isinstance(answers.pop(wrong.sid), ValueError)
    for sid, tail in answers.items():
        assert isinstance(tail, Cursor), tail
        assert await texts(again, sid) == [b"a", b"b", b"c"]
    with pytest.raises(LogUnavailable, match="damaged"):
        await again.read(cursor_zero(damaged.sid))
    assert await texts(again, wrong.sid) == [b"a"]
    await again.aclose()


@pytest.mark.parametrize("times", [2, 100], ids=["once", "for long"])
async def test_a_disk_that_fails_while_it_commits_is_tried_again_for_each(
    times: int, log: SQLiteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [await started(log, b"a") for _ in range(3)]
    commit = Book.commit
    left = times

    def fail(book: Book) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise sqlite3.OperationalError("disk I/O error")
        commit(book)

    answers: dict[str, Any] = {}
    async with busy(log, 3) as tasks:
        for lease, tail in streams:
            tasks.start_soon(answer, log.append(lease, tail, framed(tail, b"b")), answers, lease.sid)
        monkeypatch.setattr(Book, "commit", fail)
    for lease, _ in streams:
        found = answers[lease.sid]
        if times == 2:  # the transaction before theirs failed, and theirs, and then nothing
            assert isinstance(found, Cursor)
        else:
            assert isinstance(found, LogUnavailable)
            assert "disk I/O error" in found.why
    left = 0
    for lease, tail in streams:
        assert await log.append(lease, tail, framed(tail, b"b")) == Cursor(lease.sid, 2, 2, framed(tail, b"b")[0].crc)
        assert await texts(log, lease.sid) == [b"a", b"b"]


async def test_a_call_that_is_cancelled_while_it_waits_has_no_effect(log: SQLiteLog) -> None:
    lease, tail = await started(log, b"a")
    async with busy(log, 1) as tasks:
        scope = anyio.CancelScope()

        async def leave() -> None:
            with scope:
                await log.append(lease, tail, framed(tail, b"never"))

        tasks.start_soon(leave)
        assert log._threads is not None
        queue = log._threads._writer.queue
        await until(lambda: queue.qsize() == 1)
        scope.cancel()
        await anyio.sleep(0.01)
    await log.append(lease, tail, framed(tail, b"b"))
    assert await texts(log, lease.sid) == [b"a", b"b"]


async def test_no_more_calls_wait_than_are_bounded(log: SQLiteLog, monkeypatch: pytest.MonkeyPatch) -> None:
    lease, tail = await started(log)
    monkeypatch.setattr("streamguard.log.sqlite_threads._WAITING", 3)
    async with busy(log, 3) as tasks:
        for _ in range(3):
            tasks.start_soon(log.renew, lease)
        await anyio.sleep(0.01)
        with pytest.raises(LogUnavailable, match="3 calls wait"):
            await log.renew(lease)
    await log.append(lease, tail, framed(tail, b"a"))


# ---- locked, full, read-only ----------------------------------------------------------------------


async def test_a_locked_file_is_unavailable_after_a_while_and_is_read_meanwhile(log: SQLiteLog, path: Path) -> None:
    lease, tail = await started(log, b"a")
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            await anyio.sleep(0.01)
            assert await texts(log, lease.sid) == [b"a"]
            turns += 1

    with locked(path):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tick)
            with anyio.fail_after(30), pytest.raises(LogUnavailable, match="another process kept the file locked"):
                await log.append(lease, tail, framed(tail, b"b"))
            tasks.cancel_scope.cancel()
    assert turns > 10, "the event loop stood still, or readers waited for the writer"
    await log.append(lease, tail, framed(tail, b"b"))
    assert await texts(log, lease.sid) == [b"a", b"b"]


async def test_a_full_file_is_unavailable_until_something_is_forgotten(path: Path) -> None:
    log = SQLiteLog(path, max_bytes=400 * 1024)
    old, _ = await started(log, *[b"x" * 1000] * 100)
    lease, tail = await started(log, b"0")
    stored = [b"0"]
    with pytest.raises(LogUnavailable, match="no room"):
        for number in range(1, 1000):
            data = b"%d" % number * 500
            tail = await log.append(lease, tail, framed(tail, data))
            stored.append(data)
    assert await texts(log, lease.sid) == stored
    assert await log.purge(sid=old.sid) == 1
    await log.append(lease, tail, framed(tail, b"last"))
    assert await texts(log, lease.sid) == [*stored, b"last"]
    await log.aclose()


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Without the rights of root, which no file is read-only for."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no users")
async def test_a_read_only_file_is_unavailable_until_it_can_be_written() -> None:
    folder = Path(tempfile.mkdtemp())
    path = folder / "streams.db"
    log = SQLiteLog(path)
    lease, tail = await started(log, b"a")
    await log.aclose()
    os.chmod(path, 0o444)
    os.chmod(folder, 0o555)
    log = SQLiteLog(path)
    with as_nobody(), pytest.raises(LogUnavailable, match=r"read-only|cannot be opened"):
        await log.append(lease, tail, framed(tail, b"b"))
    os.chmod(folder, 0o755)
    os.chmod(path, 0o600)
    await log.append(lease, tail, framed(tail, b"b"))
    assert await texts(log, lease.sid) == [b"a", b"b"]
    await log.aclose()
    shutil.rmtree(folder)


async def test_a_directory_that_is_not_there_yet(tmp_path: Path) -> None:
    log = SQLiteLog(tmp_path / "later" / "streams.db")
    with pytest.raises(LogUnavailable, match="No such file or directory"):
        await log.find("nothing", None)
    with pytest.raises(LogUnavailable):
        await started(log)
    (tmp_path / "later").mkdir()
    lease, _ = await started(log, b"a")
    assert await texts(log, lease.sid) == [b"a"]
    await log.aclose()


def content(path: Path) -> bytearray:
    return bytearray(path.read_bytes())


def overwrite(path: Path, raw: bytes | bytearray) -> None:
    path.write_bytes(raw)


# ---- another file, or a damaged one ---------------------------------------------------------------


async def test_a_file_that_is_taken_away_is_noticed_and_another_one_made(log: SQLiteLog, path: Path) -> None:
    lease, tail = await started(log, b"a")
    for name in os.listdir(path.parent):
        os.unlink(path.parent / name)
    await anyio.sleep(4 * _LOOKS)
    with pytest.raises(UnknownStream):
        await log.append(lease, tail, framed(tail, b"b"))
    with pytest.raises(UnknownStream):
        await log.read(tail)
    other, _ = await started(log, b"c")
    assert await texts(log, other.sid) == [b"c"]


async def test_a_database_of_something_else_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE orders (id INTEGER)")
    connection.commit()
    connection.close()
    before = content(path)
    log = SQLiteLog(path)
    with pytest.raises(LogUnavailable, match="a database of something else"):
        await started(log)
    await log.aclose()
    assert content(path) == before


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (1, r"an older streamguard \(schema 1; this one reads 2\): remove it, or"),
        (3, r"a newer streamguard \(schema 3; this one reads 2\): upgrade"),
    ],
)
async def test_another_schema_is_refused_with_what_to_do(log: SQLiteLog, path: Path, version: int, said: str) -> None:
    await started(log, b"a")
    await log.aclose()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    before = content(path)
    other = SQLiteLog(path)
    with pytest.raises(LogUnavailable, match=said):
        await started(other)
    await other.aclose()
    assert content(path) == before


async def test_what_is_no_database_is_refused(path: Path) -> None:
    overwrite(path, b"these are not the bytes of a database" * 100)
    log = SQLiteLog(path)
    with pytest.raises(LogUnavailable, match="is damaged, or is no database"):
        await started(log)
    await log.aclose()


@pytest.mark.parametrize("seed", range(12))
async def test_a_damaged_file_gives_the_text_or_an_error(seed: int, log: SQLiteLog, path: Path) -> None:
    chance = random.Random(seed)
    expected = {}
    for number in range(8):
        data = [b"%d-%d " % (number, index) * chance.randrange(1, 60) for index in range(60)]
        lease, tail = await started(log, *data)
        await log.append(lease, tail, framed(tail, b"{}", status="complete", name="end"))
        expected[lease] = [*data, b"{}"]
    await log.aclose()
    raw = content(path)
    for _ in range(40):
        at = chance.randrange(100, len(raw) - 8)
        raw[at : at + chance.randrange(1, 8)] = chance.randbytes(chance.randrange(1, 8))
    overwrite(path, raw)

    again = SQLiteLog(path)
    outcomes = set()
    for lease, data in expected.items():
        calls = (again.state(lease.sid), again.renew(lease), again.find_key("none"), again.signal(lease.sid, "grant"))
        for call in calls:
            with contextlib.suppress(LogError):
                await call
        try:
            assert await texts(again, lease.sid) == data
            outcomes.add("text")
        except LogError:
            outcomes.add("error")
    await again.aclose()
    assert "error" in outcomes
