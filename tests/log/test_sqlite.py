"""SQLiteLog: the contract, the model, what lies in the file, and what the log does with a clock, a fork, a thread."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from streamguard.core.cursor import Cursor, cursor_zero, new_sid
from streamguard.core.frame import row_of
from streamguard.log import sqlite_clock
from streamguard.log.base import LeaseLost, LogUnavailable, Retention, StreamInfo, StreamLog, UnknownStream
from streamguard.log.sqlite import SQLiteLog
from streamguard.log.sqlite_blocks import locate
from streamguard.log.sqlite_file import LogFile, file_system, refusal
from streamguard.log.sqlite_kept import Kept, remember
from streamguard.log.sqlite_reading import block_of, head_of
from streamguard.log.sqlite_recent import Recent, Tail
from streamguard.log.sqlite_waits import Loop, Waiter
from streamguard.testing.log_case import framed
from streamguard.testing.log_contract import LOG_RULES, check_log_rule
from tests.log.machine import Store, machine_test
from tests.modules import ROOT

TTL = 60.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "streams.db"


@pytest.fixture
async def log(path: Path) -> AsyncIterator[SQLiteLog]:
    log = SQLiteLog(path)
    yield log
    await log.aclose()


class Machine:
    """One whose clock a test sets: seconds since it started, and the name of the start."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed = 0.0
        self.start = "first"
        uptime = sqlite_clock.uptime
        monkeypatch.setattr(sqlite_clock, "uptime", lambda: uptime() + self.passed)
        monkeypatch.setattr(sqlite_clock, "start", lambda: self.start)


# ---- the contract and the model -------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("rule", LOG_RULES)
@pytest.mark.parametrize(
    ("anyio_backend", "shared"),
    [(("asyncio", {}), False), (("asyncio", {}), True), (("trio", {}), True)],
    ids=["one log", "two logs on one file", "two logs on one file, trio"],
    indirect=["anyio_backend"],
)
async def test_a_log_in_a_file_keeps_every_rule(rule: str, shared: bool, tmp_path: Path) -> None:
    numbers = itertools.count()

    def factory(retention: Retention) -> StreamLog:
        name = "shared.db" if shared else f"{next(numbers)}.db"
        return SQLiteLog(tmp_path / name, retention=retention)

    await check_log_rule(rule, factory, shared=shared)


def lose(path: Path, sid: str, count: int) -> None:
    """As a disk does that lost its last writes, and forgot to say so."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    head = head_of(connection, sid)
    assert head is not None
    seq = head.tail.seq - count
    block = block_of(connection, head.id, sid, seq)
    used, at = locate(block.data, block.at, seq)
    connection.execute("DELETE FROM blocks WHERE stream = ? AND seq >= ?", (head.id, max(seq, 1)))
    if at.seq > block.at.seq:
        kept = block.data[:used].ljust(len(block.data), b"\0")
        connection.execute("UPDATE blocks SET data = ? WHERE id = ?", (kept, block.id))
    else:
        connection.execute("DELETE FROM blocks WHERE id = ?", (block.id,))
    connection.execute('UPDATE tails SET seq = ?, "offset" = ?, crc = ? WHERE id = ?', (*at[1:4], head.id))
    connection.execute("DELETE FROM checkpoints WHERE id = ?", (head.id,))
    connection.execute("COMMIT")
    connection.close()


def store() -> Store:
    folder = Path(tempfile.mkdtemp())
    monkeypatch = pytest.MonkeyPatch()
    machine = Machine(monkeypatch)

    def advance(seconds: float) -> None:
        machine.passed += seconds

    def remove() -> None:
        monkeypatch.undo()
        shutil.rmtree(folder)

    path = folder / "streams.db"
    return Store(
        lambda retention: SQLiteLog(path, retention=retention),
        advance,
        lambda log, sid, count: lose(path, sid, count),
        persistent=True,
        remove=remove,
    )


TestSQLiteLog = machine_test(store, max_examples=20)


# ---- where a log may lie --------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", ":memory:", "file:x.db?mode=memory"])
def test_a_path_in_memory_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=r"MemoryLog\(\)"):
        SQLiteLog(path)


def test_wrong_arguments_are_refused_where_they_are_written(path: Path) -> None:
    with pytest.raises(ValueError, match="durability must be one of"):
        SQLiteLog(path, durability="always")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="retention"):
        SQLiteLog(path, retention=60)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_bytes"):
        SQLiteLog(path, max_bytes=0)
    with pytest.raises(TypeError, match="path"):
        SQLiteLog(b"streams.db")  # type: ignore[arg-type]


MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:30 / /srv/nfs rw,relatime shared:2 - nfs4 server:/export rw,vers=4.2
31 30 8:1 / /srv/nfs/local rw,relatime shared:3 - xfs /dev/sda1 rw
32 22 0:32 / /mnt/my\\040share rw - cifs //server/share rw
33 22 0:33 / /media/me/remote rw - fuse.sshfs me@server: rw
34 22 0:34 / /media/me/merged rw - fuse.mergerfs a:b rw
35 22 0:35 / /over rw - tmpfs tmpfs rw
36 35 0:36 / /over rw - nfs server:/x rw
not a line of it
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/streams.db", "ext4"),
        ("/srv/nfs/streams.db", "nfs4"),
        ("/srv/nfs/local/streams.db", "xfs"),
        ("/srv/nfs2/streams.db", "ext4"),
        ("/mnt/my share/streams.db", "cifs"),
        ("/media/me/remote/a/streams.db", "fuse.sshfs"),
        ("/over/streams.db", "nfs"),
    ],
)
def test_the_file_system_of_a_path_is_that_of_the_nearest_mount(path: str, kind: str) -> None:
    assert file_system(path, MOUNTS) == kind


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "fuse.s3fs"])
def test_a_network_file_system_is_refused_with_what_to_do(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = f"22 1 0:1 / / rw - {kind} somewhere rw"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: mounts)
    with pytest.raises(ValueError, match="put the log on a local disk, or use RedisLog"):
        SQLiteLog(tmp_path / "streams.db")


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "overlay", "tmpfs", "fuse.mergerfs", "fuseblk"])
def test_a_local_file_system_is_not_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"22 1 0:1 / / rw - {kind} somewhere rw")
    assert refusal("/var/lib/streams.db") is None


@pytest.mark.anyio
async def test_only_the_owner_may_read_the_files(log: SQLiteLog, path: Path) -> None:
    before = os.umask(0)
    try:
        await log.create(StreamInfo(new_sid()), TTL)
        await log.find("nothing", None)
        modes = {name: stat.S_IMODE(os.stat(path.parent / name).st_mode) for name in os.listdir(path.parent)}
    finally:
        os.umask(before)
    assert modes == {"streams.db": 0o600, "streams.db-wal": 0o600, "streams.db-shm": 0o600}


# ---- what is purged -------------------------------------------------------------------------------


def found_in(folder: Path, text: bytes) -> dict[str, int]:
    return {file.name: count for file in folder.iterdir() if (count := file.read_bytes().count(text))}


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(4))
async def test_a_purge_leaves_no_byte_of_a_text_among_those_of_others(seed: int, log: SQLiteLog, path: Path) -> None:
    """Streams of all sizes that grow side by side: their rows are moved from page to page of the file's tables."""
    chance = random.Random(seed)
    mine, theirs = "<MINE>", "<ELSE>"
    leases = {}
    for number in range(160):
        word = chance.choice([mine, theirs])
        info = StreamInfo(
            new_sid(), principal=word, name=word, key=f"{word} {number}", fingerprint=word,
            options={"prompt": word * chance.choice([1, 5, 30, 100])},
        )  # fmt: skip
        leases[await log.create(info, TTL)] = (word.encode(), cursor_zero(info.sid))
    for lease in chance.choices(list(leases), k=400):
        text, tail = leases[lease]
        data = [text * chance.choice([1, 5, 30, 400]) for _ in range(chance.randrange(1, 4))]
        checkpoint = text * chance.choice([1, 5, 30, 100])
        tail = await log.append(lease, tail, framed(tail, *data, name=text.decode()), checkpoint=checkpoint)
        leases[lease] = text, tail
    assert found_in(path.parent, mine.encode())

    assert await log.purge(principal=mine) == sum(text == mine.encode() for text, _ in leases.values())
    assert found_in(path.parent, mine.encode()) == {}
    for lease, (text, tail) in leases.items():
        if text == theirs.encode() and tail.seq:
            frames = await log.read(cursor_zero(lease.sid))
            assert (frames[-1].crc, frames[-1].name) == (tail.crc, theirs)


@pytest.mark.anyio
async def test_a_purge_that_a_long_read_hinders_says_so_and_is_repeated(log: SQLiteLog, path: Path) -> None:
    lease = await log.create(StreamInfo(new_sid(), options={"prompt": "<MINE>"}), TTL)
    reading = sqlite3.connect(path, isolation_level=None)
    reading.execute("BEGIN")
    reading.execute("SELECT count(*) FROM streams").fetchone()
    with pytest.raises(LogUnavailable, match="somebody reads the file"):
        await log.purge(sid=lease.sid)
    with pytest.raises(UnknownStream):
        await log.state(lease.sid)
    reading.execute("COMMIT")
    reading.close()
    assert await log.purge(sid=lease.sid) == 0
    assert found_in(path.parent, b"<MINE>") == {}


@pytest.mark.anyio
async def test_what_a_purge_left_undone_is_done_by_the_next_sweep(log: SQLiteLog, path: Path) -> None:
    lease = await log.create(StreamInfo(new_sid()), TTL)
    zero = cursor_zero(lease.sid)
    await log.append(lease, zero, framed(zero, *[b"<MINE>" * 500] * 40))
    await log._write(lambda book: book.purge(lease.sid, None))  # and then the process was killed
    assert await log.sweep() == 0
    await log.aclose()
    assert found_in(path.parent, b"<MINE>") == {}


# ---- its clock ------------------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.anyio
@pytest.mark.parametrize("jump", [86400.0, -86400.0])
async def test_a_jump_of_the_wall_clock_ends_no_lease_and_ages_no_stream(
    jump: float, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, wall = SQLiteLog(path), time.time
    lease = await first.create(StreamInfo(new_sid()), TTL)
    monkeypatch.setattr(time, "time", lambda: wall() + jump)
    second = SQLiteLog(path)  # another process, which starts after the jump
    for log in (first, second):
        state = await log.state(lease.sid)
        assert state.held
        assert 0 <= state.age < TTL
        assert await log.sweep() == 0
        await log.aclose()


@pytest.mark.anyio
async def test_a_restart_of_the_machine_ends_the_leases_and_streams_keep_their_age(
    path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, wall = SQLiteLog(path), time.time
    lease = await log.create(StreamInfo(new_sid()), 10 * TTL)
    await log.aclose()
    machine.start, machine.passed = "second", machine.passed - sqlite_clock.uptime()
    monkeypatch.setattr(time, "time", lambda: wall() + 100)
    log = SQLiteLog(path)
    state = await log.state(lease.sid)
    assert not state.held
    assert 100 <= state.age < 100 + TTL
    assert (await log.take_over(lease.sid, 1, TTL)).epoch == 2
    zero = cursor_zero(lease.sid)
    with pytest.raises(LeaseLost):
        await log.append(lease, zero, framed(zero, b"a"))
    await log.aclose()


@pytest.mark.anyio
async def test_a_restart_of_the_machine_is_a_crash_but_for_who_had_let_go(path: Path, machine: Machine) -> None:
    log = SQLiteLog(path)
    released, held = [await log.create(StreamInfo(new_sid()), 10 * TTL) for _ in range(2)]
    await log.release(released)
    await log.aclose()
    machine.start = "second"
    log = SQLiteLog(path)
    for lease, crashes in ((released, 0), (held, 1)):
        await log.take_over(lease.sid, 1, TTL)
        assert (await log.state(lease.sid)).crashes == crashes
    await log.aclose()


@pytest.mark.anyio
async def test_where_starts_have_no_name_a_clock_that_went_back_tells_of_one(path: Path, machine: Machine) -> None:
    machine.start = ""
    log = SQLiteLog(path)
    lease = await log.create(StreamInfo(new_sid()), 10 * TTL)
    await log.aclose()
    again = SQLiteLog(path)
    assert (await again.state(lease.sid)).held
    await again.aclose()
    machine.passed -= 100.0
    after = SQLiteLog(path)
    assert not (await after.state(lease.sid)).held
    await after.aclose()


async def until(fact: Callable[[], bool]) -> None:
    """Wait for another thread."""
    with anyio.fail_after(30):
        while not fact():  # noqa: ASYNC110  # no event of this loop's
            await anyio.sleep(0.01)


# ---- threads, loops, forks ------------------------------------------------------------------------


@pytest.mark.anyio
async def test_the_file_is_never_touched_on_the_event_loop(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[int] = set()

    class Connection(sqlite3.Connection):
        def execute(self, *arguments: object) -> sqlite3.Cursor:
            used.add(threading.get_ident())
            return super().execute(*arguments)  # type: ignore[arg-type]

    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda *args, **kwargs: connect(*args, factory=Connection, **kwargs)
    )
    log = SQLiteLog(path)
    await check_log_rule("L2: many streams at once, each whole and in order", lambda _: log)
    assert used
    assert threading.get_ident() not in used


def test_loops_of_several_threads_may_use_one_log(path: Path) -> None:
    log = SQLiteLog(path)
    sid = new_sid()
    zero = cursor_zero(sid)
    created = threading.Event()
    read: list[bytes] = []

    async def write() -> None:
        lease = await log.create(StreamInfo(sid), TTL)
        created.set()
        tail = zero
        for number in range(50):
            status = "complete" if number == 49 else None
            tail = await log.append(lease, tail, framed(tail, b"%d" % number, status=status))

    async def reader() -> None:
        after = zero
        while after.status is None:
            await log.wait(after, TTL)
            for frame in await log.read(after):
                read.append(frame.data)
                after = Cursor(sid, frame.seq, frame.offset, frame.crc, frame.status)

    writing = threading.Thread(target=anyio.run, args=(write,))
    writing.start()
    assert created.wait(10)
    anyio.run(reader, backend="trio")
    writing.join()
    asyncio.run(log.aclose())
    assert read == [b"%d" % number for number in range(50)]


@pytest.mark.anyio
async def test_nobody_looks_for_what_others_write_while_nobody_waits(log: SQLiteLog) -> None:
    lease = await log.create(StreamInfo(new_sid()), TTL)
    assert log._threads is not None
    writer = log._threads._writer
    assert writer._pace is None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(log.wait, cursor_zero(lease.sid), TTL)
        await until(lambda: writer._pace is not None)
        tasks.cancel_scope.cancel()
    await until(lambda: writer._pace is None)


@pytest.mark.anyio
async def test_a_log_that_is_forgotten_leaves_no_thread(path: Path) -> None:
    def running() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.startswith("streamguard-log")]

    log = SQLiteLog(path)
    await log.create(StreamInfo(new_sid()), TTL)
    threads = running()
    assert threads
    del log
    for thread in threads:
        thread.join(10)
    assert running() == []


@pytest.mark.anyio
async def test_a_closed_log_is_unavailable_and_wakes_those_who_wait(path: Path) -> None:
    log = SQLiteLog(path)
    lease = await log.create(StreamInfo(new_sid()), TTL)
    zero = cursor_zero(lease.sid)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(log.wait, zero, TTL)
            await anyio.sleep(0.01)
            await log.aclose()
    for call in (log.read(zero), log.append(lease, zero, framed(zero, b"a")), log.wait(zero, 1.0)):
        with pytest.raises(LogUnavailable, match="closed"):
            await call
    await log.aclose()
    again = SQLiteLog(path)
    assert (await again.state(lease.sid)).tail == zero
    await again.aclose()


FORK = """
import asyncio, os, sys, warnings
from streamguard.core.cursor import new_sid
from streamguard.log.base import StreamInfo
from streamguard.log.sqlite import SQLiteLog

warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads, which is what is tried
used, unused = SQLiteLog(sys.argv[1]), SQLiteLog(sys.argv[2])
lease = asyncio.run(used.create(StreamInfo(new_sid()), 60.0))
child = os.fork()
if child == 0:
    for log in (used, unused):
        try:
            asyncio.run(log.create(StreamInfo(new_sid()), 60.0))
            print("made", flush=True)
        except RuntimeError as exc:
            print("refused", "after the fork" in str(exc), flush=True)
    asyncio.run(used.aclose())
    asyncio.run(unused.aclose())
    del log, used, unused
    sys.exit(0)
os.waitpid(child, 0)
asyncio.run(used.renew(lease))
print("renewed", os.path.exists(sys.argv[1] + "-wal"))
asyncio.run(used.aclose())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_is_refused_a_log_that_was_used_and_makes_use_of_another(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORK, str(tmp_path / "used.db"), str(tmp_path / "unused.db")]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert found.stdout.splitlines() == ["refused True", "made", "renewed True"], found.stderr


@pytest.mark.anyio
async def test_the_write_ahead_log_stays_short_though_somebody_always_reads(
    log: SQLiteLog, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamguard.log.sqlite_threads._COPIED", 100_000)
    monkeypatch.setattr("streamguard.log.sqlite_threads._EMPTIED", 400_000)
    lease = await log.create(StreamInfo(new_sid()), TTL)
    tail = zero = cursor_zero(lease.sid)
    longest = 0

    async def read() -> None:
        while True:
            await log._read(lambda opened: opened.connection.execute("SELECT count(*) FROM blocks").fetchone())

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(read)
        for _ in range(1600):
            tail = await log.append(lease, tail, framed(tail, b"x" * 5000))
            longest = max(longest, os.stat(f"{path}-wal").st_size)
        tasks.cancel_scope.cancel()
    assert 100_000 < longest < 3_000_000, "more than 8 MB were written"
    assert len(await log.read(zero, limit=10_000)) == 1600


def test_many_may_make_the_file_at_once(tmp_path: Path) -> None:
    """Nobody takes for another's what is being made just now."""
    for number in range(20):
        file = LogFile(str(tmp_path / f"{number}.db"), "process", 1 << 30)
        begin = threading.Barrier(6)
        failed: list[Exception] = []

        def open_it(file: LogFile = file, begin: threading.Barrier = begin, failed: list[Exception] = failed) -> None:
            begin.wait(10)
            try:
                file.open().close()
            except Exception as exc:
                failed.append(exc)

        threads = [threading.Thread(target=open_it) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []


def test_a_reader_here_is_given_what_is_committed_though_the_writer_has_more_in_its_list() -> None:
    zero = cursor_zero(new_sid())
    frames = framed(zero, b"a", b"b")
    one, two = (Cursor(zero.sid, frame.seq, frame.offset, frame.crc) for frame in frames)
    rows = [row_of(frame) for frame in frames]
    recent = Recent()
    recent.asked = time.monotonic() + 60
    recent.keep(Tail(one, zero, rows, 1, float("inf")))
    assert recent.read(zero, 10) == frames[:1]
    assert recent.read(one, 10) == []
    assert recent.read(two, 10) is None
    recent.keep(Tail(two, zero, rows, 2, float("inf")))
    assert recent.read(zero, 10) == frames
    assert recent.read(zero, 1) == frames[:1]


def test_the_newest_frames_are_dropped_into_another_list() -> None:
    """Who looks at the list in another thread counts on where each frame stands."""
    zero = cursor_zero(new_sid())
    kept = Kept(1, zero.sid, zero, zero, 1, 0.0, 0.0, False, 0, 0)
    frames = framed(zero, *[b"x"] * 100)
    remember(kept, frames[:64])
    before, held = kept.recent, list(kept.recent)
    remember(kept, frames[64:])
    assert before[:64] == held
    assert kept.recent is not before
    assert kept.recent == [row_of(frame) for frame in frames[-len(kept.recent) :]]
    assert kept.base.seq == 100 - len(kept.recent)


@pytest.mark.anyio
async def test_a_late_call_wakes_nobody_who_sleeps_in_the_same_bed() -> None:
    """A place to sleep is used again; who slept there before may be woken once more, by a thread that was slow."""
    loop = Loop()
    first, second = Waiter(loop, "sid", number=0), Waiter(loop, "sid", number=0)
    await first.sleep(0.001)
    assert len(loop.beds) == 1
    slept: list[bool] = []

    async def sleep() -> None:
        await second.sleep(60)
        slept.append(second.over)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sleep)
        await anyio.wait_all_tasks_blocked()
        assert loop.beds == []
        first.wake()
        await anyio.wait_all_tasks_blocked()
        assert not slept
        second.wake()
    assert slept == [True]
