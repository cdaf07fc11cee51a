"""Going away in order: no new streams from now on, and an end for those that outlast their grace.

A drain begins once, from anywhere: another thread, a signal handler. At that moment `ready` turns false, and whoever
would start a stream asks it first. What runs may finish; at the end of the grace each stream that still runs is told to
stop, in its own event loop, which it joined with (`joined`). A stream that comes later than that is stopped at once.

Nothing here knows how a process learns that it is to go, nor what a stream says then. No lock is taken: a signal
handler may interrupt whoever holds it. So the line that a drain begins is logged in an event loop, a turn later.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import anyio
import attrs

from streamguard.core.arguments import is_number, number, shown
from streamguard.runtime.wakeup import LoopCaller, in_loop, running_trio

__all__ = ["GRACE", "Drain", "Draining"]

logger = logging.getLogger("streamguard")

GRACE: Final = 20.0  # seconds; process managers give 30 before they kill, 10 at the least

Stop = Callable[[], object]


@attrs.frozen
class _Part:
    """What joined: a stream, or one more reader of a stream in a log."""

    stop: Stop
    reader: bool


class Drain:
    """The drain of one application. `grace` is how many seconds the streams that run are given."""

    def __init__(self, grace: float = GRACE, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.grace = grace
        self._clock = clock
        self._until: float | None = None  # when the grace ends; None as long as nothing drains
        self._loops: dict[object, _Loop] = {}  # each as long as a stream runs there
        self._said = False  # that it begins, in the log

    @property
    def ready(self) -> bool:
        """Whether new streams are taken."""
        return self._until is None

    @property
    def over(self) -> bool:
        """Whether the grace has ended, so that nothing is served any more."""
        return self._until is not None and self._clock() >= self._until

    @property
    def left(self) -> float:
        """Seconds of the grace that are left; infinite where nothing drains."""
        return math.inf if self._until is None else self._until - self._clock()

    @property
    def running(self) -> int:
        """How many streams run: connections, and generations into a log."""
        return len(self._parts())

    def begin(self, grace: float | None = None) -> None:
        """Drain, from now on; `grace` other than the usual one. From any thread, or a signal handler. A second call
        can only bring the end nearer."""
        until = self._clock() + (self.grace if grace is None else grace)
        if self._until is None or until < self._until:
            self._until = until  # before the look at the loops: one that comes after it sees this by itself
        for loop in list(self._loops.values()):
            loop.call.later(loop.told)  # a signal handler may stand anywhere in that loop
        if in_loop():
            LoopCaller().later(self.say)

    def say(self) -> None:
        """Log that it begins, once, and what runs. Not to be called by a signal handler, since logging takes locks."""
        if not self._said and self._until is not None:
            self._said = True
            counted = _counted(self._parts())
            logger.info("draining: no new streams; %.3g s for what runs (%s)", max(0.0, self.left), counted)

    def reset(self) -> None:
        """Take new streams again: for an application that is started a second time in its process."""
        self._until, self._said = None, False
        for loop in list(self._loops.values()):
            loop.call.later(loop.told)

    @contextmanager
    def joined(self, stop: Stop, *, reader: bool = False) -> Iterator[None]:
        """A stream that runs while the block does, in this event loop, where `stop` is called at the end of its grace.
        `stop` returns at once. A `reader` is a connection of a stream in a log, which is counted for itself."""
        mark = object()
        with self._this_loop() as loop:
            loop.streams[mark] = _Part(stop, reader)
            if self._until is not None:
                loop.told()
                if self.over:
                    _stop(stop)
            try:
                yield
            finally:
                del loop.streams[mark]
                if not loop.streams:
                    loop.changed.set()

    def _parts(self) -> list[_Part]:
        return [part for loop in list(self._loops.values()) for part in list(loop.streams.values())]

    async def begun(self) -> None:
        """Wait until it begins. Whoever waits is no stream, and holds nothing up."""
        with self._this_loop() as loop:
            event = anyio.Event()
            loop.waiting.add(event)
            try:
                while self.ready:
                    await event.wait()
            finally:
                loop.waiting.discard(event)

    @contextmanager
    def _this_loop(self) -> Iterator[_Loop]:
        """What runs or waits in this event loop, kept as long as anything does."""
        key = _this_loop()
        loop = self._loops.get(key)
        if loop is None:
            self._loops[key] = loop = _Loop(self)
        try:
            yield loop
        finally:
            if not loop.streams and not loop.waiting and self._loops.get(key) is loop:
                del self._loops[key]


class _Loop:
    """The streams of one event loop."""

    def __init__(self, drain: Drain) -> None:
        self.call = LoopCaller()
        self.streams: dict[object, _Part] = {}
        self.waiting: set[anyio.Event] = set()  # of those who want to know that it begins
        self.changed = anyio.Event()
        self._drain = drain
        self._task: object = None  # what ends the streams; kept, or it could be collected

    def told(self) -> None:
        """In this loop: the drain began, or its end moved."""
        self.changed.set()
        if not self._drain.ready:
            self._drain.say()
            for event in self.waiting:
                event.set()
        if self._task is not None or not self.streams or self._drain.ready:
            return
        # Not what `Background` starts: this is called by the loop itself, outside of every task, where anyio does not
        # know which loop it is.
        trio = running_trio()
        self._task = (
            asyncio.get_running_loop().create_task(self._end(), name="streamguard drain")
            if trio is None
            else trio.spawn_system_task(self._end, name="streamguard drain")
        )

    async def _end(self) -> None:
        """Wait until the grace is over, or nothing is left to end; then end it."""
        try:
            while self.streams and (left := self._drain.left) > 0:
                if self._drain.ready:
                    return
                self.changed = anyio.Event()
                with anyio.move_on_after(left):
                    await self.changed.wait()
        finally:
            self._task = None
        if self.streams:
            counted = _counted(self.streams.values())
            logger.warning("draining: not over within the grace, and told to end (%s)", counted)
        for part in list(self.streams.values()):
            _stop(part.stop)


def _counted(parts: Iterable[_Part]) -> str:
    """How many streams these are, and how many readers."""
    readers = [part.reader for part in parts]
    return f"streams: {readers.count(False)}, readers of streams in a log: {readers.count(True)}"


def _stop(stop: Stop) -> None:
    try:
        stop()
    except Exception:
        logger.exception("draining: a stream could not be told to end")  # the others are


def _this_loop() -> object:
    trio = running_trio()
    return asyncio.get_running_loop() if trio is None else trio.current_trio_token()


def _tell_grace(instance: Any, attribute: attrs.Attribute[Any], value: float) -> None:
    instance.draining.grace = value


@attrs.define(eq=False)
class Draining:
    """What can be drained by name, and is what an application asks whether it is ready. `grace` is how long, in
    seconds, streams may go on when the process is told to go; `math.inf` is to their ends. `on_sigterm` is whether
    that is learned from SIGTERM."""

    draining: Drain = attrs.field(init=False, factory=Drain)
    grace: float = attrs.field(kw_only=True, default=GRACE, validator=[number(least=0), _tell_grace])
    on_sigterm: bool = attrs.field(kw_only=True, default=True)

    @property
    def ready(self) -> bool:
        """Whether new streams are taken here: false from the moment at which a drain begins."""
        return self.draining.ready

    def drain(self, grace: float | None = None) -> None:
        """Take no new streams from now on, let those that run finish for `grace` seconds (the usual time, by default),
        and end the others as `shutdown`: a stream in a log is let go of, for another process to go on with.

        From any thread. At SIGTERM it is called without you. Raises TypeError and ValueError for what is no time.
        """
        if grace is not None and not is_number(grace):
            raise TypeError(f"grace is a number of seconds, not {shown(grace)}")
        if grace is not None and not grace >= 0:
            raise ValueError(f"grace must be zero or more, not {grace!r}")
        self.draining.begin(grace)
        if not in_loop():
            self.draining.say()
