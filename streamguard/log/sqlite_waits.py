"""Who waits for a change of a stream, on whichever event loop, and how the threads wake them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import anyio
import attrs

from streamguard.core.cursor import Cursor
from streamguard.log.sqlite_reading import moved
from streamguard.log.waits import Waits, Wakers, asyncio_loop, wake
from streamguard.runtime.wakeup import LoopCaller

__all__ = ["Call", "Loop", "Loops", "Standing", "Waiter", "Waiters", "deliver"]

Standing = tuple[Cursor, int]
"""A stream's tail, and the number of its last signal."""


class Loop(LoopCaller):
    """Calls into the event loop in which it was made. Two of one loop are equal: one call may wake many there.

    `asyncio` is the loop if it is asyncio's; trio, which may be its guest, is not. `beds` are for who sleeps there
    next: each has a timer, mostly, that is as well used again.
    """

    __slots__ = ("asyncio", "beds", "waits")

    def __init__(self) -> None:
        super().__init__()
        self.waits = Waits()
        self.beds: list[Wakers] = []
        owner = getattr(self._call, "__self__", None)
        self.asyncio = owner if isinstance(owner, asyncio.AbstractEventLoop) else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Loop) and self._call == other._call

    def __hash__(self) -> int:
        return hash(self._call)


class Loops:
    """The Loop of the caller; that of the last call, mostly."""

    def __init__(self) -> None:
        self._last: Loop | None = None

    def here(self) -> Loop:
        last = self._last
        if last is not None and last.asyncio is not None and asyncio_loop() is last.asyncio:
            return last
        self._last = last = Loop()
        return last


@attrs.define(eq=False)
class _Sleeper:
    """A task that sleeps until another thread is done with something."""

    loop: Loop
    over: bool = attrs.field(default=False, init=False)
    _wakers: Wakers | None = attrs.field(default=None, init=False)

    async def sleep(self, seconds: float) -> None:
        """Until `wake`, or so long. Nothing happens on this loop between the look and the waker in the list."""
        if self.over:
            return
        beds = self.loop.beds
        self._wakers = wakers = beds.pop() if beds else Wakers()
        try:
            await self.loop.waits.sleep(wakers, seconds)
        finally:
            self._wakers = None  # before another sleeps there, whom a late call must not wake
            beds.append(wakers)

    def wake(self) -> None:
        """On the loop."""
        self.over = True
        if self._wakers is not None:
            wake(self._wakers)


class Call:
    """Work for a thread, called with its connection and `args`, and what came of it. `alone` is work that cannot be
    part of a transaction.

    Made on the event loop of whoever awaits `outcome`; one for each append, so it is a plain class, and sleeps on a
    future of asyncio's where there is one: what serves all loops costs three times as much.
    """

    __slots__ = ("_event", "_future", "alone", "args", "error", "given_up", "loop", "result", "work")

    def __init__(self, loop: Loop, work: Callable[..., Any], args: tuple[Any, ...] = (), alone: bool = False) -> None:
        self.loop = loop
        self.work = work
        self.args = args
        self.alone = alone
        self.given_up = False
        self.result: Any = None
        self.error: BaseException | None = None
        self._event: anyio.Event | None = None
        self._future: asyncio.Future[None] | None = None
        if loop.asyncio is None:
            self._event = anyio.Event()
        else:
            self._future = loop.asyncio.create_future()

    def wake(self) -> None:
        """On the loop."""
        if self._event is not None:
            self._event.set()
        elif self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def outcome(self) -> Any:
        """What the work answered; raises what it raised. A caller that is cancelled leaves it undone, if it can."""
        try:
            if self._future is not None:
                await self._future
            elif self._event is not None:
                await self._event.wait()
        except BaseException:
            self.given_up = True
            raise
        if self.error is None:
            return self.result
        error, self.error = self.error, None
        try:
            raise error
        finally:
            del error  # its traceback holds this frame


def deliver(sleepers: Iterable[_Sleeper | Call]) -> None:
    """Wake them, each on its loop, with one call into each loop."""
    loops: dict[Loop, list[_Sleeper | Call]] = {}
    last: Loop | None = None
    those: list[_Sleeper | Call] = []
    for sleeper in sleepers:
        if sleeper.loop is not last:  # mostly they are all of one, and to hash it is a call
            last = sleeper.loop
            those = loops.setdefault(last, [])
        those.append(sleeper)
    for loop, those in loops.items():
        loop(_Waking(those))


@attrs.frozen(eq=False)
class _Waking:
    sleepers: list[_Sleeper | Call]

    def __call__(self) -> None:
        for sleeper in self.sleepers:
            sleeper.wake()


@attrs.define(eq=False)
class Waiter(_Sleeper):
    """Waits for a frame behind `after`, or for a signal above `number`."""

    sid: str
    after: Cursor | None = None
    number: int = 0

    def touched(self, stands: Standing | None) -> bool:
        """Whether it is to be woken, with the stream as it is now; None for one that is gone."""
        if stands is None:
            return True
        tail, number = stands
        return number > self.number if self.after is None else moved(tail, self.after)


class Waiters:
    """All who wait, in all loops of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: dict[str, set[Waiter]] = {}

    def add(self, waiter: Waiter) -> None:
        with self._lock:
            self._waiters.setdefault(waiter.sid, set()).add(waiter)

    def remove(self, waiter: Waiter) -> None:
        with self._lock:
            those = self._waiters.get(waiter.sid)
            if those is not None:
                those.discard(waiter)
                if not those:
                    del self._waiters[waiter.sid]

    def sids(self) -> list[str]:
        with self._lock:
            return list(self._waiters)

    def moved(self, streams: Mapping[str, Standing | None]) -> list[Waiter]:
        """Those for whom something changed, with the streams as they are now."""
        with self._lock:
            return [
                waiter
                for sid, stands in streams.items()
                for waiter in self._waiters.get(sid, ())
                if not waiter.over and waiter.touched(stands)
            ]

    def all(self) -> list[Waiter]:
        with self._lock:
            return [waiter for those in self._waiters.values() for waiter in those]
