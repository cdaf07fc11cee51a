"""A drain: ready no more at once, a grace for what runs, and then its end."""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import threading
from typing import Any

import anyio
import pytest

from streamguard.runtime.drain import GRACE, Drain, Draining

pytestmark = pytest.mark.anyio


def drain_of(grace: float = 10.0) -> Drain:
    return Drain(grace, clock=anyio.current_time)


class Running:
    """A stream that runs until it is told to stop, or for `seconds`."""

    def __init__(self, drain: Drain, seconds: float = math.inf, *, reader: bool = False) -> None:
        self.drain = drain
        self.reader = reader
        self.seconds = seconds
        self.over: float | None = None
        self.told = 0
        self._stop = anyio.Event()

    def stop(self) -> None:
        self.told += 1
        self._stop.set()

    async def run(self) -> None:
        with self.drain.joined(self.stop, reader=self.reader), anyio.move_on_after(self.seconds):
            await self._stop.wait()
        self.over = anyio.current_time()


async def test_what_runs_may_finish_and_what_outlasts_the_grace_is_told_once() -> None:
    drain = drain_of()
    short, long = Running(drain, 9.0), Running(drain)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(short.run)
        tasks.start_soon(long.run)
        await anyio.sleep(1.0)
        assert (drain.ready, drain.over, drain.running) == (True, False, 2)
        drain.begin()
        assert (drain.ready, drain.over) == (False, False)
    assert (short.over, short.told) == (9.0, 0)
    assert (long.over, long.told) == (11.0, 1)
    assert (drain.over, drain.running) == (True, 0)


async def test_nothing_waits_for_a_grace_in_which_all_has_ended() -> None:
    drain = drain_of(math.inf)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Running(drain, 2.0).run)
        await anyio.sleep(1.0)
        drain.begin()
    await anyio.wait_all_tasks_blocked()
    assert anyio.current_time() == 2.0
    assert not drain.over


@pytest.mark.parametrize(("second", "end"), [(0.5, 2.5), (99.0, 11.0)])
async def test_a_second_call_can_only_bring_the_end_nearer(second: float, end: float) -> None:
    drain = drain_of()
    stream = Running(drain)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stream.run)
        await anyio.sleep(1.0)
        drain.begin()
        await anyio.sleep(1.0)
        drain.begin(second)
    assert (stream.over, stream.told) == (end, 1)


async def test_a_stream_that_comes_within_the_grace_has_what_is_left_and_one_behind_it_nothing() -> None:
    drain = drain_of()
    drain.begin()
    await anyio.sleep(4.0)
    first = Running(drain)
    await first.run()
    assert (first.over, first.told) == (10.0, 1)
    await anyio.sleep(1.0)
    second = Running(drain)
    await second.run()
    assert second.over == 11.0


async def test_an_application_that_starts_again_takes_streams_again_and_ends_none() -> None:
    drain = drain_of()
    stream = Running(drain, 30.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stream.run)
        await anyio.sleep(1.0)
        drain.begin()
        await anyio.sleep(1.0)
        drain.reset()
    assert drain.ready
    assert (stream.over, stream.told) == (30.0, 0)
    again = Running(drain)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(again.run)
        await anyio.wait_all_tasks_blocked()
        drain.begin(1.0)
    assert (again.over, again.told) == (31.0, 1)


async def test_one_stream_that_cannot_be_told_keeps_no_other_from_it(caplog: pytest.LogCaptureFixture) -> None:
    drain = drain_of(1.0)

    def fails() -> None:
        raise OSError("it is not there")

    stream = Running(drain)
    with drain.joined(fails):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.run)
            await anyio.wait_all_tasks_blocked()
            drain.begin()
    assert stream.told == 1
    assert "could not be told to end" in caplog.text


async def test_the_log_says_how_many_have_how_long(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "streamguard")
    drain = drain_of()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Running(drain).run)
        tasks.start_soon(Running(drain, 2.0).run)
        tasks.start_soon(Running(drain, reader=True).run)
        await anyio.wait_all_tasks_blocked()
        drain.begin()
    assert caplog.messages == [
        "draining: no new streams; 10 s for what runs (streams: 2, readers of streams in a log: 1)",
        "draining: not over within the grace, and told to end (streams: 1, readers of streams in a log: 1)",
    ]


IDLE = "draining: no new streams; 10 s for what runs (streams: 0, readers of streams in a log: 0)"


async def test_a_drain_is_logged_once_where_nothing_runs_and_never_by_a_signal_handler(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Which may stand in the middle of a line that is being logged."""
    caplog.set_level(logging.INFO, "streamguard")
    drain, logged = drain_of(), list[int]()

    def handler(number: int, frame: object) -> None:
        drain.begin()
        logged.append(len(caplog.messages))

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        for _ in range(2):
            signal.raise_signal(signal.SIGUSR1)
            await anyio.wait_all_tasks_blocked()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (logged, caplog.messages) == ([0, 1], [IDLE])
    drain.reset()
    drain.begin()
    await anyio.wait_all_tasks_blocked()
    assert caplog.messages == [IDLE, IDLE]


@pytest.mark.parametrize("loop", [True, False])
def test_a_drain_by_hand_is_logged_once(loop: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "streamguard")
    own = Draining(grace=math.inf)

    async def by_hand() -> None:
        own.drain()
        await anyio.wait_all_tasks_blocked()

    for _ in range(2):
        if loop:
            anyio.run(by_hand)
        else:
            own.drain()
    assert caplog.messages == [IDLE.replace("10 s", "inf s")]


async def test_who_waits_for_it_is_woken_and_is_no_stream() -> None:
    drain = drain_of()
    woken: list[float] = []

    async def wait() -> None:
        await drain.begun()
        woken.append(anyio.current_time())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        with anyio.move_on_after(1.0):  # one that does not wait to its end
            await drain.begun()
        assert drain.running == 0
        drain.begin()
    await drain.begun()  # what has begun is not waited for
    assert (woken, drain.running) == ([1.0], 0)
    assert not drain._loops  # nothing is kept of a loop where nobody waits


async def test_it_is_begun_from_another_thread() -> None:
    drain = Drain(0.0)
    stream = Running(drain)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stream.run)
        await anyio.wait_all_tasks_blocked()
        thread = threading.Thread(target=drain.begin)
        thread.start()
        thread.join()
        assert not drain.ready
    assert stream.told == 1


async def test_it_is_begun_from_a_signal_handler() -> None:
    drain = Drain(0.0)
    stream = Running(drain)
    before = signal.signal(signal.SIGUSR1, lambda number, frame: drain.begin())
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.run)
            await anyio.wait_all_tasks_blocked()
            signal.raise_signal(signal.SIGUSR1)
            assert not drain.ready
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert stream.told == 1


async def test_streams_of_two_loops_are_each_told_in_their_own() -> None:
    drain = Drain(0.0)
    told: list[int] = []
    ready = threading.Barrier(3)

    async def stream() -> None:
        over = anyio.Event()

        def stop() -> None:
            told.append(threading.get_ident())
            over.set()

        with drain.joined(stop):
            ready.wait(10)
            await over.wait()

    threads = [threading.Thread(target=anyio.run, args=(stream,), kwargs={"backend": name}) for name in BACKENDS]
    for thread in threads:
        thread.start()
    idents = {thread.ident for thread in threads}
    ready.wait(10)
    drain.begin()
    for thread in threads:
        thread.join(10)
    assert set(told) == idents
    assert drain.running == 0


BACKENDS = ("asyncio", "trio")


def test_what_is_drained_by_name_has_its_grace_and_says_whether_it_is_ready() -> None:
    assert Draining().draining.grace == GRACE
    own = Draining(grace=3.0)
    assert own.draining.grace == 3.0
    own.grace = 4.0
    assert (own.draining.grace, own.ready) == (4.0, True)
    own.drain(0)
    assert (own.ready, own.draining.over) == (False, True)


@pytest.mark.parametrize(
    ("given", "error"), [("3", TypeError), (True, TypeError), (-1, ValueError), (math.nan, ValueError)]
)
def test_a_grace_that_is_no_time_is_refused(given: Any, error: type[Exception]) -> None:
    own = Draining()
    with pytest.raises(error, match="grace"):
        own.drain(given)
    assert own.ready
    with contextlib.suppress(TypeError), pytest.raises(ValueError, match="grace"):
        Draining(grace=given)
