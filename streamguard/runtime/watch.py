"""The clock of one connection: one timer for the earliest of heartbeat, flush, stall, peek and write deadline.

Its watcher runs beside the driver for as long as the stream. The rules between the two:

* The driver marks when it is *parked* in the source (`parked`, the time since when). Only then may the watcher
  write, and it claims the connection for its write, so there is one write at a time.
* A watcher that wants the driver's attention sets one flag, `attention`, which the hot loop reads once a token;
  `late` is looked at before the driver parks. Deadlines cost that loop two time stamps.
* The source's step is never timed out to get the clock back: that would destroy an async generator, lose its text
  and look like a normal end. It is cancelled once, when the stream is over.
* A reader that takes nothing can be told nothing: while its socket does not drain no sign of life is written, and
  after the write deadline the stream ends as `slow`, wherever the driver is.
* A stream that waits costs no more than its signs of life. Once all is taken and the driver is parked, there is
  nothing to look at: the watcher *rests*, and the driver's next item tells it (`attended`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from streamguard.core.errors import Failure, failure_from
from streamguard.runtime.alarm import Alarm
from streamguard.runtime.connection import Connection, Lost
from streamguard.runtime.ending import Ending, Why, lost
from streamguard.runtime.patience import TICK, Patience
from streamguard.runtime.seen import UNSEEN, Unseen
from streamguard.runtime.sink import Stage
from streamguard.runtime.timing import Timing
from streamguard.runtime.turns import LoopTurns

__all__ = ["ClockWatch"]

logger = logging.getLogger("streamguard")

T = TypeVar("T", bytes, list[Any])
_NEVER: Final = float("inf")
_GRID: Final = 256  # parts of an interval, at whose edges the clocks of many streams wake together
_WAIT: Final = 0.01  # seconds of a write that broke, from which on it is told as one that waited
_LOOKS: Final = 4  # at a write, within its deadline: how exactly that is kept, and what a stream that flows pays for it


class ClockWatch(Generic[T]):
    """What the driver of one stream and its clock share."""

    def __init__(
        self,
        stage: Stage[T],
        line: Connection[T],
        end: Ending[T],
        patience: Patience,
        timing: Timing,
        *,
        name: str,
        seen: Unseen = UNSEEN,
    ) -> None:
        self.parked: float | None = None  # since when the driver waits for the source; None while it does not
        self.attention = True  # something to look at after the next item; the first one is always looked at
        self.late = False  # something to look at before the driver parks
        self.rearm = Alarm()
        self.armed = _NEVER
        self._resting = False  # nothing is unsent, and the driver's next item wakes the watcher
        self._seen = -_NEVER  # the connection's last write, at the last wake
        self._words_due = _NEVER  # when the reader is told, while the source closes
        self._ticked = -_NEVER
        self._writing: float | None = None  # since when a write waits that a wake met, for who observes
        self._broke = False  # a write did, and how long it waited is told
        self._stage: Stage[T] = stage
        self._line: Connection[T] = line
        self._end: Ending[T] = end
        self._patience = patience
        self._timing = timing
        self._seen_by = seen
        self._clock = timing.clock
        self._started = self._clock()
        self._name = name
        seen.parks(lambda: self.parked)

    def stop(self, why: Why) -> None:
        """End the stream: at once if the driver waits for the source, else after the write it is in."""
        if self._end.why is not None or self._end.begun:
            return
        self._end.why = why
        self.attention = self.late = True
        self._patience.stop(self._clock())
        self.rearm.set()
        if self.parked is not None:
            self._patience.scope.cancel()

    def stop_now(self, why: Why) -> None:
        """The same where nobody can be told any more: also in a write, and where another end was on its way."""
        self.stop(why)
        if not self._end.begun:
            self._patience.scope.cancel()

    def left(self) -> None:
        """The reader left: a write that waits for it does so in vain, and no longer."""
        if not self._line.over and (self.parked is None or self._line.claimed):  # who has the whole leaves, too
            self._waited_in_vain()
        self._line.leave()

    def _waited_in_vain(self) -> None:
        """Tell, once, how long the write waited that breaks now. No wake need have met it."""
        if not self._broke and not self._line.slow:  # else it was told when it was given up
            self._broke, self._writing = True, None
            if (waited := self._clock() - self._line.wrote) >= _WAIT:
                self._seen_by.blocked("transport", waited)

    def before_parking(self) -> bool:
        """What the driver looks at between two items, where it is `late`; true if the stream is over."""
        self.late = False
        self.rearm.set()
        return self._end.why is not None

    def attended(self, now: float) -> None:
        """The driver has an item, and is about to write."""
        if self._resting:
            self._resting = False
            self._line.look_from(now)
            self.rearm.set()

    async def beside(self, turns: LoopTurns[Any], late: float, now: float) -> bool:
        """The driver gives the loop a turn, parked as in a source that waits: for one that never does there is no other
        time at which a sign of life, or what a policy holds, could leave. What `give` answers."""
        if self._end.why is not None:  # which the driver sees before it parks
            return False
        if self.late:
            self.before_parking()
        self.parked = now
        changed = await turns.give(late)
        self.parked = None
        await self._line.settled()
        return changed

    def closing(self) -> float:
        """The driver closes the source from now on: a clean-up that does not stop either is abandoned."""
        if self._line.torn:  # and who serves may not have said that the reader left
            self._waited_in_vain()
        self.parked = now = self._clock()
        if not self._end.begun:
            self._words_due = now  # the clean-up may take its time, and the reader need not wait for it
        self.rearm.set()
        return now

    async def run(self, abandoned: Callable[[], Awaitable[None]]) -> None:
        """Watch until cancelled, or until the source is given up, which `abandoned` is told."""
        woken = -_NEVER
        while True:
            self.rearm.clear()
            self._resting = self._may_rest()
            self.armed = max(self._next_due(self._clock()), woken + TICK)
            await self.rearm.sleep(max(0.0, self.armed - self._clock()))
            now = self._clock()
            if self._writing is not None:
                self._written(now)
            if now < self.armed:
                continue
            self._seen_by.progress(now)
            # A rest ends by the clock where nothing has changed since.
            woken, due = now, self.armed if self._resting else self._next_due(now)
            over = self._end.why is not None or self._end.begun
            # Also where it is to end for another reason: in a write it would not, before its reader takes that.
            if self._resting:
                self._line.look_from(now)
            elif self._looks and self._line.stuck(now, self._stage.sent, writing=self.parked is None):
                self._line.give_up()
                self._writing = None
                self._seen_by.blocked("transport", self._line.limit or 0.0)
                self.stop_now(lost(self._line))
                continue
            if (now := self._clock()) < due and self.parked is not None:
                continue  # read once more: a policy may answer by a clock of its own
            if self.parked is None:
                await self._at_work()
            elif not over:
                await self._act(now)
            elif await self._insist(now):
                await abandoned()
                return

    @property
    def _looks(self) -> bool:
        """Whether it is looked at that the reader takes what it is given: not while its last words are said."""
        told = self._end.why is not None
        return not self._end.begun and not (told and (self._line.slow or self.parked is not None))

    def _next_due(self, now: float) -> float:
        if self._end.why is not None or self._end.begun:
            due = min(self._words_due, self._patience.due)
            return min(due, self._next_look(now)) if self._looks else due
        due = self._next_look(now)
        if not self._line.opened:
            due = min(due, self._started + self._timing.peek)
        elif self._timing.heartbeat is not None:
            due = min(due, self._beat_due(self._timing.heartbeat))
        if self._timing.stall is not None:
            due = min(due, (now if self.parked is None else self.parked) + self._timing.stall)
        try:
            flush = self._stage.deadline() if self._stage.timed else None
            if flush is not None:
                flush = min(_NEVER, 0.0 + flush)  # what cannot be added to a float, or is too large for one, is no time
        except Exception as exc:  # a user's policy
            self.stop(Why("failed", failure_from(exc), exc))
            return now
        # One that the last tick did not move was answered: waking for it again would be a busy loop.
        return due if flush is None or flush <= self._ticked else min(due, flush)

    def _beat_due(self, interval: float) -> float:
        """When a sign of life is due."""
        return _together(self._line.wrote + interval, interval)

    def _next_look(self, now: float) -> float:
        limit = self._line.limit
        return _NEVER if limit is None or self._resting else _together(now + limit / _LOOKS, limit)

    def _may_rest(self) -> bool:
        """Whether nothing can be stuck before the driver's next item. A stream that flows is looked at by the clock:
        to be told of an item, and to look at the next time all the same, would be two wakes for one."""
        line = self._line
        seen, self._seen = self._seen, line.wrote
        if self.parked is None or seen != line.wrote or self._end.why is not None or line.unsent():
            return False
        self.attention = True
        return True

    async def _at_work(self) -> None:
        """The driver is in a write, or about to park: it wakes this watcher before it does."""
        self.late = True
        self.armed = _NEVER
        now = self._clock()
        self._writing = None if self._line.slow or self._broke else self._line.wrote
        await self.rearm.sleep(self._next_look(now) - now)
        self._written(self._clock())

    def _written(self, now: float) -> None:
        """A write that was met under way may be over."""
        since = self._writing
        if since is not None and (self.parked is not None or self._line.wrote != since):
            self._writing = None
            self._seen_by.blocked("transport", now - since)

    async def _act(self, now: float) -> None:
        """What is due now, with the driver parked."""
        stall, heartbeat = self._timing.stall, self._timing.heartbeat
        if stall is not None and self.parked is not None and now - self.parked >= stall:
            self._seen_by.stalled(now - self.parked)
            self.stop(Why("stalled", Failure("stalled", f"the source was silent for {stall:g} s", True)))
            return
        self.attention = True
        with self._line.claim():
            try:
                if not self._line.opened:
                    await self._line.open()
                    return
                self._ticked = now
                out = self._stage.tick(now) if self._stage.timed else None
                if not out and heartbeat is not None and now >= self._beat_due(heartbeat):
                    self._line.wrote = now  # also where none is written: it would be due for ever
                    if not self._line.unsent():
                        out = self._stage.heartbeat()
                if out:
                    await self._line.send(out)
                    self._seen_by.attended(now)
            except Lost:
                self.stop(lost(self._line))
            except Exception as exc:
                self.stop(Why("failed", failure_from(exc), exc))
        self._seen = self._line.wrote  # by this: the driver, which would wait for it, wrote nothing

    async def _insist(self, now: float) -> bool:
        """The source was told to stop, or to close, and does not: the reader is told, and waits no longer.
        True once the source is given up."""
        if now >= self._words_due:
            self._words_due = _NEVER
            with self._line.claim():
                await self._end.last_words()
            return False
        if not self._patience.insist(now):
            return False
        logger.warning("stream %s: its source does not stop; it is abandoned", self._name)
        with self._line.claim():
            await self._end.finish()
        return True


def _together(due: float, interval: float) -> float:
    """A little before `due`: streams that wait share such times. For each with one of its own the loop would wake."""
    part = max(interval / _GRID, 1e-6)  # of the smallest floats such a part is zero
    return due // part * part if part < _NEVER else due  # which would be no number
