"""The threads of a log in a file: one that writes, and some that read. No event loop ever touches the file.

Calls that wait for the writer together become one transaction. The writer also looks whether another process has
written, while somebody waits for that: SQLite tells nobody. It asks every 5 ms at first, every 50 ms once it has been
quiet for a while, and wakes whoever waits for what it finds.

A thread keeps its connection in a local variable of its function, and nowhere else. A forked child then has no way to
close it; closing it there would damage what the parent still uses.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from streamguard.log.base import LogError, LogUnavailable, Retention
from streamguard.log.sqlite_book import Book
from streamguard.log.sqlite_file import BUSY, LogFile
from streamguard.log.sqlite_readers import STOP, Copier, Queue, Reader, fail, gather, trouble
from streamguard.log.sqlite_reading import heads_of
from streamguard.log.sqlite_recent import Recent
from streamguard.log.sqlite_waits import Call, Waiter, Waiters, deliver

__all__ = ["Threads"]

FAST: Final = 0.005  # seconds between two looks for what others wrote
SLOW: Final = 0.05
_READERS: Final = 2
_TOGETHER: Final = 1024  # calls of one transaction
_WAITING: Final = 10_000  # calls that may wait for a thread; a file that is locked must not fill the memory

_COPIED: Final = 4 * 1024**2  # bytes of the write-ahead log after which they are copied back
_EMPTIED: Final = 32 * 1024**2  # bytes of it after which it begins anew

_LOOKS: Final = 0.02  # seconds between two looks at which file stands at the path, and how long it is ahead


class Threads:
    """Those of one log in one process. Raises RuntimeError where a thread cannot be started."""

    def __init__(self, file: LogFile, retention: Retention) -> None:
        self.waiters = Waiters()
        self.recent = Recent()
        self.process = os.getpid()
        self._lock = threading.Lock()
        self._stopped = False
        self._reads: Queue = SimpleQueue()
        copier = Copier(file)
        self._writer = _Writer(file, retention, self.waiters, self.recent, copier)
        self._threads = [_thread("writer", self._writer.run)]
        self._threads.append(_thread("copier", copier.run))
        self._threads += [_thread("reader", Reader(file, self._reads).run) for _ in range(_READERS)]

    def write(self, call: Call) -> None:
        """Have `call.work` done with the Book. Raises LogUnavailable if too many wait, or none is served any more."""
        self._put(self._writer.queue, call)

    def read(self, call: Call) -> None:
        """Have `call.work` done with an Opened, inside a transaction. Raises as `write` does."""
        self._put(self._reads, call)

    def watch(self, waiter: Waiter) -> None:
        """Wake `waiter` when its stream changes; it is taken out again by `waiters.remove`."""
        self.waiters.add(waiter)
        self._writer.hurry(waiter.sid)

    def stop(self, then: Callable[[], object] | None = None) -> None:
        """Serve what waits, close the connections, and then, on a thread of its own, call `then`.

        In a forked child nothing happens: the threads are the parent's, and so are the loops of those who wait.
        """
        if self.process != os.getpid():
            return
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._writer.queue.put(STOP)
                for _ in range(_READERS):
                    self._reads.put(STOP)
        deliver(self.waiters.all())
        if then is not None:
            _thread("closer", lambda: self._join(then))

    def _join(self, then: Callable[[], object]) -> None:
        for thread in self._threads:
            thread.join()
        then()

    def _put(self, queue: Queue, call: Call) -> None:
        with self._lock:
            if self._stopped:
                raise LogUnavailable("it was closed")
            if queue.qsize() >= _WAITING:
                raise LogUnavailable(f"{_WAITING} calls wait for the file already")
            queue.put(call)


def _thread(name: str, run: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=run, name=f"streamguard-log-{name}", daemon=True)
    thread.start()
    return thread


class _Writer:
    def __init__(
        self, file: LogFile, retention: Retention, waiters: Waiters, recent: Recent, copier: Copier
    ) -> None:
        self.queue: Queue = SimpleQueue()
        self._copier = copier
        self._file = file
        self._retention = retention
        self._waiters = waiters
        self._recent = recent
        self._pace: float | None = None  # seconds until the next look; None while nobody waits
        self._looked = False  # for this transaction, what file stands at the path
        self._looked_at = 0.0
        self._heard = 0.0  # when something came of a look, or somebody began to wait
        self._ours: set[str] = set()
        self._copy_at, self._empty_at = _COPIED, _EMPTIED

    def hurry(self, sid: str) -> None:
        """Somebody waits for this stream, from now on."""
        pace = self._pace
        if pace is None or (pace > FAST and sid not in self._ours):
            self.queue.put(None)

    def run(self) -> None:
        book: Book | None = None
        over = False
        while not over:
            calls, hurried, over = gather(self.queue, _TOGETHER, self._pace)
            changed = None  # nobody has looked
            if calls:
                book, changed = self._serve(book, calls)
                book = self._keep_short(book)
            if not calls or changed or hurried or self._pace is None:
                book = self._look(book, changed, hurried=hurried)
        self._copier.queue.put(STOP)
        if book is not None:
            book.opened.close()

    # ---- what was called for ------------------------------------------------------------------

    def _serve(self, book: Book | None, calls: list[Call]) -> tuple[Book | None, bool]:
        """Serve the calls in their order; whether somebody else has written."""
        changed = False
        together: list[Call] = []
        for call in [*calls, None]:
            if call is not None and not call.alone:
                together.append(call)
                continue
            if together:
                book, _, found = self._transaction(book, together)
                changed = changed or found
                together = []
            if call is not None:
                book = self._alone(book, call)
        return book, changed

    def _transaction(self, book: Book | None, calls: list[Call]) -> tuple[Book | None, Exception | None, bool]:
        """All calls in one transaction. The book, why no transaction could begin, and whether others wrote."""
        try:
            book = self._opened(book)
            changed = book.begin()
        except Exception as exc:
            fail(calls, exc)
            return self._sound(book, exc), exc, False
        try:
            for call in calls:
                call.error = None
                try:
                    call.result = call.work(book, *call.args)
                except LogError as exc:
                    call.error = exc
            book.commit()
        except Exception as exc:
            book = self._undone(book, exc)
            if len(calls) > 1:
                return self._one_by_one(book, calls), None, True
            fail(calls, exc)
            return book, None, changed
        deliver([*self._waiters.moved(book.take_moved()), *calls])
        return book, None, changed

    def _one_by_one(self, book: Book | None, calls: list[Call]) -> Book | None:
        """What failed together is tried again, each by itself: the others must not suffer for one."""
        for index, call in enumerate(calls):
            book, trouble, _ = self._transaction(book, [call])
            if trouble is not None:  # each would wait as long
                fail(calls[index + 1 :], trouble)
                break
        return book

    def _alone(self, book: Book | None, call: Call) -> Book | None:
        try:
            book = self._opened(book)
            call.result = call.work(book, *call.args)
        except Exception as exc:
            call.error = trouble(exc)
            book = self._sound(book, exc)
        deliver([call])
        return book

    def _keep_short(self, book: Book | None) -> Book | None:
        """Keep the write-ahead log short.

        SQLite would do it by itself, in the middle of an append, which then waits for the disk; and it would not begin
        the log anew while any reader is at work, which with many is always: the log would grow for ever. So most of it
        is copied back beside the appends, and what came meanwhile by the writer itself, now and then.
        """
        if not self._looked:
            return book
        size = self._file.ahead()
        if book is None or size < self._empty_at:
            if size >= self._copy_at:
                self._copy_at = size + _COPIED
                self._copier.queue.put(None)
            return book
        # A disk that is slower than the appends: these wait for it, in the end.
        patience = 0.0 if size < 2 * self._empty_at else BUSY
        if not self._copier.at_work.acquire(timeout=patience):
            return book
        try:
            emptied = book.empty_log()
        except sqlite3.Error as exc:
            return self._sound(book, exc)
        finally:
            self._copier.at_work.release()
        self._copy_at, self._empty_at = (_COPIED, _EMPTIED) if emptied else (size + _COPIED, size + _EMPTIED)
        return book

    # ---- the connection -----------------------------------------------------------------------

    def _opened(self, book: Book | None) -> Book:
        """A book of the file that stands at the path now, or did a moment ago."""
        now = time.monotonic()
        self._looked = now - self._looked_at >= _LOOKS
        if book is not None:
            if not self._looked:
                return book
            self._looked_at = now
            if book.opened.file == self._file.identity():
                return book
            book.opened.close()
        self._recent.clear()
        book = Book(self._file.open(), self._retention, self._recent)
        book.ours = self._ours
        return book

    def _undone(self, book: Book, exc: BaseException) -> Book | None:
        try:
            book.rollback()
            if "disk is full" in str(exc):
                book.empty_log()  # which holds room that the disk has not
        except sqlite3.Error as failed:
            exc = failed
        return self._sound(book, exc)

    def _sound(self, book: Book | None, exc: BaseException) -> Book | None:
        """The book, unless its connection may be the cause: that is closed, and the next call opens another."""
        locked = "locked" in str(exc)
        if book is None or locked or not isinstance(exc, (sqlite3.Error, OSError)):
            return book
        book.opened.close()
        return None

    # ---- what others write --------------------------------------------------------------------

    def _look(self, book: Book | None, changed: bool | None, *, hurried: bool) -> Book | None:
        """See what others wrote, if somebody waits; `changed` is what a transaction just found, None for none."""
        sids = self._waiters.sids()
        if not sids:
            self._pace = None
            return book
        try:
            book = self._opened(book)
            if changed is None:
                changed = book.foreign()
            if changed:
                heads = heads_of(book.opened.connection, sids)
                stand = {sid: (heads[sid].tail, heads[sid].signals) if sid in heads else None for sid in sids}
                deliver(self._waiters.moved(stand))
        except Exception as exc:
            self._pace = SLOW  # whoever calls next is told
            return self._sound(book, exc)
        now = time.monotonic()
        if changed or hurried:
            self._heard = now
        ours = all(sid in self._ours for sid in sids)
        self._pace = SLOW if ours else max(FAST, min(SLOW, (now - self._heard) / 20))
        return book
