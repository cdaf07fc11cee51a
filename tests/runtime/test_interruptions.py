"""Something happens at every point at which it could: each schedule, one after another.

A stream is run once for each of its scheduling points, and at that point its task is cancelled (by a scope,
or by asyncio itself), its reader leaves, or the application cancels it. What is promised must hold for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import attrs
import pytest

from streamguard.core.errors import SourceFailed
from streamguard.core.flush import Within
from streamguard.core.receipt import Verdict
from tests.runtime.fakes import Hook, Script, Served, Wire, serve
from tests.runtime.virtual import BACKENDS, Interruption, run


@attrs.define
class Case:
    """A stream and its source; `heard` is what the source is to say if nobody interrupts."""

    served: Served
    script: Script
    status: str = "complete"


def plain() -> Case:
    script = Script("a", 0.5, "b", "c", 3.0, "d")
    return Case(serve(script, Wire(slow=0.25), policy=Within(0.4, first="policy"), heartbeat=1.0), script)


def hurried() -> Case:
    """Neither source nor sink ever suspends by itself."""
    script = Script("a", "b", "c")
    return Case(serve(script, Wire(blocks=False)), script)


def failing() -> Case:
    script = Script("a", 0.5, "b", SourceFailed("overloaded", "try later"))
    return Case(serve(script, Wire(slow=0.25), heartbeat=1.0), script, "failed")


def loading() -> Case:
    """A factory of an awaitable, with heartbeats while it loads."""
    script = Script("a", 0.5, "b")

    async def load() -> Any:
        await anyio.sleep(2.5)
        return script()

    return Case(serve(load, Wire(slow=0.25), heartbeat=1.0), script)


def peeking() -> Case:
    script = Script(0.5, "a", 0.5, "b")
    return Case(serve(script, Wire(slow=0.25), peek=2.0), script)


def peeking_in_vain() -> Case:
    script = Script(3.0, "a", 0.5, "b")
    return Case(serve(script, Wire(slow=0.25), peek=1.0, heartbeat=0.75), script)


def tidying() -> Case:
    """A clean-up that awaits, and an `on_end` that does."""

    async def tidy() -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.5)

    script = Script("a", 0.5, "b", cleanup=tidy)
    hook = Hook(lambda: anyio.sleep(0.5))
    return Case(serve(script, Wire(slow=0.25), hook=hook), script)


def silent() -> Case:
    script = Script("a", 50.0, "b")
    return Case(serve(script, Wire(slow=0.25), heartbeat=2.0, stall=5.0), script, "stalled")


def headstrong() -> Case:
    """The source catches what it is told and goes on: abandoned after the limit."""

    async def ignore() -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(20)

    script = Script("a", ignore, "b")
    return Case(serve(script, Wire(slow=0.25), stall=5.0, close=2.0), script, "stalled")


CASES = [plain, hurried, failing, loading, peeking, peeking_in_vain, tidying, silent, headstrong]


async def cancelled_scope(case: Case, interruption: Interruption) -> bool:
    with anyio.CancelScope() as scope:
        interruption.arm(scope.cancel)
        case.served.check(await case.served.driver.run())
        interruption.act = None
    return scope.cancelled_caught


async def cancelled_task(case: Case, interruption: Interruption) -> bool:
    async def drive() -> None:
        interruption.arm(task.cancel)
        case.served.check(await case.served.driver.run())

    task = asyncio.get_running_loop().create_task(drive())
    try:
        await task
    except asyncio.CancelledError:
        return True
    finally:
        interruption.act = None
    return False


async def cancelled_twice(case: Case, interruption: Interruption) -> bool:
    """As a server does that loses patience: the second time while the first is being dealt with."""
    interruption.again = interruption.at % 7 + 1
    return await cancelled_task(case, interruption)


async def left(case: Case, interruption: Interruption) -> bool:
    interruption.arm(case.served.wire.left.set)
    await case.served.run()
    interruption.act = None
    return False


async def stopped(case: Case, interruption: Interruption) -> bool:
    interruption.arm(case.served.cancel)
    await case.served.run()
    interruption.act = None
    return False


Way = Callable[[Case, Interruption], Any]
WAYS = [
    (backend, way)
    for way in (cancelled_scope, cancelled_task, cancelled_twice, left, stopped)
    for backend in BACKENDS
    if not (way in (cancelled_task, cancelled_twice) and backend == "trio")
]


CANCELLED = (cancelled_scope, cancelled_task, cancelled_twice)


def check(case: Case, way: Way, raised: bool, done: bool) -> None:
    served, script, outcome = case.served, case.script, case.served.outcome
    served.check()
    reader = served.wire.read()
    started = "start" in served.wire.calls
    # A source that was started is closed, once, by the task that drove it.
    assert script.closes == (1 if script.tasks else 0)
    assert len(set(script.tasks)) <= 1
    if way is not cancelled_twice:
        assert served.hook.finished == 1
    if reader.verdict is Verdict.COMPLETE:
        assert script.returns == 1
    if not done or (way in CANCELLED and not raised):  # too late to make a difference
        assert not raised
        assert outcome.status == case.status
    if way not in CANCELLED:
        assert not raised
    if way is left and outcome.status != case.status:
        assert outcome.status == "gone"
        assert reader.verdict is Verdict.TRUNCATED
        assert outcome.delivered == "no"
    if way is stopped and started:
        assert reader.status in ("cancelled", case.status)
        assert reader.status == outcome.status
    if way in (cancelled_scope, cancelled_task) and raised and started and not served.wire.torn:
        assert reader.status in ("shutdown", case.status)  # the reader is there, and is told


@pytest.mark.parametrize("build", CASES)
@pytest.mark.parametrize(("backend", "way"), [pytest.param(b, w, id=f"{w.__name__}-{b}") for b, w in WAYS])
def test_nothing_breaks_wherever_a_stream_is_interrupted(build: Callable[[], Case], backend: str, way: Way) -> None:
    at = 0
    seen = set()
    done = True
    while done:
        at += 1
        case, raised, done = once(build, backend, way, at)
        try:
            check(case, way, raised, done)
        except AssertionError as exc:
            wire = case.served.wire
            raise AssertionError(
                f"at point {at}: {exc}\nraised={raised} calls={wire.calls} torn={wire.torn}\n"
                f"outcome={case.served.driver.outcome}\nbody={wire.body.decode()}"
            ) from exc
        seen.add(case.served.outcome.status)
    if build is not hurried:  # which may be over before anybody can say anything
        assert at > 10
        assert len(seen) > 1, "no point of this stream made a difference"


def once(build: Callable[[], Case], backend: str, way: Way, at: int) -> tuple[Case, bool, bool]:
    """The stream, whether the cancellation came out of it, and whether the point was reached."""
    interruption = Interruption(at)

    async def test() -> tuple[Case, bool]:
        case = build()
        return case, await way(case, interruption)

    case, raised = run(backend, test, interruption=interruption, seed=at)
    return case, raised, interruption.done
