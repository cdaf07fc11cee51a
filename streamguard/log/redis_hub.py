"""What wakes those who wait: one connection of the process that hears what is published, for all its streams.

A channel is heard while somebody waits for it, and for a while after, since who waits for one token mostly waits for
the next one, too. What is published is where a stream now stands. So who waits needs to ask Redis only when the channel
is new, when the connection broke, and now and then (`_FLOOR`): a wake-up that was lost is late, never missed. The
connection is opened again for as long as somebody waits; while there is none, who waits asks more often (`_DEAF`).

The last thing known is where the stream stood at some moment after the channel was opened; everything later is still to
be heard. That is why a look is thrown away if something was heard while it was under way, and not the other way round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
import attrs

from streamguard.log.base import LogUnavailable
from streamguard.log.redis_link import Address, Link, command
from streamguard.log.waits import Waits, Wakers, wake

__all__ = ["Hub"]

_FLOOR: Final = 2.0  # seconds after which one asks, though nothing was heard
_DEAF: Final = 0.1  # the same, while there is no connection to hear with
_LINGER: Final = 10.0  # seconds that a channel stays open for nobody
_TICK: Final = 1.0  # seconds between two looks at what is to be closed, and whether the connection lives
_LONGEST_PAUSE: Final = 1.0  # seconds between two attempts to connect

_PING: Final = command(b"PING")


@attrs.define(eq=False)
class _Channel:
    """One that is heard: `stands` is the last thing known, None for nothing."""

    waiting: int = 0
    left: float = 0.0  # when the last one left
    confirmed: bool = False
    stands: bytes | None = None
    asked: float = 0.0  # when that was known
    heard: int = 0  # grows with all that is heard
    wakers: Wakers = attrs.field(factory=Wakers)


class Hub:
    """All who wait, on one event loop. Nothing is open while nobody waits, but for what lingers."""

    def __init__(self, address: Address, timeout: float, loop: asyncio.AbstractEventLoop) -> None:
        self._address = address
        self._timeout = timeout
        self._loop = loop
        self._waits = Waits()
        self._channels: dict[bytes, _Channel] = {}
        self._changes: list[bytes] = []  # commands that are still to be sent
        self._link: Link | None = None
        self._heard = 0.0  # when anything came over the connection
        self._listening: asyncio.Task[None] | None = None
        self._sending: asyncio.Task[None] | None = None
        self._ticking: asyncio.TimerHandle | None = None

    async def wait(
        self, name: bytes, ask: Callable[[], Awaitable[bytes]], moved: Callable[[bytes], bool | None], seconds: float
    ) -> bool:
        """Wait until `moved` says so of where the stream stands: as it is published on channel `name`, or, if that is
        too long ago or `moved` says None, as `ask` finds it, of which None is true. False once so many seconds have
        passed. Raises what `ask` raises."""
        if seconds <= 0:
            return moved(await ask()) is not False
        end = self._loop.time() + seconds
        channel = self._open(name)
        try:
            while True:
                known = channel.confirmed and self._hears and self._loop.time() < channel.asked + _FLOOR
                stands = channel.stands if known else None
                verdict = None if stands is None else moved(stands)
                if stands is None or verdict is None:
                    stands = await self._asked(channel, ask)
                    verdict = moved(stands) is not False
                if verdict:
                    return True
                now = self._loop.time()
                if now >= end:
                    return False
                if not channel.confirmed:
                    await self._waits.sleep(channel.wakers, min(end - now, _DEAF))
                elif channel.stands == stands:  # else it has changed meanwhile
                    await self._waits.sleep(channel.wakers, min(end, channel.asked + _FLOOR) - now)
        finally:
            channel.waiting -= 1
            channel.left = self._loop.time()

    async def aclose(self) -> None:
        """Stop hearing. Who waits asks once more, and is told that the log is closed."""
        for channel in self._channels.values():
            channel.confirmed = False
            wake(channel.wakers)
        for task in (self._listening, self._sending):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        self.forget()

    def forget(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        self._channels.clear()
        self._listening = self._sending = self._ticking = self._link = None

    # ---- inside -------------------------------------------------------------------------------

    @property
    def _hears(self) -> bool:
        return self._link is not None and not self._link.ended

    async def _asked(self, channel: _Channel, ask: Callable[[], Awaitable[bytes]]) -> bytes:
        heard, now = channel.heard, self._loop.time()
        stands = await ask()
        if channel.confirmed and channel.heard == heard:
            channel.stands, channel.asked = stands, now
        return stands

    def _open(self, name: bytes) -> _Channel:
        channel = self._channels.get(name)
        if channel is None:
            channel = self._channels[name] = _Channel()
            self._send(command(b"SUBSCRIBE", name))
        channel.waiting += 1
        if self._listening is None:
            self._listening = self._loop.create_task(self._listen())
        if self._ticking is None:
            self._ticking = self._loop.call_later(_TICK, self._tick)
        return channel

    async def _listen(self) -> None:
        """Hear, over one connection after the other, for as long as there are channels."""
        pause = 0.02
        try:
            while self._channels:
                try:
                    await self._hear()
                except (LogUnavailable, TimeoutError):
                    pass  # who waits asks, and is told
                if self._heard_something():
                    pause = 0.02
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            self._listening = None

    def _heard_something(self) -> bool:
        found = any(channel.confirmed for channel in self._channels.values())
        for channel in self._channels.values():
            channel.confirmed, channel.stands = False, None
        return found

    async def _hear(self) -> None:
        with anyio.fail_after(self._timeout):
            link = await Link.open(self._address, primary=False)
        try:
            self._link = link
            self._heard = self._loop.time()
            self._changes.clear()
            if self._channels:
                self._send(command(b"SUBSCRIBE", *self._channels))
            while True:
                message = await link.receive()
                self._heard = self._loop.time()
                if isinstance(message, Exception):
                    raise LogUnavailable(str(message))
                self._note(message)
        finally:
            self._link = None
            await link.close()

    def _note(self, message: Any) -> None:
        kind, name, content = message[0], message[1], message[-1]
        channel = self._channels.get(name)
        if channel is None:
            return
        if kind == b"message":
            channel.stands = content
            channel.heard += 1
            channel.asked = self._heard
        elif kind == b"subscribe":
            channel.confirmed, channel.stands = True, None
            channel.heard += 1  # what was asked before this is thrown away
        wake(channel.wakers)

    def _send(self, packed: bytes) -> None:
        if self._link is None:
            return  # all channels are opened once there is one
        self._changes.append(packed)
        if self._sending is None:
            self._sending = self._loop.create_task(self._send_all())

    async def _send_all(self) -> None:
        try:
            while self._changes and self._link is not None:
                packed, self._changes = self._changes, []
                await self._link.send(packed)
        except LogUnavailable:
            pass  # whoever listens to it notices
        finally:
            self._sending = None

    def _tick(self) -> None:
        """Close channels that nobody needs, and the connection with the last one; look whether it is alive."""
        now = self._loop.time()
        idle = [
            name for name, channel in self._channels.items() if not channel.waiting and now - channel.left > _LINGER
        ]
        for name in idle:
            del self._channels[name]
        if not self._channels:
            self._ticking = None
            if self._link is not None:
                self._link.abort()  # which ends who listens, unless somebody has come meanwhile
            return
        if idle:
            self._send(command(b"UNSUBSCRIBE", *idle))
        self._ticking = self._loop.call_later(_TICK, self._tick)
        silent = now - self._heard
        if self._link is not None and silent > self._timeout + 2 * _TICK:
            self._link.abort()
        elif silent > _TICK:
            self._send(_PING)
