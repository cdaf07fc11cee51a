"""A log in one file, for the processes of one machine: what is embedded when there is no server to ask.

    sqlite          the log: each call handed to a thread, and its outcome awaited
    sqlite_threads  one thread that writes: group commit, and looking for what others wrote
    sqlite_readers  the threads beside it
    sqlite_waits    who waits, on which loop, and how they are woken
    sqlite_recent   the newest frames, for readers in the process that appended them
    sqlite_book     what the writer does in a transaction
    sqlite_kept     one stream as the writer has it in mind
    sqlite_reading  what is read
    sqlite_blocks   how frames lie in the file
    sqlite_file     the file: where it may lie, how it is opened, what its troubles are called
    sqlite_clock    its clock

Nothing is opened before the first call. A process that forks must do so before that: a child that inherits an open
file is refused, because SQLite would take the parent's locks for its own.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar, get_args

import anyio
import attrs

from streamguard.core.arguments import require, require_whole_number, shown
from streamguard.core.cursor import Cursor
from streamguard.core.frame import Frame
from streamguard.log.base import (
    PAGE,
    Lease,
    LogUnavailable,
    Retention,
    Signal,
    SignalKind,
    StreamInfo,
    StreamState,
)
from streamguard.log.sqlite_blocks import padded
from streamguard.log.sqlite_book import Book
from streamguard.log.sqlite_file import BUSY, Durability, LogFile, Opened, refusal
from streamguard.log.sqlite_reading import digest, read_frames, read_info, read_moved, read_signals, read_state
from streamguard.log.sqlite_recent import FRESH
from streamguard.log.sqlite_threads import Threads
from streamguard.log.sqlite_waits import Call, Loops, Waiter, deliver

__all__ = ["SQLiteLog"]

_MAX_BYTES: Final = 16 * 1024**3  # of the file, by default

_T = TypeVar("_T")


class SQLiteLog:
    """Streams in the file at `path`, which is made if it is not there. See StreamLog for the methods.

    `durability` is what an acknowledged append survives: the end of the process (`"process"`, kill -9 too), or that of
    the machine (`"power"`, at the price of one flush of the disk for each transaction). `max_bytes` bounds the file:
    once it is reached, appends raise LogUnavailable until something is swept or purged.

    Raises TypeError and ValueError for arguments of the wrong kind, and ValueError for a path in memory or on a network
    file system. Every method raises LogUnavailable while the file cannot be used, and works again afterwards;
    RuntimeError in a process that was forked while the log was in use.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        retention: Retention | None = None,
        durability: Durability = "process",
        max_bytes: int = _MAX_BYTES,
    ) -> None:
        retention = Retention() if retention is None else retention
        require("retention", retention, Retention, "Retention(after_end=600)")
        require_whole_number("max_bytes", max_bytes)
        if durability not in get_args(Durability):
            raise ValueError(f"durability must be one of {get_args(Durability)}, not {durability!r}")
        self._file = LogFile(_placed(path), durability, max_bytes)
        self._retention = retention
        self._threads: Threads | None = None
        self._starting = threading.Lock()
        self._loops = Loops()
        self._closed = False

    # ---- the producer's side ------------------------------------------------------------------

    async def create(self, info: StreamInfo, ttl: float) -> Lease:
        stored = padded(_written(info))
        return await self._write(lambda book: book.create(info, stored, ttl))

    async def append(
        self, lease: Lease, after: Cursor, frames: Sequence[Frame], *, checkpoint: bytes | None = None
    ) -> Cursor:
        kept = tuple(frames)  # the caller's list may change before the thread comes to it
        tail: Cursor = await self._called(Book.append, (lease, after, kept, checkpoint))
        return tail

    async def renew(self, lease: Lease) -> None:
        await self._write(lambda book: book.renew(lease))

    async def release(self, lease: Lease) -> None:
        await self._write(lambda book: book.release(lease))

    async def take_over(self, sid: str, epoch: int, ttl: float) -> Lease:
        return await self._write(lambda book: book.take_over(sid, epoch, ttl))

    async def signals(self, sid: str, after: int, timeout: float) -> list[Signal]:  # noqa: ASYNC109  # the contract's
        threads = self._running()
        waiter = Waiter(self._loops.here(), sid, number=after)
        threads.watch(waiter)
        try:
            found = await self._read(lambda opened: read_signals(opened.connection, sid, after))
            if found or timeout <= 0:
                return found
            await waiter.sleep(timeout)
        finally:
            threads.waiters.remove(waiter)
        return await self._read(lambda opened: read_signals(opened.connection, sid, after))

    # ---- the readers' side --------------------------------------------------------------------

    async def read(self, after: Cursor, *, limit: int = PAGE) -> list[Frame]:
        frames = self._running().recent.read(after, limit)
        if frames is not None:
            return frames
        return await self._read(lambda opened: read_frames(opened.connection, after, limit))

    async def wait(self, after: Cursor, timeout: float) -> bool:  # noqa: ASYNC109  # the contract's
        threads = self._running()
        waiter = Waiter(self._loops.here(), after.sid, after)
        threads.watch(waiter)  # before the look, so that nothing falls between them
        try:
            moved = threads.recent.moved(after)
            if moved is None:
                moved = await self._read(lambda opened: read_moved(opened.connection, after))
            if moved:
                return True
            if timeout > 0:
                await waiter.sleep(timeout)
        finally:
            threads.waiters.remove(waiter)
        return waiter.over

    async def state(self, sid: str) -> StreamState:
        return await self._read(lambda opened: read_state(opened.connection, sid, opened.now()))

    async def signal(self, sid: str, kind: SignalKind, payload: bytes = b"") -> None:
        content = bytes(payload)
        await self._write(lambda book: book.signal(sid, kind, content))

    async def find(self, name: str, principal: str | None) -> StreamInfo | None:
        value = digest(name, principal)
        return await self._read(lambda opened: read_info(opened.connection, "name", value))

    async def find_key(self, key: str) -> StreamInfo | None:
        value = digest(key)
        return await self._read(lambda opened: read_info(opened.connection, "holds", value))

    # ---- what is forgotten --------------------------------------------------------------------

    async def purge(self, *, sid: str | None = None, principal: str | None = None) -> int:
        """See StreamLog. With both, the stream only if it is the principal's. Raises ValueError without either, and
        LogUnavailable where a long read of another process keeps the text in the write-ahead log: the streams are
        gone then, and the call is to be repeated."""
        if sid is None and principal is None:
            raise ValueError("purge(sid=...) or purge(principal=...): without either it would forget everything")
        count = await self._write(lambda book: book.purge(sid, principal))
        gone = anyio.current_time() + FRESH
        await self._shred()
        while not await self._write(Book.empty_log, alone=True):
            if anyio.current_time() > gone + BUSY:
                raise LogUnavailable("somebody reads the file, so that the write-ahead log still holds what was purged")
            await anyio.sleep(FRESH)
        await anyio.sleep_until(gone)  # until no process gives out what it has in memory
        return count

    async def sweep(self, limit: int = 100) -> int:
        count = await self._write(lambda book: book.sweep(limit))
        gone = anyio.current_time() + FRESH
        await self._shred()
        if count:
            await anyio.sleep_until(gone)
        return count

    async def aclose(self) -> None:
        """Serve the calls that wait, close the file. Further calls raise LogUnavailable; stored streams stay."""
        self._closed = True
        threads, self._threads = self._threads, None
        if threads is None or threads.process != os.getpid():
            return
        call = Call(self._loops.here(), _nothing)
        threads.stop(lambda: deliver([call]))
        await call.outcome()

    # ---- inside -------------------------------------------------------------------------------

    async def _write(self, work: Callable[[Book], _T], *, alone: bool = False) -> _T:
        result: _T = await self._called(work, (), alone)
        return result

    def _called(self, work: Callable[..., Any], args: tuple[Any, ...], alone: bool = False) -> Awaitable[Any]:
        """What to await for the outcome of a call that waits for the writer from now on."""
        call = Call(self._loops.here(), work, args, alone)
        self._running().write(call)
        return call.outcome()

    async def _read(self, work: Callable[[Opened], _T]) -> _T:
        call = Call(self._loops.here(), work)
        self._running().read(call)
        result: _T = await call.outcome()
        return result

    async def _shred(self) -> None:
        """Slice by slice, so that appends come between."""
        while await self._write(Book.shred):
            pass

    def _running(self) -> Threads:
        """The threads of this process, started by the first call."""
        if self._closed:
            raise LogUnavailable("it was closed")
        threads = self._threads
        if threads is None:
            with self._starting:
                threads = self._threads
                if threads is None:
                    self._threads = threads = Threads(self._file, self._retention)
                    # Whoever forgets a log without closing it leaves no thread behind.
                    weakref.finalize(self, threads.stop).atexit = False
        if threads.process != os.getpid():
            raise RuntimeError(
                "this SQLiteLog was used before the process forked, and the child cannot use it: make the log, or "
                "call it for the first time, after the fork"
            )
        return threads


def _nothing(_: object) -> None:
    pass


def _placed(path: str | os.PathLike[str]) -> str:
    """The absolute path. Raises ValueError for one that is no file on a disk of this machine."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"path must be a str or a path, not {shown(path)}")
    if not text or text.startswith((":memory:", "file:")):
        raise ValueError(f"path must be that of a file, not {text!r}; a log in memory is MemoryLog()")
    if "://" in text:
        raise ValueError(f'path must be that of a file, for example "streams.db", and no URL; not {text!r}')
    text = os.path.realpath(text)
    why = refusal(text)
    if why is not None:
        raise ValueError(why)
    return text


def _written(info: StreamInfo) -> bytes:
    """An info as it is stored. Raises TypeError and ValueError for options that JSON does not have."""
    fields = attrs.asdict(info, recurse=False)
    return json.dumps({**fields, "options": dict(info.options)}, allow_nan=False).encode()
