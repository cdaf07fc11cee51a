"""An alarm wakes its sleeper once, by its time or by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from streamguard.runtime.alarm import Alarm
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
