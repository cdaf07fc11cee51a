"""The newest frames of the streams that this process generates, for its own readers.

Nearly every read is of the frame that was appended just now, by a reader in the process that appended it. To send it to
a thread and back for that costs more than the append. So the writer leaves here what it has committed, and a reader may
take it, on two conditions, which make it as good as a look into the file:

* this process holds the lease on the stream, on the file's clock: nobody else can have appended;
* the writer has asked less than FRESH ago whether somebody else has written, and forgets everything here if so. Who
  purges streams waits so long before it says that they are gone.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from streamguard.core.cursor import Cursor
from streamguard.core.frame import Frame, Row
from streamguard.log import sqlite_clock as clock

__all__ = ["FRESH", "Recent", "Tail"]

FRESH: Final = 0.05  # seconds
_MOST: Final = 8192  # streams


class Tail(NamedTuple):
    """The end of a stream: `size` of `rows` stand behind `base`; the lease holds until `until`, in seconds of
    `uptime`. The list is the writer's own, which adds to it what is not committed yet, and takes nothing away."""

    tail: Cursor
    base: Cursor
    rows: list[Row]
    size: int
    until: float


class Recent:
    """The writer's thread changes it, by single steps; any other may look."""

    def __init__(self) -> None:
        self.asked = -1.0  # by `time.monotonic`, before it asked
        self._tails: dict[str, Tail] = {}

    def keep(self, tail: Tail) -> None:
        if len(self._tails) > _MOST:
            self._tails = {}  # of streams that ended, most of them
        self._tails[tail.tail.sid] = tail

    def forget(self, sid: str) -> None:
        self._tails.pop(sid, None)

    def clear(self) -> None:
        self._tails = {}

    def read(self, after: Cursor, limit: int) -> list[Frame] | None:
        """The frames behind `after`, or None for what is not known here."""
        found = self._found(after.sid)
        if found is None:
            return None
        _, base, rows, size, _ = found
        index = after.seq - base.seq
        if not 0 <= index <= size:
            return None
        offset, crc = rows[index - 1][1:3] if index else base[2:4]
        if offset != after.offset or crc != after.crc:
            return None
        return [Frame(*row) for row in rows[index : min(index + limit, size)]]

    def moved(self, after: Cursor) -> bool | None:
        """Whether there is something to do for a reader at `after`, or None for what is not known here."""
        found = self._found(after.sid)
        if found is None:
            return None
        tail = found.tail
        return tail.status is not None or tail[:4] != after[:4]

    def _found(self, sid: str) -> Tail | None:
        found = self._tails.get(sid)
        if found is None or time.monotonic() - self.asked >= FRESH or clock.uptime() >= found.until:
            return None
        return found
