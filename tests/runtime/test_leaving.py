"""A reader leaves in mid stream: how soon the source stops, what is left behind, and that others get their turn."""

from __future__ import annotations

import asyncio
import gc
import sys
import types
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio

from streamguard.core.dialect import Native
from streamguard.core.errors import Failure
from streamguard.core.flush import Immediate
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.verify import StreamVerifier
from streamguard.core.wire import Sse
from streamguard.runtime.source import TokenSource
from streamguard.runtime.stages import GuardedStream
from streamguard.runtime.turns import SLICE
from tests.runtime.fakes import Script, Wire, serve, timing
from tests.runtime.virtual import BACKENDS, run

pytestmark = pytest.mark.anyio


def leaves_after(tokens: int) -> Wire:
    """A reader that leaves once it has so many tokens; the opening is the first send."""

    def on_send(number: int, data: bytes) -> None:
        if number == tokens + 1:
            wire.left.set()

    wire = Wire(on_send=on_send)
    return wire


async def test_ten_thousand_tokens_at_a_millisecond_stop_within_one_token() -> None:
    script = Script(*["x", 0.001] * 10_000)
    await serve(script, leaves_after(20)).run()
    assert script.steps <= 21
    assert script.closes == 1
    assert script.cancels + script.exits == 1


@pytest.mark.parametrize("state", ["idle", "producing", "blocked"])
async def test_a_source_stops_within_one_token_whatever_it_does_when_the_reader_leaves(state: str) -> None:
    script = Script(*["x", 0.001] * 20, *([1000.0] if state == "idle" else []), *["x", 0.001] * 10_000)
    wire = Wire(slow=lambda number, data: 1000.0 if state == "blocked" and number == 22 else 0.0)
    served = serve(script, wire, heartbeat=None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.run)
        await anyio.sleep(0.0195)
        steps = script.steps
        wire.left.set()
        left = anyio.current_time()
    assert script.steps <= steps + 1
    assert script.closes == 1
    assert served.outcome.ended - left <= 0.001


async def test_a_source_is_told_to_stop_once() -> None:
    scripts = [Script("a", 1.0, "b") for _ in range(110)]
    streams = [serve(script) for script in scripts]
    async with anyio.create_task_group() as tasks:
        for stream in streams:
            tasks.start_soon(stream.run)
        await anyio.sleep(0.5)
        for stream in streams[::11]:
            stream.wire.left.set()
    assert sum([script.cancels for script in scripts]) == 10
    assert [script.closes for script in scripts] == [1] * 110


async def test_leaving_between_two_tokens_with_a_step_pending_raises_nothing(caplog: Any) -> None:
    script = Script("a", 10.0, "b")
    served = serve(script, heartbeat=1.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.run)
        await anyio.sleep(3.0)  # a heartbeat is due at this very moment
        served.wire.left.set()
    assert script.closes == 1
    assert "closing its source raised" not in caplog.text


async def test_leaving_reaches_the_source_through_two_pipelines(caplog: Any) -> None:
    """As in a proxy whose source is a guarded stream itself: a task group is open around each of its yields."""
    script = Script(*["x", 0.001] * 10_000)

    async def relayed() -> AsyncIterator[str]:
        stages = (Immediate(), FramedEncoder(Native()), CompletionGuard(Sse()))
        async with GuardedStream(TokenSource(script), *stages, timing=timing()) as stream:
            verifier = StreamVerifier()
            async for chunk in stream:
                for frame in verifier.feed(chunk):
                    yield frame.text

    served = await serve(relayed, leaves_after(20)).run()
    assert served.outcome.status == "gone"
    assert script.steps <= 23
    assert script.closes == 1
    assert "closing its source raised" not in caplog.text


# ---- nothing is left behind ---------------------------------------------------------------------


class Generators:
    """Which async generators were begun, and which were left to the garbage collector."""

    def __init__(self) -> None:
        self.begun = 0
        self.orphans: list[str] = []

    def __enter__(self) -> Generators:
        self._hooks = hooks = sys.get_asyncgen_hooks()

        def firstiter(generator: Any) -> None:
            self.begun += 1
            if hooks.firstiter is not None:
                hooks.firstiter(generator)

        def finalizer(generator: Any) -> None:
            self.orphans.append(generator.__qualname__)
            if hooks.finalizer is not None:
                hooks.finalizer(generator)

        sys.set_asyncgen_hooks(firstiter, finalizer)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.set_asyncgen_hooks(*self._hooks)


def tasks_now(backend: str) -> int:
    return len(asyncio.all_tasks()) if backend == "asyncio" else trio.lowlevel.current_statistics().tasks_living


def suspended() -> list[Any]:
    gc.collect()
    # By `type`: `isinstance` asks the thing itself, and Django's settings answer with an error until they are made.
    return [thing for thing in gc.get_objects() if type(thing) is types.AsyncGeneratorType and thing.ag_frame]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("state", "readers"), [("producing", 1000), ("idle", 150), ("blocked", 150)])
def test_a_thousand_readers_that_leave_leave_no_task_and_no_generator_behind(
    backend: str, state: str, readers: int
) -> None:
    scripts: list[Script] = []

    async def one() -> None:
        script = Script(*["x"] * 20, *([1000.0] if state == "idle" else []), *["x"] * 10_000)
        scripts.append(script)
        wire = leaves_after(20) if state == "producing" else Wire()
        served = serve(script, wire, heartbeat=None)
        if state == "blocked":
            wire._slow = lambda number, data: 1000.0 if number == 21 else 0.0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(served.run)
            if state != "producing":
                await anyio.sleep(1)
                wire.left.set()

    async def test() -> None:
        before = tasks_now(backend)
        suspended_before = len(suspended())
        with Generators() as generators:
            async with anyio.create_task_group() as tasks:
                for _ in range(readers):
                    tasks.start_soon(one)
            await anyio.lowlevel.checkpoint()
            assert tasks_now(backend) == before
            assert len(suspended()) == suspended_before
            assert generators.begun == readers
            assert generators.orphans == []

    run(backend, test)
    assert max([script.steps for script in scripts]) <= 23  # a token for each loop turn that leaving takes
    assert {script.closes for script in scripts} == {1}


# ---- fairness -----------------------------------------------------------------------------------


class Counting:
    """A clock for sources that never suspend: each look at it takes a microsecond of processor time."""

    def __init__(self, step: float = 1e-6) -> None:
        self.now = 0.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


async def endless(count: list[int]) -> AsyncIterator[str]:
    while True:
        count[0] += 1
        yield "x"


@pytest.mark.parametrize("look", [1e-6, 1e-4])
async def test_a_source_that_never_suspends_leaves_the_loop_free_within_ten_milliseconds(look: float) -> None:
    clock = Counting(look)
    count = [0]
    gaps: list[float] = []

    async def neighbour() -> None:
        last = clock.now
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
            gaps.append(clock.now - last)
            last = clock.now
        served.wire.left.set()
        count.append(count[0])

    served = serve(lambda: endless(count), Wire(blocks=False), clock=clock)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.run)
        tasks.start_soon(neighbour)
    # Two slices where the loop takes the driver first in one turn and last in the next; and what is read of the clock
    # as it begins.
    assert max(gaps) <= 2 * SLICE + 12 * look
    after = count[0] - count[1]
    assert after * 2 * look <= 3 * SLICE  # a few turns of the loop are on the way from the reader to the source
    assert served.outcome.status == "gone"


async def test_a_source_of_a_million_items_is_over_soon_after_its_reader_left() -> None:
    clock = Counting(1e-5)
    count = [0]

    async def million() -> AsyncIterator[str]:
        for _ in range(1_000_000):
            count[0] += 1
            yield "x"

    served = serve(million, Wire(blocks=False), clock=clock)
    served.wire.left.set()
    await served.run()
    assert count[0] < 2000


async def test_a_source_that_never_suspends_can_be_cancelled() -> None:
    count = [0]
    served = serve(lambda: endless(count), Wire(blocks=False), clock=Counting(1e-4))

    async def cancel() -> None:
        await anyio.lowlevel.checkpoint()
        served.driver.cancel(Failure("enough", "the user pressed stop"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.run)
        tasks.start_soon(cancel)
    assert served.outcome.status == "cancelled"
    assert served.outcome.failure == Failure("enough", "the user pressed stop")


async def test_empty_items_that_never_suspend_are_no_way_around_it() -> None:
    async def empty() -> AsyncIterator[str]:
        while True:
            yield ""

    served = serve(empty, Wire(blocks=False), clock=Counting(1e-4))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.run)
        tasks.start_soon(leave, served.wire.left.set)
    assert served.outcome.items == 0


async def leave(now: Callable[[], None]) -> None:
    await anyio.lowlevel.checkpoint()
    now()
