"""A log in Redis, for the processes of several machines.

    redis          the log: each call as commands, and what the replies mean
    redis_scripts  what Redis does in one step, and how a stream lies in it
    redis_frames   how frames, positions and the rest are written and read
    redis_lanes    connections on which calls are gathered into batches
    redis_hub      who waits, and the connection that wakes them
    redis_link     one connection, and redis-py

Names, principals and idempotency keys are keys of their own, which may be in another hash slot than the stream, so
that no script sees both: whoever follows one looks whether the stream is there, and is the one that was meant. An
idempotency key is claimed by one compare-and-set once its stream is there; who comes late takes its own stream back.

What is acknowledged is as safe as Redis is: with `appendfsync everysec` a power cut loses a second, without persistence
a restart loses all, a failover what had not been replicated. A tail that is gone is never continued.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from streamguard.core.arguments import is_number, require, require_whole_number, shown
from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.errors import StreamGuardError
from streamguard.core.frame import Frame
from streamguard.log.base import (
    MAX_SIGNALS,
    PAGE,
    CursorMisfit,
    CursorTrimmed,
    Lease,
    LeaseHeld,
    LeaseLost,
    LogLost,
    LogUnavailable,
    Retention,
    Signal,
    SignalKind,
    StreamExists,
    StreamInfo,
    StreamSealed,
    StreamState,
    UnknownStream,
    tail_of,
)
from streamguard.log.redis_frames import (
    GONE,
    cursor_of,
    damaged,
    digest,
    frame_of,
    info_of,
    info_text,
    is_at,
    pack,
    place,
    signals_of,
    state_of,
    tail_text,
)
from streamguard.log.redis_hub import Hub
from streamguard.log.redis_lanes import Lanes
from streamguard.log.redis_link import Address, command
from streamguard.log.redis_scripts import (
    APPEND,
    CLAIM,
    CREATE,
    DROP,
    ENLIST,
    EXPLAIN,
    PURGE,
    RELEASE,
    RENEW,
    SIGNAL,
    STATE,
    TAKE_OVER,
    Script,
)

__all__ = ["AsyncioOnly", "RedisLog"]

_RELEASES_KEY: Final = ("failed", "cancelled")  # who ended so may ask again under the same idempotency key
_ATTEMPTS: Final = 8  # to read what changes between two looks at it
_SCANNED: Final = 500  # keys that are looked at in one step of a sweep
_STEPS: Final = 20  # of one sweep
_SOME: Final = 16  # streams of one name that are looked at at once


class AsyncioOnly(StreamGuardError, RuntimeError):
    """RedisLog was called on another event loop than asyncio's, or outside of any task."""

    def __init__(self) -> None:
        super().__init__("RedisLog works in tasks of asyncio only, because redis-py does: not on trio")


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
        self._address = Address(url, options)
        self._max_bytes = b"%d" % retention.max_bytes
        self._unsealed = _ms(retention.unsealed)
        self._after_end = _ms(retention.after_end)
        self._prefix = prefix
        self._readers = max_connections - 2
        self._timeout = float(timeout)
        self._open: tuple[asyncio.AbstractEventLoop, Lanes, Hub] | None = None
        self._closed = False
        self._scanned = b"0"

    # ---- the producer's side ------------------------------------------------------------------

    async def create(self, info: StreamInfo, ttl: float) -> Lease:
        zero = place(cursor_zero(info.sid))
        there = await self._step(CREATE, info.sid, info_text(info), zero, _ms(ttl), self._unsealed)
        if there != 1:
            raise StreamExists(info_of(there))
        if info.key is not None:
            holder = await self._claim(self._index("key", info.key), info)
            if holder is not None:
                await self._step(PURGE, info.sid)
                raise StreamExists(holder)
        lists = self._lists(info)
        if lists:
            await self._write(*[_script(ENLIST, (name,), info.sid.encode()) for name in lists])
        return Lease(info.sid, 1, ttl)

    async def append(
        self, lease: Lease, after: Cursor, frames: Sequence[Frame], *, checkpoint: bytes | None = None
    ) -> Cursor:
        tail = tail_of(after, frames)
        reply = await self._step(
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
            _refuse(lease.sid, reply)
        return tail

    async def renew(self, lease: Lease) -> None:
        epoch = b"%d" % lease.epoch
        _done(lease.sid, await self._step(RENEW, lease.sid, epoch, _ms(lease.ttl), self._unsealed))

    async def release(self, lease: Lease) -> None:
        await self._step(RELEASE, lease.sid, b"%d" % lease.epoch)

    async def take_over(self, sid: str, epoch: int, ttl: float) -> Lease:
        _done(sid, await self._step(TAKE_OVER, sid, b"%d" % epoch, _ms(ttl), self._unsealed))
        return Lease(sid, epoch + 1, ttl)

    async def signals(self, sid: str, after: int, timeout: float) -> list[Signal]:
        meta, _, signals = self._keys(sid)
        read = command(b"EXISTS", meta), command(b"XRANGE", signals, b"%d-1" % (after + 1), b"+")

        async def number() -> bytes:
            (found,) = await self._read(command(b"HGET", meta, b"signals"))
            return GONE if found is None else bytes(found)

        def more(stands: bytes) -> bool:
            return stands == GONE or int(stands) > after

        while True:
            exists, found = await self._read(*read)
            if not exists:
                raise UnknownStream(sid)
            if found or timeout <= 0:
                return signals_of(found)
            _, _, hub = self._running()
            if not await hub.wait(signals, number, more, timeout):
                return []
            timeout = 0.0

    # ---- the readers' side --------------------------------------------------------------------

    async def read(self, after: Cursor, *, limit: int = PAGE) -> list[Frame]:
        keys = self._keys(after.sid)
        at = b"%d" % after.seq
        for _ in range(_ATTEMPTS):
            (entries,) = await self._read(command(b"XRANGE", keys[1], at + b"-1", b"+", b"COUNT", b"%d" % (limit + 1)))
            if entries and is_at(entries[0][1][1], after):
                frames = [frame_of(fields[1]) for _, fields in entries[1:]]
                if not frames or frames[-1].seq == after.seq + len(frames):
                    return frames
            (reply,) = await self._read(_script(EXPLAIN, keys, at))
            if reply[0] != b"there":
                _refuse(after.sid, reply)
            tail, first = cursor_of(after.sid, reply[1]), cursor_of(after.sid, reply[2])
            if after.seq > tail.seq:
                raise LogLost(tail)
            if after.seq < first.seq:
                raise CursorTrimmed(first)
            if not is_at(reply[3], after):
                raise CursorMisfit(tail)
        raise damaged("frames")

    async def wait(self, after: Cursor, timeout: float) -> bool:
        meta, frames, _ = self._keys(after.sid)
        position = place(after)

        async def tail() -> bytes:
            found, exists = await self._read(command(b"HGET", meta, b"tail"), command(b"EXISTS", frames))
            return bytes(found) if found is not None and exists else GONE

        def moved(stands: bytes) -> bool | None:
            if stands == GONE or int(stands.partition(b".")[0]) >= after.seq:
                return stands != position
            return None  # this is older than what was read, or the log has lost what was read

        _, _, hub = self._running()
        return await hub.wait(frames, tail, moved, timeout)

    async def state(self, sid: str) -> StreamState:
        (reply,) = await self._read(_script(STATE, self._keys(sid)))
        if not reply:
            raise UnknownStream(sid)
        return state_of(sid, *reply)

    async def signal(self, sid: str, kind: SignalKind, payload: bytes = b"") -> None:
        _done(sid, await self._step(SIGNAL, sid, kind.encode(), bytes(payload), b"%d" % MAX_SIGNALS))

    async def find(self, name: str, principal: str | None) -> StreamInfo | None:
        index, begin = self._index("name", name, principal), 0
        while True:
            (sids,) = await self._read(command(b"ZREVRANGE", index, b"%d" % begin, b"%d" % (begin + _SOME - 1)))
            for sid in sids:
                info = await self._info(sid.decode())
                if info is not None and (info.name, info.principal) == (name, principal):
                    return info
            if len(sids) < _SOME:
                return None
            begin += _SOME

    async def find_key(self, key: str) -> StreamInfo | None:
        (sid,) = await self._read(command(b"GET", self._index("key", key)))
        state = None if sid is None else await self._state(sid.decode())
        if state is None or state.info.key != key or state.tail.status in _RELEASES_KEY:
            return None
        return state.info

    # ---- what is forgotten --------------------------------------------------------------------

    async def purge(self, *, sid: str | None = None, principal: str | None = None) -> int:
        """See StreamLog. With both, the stream only if it is the principal's. Raises ValueError without either.

        No key of the stream is left; a file that Redis wrote before holds it until it is written anew (BGREWRITEAOF,
        BGSAVE)."""
        if sid is None and principal is None:
            raise ValueError("purge(sid=...) or purge(principal=...): without either it would forget everything")
        if sid is not None:
            return await self._purge(sid, principal)
        (found,) = await self._read(command(b"ZRANGE", self._index("principal", principal), b"0", b"-1"))
        return sum([await self._purge(one.decode(), principal) for one in found])

    async def sweep(self, limit: int = 100) -> int:
        """See StreamLog. Streams expire by themselves: this goes on through the keys of the database, some thousand at
        a call, and drops what still names streams that are gone; how many streams those were."""
        forgotten: set[bytes] = set()
        pattern = f"{self._prefix}index:*".encode()
        for _ in range(_STEPS):
            scan = command(b"SCAN", self._scanned, b"MATCH", pattern, b"COUNT", b"%d" % _SCANNED)
            ((position, names),) = await self._read(scan)
            for name in names:
                forgotten |= await self._tidied(name, limit - len(forgotten))
                if len(forgotten) >= limit:
                    return len(forgotten)  # the same step again, next time
            self._scanned = position
            if position == b"0":
                break
        return len(forgotten)

    async def aclose(self) -> None:
        """Serve the calls that wait, close the connections. Further calls raise LogUnavailable; stored streams stay."""
        self._closed = True
        if self._open is not None:
            loop, lanes, hub = self._open
            self._open = None
            if loop is asyncio.get_running_loop():
                await hub.aclose()
                await lanes.aclose()

    # ---- inside -------------------------------------------------------------------------------

    async def _claim(self, name: bytes, info: StreamInfo) -> StreamInfo | None:
        """Make the stream its idempotency key's; None, or the info of the one that has it."""
        instead = b""
        while True:
            (holder,) = await self._write(_script(CLAIM, (name,), instead, info.sid.encode()))
            if holder == 1 or holder == info.sid.encode():
                return None
            if holder:
                state = await self._state(holder.decode())
                if state is not None and state.info.key == info.key and state.tail.status not in _RELEASES_KEY:
                    return state.info
            instead = holder

    async def _purge(self, sid: str, principal: str | None) -> int:
        info = await self._info(sid)
        if info is not None and principal is not None and info.principal != principal:
            return 0
        count: int = await self._step(PURGE, sid)
        calls = []
        if info is not None:
            calls = [command(b"ZREM", name, sid.encode()) for name in self._lists(info)]
            if info.key is not None:
                calls.append(_script(DROP, (self._index("key", info.key),), sid.encode()))
        elif principal is not None:
            calls = [command(b"ZREM", self._index("principal", principal), sid.encode())]
        if calls:
            await self._write(*calls)
        return count

    async def _tidied(self, name: bytes, limit: int) -> set[bytes]:
        """Drop at most `limit` streams that are gone from an index; which."""
        if name.startswith(f"{self._prefix}index:key:".encode()):
            (sid,) = await self._read(command(b"GET", name))
            sids = [] if sid is None else [sid]
        else:
            (sids,) = await self._read(command(b"ZRANGE", name, b"0", b"-1"))
        if not sids:
            return set()
        there = await self._read(*[command(b"EXISTS", self._keys(sid.decode())[0]) for sid in sids])
        gone = [sid for sid, exists in zip(sids, there, strict=True) if not exists][:limit]
        if gone and name.startswith(f"{self._prefix}index:key:".encode()):
            await self._write(_script(DROP, (name,), gone[0]))
        elif gone:
            await self._write(command(b"ZREM", name, *gone))
        return set(gone)

    async def _info(self, sid: str) -> StreamInfo | None:
        (text,) = await self._read(command(b"HGET", self._keys(sid)[0], b"info"))
        return None if text is None else info_of(text)

    async def _state(self, sid: str) -> StreamState | None:
        try:
            return await self.state(sid)
        except UnknownStream:
            return None

    def _keys(self, sid: str) -> tuple[bytes, bytes, bytes]:
        begin = f"{self._prefix}{{{sid}}}:".encode()
        return begin + b"meta", begin + b"frames", begin + b"signals"

    def _index(self, kind: str, *parts: str | None) -> bytes:
        return f"{self._prefix}index:{kind}:{digest(*parts)}".encode()

    def _lists(self, info: StreamInfo) -> list[bytes]:
        """The keys in which a stream is listed."""
        found = [] if info.principal is None else [self._index("principal", info.principal)]
        return found if info.name is None else [*found, self._index("name", info.name, info.principal)]

    async def _step(self, script: Script, sid: str, *arguments: bytes) -> Any:
        """A script over one stream's keys that changes something."""
        return (await self._write(_script(script, self._keys(sid), *arguments)))[0]

    async def _write(self, *commands: bytes) -> list[Any]:
        return await self._running()[1].writing.call(b"".join(commands), len(commands))

    async def _read(self, *commands: bytes) -> list[Any]:
        return await self._running()[1].reading.call(b"".join(commands), len(commands))

    def _running(self) -> tuple[asyncio.AbstractEventLoop, Lanes, Hub]:
        """What is open on this event loop, which the first call makes."""
        if self._closed:
            raise LogUnavailable("it was closed")
        loop = _loop()
        if self._open is not None and self._open[0] is loop:
            return self._open
        if self._open is not None:
            if not self._open[0].is_closed():
                raise RuntimeError("this log is for one event loop at a time, and another one uses it")
            for part in self._open[1:]:
                part.forget()
        lanes = Lanes(self._address, self._readers, self._timeout, loop)
        self._open = loop, lanes, Hub(self._address, self._timeout, loop)
        return self._open


def _loop() -> asyncio.AbstractEventLoop:
    """The loop whose task this is. Raises AsyncioOnly under trio, as a guest of asyncio's too."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    if task is None:
        raise AsyncioOnly
    return task.get_loop()


def _ms(seconds: float) -> bytes:
    return b"%d" % round(min(seconds * 1000, 2**48))


def _script(script: Script, keys: Sequence[bytes], *arguments: bytes) -> bytes:
    return command(b"EVALSHA", script.sha, b"%d" % len(keys), *keys, *arguments)


def _done(sid: str, reply: Any) -> None:
    if reply != 1:
        _refuse(sid, reply)


def _refuse(sid: str, reply: Any) -> NoReturn:
    """Raise what a script said no with."""
    kind = reply[0] if isinstance(reply, list) and reply else None
    if kind == b"gone":
        raise UnknownStream(sid)
    if kind == b"lost":
        raise LeaseLost(int(reply[1]))
    if kind == b"held":
        raise LeaseHeld(int(reply[1]))
    if kind == b"sealed":
        raise StreamSealed(cursor_of(sid, reply[1]))
    if kind == b"misfit":
        raise CursorMisfit(cursor_of(sid, reply[1]))
    raise damaged("an answer")
