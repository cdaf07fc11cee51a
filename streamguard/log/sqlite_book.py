"""What the writer of a file does, in transactions of many calls.

The writer keeps what it knows of each stream: its tail, its lease, the block that is being filled. That is true as long
as nobody else has committed, which SQLite says (`PRAGMA data_version`) and which is asked inside each transaction, when
nobody else can: so the epoch, the tail and the seal are checked there, mostly without reading anything. What changes is
written at the end of the transaction, once a stream.

A call that is refused raises before it changes anything: it does not fail those that are in the same transaction.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, Final

from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.frame import Frame
from streamguard.log import base
from streamguard.log.base import (
    MAX_SIGNALS,
    CursorMisfit,
    CursorTrimmed,
    Lease,
    LeaseHeld,
    LeaseLost,
    LogLost,
    Retention,
    SignalKind,
    StreamExists,
    StreamInfo,
    StreamSealed,
    UnknownStream,
    tail_of,
)
from streamguard.log.sqlite_blocks import padded
from streamguard.log.sqlite_file import BUSY, Opened
from streamguard.log.sqlite_kept import Filling, Kept, fill, remember, trim
from streamguard.log.sqlite_reading import COLUMNS, digest, head_of, info_of, require_position
from streamguard.log.sqlite_recent import Recent, Tail

__all__ = ["Book"]

_MOST: Final = 4096  # streams that the writer keeps in mind, each with a block of 4 kB and its newest frames
_LET_GO: Final = -math.inf  # when a lease ended that was released
_RELEASES_KEY: Final = ("failed", "cancelled")  # who ended so may ask again under the same idempotency key
_GIVES_WAY: Final = 0.05  # seconds that appends may wait while the write-ahead log is emptied beside readers
_SLICE: Final = 256  # blocks, about 1 MB, that are deleted in one transaction


class Book:
    """The writer's connection, and what it knows. For one thread. Every method but `begin`, `commit`, `rollback`,
    `foreign` and `empty_log` is called inside a transaction; its time is `now`."""

    def __init__(self, opened: Opened, retention: Retention, recent: Recent) -> None:
        self.opened = opened
        self.now = 0.0
        self.moved: set[str] = set()  # streams that this transaction changed, in ways that somebody may wait for
        self.ours: set[str] = set()  # streams whose lease this process holds, as far as it knows
        self._execute = opened.connection.execute
        self._many = opened.connection.executemany
        self._retention = retention
        self._recent = recent
        self._version = -1
        self._streams: dict[str, Kept] = {}
        self._doubtful: dict[str, Kept] = {}  # known before somebody else wrote
        self._dirty: dict[int, Kept] = {}
        self._filled: dict[int, Filling] = {}

    # ---- transactions -------------------------------------------------------------------------

    def begin(self) -> bool:
        """Lock the file for writing. Whether somebody else has written since the last look."""
        self._execute("BEGIN IMMEDIATE")
        self.now = self.opened.now()
        return self.foreign()

    def foreign(self) -> bool:
        """Whether somebody else has written since the last look; then all that is known must be looked at again."""
        asked = time.monotonic()
        (version,) = self._execute("PRAGMA data_version").fetchone()
        changed: bool = version != self._version
        if changed or len(self._streams) > _MOST:
            self._version = version
            self._recent.clear()
            self._doubtful, self._streams = self._streams if changed else {}, {}
        self._recent.asked = asked
        return changed

    def flush(self) -> None:
        """Write what has changed, so that statements see it."""
        if self._filled:
            self._many("UPDATE blocks SET data = ? WHERE id = ?", [(b.data, b.id) for b in self._filled.values()])
            self._filled.clear()
        if self._dirty:
            self._many(f"REPLACE INTO tails VALUES ({_MARKS})", [kept.row() for kept in self._dirty.values()])
            self._dirty.clear()

    def commit(self) -> None:
        self.flush()
        if base.crash is not None:
            base.crash("inside-group-commit")
        self._execute("COMMIT")

    def rollback(self) -> None:
        """Undo the transaction, if one is open; forget what was known."""
        self._streams.clear()
        self._doubtful.clear()
        self._recent.clear()
        self.ours.clear()
        self._dirty.clear()
        self._filled.clear()
        self.moved.clear()
        if self.opened.connection.in_transaction:
            self._execute("ROLLBACK")

    def take_moved(self) -> dict[str, tuple[Cursor, int] | None]:
        """What was committed that somebody may wait for: tail and last signal, or None for what is gone.

        Leaves the tails to this process's readers, too.
        """
        moved: dict[str, tuple[Cursor, int] | None] = {}
        for sid in self.moved:
            kept = self._streams.get(sid)
            if kept is None:
                moved[sid] = None
                self._recent.forget(sid)
            else:
                moved[sid] = kept.tail, kept.signals
                if sid in self.ours:
                    until = kept.until - self.opened.shift
                    self._recent.keep(Tail(kept.tail, kept.base, kept.recent, len(kept.recent), until))
                if kept.tail.status is not None:
                    self.ours.discard(sid)
                    del self._streams[sid]  # nothing more will be appended
        self.moved.clear()
        return moved

    # ---- the producer's side ------------------------------------------------------------------

    def create(self, info: StreamInfo, stored: bytes, ttl: float) -> Lease:
        """`stored` is the info as it is written."""
        self.flush()
        holds = None if info.key is None else digest(info.key)
        rows = self._execute("SELECT info FROM streams WHERE sid = ? OR holds = ?", (info.sid, holds)).fetchall()
        if rows:
            infos = [info_of(row[0]) for row in rows]
            raise StreamExists(next((found for found in infos if found.sid == info.sid), infos[0]))
        inserted = self._execute(
            "INSERT INTO streams (sid, created, name, principal, holds, info) VALUES (?, ?, ?, ?, ?, ?)",
            (
                info.sid,
                self.now,
                None if info.name is None else digest(info.name, info.principal),
                None if info.principal is None else digest(info.principal),
                holds,
                stored,
            ),
        )
        assert inserted.lastrowid is not None
        zero = cursor_zero(info.sid)
        kept = Kept(inserted.lastrowid, info.sid, zero, zero, 1, self.now + ttl, self.now, False, 0, 0)
        self._streams[info.sid] = kept
        self._changed(kept)
        self.ours.add(info.sid)
        return Lease(info.sid, 1, ttl)

    def append(self, lease: Lease, after: Cursor, frames: Sequence[Frame], checkpoint: bytes | None) -> Cursor:
        kept = self._streams.get(lease.sid)
        if kept is None or lease.epoch != kept.epoch or lease.sid not in self.ours:
            kept = self._held_by(lease)
        tail = kept.tail
        if (after is not tail and after != tail) or tail.status is not None:
            self._require_stored(kept, after, frames)
            kept.until = self.now + lease.ttl
            self._changed(kept)
            return tail
        tail = tail_of(after, frames)
        kept.until = self.now + lease.ttl
        self._dirty[kept.id] = kept
        if frames:
            again = fill(self.opened.connection, kept, frames)
            if again is not None:
                self._filled[again.id] = again
            remember(kept, frames)
            kept.tail = tail
            kept.touched = self.now
            self.moved.add(kept.sid)
            if tail.offset - kept.first.offset > self._retention.max_bytes:
                self.flush()
                if trim(self.opened.connection, kept, self._retention.max_bytes):
                    self._changed(kept)
        if checkpoint is not None:
            row = (kept.id, tail.seq, tail.offset, tail.crc, padded(checkpoint))
            self._execute('REPLACE INTO checkpoints (id, seq, "offset", crc, state) VALUES (?, ?, ?, ?, ?)', row)
        if tail.status in _RELEASES_KEY:
            self._execute("UPDATE streams SET holds = NULL WHERE id = ?", (kept.id,))
        return tail

    def renew(self, lease: Lease) -> None:
        kept = self._held_by(lease)
        if kept.tail.status is not None:
            raise StreamSealed(kept.tail)
        kept.until = self.now + lease.ttl
        self._changed(kept)

    def release(self, lease: Lease) -> None:
        kept = self._find(lease.sid)
        if kept is not None and kept.epoch == lease.epoch:
            kept.until = _LET_GO
            self._changed(kept)
            self._left(kept.sid)

    def take_over(self, sid: str, epoch: int, ttl: float) -> Lease:
        kept = self._stream(sid)
        if kept.tail.status is not None:
            raise StreamSealed(kept.tail)
        if epoch != kept.epoch or self.now < kept.until:
            raise LeaseHeld(kept.epoch)
        if kept.until != _LET_GO:
            kept.crashes += 1
        kept.epoch += 1
        kept.until = self.now + ttl
        self._changed(kept)
        self.ours.add(sid)
        return Lease(sid, kept.epoch, ttl)

    def signal(self, sid: str, kind: SignalKind, payload: bytes) -> None:
        kept = self._stream(sid)
        if kind == "cancel" and kept.tail.status is not None:
            raise StreamSealed(kept.tail)
        kept.signals += 1
        kept.cancelled = kept.cancelled or kind == "cancel"
        self._changed(kept)
        self.moved.add(sid)
        self._execute("INSERT INTO signals VALUES (?, ?, ?, ?)", (kept.id, kept.signals, kind, payload))
        if kept.signals > MAX_SIGNALS:
            # The first cancel stays: a producer that looks late must find it.
            self._execute(
                "DELETE FROM signals WHERE id = ?1 AND number <= ?2 AND number != "
                "ifnull((SELECT min(number) FROM signals WHERE id = ?1 AND kind = 'cancel'), 0)",
                (kept.id, kept.signals - MAX_SIGNALS),
            )

    # ---- what is forgotten --------------------------------------------------------------------

    def purge(self, sid: str | None, principal: str | None) -> int:
        """Forget a stream, or a principal's; their blocks are left to `shred`."""
        self.flush()
        owner = None if principal is None else digest(principal)
        where = " AND ".join(
            f"{column} = ?" for column, value in (("sid", sid), ("principal", owner)) if value is not None
        )
        values = tuple(value for value in (sid, owner) if value is not None)
        return self._doom(f"SELECT id, sid FROM streams WHERE {where}", values)

    def sweep(self, limit: int) -> int:
        """Forget at most `limit` streams whose time is over; their blocks are left to `shred`."""
        self.flush()
        return self._doom(
            "SELECT streams.id, sid FROM tails JOIN streams USING (id) WHERE "
            "CASE WHEN status IS NULL THEN max(until, touched + ?1) ELSE touched + ?2 END <= ?3 LIMIT ?4",
            (self._retention.unsealed, self._retention.after_end, self.now, limit),
        )

    def shred(self) -> bool:
        """Delete some blocks of forgotten streams; whether there are more."""
        row = self._execute("SELECT id FROM doomed LIMIT 1").fetchone()
        if row is None:
            return False
        found = self._execute("SELECT id FROM blocks WHERE stream = ? LIMIT ?", (row[0], _SLICE)).fetchall()
        self._many("DELETE FROM blocks WHERE id = ?", found)
        if len(found) < _SLICE:
            self._execute("DELETE FROM doomed WHERE id = ?", row)
        return True

    def empty_log(self) -> bool:
        """Copy the write-ahead log back and cut it to nothing; False where somebody reads or copies it meanwhile."""
        self._execute(f"PRAGMA busy_timeout = {int(_GIVES_WAY * 1000)}")
        try:
            busy: int = self._execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        finally:
            self._execute(f"PRAGMA busy_timeout = {int(BUSY * 1000)}")
        return not busy

    def _doom(self, query: str, values: tuple[Any, ...]) -> int:
        found = self._execute(query, values).fetchall()
        for table in ("streams", "tails", "checkpoints", "signals"):
            self._many(f"DELETE FROM {table} WHERE id = ?", [row[:1] for row in found])
        self._many("INSERT INTO doomed VALUES (?)", [row[:1] for row in found])
        for _, sid in found:
            self._streams.pop(sid, None)
            self._left(sid)
            self.moved.add(sid)
        return len(found)

    # ---- inside -------------------------------------------------------------------------------

    def _changed(self, kept: Kept) -> None:
        self._dirty[kept.id] = kept

    def _left(self, sid: str) -> None:
        """This process does not hold the lease any more."""
        self.ours.discard(sid)
        self._recent.forget(sid)

    def _find(self, sid: str) -> Kept | None:
        kept = self._streams.get(sid)
        if kept is None:
            row = head_of(self.opened.connection, sid)
            if row is not None:
                kept = Kept(
                    row.id, sid, row.tail, row.first, row.epoch, row.until, row.touched, row.cancelled, row.signals,
                    row.crashes,
                )  # fmt: skip
                before = self._doubtful.pop(sid, None)
                if before is not None and before.tail == kept.tail and before.id == kept.id:
                    kept.block, kept.base, kept.recent = before.block, before.base, before.recent
                self._streams[sid] = kept
        return kept

    def _stream(self, sid: str) -> Kept:
        kept = self._find(sid)
        if kept is None:
            raise UnknownStream(sid)
        return kept

    def _held_by(self, lease: Lease) -> Kept:
        kept = self._find(lease.sid)
        if kept is None or lease.epoch != kept.epoch:
            self._left(lease.sid)
        if kept is None:
            raise UnknownStream(lease.sid)
        if lease.epoch != kept.epoch:
            raise LeaseLost(kept.epoch)
        self.ours.add(lease.sid)
        return kept

    def _require_stored(self, kept: Kept, after: Cursor, frames: Sequence[Frame]) -> None:
        """Raise StreamSealed or CursorMisfit unless `frames` behind `after` are the tail already."""
        if frames and tail_of(after, frames) == kept.tail:
            self.flush()
            try:
                require_position(self.opened.connection, kept.id, kept.tail, kept.first, after)
            except CursorTrimmed:
                return  # by this very append; the tail's checksum is over what stood before, too
            except (LogLost, CursorMisfit):
                pass
            else:
                return
        if kept.tail.status is not None:
            raise StreamSealed(kept.tail)
        raise CursorMisfit(kept.tail)


_MARKS: Final = ", ".join("?" * len(COLUMNS.split(",")))
