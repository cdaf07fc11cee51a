"""The calls that a log makes to Redis: which keys they are about, and what a script's refusal means.

What is open belongs to one event loop: the first call opens it, and one on another loop opens it anew, if the loop
before is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NoReturn

from streamguard.core.errors import StreamGuardError
from streamguard.log.base import (
    CursorMisfit,
    LeaseHeld,
    LeaseLost,
    LogUnavailable,
    StreamSealed,
    UnknownStream,
)
from streamguard.log.redis_frames import cursor_of, damaged, digest
from streamguard.log.redis_hub import Hub
from streamguard.log.redis_lanes import Lanes
from streamguard.log.redis_link import Address, command
from streamguard.log.redis_scripts import Script

__all__ = ["AsyncioOnly", "Calls", "done", "refuse", "scripted"]


class AsyncioOnly(StreamGuardError, RuntimeError):
    """RedisLog was called on another event loop than asyncio's, or outside of any task."""

    def __init__(self) -> None:
        super().__init__("RedisLog works in tasks of asyncio only, because redis-py does: not on trio")


class Calls:
    """The server at an address, for streams whose keys begin with `prefix`. See RedisLog for the rest."""

    def __init__(self, address: Address, prefix: str, readers: int, timeout: float) -> None:
        self._address = address
        self._prefix = prefix
        self._readers = readers
        self._timeout = timeout
        self._open: tuple[asyncio.AbstractEventLoop, Lanes, Hub] | None = None
        self._closed = False

    # ---- keys ---------------------------------------------------------------------------------

    def keys(self, sid: str) -> tuple[bytes, bytes, bytes]:
        """Those of a stream, in one hash slot: meta, frames, signals."""
        begin = f"{self._prefix}{{{sid}}}:".encode()
        return begin + b"meta", begin + b"frames", begin + b"signals"

    def index(self, kind: str, *parts: str | None) -> bytes:
        """The key of a name, a principal or an idempotency key."""
        return self.indexes(kind) + digest(*parts).encode()

    def indexes(self, kind: str = "") -> bytes:
        """What the keys of that kind begin with, or of all kinds."""
        return f"{self._prefix}index:{kind}:".encode() if kind else f"{self._prefix}index:".encode()

    # ---- calls --------------------------------------------------------------------------------

    async def step(self, script: Script, sid: str, *arguments: bytes) -> Any:
        """What a script over one stream's keys, which changes something, answers."""
        return (await self.write(scripted(script, self.keys(sid), *arguments)))[0]

    async def write(self, *commands: bytes) -> list[Any]:
        """The replies to commands that change something. Raises LogUnavailable if one is refused."""
        return await self._running()[1].writing.call(b"".join(commands), len(commands))

    async def read(self, *commands: bytes) -> list[Any]:
        """The replies to others."""
        return await self._running()[1].reading.call(b"".join(commands), len(commands))

    @property
    def hub(self) -> Hub:
        return self._running()[2]

    async def aclose(self) -> None:
        """Serve the calls that wait, close the connections; later calls raise LogUnavailable."""
        self._closed = True
        opened, self._open = self._open, None
        if opened is not None and opened[0] is _loop():
            _, lanes, hub = opened
            await hub.aclose()
            await lanes.aclose()

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


def scripted(script: Script, keys: Sequence[bytes], *arguments: bytes) -> bytes:
    """The command that runs a script."""
    return command(b"EVALSHA", script.sha, b"%d" % len(keys), *keys, *arguments)


def done(sid: str, reply: Any) -> None:
    """Raise the refusal, if a script's reply is one."""
    if reply != 1:
        refuse(sid, reply)


def refuse(sid: str, reply: Any) -> NoReturn:
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
