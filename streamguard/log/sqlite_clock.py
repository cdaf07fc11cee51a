"""The clock of a log in a file: one for all processes of the machine, which nobody can set.

Leases and ages are measured in seconds since the machine started, which every process reads alike and which count on
through a suspend (on Linux). To these the file adds a shift, fixed when it is first opened after a start of the
machine, so that its time is about the wall clock's then and goes on from one start to the next. Whatever the wall clock
does afterwards, it ends no lease and ages no stream.

After a restart of the machine every lease has ended: whoever held one is gone. A file that was carried to another
machine finds another start there too. Where a start has no name (outside Linux), it is recognised by a clock that
stands before what was written by it.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Final

__all__ = ["set_clock", "start", "uptime"]

_BOOTTIME: Final[int] = getattr(time, "CLOCK_BOOTTIME", -1)


def uptime() -> float:
    """Seconds since the machine started."""
    return time.clock_gettime(_BOOTTIME) if _BOOTTIME >= 0 else time.monotonic()


def start() -> str:
    """The name of this start of the machine, or "" where starts have none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def set_clock(connection: sqlite3.Connection) -> float:
    """What to add to `uptime` for the file's time. The first one after a start of the machine fixes it."""
    shift = _shift(connection)
    if shift is not None:
        return shift
    connection.execute("BEGIN IMMEDIATE")
    try:
        shift = _shift(connection)
        if shift is None:
            (newest,) = connection.execute("SELECT max(touched) FROM tails").fetchone()
            # Not before what is written: a clock that was reset would make streams younger than nothing.
            shift = max(time.time(), newest or 0.0) - uptime()
            # One that was released (-inf) stays so: else its takeover would count as one after a crash.
            connection.execute("UPDATE tails SET until = 0 WHERE until > 0")
            connection.execute("REPLACE INTO clock (id, start, shift) VALUES (1, ?, ?)", (start(), shift))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return shift


def _shift(connection: sqlite3.Connection) -> float | None:
    """The shift that holds, or None where none does yet."""
    row = connection.execute("SELECT start, shift FROM clock").fetchone()
    if row is None or row[0] != start():
        return None
    shift: float = row[1]
    if not row[0]:
        (newest,) = connection.execute("SELECT max(touched) FROM tails").fetchone()
        if newest is not None and newest > uptime() + shift:
            return None
    return shift
