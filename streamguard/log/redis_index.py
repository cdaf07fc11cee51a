"""Names, principals and idempotency keys: which streams they lead to.

They are keys of their own, which may be in another hash slot than the streams, so that no script sees both. Whoever
follows one looks whether the stream is there and is the one that was meant; what leads nowhere is dropped by `tidy`, or
when it is in the way. An idempotency key is claimed by one compare-and-set, once its stream is there: a claim of a
stream that is not there is nobody's.
"""

from __future__ import annotations

from typing import Any, Final

from streamguard.log.base import StreamInfo, StreamState
from streamguard.log.redis_calls import Calls, scripted
from streamguard.log.redis_frames import info_of, state_of
from streamguard.log.redis_link import command
from streamguard.log.redis_scripts import CLAIM, DROP, ENLIST, STATE

__all__ = ["Index"]

_RELEASES_KEY: Final = ("failed", "cancelled")  # who ended so may ask again under the same idempotency key
_SCANNED: Final = 500  # keys that are looked at in one step of a sweep
_STEPS: Final = 20  # of one sweep
_SOME: Final = 16  # streams of one name that are looked at in one step


class Index:
    """What leads to the streams of one prefix."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._scanned = b"0"  # how far the sweep has come

    async def info(self, sid: str) -> StreamInfo | None:
        (text,) = await self._calls.read(command(b"HGET", self._calls.keys(sid)[0], b"info"))
        return None if text is None else info_of(text)

    async def state(self, sid: str) -> StreamState | None:
        (reply,) = await self._calls.read(scripted(STATE, self._calls.keys(sid)))
        return state_of(sid, *reply) if reply else None

    async def claim(self, info: StreamInfo) -> StreamInfo | None:
        """Make the stream its idempotency key's; None, or the info of the one that has it."""
        if info.key is None:
            return None
        name = self._calls.index("key", info.key)
        instead = b""
        while True:
            (holder,) = await self._calls.write(scripted(CLAIM, (name,), instead, info.sid.encode()))
            if holder == 1:
                return None
            found = await self._holder(info.key, holder) if holder else None
            if found is not None:
                return found
            instead = holder

    async def _holder(self, key: str, sid: bytes) -> StreamInfo | None:
        state = await self.state(sid.decode())
        if state is None or state.info.key != key or state.tail.status in _RELEASES_KEY:
            return None
        return state.info

    async def find_key(self, key: str) -> StreamInfo | None:
        (sid,) = await self._calls.read(command(b"GET", self._calls.index("key", key)))
        return None if sid is None else await self._holder(key, sid)

    def _lists(self, info: StreamInfo) -> list[bytes]:
        """The keys in which a stream is listed."""
        found = [] if info.principal is None else [self._calls.index("principal", info.principal)]
        return found if info.name is None else [*found, self._calls.index("name", info.name, info.principal)]

    async def enlist(self, info: StreamInfo) -> None:
        """Among the streams of its name, and of its principal."""
        lists = self._lists(info)
        if lists:
            await self._calls.write(*[scripted(ENLIST, (name,), info.sid.encode()) for name in lists])

    async def find(self, name: str, principal: str | None) -> StreamInfo | None:
        index, begin = self._calls.index("name", name, principal), 0
        while True:
            some = command(b"ZREVRANGE", index, b"%d" % begin, b"%d" % (begin + _SOME - 1))
            (sids,) = await self._calls.read(some)
            for sid in sids:
                info = await self.info(sid.decode())
                if info is not None and (info.name, info.principal) == (name, principal):
                    return info
            if len(sids) < _SOME:
                return None
            begin += _SOME

    async def of_principal(self, principal: str) -> list[str]:
        """The sids of what may be a principal's."""
        (found,) = await self._calls.read(command(b"ZRANGE", self._calls.index("principal", principal), b"0", b"-1"))
        return [sid.decode() for sid in found]

    async def drop(self, sid: str, info: StreamInfo | None, principal: str | None) -> None:
        """What leads to a stream that is gone: by its info, or by what is known of it."""
        calls = []
        if info is not None:
            calls = [command(b"ZREM", name, sid.encode()) for name in self._lists(info)]
            if info.key is not None:
                calls.append(scripted(DROP, (self._calls.index("key", info.key),), sid.encode()))
        elif principal is not None:
            calls = [command(b"ZREM", self._calls.index("principal", principal), sid.encode())]
        if calls:
            await self._calls.write(*calls)

    async def tidy(self, limit: int) -> int:
        """Go on through the keys of the database, for some steps, and drop at most `limit` streams that are gone from
        what leads to them; how many those were."""
        gone: set[bytes] = set()
        for _ in range(_STEPS):
            scan = command(b"SCAN", self._scanned, b"MATCH", self._calls.indexes() + b"*", b"COUNT", b"%d" % _SCANNED)
            ((position, names),) = await self._calls.read(scan)
            for name in names:
                gone |= await self._tidied(name, limit - len(gone))
                if len(gone) >= limit:
                    return len(gone)  # the same step again, next time
            self._scanned = position
            if position == b"0":
                break
        return len(gone)

    async def _tidied(self, name: bytes, limit: int) -> set[bytes]:
        of_key = name.startswith(self._calls.indexes("key"))
        read = command(b"GET", name) if of_key else command(b"ZRANGE", name, b"0", b"-1")
        (found,) = await self._calls.read(read)
        sids: list[Any] = [found] if isinstance(found, bytes) else found or []
        if not sids:
            return set()
        there = await self._calls.read(*[command(b"EXISTS", self._calls.keys(sid.decode())[0]) for sid in sids])
        gone = [sid for sid, exists in zip(sids, there, strict=True) if not exists][:limit]
        if gone:
            await self._calls.write(scripted(DROP, (name,), gone[0]) if of_key else command(b"ZREM", name, *gone))
        return set(gone)
