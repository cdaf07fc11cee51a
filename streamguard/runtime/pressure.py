"""What presses on a stream: how late its event loop is, how much that works, and what its connection has not sent.

One `LoopMeter` for a thread's loop, shared by its streams and alive only while one of them holds it. It has no task and
no timer: a stream that looks, once in some milliseconds, has the loop call back as soon as it can, and the time until
then is how late the loop is. One call is outstanding at most, so that all of it costs a turn of the loop in so many
milliseconds, whatever the number of streams.

How much the loop works is the CPU time of its thread. A loop with few streams that each wait for the loop once a token
is never late, however far behind their sources they are; then its thread never rests. Where another program has the
processor the thread rests too, and the loop is late.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final, Protocol

from streamguard.core.adaptive import Pressure
from streamguard.runtime.wakeup import running_trio

__all__ = ["PERIOD", "LoopMeter", "StreamPressure", "loop_meter"]

PERIOD: Final = 0.03  # seconds between two samples of a stream, and of a loop

Call = Callable[[Callable[[], object]], object]


class LoopMeter:
    """How late the loop is that `soon` calls back on, and how much it works. `clock` is in seconds, and so is `worked`,
    the CPU time of the loop's thread; without one that is not known."""

    def __init__(self, soon: Call, clock: Callable[[], float], worked: Callable[[], float] | None = None) -> None:
        self.clock = clock
        self.pressure = Pressure()  # the newest reading
        self._soon = soon
        self._worked = worked
        self._asked = -float("inf")  # when the loop was last asked to call back
        self._waits = False  # whether it has not yet
        self._busy = 0.0
        self._since: tuple[float, float] | None = None  # time and CPU time at the last reading of the latter

    def look(self, now: float) -> Pressure:
        """What is known at `now`. Asks for more where that is some milliseconds old."""
        since = now - self._asked
        if since >= PERIOD:
            if self._waits:  # as late as that already
                self.pressure = Pressure(since, self._busy)
            else:
                self._waits, self._asked = True, now
                self._work(now)
                self._soon(self._called)
        return self.pressure

    def _called(self) -> None:
        self._waits = False
        self.pressure = Pressure(self.clock() - self._asked, self._busy)

    def _work(self, now: float) -> None:
        if self._worked is None:
            return
        worked, since = self._worked(), self._since
        self._since = (now, worked)
        self._busy = 0.0 if since is None else min(1.0, (worked - since[1]) / (now - since[0]))


class _Thread(threading.local):
    """The meter of this thread's loop, as long as a stream has it."""

    def __init__(self) -> None:
        self.home: Any = None
        self.meter: Callable[[], LoopMeter | None] = lambda: None


_thread: Final = _Thread()


def loop_meter(clock: Callable[[], float]) -> LoopMeter:
    """The meter of the loop that runs, in the time of `clock`."""
    trio = running_trio()
    home: Any = asyncio.get_running_loop() if trio is None else trio.current_trio_token()
    meter = _thread.meter()
    if meter is None or meter.clock is not clock or _thread.home() is not home:
        # CPU time is of the system's clock, and no other's.
        worked = time.thread_time if clock is time.monotonic and hasattr(time, "thread_time") else None
        meter = LoopMeter(home.call_soon if trio is None else home.run_sync_soon, clock, worked)
        _thread.meter, _thread.home = weakref.ref(meter), weakref.ref(home)
    return meter


class _Sampled(Protocol):
    """A stage whose policy is told what presses."""

    def sample(self, pressure: Pressure, now: float) -> bool: ...


class StreamPressure:
    """Tells a stage what presses: its loop, by `clock`, and what its connection has not sent."""

    __slots__ = ("_due", "_meter", "_stage", "_unsent")

    def __init__(self, stage: _Sampled, unsent: Callable[[], int | None], clock: Callable[[], float]) -> None:
        self._stage = stage
        self._unsent = unsent
        self._meter = loop_meter(clock)
        self._due = -float("inf")

    @classmethod
    def of(cls, stage: Any, unsent: Callable[[], int | None], clock: Callable[[], float]) -> StreamPressure | None:
        """The same; None for a stage whose policy does not ask."""
        return cls(stage, unsent, clock) if getattr(stage, "sampled", False) else None

    def look(self, now: float) -> bool:
        """To be called often. True where the stage is timed now and was not, or the other way round."""
        if now < self._due:
            return False
        self._due = now + PERIOD
        pressure = self._meter.look(now)
        unsent = self._unsent()
        if unsent:
            pressure = Pressure(pressure.lag, pressure.busy, unsent)
        return self._stage.sample(pressure, now)
