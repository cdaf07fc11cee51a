"""Event loops in virtual time, and a way to do something at the n-th point at which a schedule could change.

Both loops jump to the next timer when nothing else can run. A *point* on asyncio is before each callback
of the loop, on trio before each batch of tasks; `at` is called there, outside any task, so it can do what a
signal, another connection or a server could do at that very moment: cancel a task, set an event.

A loop that jumps whenever nothing can run waits for no thread: what one does would be there or not as the machine
pleases. So code that runs in one of them may start none; its test asks for real time (`real_loops`). A thread that
the test itself joins at once is waited for, and no such thing: a daemon is.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import anyio
import attrs
import trio
import trio.abc
import trio.testing
from trio._core import _run as trio_run

__all__ = ["BACKENDS", "Interruption", "VirtualLoop", "backend_options", "no_thread", "run"]

BACKENDS = ("asyncio", "trio")
START = 0.0  # where trio's clock starts too: a time of zero is a time like any other


@attrs.define(eq=False)
class Interruption:
    """Calls `act` at the point number `at` (from 1) after `arm`, and once more `again` points later."""

    at: int
    again: int | None = None
    act: Callable[[], None] | None = None
    points: int = 0
    done: bool = False

    def arm(self, act: Callable[[], None]) -> None:
        self.act = act

    def point(self) -> None:
        if self.act is None:
            return
        self.points += 1
        if self.points == self.at or (self.again is not None and self.points == self.at + self.again):
            self.done = True
            self.act()


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose clock stands still while anything can run."""

    def __init__(self, interruption: Interruption | None = None, tick: float = 0.0) -> None:
        super().__init__()
        self._now = START
        self._interruption = interruption
        self._tick = tick

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        ready: deque[Any] = self._ready  # type: ignore[has-type, attr-defined]
        scheduled: list[Any] = self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
            heapq.heappop(scheduled)._scheduled = False
        if not ready:
            if not scheduled:
                if not self._stopping:  # type: ignore[attr-defined]
                    raise RuntimeError("deadlock: no task can run and no timer is set")
            else:
                self._now = max(self._now, scheduled[0]._when)
        else:
            self._now += self._tick
        rest: list[Any] = []
        if self._interruption is not None:
            self._interruption.point()
            while len(ready) > 1:  # one callback a turn, so that there is a point between any two
                rest.insert(0, ready.pop())
        super()._run_once()  # type: ignore[misc]
        if rest:
            ready.extendleft(reversed(rest))


@attrs.define(eq=False)
class _Points(trio.abc.Instrument):
    interruption: Interruption | None
    clock: trio.testing.MockClock
    tick: float

    def before_io_wait(self, timeout: float) -> None:
        if self.tick and timeout == 0:
            self.clock.jump(self.tick)
        if self.interruption is not None:
            self.interruption.point()


def backend_options(backend: str, interruption: Interruption | None = None, tick: float = 0.0) -> dict[str, Any]:
    """What `anyio.run` takes for a virtual loop. `tick` is how long one turn of a busy loop takes."""
    if backend == "asyncio":
        return {"loop_factory": lambda: VirtualLoop(interruption, tick)}
    clock = trio.testing.MockClock(autojump_threshold=0)
    return {"clock": clock, "instruments": [_Points(interruption, clock, tick)]}


def _in_virtual_time() -> bool:
    try:
        return isinstance(asyncio.get_running_loop(), VirtualLoop)
    except RuntimeError:
        runner = getattr(trio_run.GLOBAL_RUN_CONTEXT, "runner", None)
        return runner is not None and isinstance(runner.clock, trio.testing.MockClock)


@contextmanager
def no_thread() -> Iterator[None]:
    """Within, code in a virtual loop that starts a daemon thread raises AssertionError."""
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.daemon and _in_virtual_time():
            raise AssertionError(f"{thread.name} in virtual time, which no thread keeps up with: see real_loops")
        start(thread)

    with mock.patch.object(threading.Thread, "start", refused):
        yield


def run(
    backend: str,
    test: Callable[[], Awaitable[Any]],
    *,
    interruption: Interruption | None = None,
    tick: float = 0.0,
    seed: int = 0,
) -> Any:
    """Run `test` on a fresh virtual loop. `seed` decides trio's order of tasks."""
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    trio_run._r.seed(seed)

    async def limited() -> Any:
        with anyio.fail_after(100_000):  # virtual seconds: trio's way to say deadlock
            return await test()

    options = backend_options(backend, interruption, tick)
    with no_thread():
        if backend == "trio":
            return trio.run(limited, **options)  # anyio's own, in its oldest versions, drops the clock
        return anyio.run(limited, backend=backend, backend_options=options)
