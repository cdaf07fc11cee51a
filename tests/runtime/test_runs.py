"""A run ends with its source, by a cancel, or when nobody has read it for as long as its policy allows."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from streamguard.log.memory import MemoryLog
from streamguard.runtime.runs import PRESENCE, Cancel, Detach, ReadOn, Run, Runs
from tests.runtime.fakes import SID, Script
from tests.runtime.logs import Store, make_producer, text_in

pytestmark = pytest.mark.anyio

Ended = tuple[float, str | None]


async def started(policy: Any, script: Script, *, log: Store | None = None) -> tuple[Runs, Run, Store]:
    log = log or Store()
    runs = Runs()
    return runs, runs.start(await make_producer(log, script, stall=None), policy), log


async def end_of(run: Run, log: Store) -> Ended:
    """When the run ended, and how."""
    with anyio.fail_after(10_000):
        await run.over.wait()
    return round(anyio.current_time(), 1), (await text_in(log))[1]


def slowly(count: int) -> Script:
    """A token a second."""
    return Script(*["a", 1.0] * count)


@pytest.mark.parametrize(
    ("policy", "end"),
    [(Cancel(), 5.0), (Detach(0.0), 5.0), (Detach(7.0), 12.0), (ReadOn(seconds=3.0), 8.0), (ReadOn(items=0), 5.0)],
    ids=str,
)
async def test_a_run_without_readers_ends_when_its_policy_says(policy: Any, end: float) -> None:
    script = slowly(100)
    _, run, log = await started(policy, script)
    await anyio.sleep(5.0)
    run.leave()
    assert await end_of(run, log) == (end, "cancelled")
    assert script.closes == 1


async def test_a_run_that_may_read_on_stops_after_so_many_items() -> None:
    script = slowly(100)
    _, run, log = await started(ReadOn(items=10), script)
    await anyio.sleep(5.5)
    had = script.steps
    run.leave()
    _, status = await end_of(run, log)
    assert (status, script.steps - had) == ("cancelled", 10)


@pytest.mark.parametrize("kind", [Store, lambda: MemoryLog(clock=anyio.current_time)], ids=["slowly", "at once"])
async def test_and_not_after_more_of_them_however_quick_they_come_and_are_appended(kind: Any) -> None:
    script = Script("a", 5.0, *["b"] * 100_000)
    _, run, log = await started(ReadOn(items=10), script, log=kind())
    await anyio.sleep(1.0)
    run.leave()
    assert (await end_of(run, log))[1] == "cancelled"
    assert (await text_in(log))[0] == ['"a"'] + ['"b"'] * 10


async def test_a_run_that_has_a_reader_goes_to_its_end() -> None:
    for policy in (Cancel(), Detach(1.0), ReadOn(items=1)):
        _, run, log = await started(policy, slowly(50))
        before = anyio.current_time()
        found, status = await end_of(run, log)
        assert (round(found - before), status) == (50, "complete")


async def test_a_source_that_ends_without_readers_ends_the_run_as_complete() -> None:
    _, run, log = await started(Detach(60.0), slowly(20))
    run.leave()
    assert await end_of(run, log) == (20.0, "complete")


async def test_a_reader_that_comes_back_in_time_begins_the_time_anew() -> None:
    _, run, log = await started(Detach(10.0), slowly(100))
    run.leave()
    await anyio.sleep(9.0)
    run.join()
    await anyio.sleep(30.0)
    run.leave()
    assert await end_of(run, log) == (49.0, "cancelled")


async def test_a_second_reader_keeps_it_when_the_first_leaves() -> None:
    _, run, log = await started(Cancel(), slowly(10))
    run.join()
    run.leave()
    assert await end_of(run, log) == (10.0, "complete")


@pytest.mark.parametrize("policy", [Cancel(), Detach(2.0), ReadOn(items=1), ReadOn(seconds=2.0)], ids=str)
async def test_signs_from_another_process_count_as_a_reader_whatever_the_policy(policy: Any) -> None:
    """Between two signs more time passes than some policies allow, and more items."""
    _, run, log = await started(policy, slowly(100))
    run.seen()
    run.leave()
    for _ in range(4):
        await anyio.sleep(10.0)
        assert not run.over.is_set()
        run.seen()
    end, status = await end_of(run, log)
    assert status == "cancelled"
    assert 40 + PRESENCE <= end <= 40 + PRESENCE + 3.0


async def test_a_sign_comes_through_the_log() -> None:
    _, run, log = await started(Detach(5.0), slowly(100))
    run.leave()
    await anyio.sleep(3.0)
    await log.signal(SID, "read")
    assert await end_of(run, log) == (3.0 + PRESENCE + 5.0, "cancelled")


async def test_a_reader_may_leave_while_a_run_lets_go_of_its_lease() -> None:
    """Its tasks are over by then, and none can be started for the readers that it has no more."""
    releasing = anyio.Event()
    store = Store(slow=0.5, at=lambda step: releasing.set() if step == "release" else None)
    _, run, log = await started(Detach(5.0), slowly(100), log=store)
    await anyio.sleep(5.0)
    run.producer.sink.leave("its lease is lost")
    await releasing.wait()
    assert not run.over.is_set()
    run.leave()
    assert (await end_of(run, log))[1] is None


async def test_runs_are_found_by_their_sids_while_they_run() -> None:
    runs, run, log = await started(Detach(), slowly(1))
    assert (runs.get(SID), len(runs)) == (run, 1)
    await end_of(run, log)
    await anyio.sleep(1.0)
    assert (runs.get(SID), len(runs), len(runs.background)) == (None, 0, 0)


async def test_a_run_that_ends_late_does_not_hide_its_successor() -> None:
    """One that lost its lease and still closes its source, while the stream is taken over here."""

    async def tidy() -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(3.0)

    script = Script("a", anyio.Event(), cleanup=tidy)
    runs, first, log = await started(Detach(), script)
    await anyio.sleep(1.0)
    first.producer.sink.leave("it is somebody else's")
    await anyio.sleep(1.0)
    await MemoryLog.purge(log, sid=SID)
    second = runs.start(await make_producer(log, slowly(20)), Detach())
    await first.over.wait()
    await anyio.sleep(1.0)
    assert runs.get(SID) is second
    second.producer.cancel()
    await second.over.wait()


async def test_policies_take_no_negative_limits() -> None:
    for make in (lambda: Detach(-1.0), lambda: ReadOn(seconds=-1.0)):
        with pytest.raises(ValueError, match="a number of zero or more"):
            make()
    with pytest.raises(ValueError, match=r"^items is a whole number of at least 0, not -1$"):
        ReadOn(items=-1)


async def test_no_part_of_an_item_is_a_limit() -> None:
    with pytest.raises(TypeError, match=r"^items is a whole number of at least 0, not 1\.5$"):
        ReadOn(items=1.5)  # type: ignore[arg-type]  # which is what is refused
