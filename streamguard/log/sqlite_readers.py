"""The threads beside the writer's, those that read and one that copies the log back; how calls come to a thread."""

from __future__ import annotations

import sqlite3
import threading
from queue import Empty, SimpleQueue
from typing import Final

from streamguard.log.base import LogUnavailable
from streamguard.log.sqlite_blocks import Damaged
from streamguard.log.sqlite_file import LogFile, Opened, unavailable
from streamguard.log.sqlite_waits import Call, deliver

__all__ = ["STOP", "Copier", "Queue", "Reader", "fail", "gather", "trouble"]

_READ_TOGETHER: Final = 16  # calls of one look: others must not wait for many long ones

STOP: Final = object()
Queue = SimpleQueue[object]
"""Of Call; of STOP; and of None, which only wakes."""


def gather(queue: Queue, most: int, timeout: float | None) -> tuple[list[Call], bool, bool]:
    """The calls that wait, once there is one; whether somebody hurries; whether it is the end."""
    calls: list[Call] = []
    hurried = False
    try:
        found = queue.get(timeout=timeout)
        while True:
            if found is STOP:
                return calls, hurried, True
            if not isinstance(found, Call):
                hurried = True
            elif not found.given_up:
                calls.append(found)
            if len(calls) >= most:
                return calls, hurried, False
            found = queue.get_nowait()
    except Empty:
        return calls, hurried, False


def trouble(exc: BaseException) -> BaseException:
    """What the caller is told: that the store is in trouble, or what the call itself is wrong with."""
    if isinstance(exc, Damaged):
        return LogUnavailable("the file is damaged")
    if isinstance(exc, LogUnavailable):
        return LogUnavailable(exc.why)  # one for each: it is raised in several tasks
    return unavailable(exc) if isinstance(exc, (sqlite3.Error, OSError)) else exc


def fail(calls: list[Call], exc: BaseException) -> None:
    for call in calls:
        call.error = trouble(exc)
    deliver(calls)


class Reader:
    def __init__(self, file: LogFile, queue: Queue) -> None:
        self._file = file
        self._queue = queue

    def run(self) -> None:
        opened: Opened | None = None
        over = False
        while not over:
            calls, _, over = gather(self._queue, _READ_TOGETHER, None)
            if calls:
                opened = self._serve(opened, calls)
        if opened is not None:
            opened.close()

    def _serve(self, opened: Opened | None, calls: list[Call]) -> Opened | None:
        try:
            if opened is None or opened.file != self._file.identity():
                if opened is not None:
                    opened.close()
                opened = self._file.open()
            opened.connection.execute("BEGIN")
        except Exception as exc:
            fail(calls, exc)
            if opened is not None:
                opened.close()
            return None
        sound = True
        for call in calls:
            try:
                call.result = call.work(opened, *call.args)
            except Exception as exc:
                call.error = trouble(exc)
                sound = sound and not isinstance(exc, sqlite3.Error)
        try:
            opened.connection.execute("COMMIT")
        except sqlite3.Error:
            sound = False
        deliver(calls)
        if sound:
            return opened
        opened.close()
        return None


class Copier:
    """Copies the write-ahead log back, as far as no reader needs it as it was. Nobody waits for it."""

    def __init__(self, file: LogFile) -> None:
        self.queue: Queue = SimpleQueue()
        self.at_work = threading.Lock()  # SQLite lets one copy, and refuses the other
        self._file = file

    def run(self) -> None:
        opened: Opened | None = None
        while not gather(self.queue, 1, None)[2]:  # however often it was called meanwhile
            try:
                if opened is None or opened.file != self._file.identity():
                    if opened is not None:
                        opened.close()
                    opened = self._file.open()
                with self.at_work:
                    opened.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            except Exception:  # whoever appends next is told
                if opened is not None:
                    opened.close()
                opened = None
        if opened is not None:
            opened.close()
