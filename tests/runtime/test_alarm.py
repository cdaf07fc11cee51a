"""An alarm wakes its sleeper once, by its time or by hand; an awaitable tells when it first waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import anyio
import pytest

from streamguard.runtime.alarm import Alarm
from streamguard.runtime.patient import Patient
from tests.runtime.fakes import Script, serve
from tests.runtime.virtual import VirtualLoop

pytestmark = pytest.mark.anyio


async def test_an_alarm_wakes_at_its_time_and_again() -> None:
    alarm = Alarm()
    for time in (1.0, 2.0):
        await alarm.sleep(1.0)
        assert anyio.current_time() == time


async def test_an_alarm_that_is_set_wakes_at_once_and_lets_nobody_sleep_until_it_is_cleared() -> None:
    alarm = Alarm()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(alarm.sleep, float("inf"))
        await anyio.sleep(1.0)
        alarm.set()
        alarm.set()
    await alarm.sleep(5.0)
    assert anyio.current_time() == 1.0
    alarm.clear()
    await alarm.sleep(5.0)
    assert anyio.current_time() == 6.0


async def test_a_sleeper_that_is_cancelled_leaves_an_alarm_that_can_be_set() -> None:
    alarm = Alarm()
    with anyio.move_on_after(1.0) as scope:
        await alarm.sleep(5.0)
    assert scope.cancelled_caught
    alarm.set()
    await alarm.sleep(5.0)
    assert anyio.current_time() == 1.0


async def test_an_alarm_that_is_set_at_the_time_it_rings_wakes_once() -> None:
    alarm = Alarm()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(alarm.sleep, 1.0)
        await anyio.sleep(1.0)
        alarm.set()
    assert anyio.current_time() == 1.0


class _Bare:
    """An awaitable whose iterator has no method but `__next__`."""

    def __await__(self) -> Any:
        return iter(())


async def test_what_does_not_wait_is_not_told_of() -> None:
    told: list[str] = []

    def write() -> Awaitable[None]:
        return _Bare()

    await Patient(write, lambda: told.append("waits"))
    assert not told


async def test_what_waits_is_told_of_once() -> None:
    told: list[float] = []

    async def write() -> None:
        await anyio.sleep(1.0)
        await anyio.sleep(1.0)

    await Patient(write, lambda: told.append(anyio.current_time()))
    assert told == [0.0]
    assert anyio.current_time() == 2.0


async def test_what_is_raised_in_a_write_and_into_it_goes_through() -> None:
    async def fails() -> None:
        await anyio.sleep(1.0)
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await Patient(fails, lambda: None)
    with anyio.move_on_after(1.0) as scope:
        await Patient(anyio.sleep_forever, lambda: None)
    assert scope.cancelled_caught


class _Noted(VirtualLoop):
    timers = 0

    def call_at(self, *args: Any, **options: Any) -> asyncio.TimerHandle:
        self.timers += 1
        return super().call_at(*args, **options)


def test_a_sign_of_life_that_need_not_wait_is_one_timer() -> None:
    """One that is taken back stays in the loop until its time, and the garbage collector looks through them all."""
    loop = _Noted()

    async def beats() -> None:
        served = serve(Script(300.0), heartbeat=1.0, write=30.0)
        served.wire._blocks = False  # a transport that takes all at once
        await served.run()
        assert served.wire.beats >= 299

    try:
        loop.run_until_complete(beats())
    finally:
        loop.close()
    assert loop.timers <= 320
