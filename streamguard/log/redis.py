"""A log in Redis, for the processes of several machines.

    redis          the log: each call as commands, and what the replies mean
    redis_scripts  what Redis does in one step, and how a stream lies in it
    redis_frames   how frames, positions and the rest are written and read
    redis_index    names, principals and idempotency keys
    redis_calls    which keys a call is about, on which loop, and what a refusal means
    redis_lanes    connections on which calls are gathered into batches
    redis_hub      who waits, and the connection that wakes them
    redis_link     one connection, and redis-py

What is acknowledged is as safe as Redis is: with `appendfsync everysec` a power cut loses a second, without persistence
a restart loses all, a failover what had not been replicated. A tail that is gone is never continued.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamguard.core.arguments import is_number, require, require_whole_number, shown
from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.frame import Frame
from streamguard.log.base import (
    MAX_SIGNALS,
    PAGE,
    CursorMisfit,
    CursorTrimmed,
    Lease,
    LogLost,
    Retention,
    Signal,
    SignalKind,
    StreamExists,
    StreamInfo,
    StreamState,
    UnknownStream,
    tail_of,
)
from streamguard.log.redis_calls import AsyncioOnly, Calls, done, refuse, scripted
from streamguard.log.redis_frames import (
    GONE,
    cursor_of,
    frames_of,
    info_of,
    info_text,
    pack,
    place,
    signals_of,
    tail_text,
)
from streamguard.log.redis_index import Index
from streamguard.log.redis_link import Address, command
from streamguard.log.redis_scripts import (
    APPEND,
    CREATE,
    PURGE,
    READ,
    RELEASE,
    RENEW,
    SIGNAL,
    TAKE_OVER,
)

__all__ = ["AsyncioOnly", "RedisLog"]



class RedisLog:
    """Streams in the Redis at `url`: `redis://`, `rediss://` or `unix://`. See StreamLog for the methods.

    `prefix` begins all its keys, so that several applications may share a database. At most `max_connections`, 3 or
    more, are open at a time: one appends, one is woken, the others read; calls wait for one that is free. `timeout`:
    seconds for one round trip; a call takes at most two of them. `options` are redis-py's for a connection
    (`ssl_ca_certs`, `credential_provider`, …).

    For one event loop of asyncio at a time: loops may use it one after the other. Needs Redis 6.2 or newer. Raises
    TypeError and ValueError for arguments that cannot be. Every method raises LogUnavailable while Redis cannot be
    used, and works again afterwards; RuntimeError in a second loop, AsyncioOnly (a RuntimeError, too) on trio.
    """

    def __init__(
        self,
        url: str = "redis://localhost:6379/0",
        *,
        retention: Retention | None = None,
        prefix: str = "streamguard:",
        max_connections: int = 4,
        timeout: float = 5.0,
        **options: Any,
    ) -> None:
        retention = Retention() if retention is None else retention
        require("url", url, str, "'redis://localhost:6379/0'")
        require("retention", retention, Retention, "Retention(after_end=600)")
        require("prefix", prefix, str, "'streamguard:'")
        require_whole_number("max_connections", max_connections)
        if max_connections < 3:
            raise ValueError(f"max_connections is at least 3: to append, to be woken, to read; not {max_connections}")
        if not is_number(timeout) or not timeout > 0:
            raise ValueError(f"timeout is seconds above zero, not {shown(timeout)}")
        if set(prefix) & set("{}*?[]\\"):
            raise ValueError(f"prefix cannot have braces, brackets, '*', '?' or a backslash in it: {prefix!r}")
        self._max_bytes = b"%d" % retention.max_bytes
        self._unsealed = _ms(retention.unsealed)
        self._after_end = _ms(retention.after_end)
        self._calls = Calls(Address(url, options), prefix, max_connections - 2, float(timeout))
        self._index = Index(self._calls)

    # ---- the producer's side ------------------------------------------------------------------

    async def create(self, info: StreamInfo, ttl: float) -> Lease:
        zero = place(cursor_zero(info.sid))
        there = await self._calls.step(CREATE, info.sid, info_text(info), zero, _ms(ttl), self._unsealed)
        if there != 1:
            raise StreamExists(info_of(there))
        holder = await self._index.claim(info)
        if holder is not None:
            await self._calls.step(PURGE, info.sid)
            raise StreamExists(holder)
        await self._index.enlist(info)
        return Lease(info.sid, 1, ttl)

    async def append(
        self, lease: Lease, after: Cursor, frames: Sequence[Frame], *, checkpoint: bytes | None = None
    ) -> Cursor:
        tail = tail_of(after, frames)
        reply = await self._calls.step(
            APPEND,
            lease.sid,
            b"%d" % lease.epoch,
            place(after) if after.sid == lease.sid and after.status is None else b"",
            tail_text(tail),
            _ms(lease.ttl),
            self._unsealed,
            self._after_end,
            self._max_bytes,
            b"" if checkpoint is None else b"+" + checkpoint,
            *[pack(frame) for frame in frames],
        )
        if reply != 1:
            refuse(lease.sid, reply)
        return tail

    async def renew(self, lease: Lease) -> None:
        epoch = b"%d" % lease.epoch
        done(lease.sid, await self._calls.step(RENEW, lease.sid, epoch, _ms(lease.ttl), self._unsealed))

    async def release(self, lease: Lease) -> None:
        await self._calls.step(RELEASE, lease.sid, b"%d" % lease.epoch)

    async def take_over(self, sid: str, epoch: int, ttl: float) -> Lease:
        done(sid, await self._calls.step(TAKE_OVER, sid, b"%d" % epoch, _ms(ttl), self._unsealed))
        return Lease(sid, epoch + 1, ttl)

    async def signals(self, sid: str, after: int, timeout: float) -> list[Signal]:
        meta, _, signals = self._calls.keys(sid)
        read = command(b"EXISTS", meta), command(b"XRANGE", signals, b"%d-1" % (after + 1), b"+")

        async def number() -> bytes:
            (found,) = await self._calls.read(command(b"HGET", meta, b"signals"))
            return GONE if found is None else bytes(found)

        def more(stands: bytes) -> bool:
            return stands == GONE or int(stands) > after

        while True:
            exists, found = await self._calls.read(*read)
            if not exists:
                raise UnknownStream(sid)
            if found or timeout <= 0:
                return signals_of(found)
            if not await self._calls.hub.wait(signals, number, more, timeout):
                return []
            timeout = 0.0

    # ---- the readers' side --------------------------------------------------------------------

    async def read(self, after: Cursor, *, limit: int = PAGE) -> list[Frame]:
        (reply,) = await self._calls.read(scripted(READ, self._calls.keys(after.sid), place(after), b"%d" % limit))
        if isinstance(reply, bytes):
            frames = frames_of(reply)
            if frames and frames[-1].seq != after.seq + len(frames):
                raise UnknownStream(after.sid)  # a part of it is gone
            return frames
        if reply[0] != b"elsewhere":
            refuse(after.sid, reply)
        tail, first = cursor_of(after.sid, reply[1]), cursor_of(after.sid, reply[2])
        if after.seq > tail.seq:
            raise LogLost(tail)
        if after.seq < first.seq:
            raise CursorTrimmed(first)
        raise CursorMisfit(tail)

    async def wait(self, after: Cursor, timeout: float) -> bool:
        meta, frames, _ = self._calls.keys(after.sid)
        position = place(after)

        async def tail() -> bytes:
            found, exists = await self._calls.read(command(b"HGET", meta, b"tail"), command(b"EXISTS", frames))
            return bytes(found) if found is not None and exists else GONE

        def moved(stands: bytes) -> bool | None:
            if stands == GONE or int(stands.partition(b".")[0]) >= after.seq:
                return stands != position
            return None  # this is older than what was read, or the log has lost what was read

        return await self._calls.hub.wait(frames, tail, moved, timeout)

    async def state(self, sid: str) -> StreamState:
        state = await self._index.state(sid)
        if state is None:
            raise UnknownStream(sid)
        return state

    async def signal(self, sid: str, kind: SignalKind, payload: bytes = b"") -> None:
        done(sid, await self._calls.step(SIGNAL, sid, kind.encode(), bytes(payload), b"%d" % MAX_SIGNALS))

    async def find(self, name: str, principal: str | None) -> StreamInfo | None:
        return await self._index.find(name, principal)

    async def find_key(self, key: str) -> StreamInfo | None:
        return await self._index.find_key(key)

    # ---- what is forgotten --------------------------------------------------------------------

    async def purge(self, *, sid: str | None = None, principal: str | None = None) -> int:
        """See StreamLog. With both, the stream only if it is the principal's. Raises ValueError without either.

        No key of the stream is left; a file that Redis wrote before holds it until it is written anew (BGREWRITEAOF,
        BGSAVE)."""
        if sid is None and principal is None:
            raise ValueError("purge(sid=...) or purge(principal=...): without either it would forget everything")
        if sid is not None:
            return await self._purge(sid, principal)
        return sum([await self._purge(one, principal) for one in await self._index.of_principal(principal or "")])

    async def sweep(self, limit: int = 100) -> int:
        """See StreamLog. Streams expire by themselves: this goes on through the keys of the database, some thousand at
        a call, and drops what still names streams that are gone; how many streams those were."""
        return await self._index.tidy(limit)

    async def aclose(self) -> None:
        """Serve the calls that wait, close the connections. Further calls raise LogUnavailable; stored streams stay."""
        await self._calls.aclose()

    # ---- inside -------------------------------------------------------------------------------

    async def _purge(self, sid: str, principal: str | None) -> int:
        info = await self._index.info(sid)
        if info is not None and principal is not None and info.principal != principal:
            return 0
        count: int = await self._calls.step(PURGE, sid)
        await self._index.drop(sid, info, principal)
        return count


def _ms(seconds: float) -> bytes:
    return b"%d" % round(min(seconds * 1000, 2**48))
