"""A log in this process: as long as it lives, its streams outlive their connections.

Everything is a list of the frames that were appended, as they are, and a few dictionaries. No call but `wait` and
`signals` lets another task run, so none needs a lock, none can be cancelled half way, and each is one step: that
is what the contract asks of a store. Frames are handed out as they were appended, not copied: look at them, but
do not change them.

Bounded in three ways. `max_streams` and `max_bytes` are for all streams together; whoever needs room first forgets
sealed streams, those of its own principal before all others, of these the one that ended first, then nothing: `create`
raises LogUnavailable rather than harm a running stream. A running one may go on above `max_bytes`, up to
`Retention.max_bytes` each. Ages are `Retention`'s, and are enforced when `sweep` is called. Bytes are those that Python
needs (`kept.cost`).

For one event loop at a time: loops may use it one after the other. Two threads at once may not; while somebody
waits, a call that changes something from another thread than theirs raises RuntimeError, and nothing is changed.
"""

from __future__ import annotations

import copy
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeVar

import attrs

from streamguard.core.arguments import require, require_callable, require_whole_number
from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.frame import Frame, TextFields, row_of
from streamguard.log.base import (
    MAX_SIGNALS,
    PAGE,
    Checkpointed,
    Lease,
    LeaseHeld,
    LeaseLost,
    LogUnavailable,
    Retention,
    Signal,
    SignalKind,
    StreamExists,
    StreamInfo,
    StreamSealed,
    StreamState,
    Tail,
    TextAppend,
    UnknownStream,
    tail_of,
)
from streamguard.log.kept import FRAME_COST, LET_GO, KeptStream, KeptTail, cost
from streamguard.log.waits import Waits, wake

__all__ = ["MemoryLog"]

_KEPT: Final = 7 / 8  # of `Retention.max_bytes`, after trimming: so that not every further append has to trim
_RELEASES_KEY: Final = ("failed", "cancelled")  # who ended so may ask again under the same idempotency key

_new: Final = tuple.__new__  # what a NamedTuple's own does, after a call of a Python function

_Key = TypeVar("_Key", bound=Hashable)


class MemoryLog:
    """Streams in memory. `clock` gives monotonic seconds, for leases and ages; waiting is on the event loop's clock.

    Raises TypeError and ValueError for arguments of the wrong kind or below 1.
    """

    shared = False
    """No other process sees its streams."""

    def __init__(
        self,
        retention: Retention | None = None,
        *,
        max_streams: int = 10_000,
        max_bytes: int = 256 * 1024 * 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        retention = Retention() if retention is None else retention
        require("retention", retention, Retention, "Retention(after_end=600)")
        require_whole_number("max_streams", max_streams)
        require_whole_number("max_bytes", max_bytes)
        require_callable("clock", clock)
        self.bytes = 0
        """What all streams count together."""
        self._retention = retention
        self._max_stream_bytes = retention.max_bytes
        self._max_streams = max_streams
        self._max_bytes = max_bytes
        self._clock = clock
        self._streams: dict[str, KeptStream] = {}
        # In the order in which they ended. A plain dict would be slow to find its first, once many before it are gone.
        self._sealed: OrderedDict[str, KeptStream] = OrderedDict()
        self._sealed_of: dict[str | None, dict[str, KeptStream]] = {}  # the same, of each principal
        self._keys: dict[str, KeptStream] = {}
        self._names: dict[tuple[str, str | None], dict[str, KeptStream]] = {}  # each in the order of creation
        self._principals: dict[str, dict[str, KeptStream]] = {}
        self._waits = Waits()

    @property
    def streams(self) -> int:
        """How many are kept."""
        return len(self._streams)

    # ---- the producer's side ------------------------------------------------------------------

    async def create(self, info: StreamInfo, ttl: float) -> Lease:
        self._waits.check()
        holder = self._streams.get(info.sid)
        if holder is None and info.key is not None:
            holder = self._keys.get(info.key)
        if holder is not None:
            raise StreamExists(holder.info)
        self._make_room(info.principal)
        if info.options:  # the caller's own mapping, which may change
            info = attrs.evolve(info, options=copy.deepcopy(dict(info.options)))
        now = self._clock()
        stream = KeptStream(info, tail=cursor_zero(info.sid), lease_end=now + ttl, created=now)
        self._streams[info.sid] = stream
        if info.key is not None:
            self._keys[info.key] = stream
        if info.name is not None:
            self._names.setdefault((info.name, info.principal), {})[info.sid] = stream
        if info.principal is not None:
            self._principals.setdefault(info.principal, {})[info.sid] = stream
        return Lease(info.sid, stream.epoch, ttl)

    async def append(
        self, lease: Lease, after: Cursor, frames: Sequence[Frame], *, checkpoint: bytes | None = None
    ) -> Cursor:
        stream = self._streams.get(lease.sid)
        if stream is None or lease.epoch != stream.epoch:
            stream = self._held_by(lease)  # raises
        now = self._clock()
        tail = stream.tail
        if (after is not tail and after != tail) or tail[4] is not None:
            stream.require_stored(after, frames)
            stream.lease_end = now + lease.ttl
            return tail
        tail = tail_of(after, frames)
        if stream.readers:
            self._waits.check()  # before anything is stored
        if frames:
            size = 0
            rows = stream.rows
            for frame in frames:
                if frame.name is None and frame.status is None and frame.extra is None:  # as below, without the calls
                    data = frame.data
                    rows.append((frame.seq, frame.offset, frame.crc, data))
                    size += FRAME_COST + len(data)
                else:
                    row = row_of(frame)
                    rows.append(row)
                    size += cost(row)
            stream.tail = tail
            stream.bytes += size
            stream.appended = now
            self.bytes += size
        stream.lease_end = now + lease.ttl
        if checkpoint is not None:
            stream.checkpoint = Checkpointed(tail, checkpoint)
        if tail[4] is not None:
            self._seal(stream, now)
        if stream.bytes > self._max_stream_bytes or self.bytes > self._max_bytes:
            self._bound(stream)
        if stream.readers and frames:
            wake(stream.readers)
        return tail

    def _append_text(self, lease: Lease, after: Cursor, fields: TextFields) -> Cursor | None:
        """See `log.base.TextAppend`: `append`, without its cases."""
        stream = self._streams.get(lease.sid)
        if stream is None or lease.epoch != stream.epoch:
            return None
        tail = stream.tail
        seq, offset, crc, data = fields
        size = len(data)
        if after is not tail or tail[4] is not None or seq != tail[1] + 1 or offset != tail[2] + size:
            return None
        if stream.readers:
            self._waits.check()
        size += FRAME_COST
        stream.rows.append(fields)
        stream.tail = tail = _new(Cursor, (tail[0], seq, offset, crc, None))
        stream.bytes += size
        self.bytes += size
        stream.appended = now = self._clock()
        stream.lease_end = now + lease.ttl
        if stream.bytes > self._max_stream_bytes or self.bytes > self._max_bytes:
            self._bound(stream)
        if stream.readers:
            wake(stream.readers)
        return tail

    def text_append(self) -> TextAppend | None:
        """See `log.base.text_append`. None where a subclass appends in a way of its own."""
        return self._append_text if type(self).append is MemoryLog.append else None

    async def renew(self, lease: Lease) -> None:
        stream = self._held_by(lease)
        if stream.ended is not None:
            raise StreamSealed(stream.tail)
        stream.lease_end = self._clock() + lease.ttl

    async def release(self, lease: Lease) -> None:
        stream = self._streams.get(lease.sid)
        if stream is not None and stream.epoch == lease.epoch:
            stream.lease_end = LET_GO

    async def take_over(self, sid: str, epoch: int, ttl: float) -> Lease:
        stream = self._stream(sid)
        if stream.ended is not None:
            raise StreamSealed(stream.tail)
        now = self._clock()
        if epoch != stream.epoch or now < stream.lease_end:
            raise LeaseHeld(stream.epoch)
        stream.hand_over(now + ttl)
        return Lease(sid, stream.epoch, ttl)

    async def signals(self, sid: str, after: int, timeout: float) -> list[Signal]:
        stream = self._stream(sid)
        if stream.last_signal <= after:
            await self._waits.sleep(stream.listeners, timeout)
            if stream.forgotten:
                raise UnknownStream(sid)
        return [signal for signal in stream.signals if signal.number > after]

    # ---- the readers' side --------------------------------------------------------------------

    async def read(self, after: Cursor, *, limit: int = PAGE) -> list[Frame]:
        stream = self._stream(after.sid)
        index = stream.index(after)
        return [Frame(*row) for row in stream.rows[index : index + limit]]

    async def wait(self, after: Cursor, timeout: float) -> bool:
        stream = self._streams.get(after.sid)
        if stream is None or stream.moved(after):
            return True
        await self._waits.sleep(stream.readers, timeout)
        return stream.forgotten or stream.moved(after)

    def follow(self, after: Cursor) -> Tail | None:
        """See `log.base.follow`. None where a subclass reads or waits in a way of its own."""
        own = type(self)
        if own.read is not MemoryLog.read or own.wait is not MemoryLog.wait:
            return None
        return KeptTail(self._stream(after.sid), after, self._waits)

    async def state(self, sid: str) -> StreamState:
        stream = self._stream(sid)
        now = self._clock()
        return StreamState(
            info=stream.info,
            tail=stream.tail,
            first=stream.first,
            epoch=stream.epoch,
            held=stream.ended is None and now < stream.lease_end,
            cancelled=stream.cancelled,
            age=now - stream.created,
            checkpoint=stream.checkpoint,
            crashes=stream.crashes,
        )

    async def signal(self, sid: str, kind: SignalKind, payload: bytes = b"") -> None:
        stream = self._stream(sid)
        self._waits.check()
        if kind == "cancel":
            stream.cancel()
        stream.last_signal += 1
        stream.signals.append(Signal(stream.last_signal, kind, bytes(payload)))
        if len(stream.signals) > MAX_SIGNALS:
            stream.drop_signal()
        wake(stream.listeners)

    async def find(self, name: str, principal: str | None) -> StreamInfo | None:
        streams = self._names.get((name, principal))
        return streams[next(reversed(streams))].info if streams else None

    async def find_key(self, key: str) -> StreamInfo | None:
        stream = self._keys.get(key)
        return None if stream is None else stream.info

    # ---- what is forgotten --------------------------------------------------------------------

    async def purge(self, *, sid: str | None = None, principal: str | None = None) -> int:
        """See StreamLog. With both, the stream only if it is the principal's. Raises ValueError without either."""
        if sid is None and principal is None:
            raise ValueError("purge(sid=...) or purge(principal=...): without either it would forget everything")
        self._waits.check()
        if sid is None:
            found = list(self._principals.get(principal or "", {}).values())
        else:
            found = [stream for stream in [self._streams.get(sid)] if stream is not None]
            if principal is not None:
                found = [stream for stream in found if stream.info.principal == principal]
        for stream in found:
            self._forget(stream)
        return len(found)

    async def sweep(self, limit: int = 100) -> int:
        self._waits.check()
        now = self._clock()
        old: list[KeptStream] = []
        for stream in self._sealed.values():
            if len(old) >= limit or (stream.ended or 0.0) + self._retention.after_end > now:
                break
            old.append(stream)
        for stream in self._streams.values():
            if len(old) >= limit:
                break
            if stream.ended is None and max(stream.lease_end, stream.appended + self._retention.unsealed) <= now:
                old.append(stream)
        for stream in old:
            self._forget(stream)
        return len(old)

    async def aclose(self) -> None:
        """Nothing is held but memory. The streams stay, for whoever holds this log."""

    # ---- inside -------------------------------------------------------------------------------

    def _stream(self, sid: str) -> KeptStream:
        stream = self._streams.get(sid)
        if stream is None:
            raise UnknownStream(sid)
        return stream

    def _held_by(self, lease: Lease) -> KeptStream:
        stream = self._streams.get(lease.sid)
        if stream is None:
            raise UnknownStream(lease.sid)
        if lease.epoch != stream.epoch:
            raise LeaseLost(stream.epoch)
        return stream

    def _seal(self, stream: KeptStream, now: float) -> None:
        stream.ended = now
        self._sealed[stream.info.sid] = stream
        self._sealed_of.setdefault(stream.info.principal, OrderedDict())[stream.info.sid] = stream
        key = stream.info.key
        if key is not None and stream.tail.status in _RELEASES_KEY:
            self._keys.pop(key, None)

    def _make_room(self, principal: str | None) -> None:
        """For one stream more of a principal's. Raises LogUnavailable if only running ones are left to be forgotten."""
        while self._sealed and (len(self._streams) >= self._max_streams or self.bytes >= self._max_bytes):
            self._forget_first(principal)
        if len(self._streams) >= self._max_streams:
            raise LogUnavailable(f"full: {len(self._streams)} streams are running, and max_streams is no more")
        if self.bytes >= self._max_bytes:
            raise LogUnavailable(f"full: running streams hold {self.bytes} bytes, and max_bytes is {self._max_bytes}")

    def _bound(self, stream: KeptStream) -> None:
        """Keep to the limits, after an append to `stream`."""
        if stream.bytes > self._max_stream_bytes:
            self.bytes -= stream.trim(int(self._max_stream_bytes * _KEPT))
        if self.bytes > self._max_bytes:
            self._forget_sealed(stream)

    def _forget_sealed(self, but: KeptStream) -> None:
        """Until the bytes fit; never the one that was appended to just now, which its readers have not seen yet."""
        while self.bytes > self._max_bytes and self._forget_first(but.info.principal, but):
            pass

    def _forget_first(self, principal: str | None, but: KeptStream | None = None) -> bool:
        """Forget one sealed stream; whether there was one. Who needs room pays for it: else a flood of one principal's
        streams would drive out those of all others."""
        for streams in (self._sealed_of.get(principal, {}), self._sealed):
            oldest = next((stream for stream in streams.values() if stream is not but), None)
            if oldest is not None:
                self._forget(oldest)
                return True
        return False

    def _forget(self, stream: KeptStream) -> None:
        info = stream.info
        del self._streams[info.sid]
        if self._sealed.pop(info.sid, None) is not None:
            _leave(self._sealed_of, info.principal, info.sid)
        if info.key is not None and self._keys.get(info.key) is stream:
            del self._keys[info.key]
        if info.name is not None:
            _leave(self._names, (info.name, info.principal), info.sid)
        if info.principal is not None:
            _leave(self._principals, info.principal, info.sid)
        self.bytes -= stream.bytes
        stream.forgotten = True
        wake(stream.readers)
        wake(stream.listeners)


def _leave(index: dict[_Key, dict[str, KeptStream]], key: _Key, sid: str) -> None:
    """Take a stream out of an index, and the entry with the last of its streams."""
    streams = index[key]
    del streams[sid]
    if not streams:
        del index[key]
