"""Admission: whether a new stream may start now, after a while, or not at all.

    admission = Admission(Limits(max_streams=200, max_per_principal=4))
    slot = await admission.enter(principal)
    try: ...
    finally: slot.release()

What counts and chooses is in `slots`; here a request waits, for a time, and as long as its reader does. Only new
streams ask. What reads a stream that runs, or is stored, never does; a stream taken over from a process that died is
counted, and does not wait.

A slot is its owner's: whoever has it releases it, whatever happens. One that was dropped without that, because a
framework never called the response that had it, is given back when it is collected, and the log says so.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

import anyio

from streamguard.core.arguments import shown
from streamguard.runtime.leaving import left_before
from streamguard.runtime.slots import Limits, Slot, Slots, Waiter
from streamguard.runtime.wakeup import LoopCaller

__all__ = ["EVICTED", "Admission", "NoRoom", "admission_of"]

logger = logging.getLogger("streamguard")

Why = Literal["full", "waited_too_long", "left"]

EVICTED: Final = "nobody read this stream, and its place was needed for another"
_QUIET: Final = 10.0  # seconds between two warnings that requests are refused


class NoRoom(Exception):
    """A request that gets no slot. `why` is that nobody more may wait (`full`), that it waited for `max_wait`
    (`waited_too_long`), or that its reader `left` meanwhile. `own`: its principal, or key, has too many streams.
    `retry_after`: the seconds that it is told to stay away, drawn from the limits' to twice as much."""

    def __init__(self, why: Why, *, own: bool, retry_after: float) -> None:
        super().__init__(why)
        self.why: Why = why
        self.own = own
        self.retry_after = retry_after


class Admission:
    """Who may stream in this process. One may be shared by guards and endpoints. Of one event loop.

    Raises TypeError for what are no Limits.
    """

    def __init__(self, limits: Limits) -> None:
        if not isinstance(limits, Limits):
            raise TypeError(f"an Admission is made of limits, for example Limits(max_streams=200); not {shown(limits)}")
        self.limits = limits
        self.admitted = 0
        self.refused: dict[Why, int] = {"full": 0, "waited_too_long": 0, "left": 0}
        self._slots = Slots(limits)
        self._slots.lost = self._lost
        self._call: LoopCaller | None = None
        self._said = -_QUIET

    @property
    def streams(self) -> int:
        """How many have a slot now."""
        return self._slots.used

    @property
    def waiting(self) -> int:
        """How many requests wait for one."""
        return self._slots.waiting

    @property
    def detached(self) -> int:
        """How many of the streams run on without a reader."""
        return self._slots.detached

    def free(self, principal: str = "", key: str | None = None) -> Slot | None:
        """A slot if there is one now, and None otherwise. From the event loop."""
        slot = self._slots.free(principal, key)
        return slot if slot is None else self._given(slot)

    def take(self, principal: str = "", key: str | None = None) -> Slot:
        """A slot, over the limits if need be, for a stream that began elsewhere. From the event loop."""
        return self._given(self._slots.take(principal, key))

    async def enter(
        self, principal: str = "", key: str | None = None, gone: Callable[[], Awaitable[object]] | None = None
    ) -> Slot:
        """A slot, at once or after a wait. `gone` returns when nobody waits for the answer any more; it is cancelled.

        Raises NoRoom. A cancellation gives up the place.
        """
        waiter = self._slots.ask(principal, key)
        if isinstance(waiter, Slot):
            return self._given(waiter)
        if waiter is None:
            raise self._no("full", principal, key)
        left = False
        try:
            with anyio.move_on_after(self.limits.max_wait):
                left = await _until(waiter, gone)
            if waiter.slot is None:
                raise self._no(
                    "left" if left else "full" if waiter.turned_away else "waited_too_long", principal, key
                )
            slot, waiter.slot = waiter.slot, None
            waiter.turned_away = True  # it is out of the room, and what it was given is the caller's
            return self._given(slot)
        finally:
            waiter.leave()
            if waiter.slot is not None:  # it came together with a cancellation
                waiter.slot.release()

    def _given(self, slot: Slot) -> Slot:
        self.admitted += 1
        self._call = LoopCaller()
        return slot

    def _no(self, why: Why, principal: str, key: str | None) -> NoRoom:
        self.refused[why] += 1
        if why != "left":
            self._say()
        seconds = self.limits.retry_after
        return NoRoom(
            why, own=self._slots.own_limit(principal, key), retry_after=random.uniform(seconds, 2 * seconds)
        )

    def _say(self) -> None:
        now = anyio.current_time()
        if now - self._said >= _QUIET:
            self._said = now
            logger.warning(
                "requests for new streams are refused: %d so far found no room to wait, and %d waited for %g s; "
                "streams that run: %d, requests that wait: %d",
                self.refused["full"],
                self.refused["waited_too_long"],
                self.limits.max_wait,
                self.streams,
                self.waiting,
            )

    def _lost(self, slot: Slot) -> None:
        def give_back() -> None:
            logger.warning("a response that had a slot was dropped without being sent; the slot is free again")
            slot.release()

        if self._call is not None:
            self._call.later(give_back)  # a collector runs anywhere: in another thread, in the middle of a count


async def _until(waiter: Waiter, gone: Callable[[], Awaitable[object]] | None) -> bool:
    """Wait until it has a slot or was turned away; whether its reader left before that."""
    event = anyio.Event()
    waiter.wake = event.set
    if waiter.slot is not None or waiter.turned_away:  # by what was told to end, which did so at once
        return False
    if gone is None:
        await event.wait()
        return False
    return await left_before(event, gone)


def admission_of(value: Any) -> Admission | None:
    """What was given as `limits`: an Admission, which may be shared, or Limits for one. Raises TypeError."""
    if value is None or isinstance(value, Admission):
        return value
    if isinstance(value, Limits):
        return Admission(value)
    raise TypeError(f"limits are for example Limits(max_streams=200), or an Admission to share; not {shown(value)}")
