"""A request waits for a slot: for so long, while its reader does, and gives it back whatever happens."""

from __future__ import annotations

import gc
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from streamguard.app import Endpoint, StreamGuard, anyone_with_the_id
from streamguard.core.dialect import Native
from streamguard.core.flush import Immediate
from streamguard.runtime.admission import Admission, NoRoom, admission_of
from streamguard.runtime.runs import Detach, Runs
from streamguard.runtime.slots import Limits, Slot
from streamguard.runtime.takeover import Continue
from streamguard.runtime.timing import Timing
from tests.runtime.fakes import SID, Script
from tests.runtime.logs import Store, make_producer, text_in
from tests.runtime.orphans import died
from tests.runtime.virtual import BACKENDS, Interruption, run

pytestmark = pytest.mark.anyio


def books(admission: Admission) -> tuple[int, int]:
    return admission.streams, admission.waiting


async def refused(admission: Admission, *who: Any, **more: Any) -> NoRoom:
    with pytest.raises(NoRoom) as caught:
        await admission.enter(*who, **more)
    return caught.value


async def test_a_slot_that_is_free_is_had_at_once_and_the_next_waits_for_it() -> None:
    admission = Admission(Limits(max_streams=1))
    slot = await admission.enter("ann")
    times: list[float] = []

    async def second() -> None:
        other = await admission.enter("bob")
        times.append(anyio.current_time())
        other.release()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(second)
        await anyio.sleep(3)
        assert books(admission) == (1, 1)
        slot.release()
    assert times == [3.0]
    assert books(admission) == (0, 0)
    assert admission.admitted == 2


async def test_one_who_waited_too_long_is_told_so() -> None:
    admission = Admission(Limits(max_streams=1, max_wait=7))
    slot = await admission.enter("ann")
    no = await refused(admission, "bob")
    assert (no.why, no.own, anyio.current_time()) == ("waited_too_long", False, 7.0)
    assert admission.refused == {"full": 0, "waited_too_long": 1, "left": 0}
    slot.release()
    assert books(admission) == (0, 0)


async def test_where_no_more_may_wait_the_answer_comes_at_once() -> None:
    admission = Admission(Limits(max_streams=1, max_waiting=0, retry_after=5))
    slot = await admission.enter("ann")
    no = await refused(admission, "bob")
    assert (no.why, no.own, anyio.current_time()) == ("full", False, 0.0)
    assert 5 <= no.retry_after <= 10
    slot.release()
    (await admission.enter("bob")).release()


async def test_whose_own_streams_are_too_many_is_told_that() -> None:
    admission = Admission(Limits(max_streams=5, max_per_principal=1, max_waiting=0))
    slot = await admission.enter("ann")
    assert (await refused(admission, "ann")).own
    slot.release()


async def test_a_reader_that_leaves_gives_up_its_place() -> None:
    admission = Admission(Limits(max_streams=1))
    slot = await admission.enter("ann")
    no = await refused(admission, "bob", gone=lambda: anyio.sleep(2))
    assert (no.why, anyio.current_time(), books(admission)) == ("left", 2.0, (1, 0))
    slot.release()
    assert books(admission) == (0, 0)


async def test_a_transport_that_cannot_be_asked_counts_as_gone() -> None:
    admission = Admission(Limits(max_streams=1))
    slot = await admission.enter("ann")

    async def broken() -> None:
        raise OSError("closed")

    assert (await refused(admission, "bob", gone=broken)).why == "left"
    slot.release()


async def test_who_is_served_is_not_watched_any_more() -> None:
    admission = Admission(Limits(max_streams=1))
    slot = await admission.enter("ann")
    over: list[str] = []

    async def gone() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            over.append("bob")

    async with anyio.create_task_group() as tasks:

        async def second() -> None:
            (await admission.enter("bob", gone=gone)).release()
            assert over == ["bob"]

        tasks.start_soon(second)
        await anyio.sleep(1)
        slot.release()
    assert books(admission) == (0, 0)


async def test_one_who_has_to_give_way_is_told_that_it_is_full() -> None:
    admission = Admission(Limits(max_streams=1, max_waiting=2))
    slot = await admission.enter("ann")
    told: list[str] = []

    async def wait(who: str) -> None:
        try:
            (await admission.enter(who)).release()
            told.append(who)
        except NoRoom as no:
            told.append(no.why)

    async with anyio.create_task_group() as tasks:
        for who in ("ann", "ann", "bob"):
            tasks.start_soon(wait, who)
            await anyio.sleep(1)
        assert told == ["full"]
        slot.release()
    assert told == ["full", "ann", "bob"]
    assert books(admission) == (0, 0)


def cancelled_at(backend: str, point: int, scene: Callable[[Interruption], Awaitable[Admission]]) -> bool:
    """Run a scene that is cancelled at a point; whether it was still on then."""
    interruption = Interruption(point)

    async def test() -> None:
        admission = await scene(interruption)
        interruption.act = None
        assert books(admission) == (0, 0)
        (await admission.enter("next")).release()

    run(backend, test, interruption=interruption)
    return interruption.done


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cancellation_at_any_moment_leaves_no_slot_taken(backend: str) -> None:
    async def scene(interruption: Interruption) -> Admission:
        admission = Admission(Limits(max_streams=1))
        slot: Slot | None = await admission.enter("ann")
        assert slot is not None
        async with anyio.create_task_group() as tasks:

            async def second() -> None:
                with anyio.CancelScope() as scope:
                    interruption.arm(scope.cancel)
                    own = await admission.enter("bob", gone=anyio.sleep_forever)
                    try:
                        await anyio.sleep(1)
                    finally:
                        own.release()

            tasks.start_soon(second)
            await anyio.sleep(1)
            slot.release()
        return admission

    points = 1
    while cancelled_at(backend, points, scene):
        points += 1
    assert points > 5


async def test_a_slot_that_is_dropped_is_free_again_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    admission = Admission(Limits(max_streams=1))
    slot: Slot | None = await admission.enter("ann")
    assert slot is not None
    del slot
    gc.collect()
    (await admission.enter("bob")).release()
    assert "a response that had a slot was dropped" in caplog.text
    assert books(admission) == (0, 0)


async def test_refusals_are_counted_each_and_told_of_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    admission = Admission(Limits(max_streams=1, max_waiting=0))
    slot = await admission.enter("ann")
    with caplog.at_level(logging.WARNING, "streamguard"):
        for _ in range(10):
            await refused(admission, "bob")
        await anyio.sleep(11)
        await refused(admission, "bob")
    assert admission.refused["full"] == 11
    assert [record.getMessage() for record in caplog.records] == [
        f"requests for new streams are refused: {count} so far found no room to wait, and 0 waited for 10 s; streams "
        "that run: 1, requests that wait: 0"
        for count in (1, 11)
    ]
    slot.release()


async def test_a_run_has_its_slot_to_its_end_also_without_a_reader() -> None:
    admission, log = Admission(Limits(max_streams=1)), Store()
    slot = await admission.enter("ann")
    script = Script(*["a", 1.0] * 5)
    started = Runs().start(await make_producer(log, script, stall=None), Detach(100), slot=slot)
    await anyio.sleep(1.5)
    started.leave()
    await anyio.sleep(1)
    assert (admission.streams, admission.detached) == (1, 1)
    started.join()
    assert (admission.streams, admission.detached) == (1, 0)
    started.leave()
    await started.over.wait()
    await anyio.sleep(1)
    assert (admission.streams, admission.detached) == (0, 0)
    assert (await text_in(log))[1] == "complete"


async def test_a_run_without_a_reader_ends_first_where_another_needs_its_place() -> None:
    admission, log = Admission(Limits(max_streams=1, max_waiting=0)), Store()
    slot = await admission.enter("ann")
    started = Runs().start(await make_producer(log, Script("a", 1000.0, "b"), stall=None), Detach(500), slot=slot)
    await anyio.sleep(1)
    assert (await refused(admission, "bob")).why == "full"
    started.leave()
    await anyio.sleep(1)
    other = await admission.enter("bob")
    assert started.over.is_set()
    assert started.producer.outcome is not None
    assert started.producer.outcome.failure is not None
    assert started.producer.outcome.failure.code == "evicted"
    assert (anyio.current_time(), books(admission)) == (2.0, (1, 0))
    assert (await text_in(log)) == (['"a"'], "cancelled")
    other.release()


async def test_a_run_that_is_seen_elsewhere_is_left_alone() -> None:
    admission, log = Admission(Limits(max_streams=1, max_waiting=0)), Store()
    slot = await admission.enter("ann")
    started = Runs().start(await make_producer(log, Script("a", 20.0, "b"), stall=None), Detach(500), slot=slot)
    started.leave()
    await anyio.sleep(1)
    assert admission.detached == 1
    started.seen()
    assert admission.detached == 0
    assert (await refused(admission, "bob")).why == "full"
    await started.over.wait()
    assert (await text_in(log))[1] == "complete"


async def test_a_stream_that_is_taken_over_is_counted_and_new_ones_wait_for_it() -> None:
    log, script = Store(), Script(*["x", 1.0] * 10)
    await log.release(await died(log, "a"))
    guard = StreamGuard(log, authorize=anyone_with_the_id, limits=Limits(max_streams=1, max_wait=60))
    assert guard.admission is not None
    own = await guard.admission.enter("ann")
    timing = Timing(clock=anyio.current_time)
    guard.resumers["r"] = Endpoint(lambda found: Continue(script), Native(), Immediate(), timing, None)
    await guard.lost(await log.state(SID))
    run = guard.runs.get(SID)
    assert run is not None
    assert guard.admission.streams == 2, "it runs already: it is not refused"
    own.release()
    since = anyio.current_time()
    run.join()
    slot = await guard.admission.enter("bob")
    assert (run.over.is_set(), anyio.current_time() - since, guard.admission.streams) == (True, 10.0, 1)
    slot.release()


def test_limits_are_limits_or_an_admission() -> None:
    limits = Limits(max_streams=1)
    made = admission_of(limits)
    assert made is not None
    assert made.limits is limits
    assert admission_of(made) is made
    assert admission_of(None) is None
    with pytest.raises(TypeError, match="limits are for example Limits"):
        admission_of(5)
    with pytest.raises(TypeError, match="an Admission is made of limits"):
        Admission(5)  # type: ignore[arg-type]
