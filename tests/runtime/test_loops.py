"""The same on the loops that people run, in real time, with the default clock. No test here waits for luck:
each goes on when it has seen what it waits for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from streamguard.core.errors import SourceFailed
from streamguard.core.flush import Within
from streamguard.core.receipt import Verdict
from tests.conftest import LOOPS
from tests.runtime.fakes import Script, Served, Wire, serve

pytestmark = pytest.mark.anyio


@pytest.fixture(params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


def real(script: Script, wire: Wire | None = None, **options: Any) -> Served:
    return serve(script, wire, clock=time.monotonic, **options)


def when(condition: Callable[[Wire], bool]) -> tuple[Wire, anyio.Event]:
    """A sink, and an event that is set when what it took meets a condition."""
    event = anyio.Event()

    def on_send(number: int, data: bytes) -> None:
        wire.chunks.append(data)
        met = condition(wire)
        wire.chunks.pop()
        if met:
            event.set()

    wire = Wire(on_send=on_send)
    return wire, event


async def test_a_stream_completes() -> None:
    served = await real(Script("a", 0.001, "b")).run()
    assert served.outcome.status == "complete"
    assert served.wire.text == "ab"


async def test_a_stream_fails() -> None:
    served = await real(Script("a", SourceFailed("overloaded", "later"))).run()
    assert served.wire.read().status == "failed"


async def test_heartbeats_leave_while_the_source_is_silent() -> None:
    wire, three = when(lambda wire: wire.beats == 3)
    served = await real(Script("a", three, "b", "c"), wire, heartbeat=0.01).run()
    assert served.wire.beats >= 3
    assert served.wire.text == "abc"
    assert served.wire.overlaps == 0


async def test_held_text_leaves_while_the_source_is_silent() -> None:
    wire, seen = when(lambda wire: wire.text == "ab")
    await real(Script("a", "b", seen, "c"), wire, policy=Within(0.01)).run()
    assert wire.read().verdict is Verdict.COMPLETE


async def test_a_reader_leaves_while_the_source_is_silent() -> None:
    wire, seen = when(lambda wire: wire.text == "a")
    script = Script("a", 1000.0, "b")
    served = real(script, wire)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.run)
        await seen.wait()
        wire.left.set()
    assert served.outcome.status == "gone"
    assert script.cancels == script.closes == 1


async def test_a_stalled_source_ends() -> None:
    served = await real(Script("a", 1000.0, "b"), stall=0.01).run()
    assert served.wire.read().status == "stalled"


async def test_a_stream_is_cancelled_from_outside(anyio_backend_name: str) -> None:
    wire, seen = when(lambda wire: wire.text == "a")
    script = Script("a", 1000.0, "b")
    served = real(script, wire)
    if anyio_backend_name == "asyncio":
        task = asyncio.ensure_future(served.driver.run())
        await seen.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(served.driver.run)
            await seen.wait()
            tasks.cancel_scope.cancel()
    served.check()
    assert served.wire.read().status == "shutdown"
    assert script.closes == 1


async def test_a_source_that_never_suspends_shares_the_loop() -> None:
    async def endless() -> Any:
        while True:
            yield "x"

    served = serve(endless, Wire(blocks=False), clock=time.monotonic)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.run)
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        served.wire.left.set()
    assert served.outcome.status == "gone"
