"""A source goes into the log: once, in order, with one end; under a lease that is kept, lost and let go as promised."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import anyio
import attrs
import pytest

from streamguard.core.cursor import cursor_zero
from streamguard.core.errors import Failure, SourceFailed
from streamguard.core.flush import EveryTokens, Within
from streamguard.core.items import Block, Checkpoint
from streamguard.log.base import Lease, LeaseLost, LogUnavailable, StreamSealed, UnknownStream
from streamguard.log.memory import MemoryLog
from streamguard.runtime.producer import Producer
from tests.runtime.fakes import SID, Hook, Script
from tests.runtime.logs import Store, away, frames_in, make_producer, text_in
from tests.runtime.virtual import BACKENDS, Interruption, run

anyio_test = pytest.mark.anyio


async def state(log: MemoryLog) -> Any:
    return await MemoryLog.state(log, SID)


@anyio_test
async def test_what_a_source_yields_is_in_the_log_with_one_end() -> None:
    log, script = Store(), Script("a", Block("image", {"url": "u"}), "b")
    producer = await make_producer(log, script)
    await producer.run()
    assert await text_in(log) == (['"a"', '{"type":"image","url":"u"}', '"b"'], "complete")
    assert producer.outcome is not None
    assert (producer.outcome.status, producer.items, script.closes) == ("complete", 3, 1)
    assert "release" not in log.calls  # what is sealed is nobody's


@anyio_test
async def test_the_last_content_and_the_terminal_are_one_append() -> None:
    log = Store()
    await (await make_producer(log, Script("a", "b", "c"), policy=EveryTokens(2, first="policy"))).run()
    assert log.appended == [[1], [2, 3]]


@anyio_test
async def test_a_source_that_fails_ends_the_stream_as_failed_behind_what_it_said() -> None:
    log, hook = Store(), Hook()
    source = Script("a", "b", SourceFailed("overloaded", "try later"))
    await (await make_producer(log, source, policy=EveryTokens(9, first="policy"), on_end=hook)).run()
    assert await text_in(log) == (['"ab"'], "failed")
    assert [outcome.failure and outcome.failure.code for outcome in hook.outcomes] == ["overloaded"]
    assert not hook.outcomes[0].let_go


@anyio_test
async def test_held_text_leaves_in_time_while_the_source_is_silent() -> None:
    log, go = Store(), anyio.Event()
    producer = await make_producer(log, Script("a", go, "b"), policy=Within(0.5, first="policy"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(producer.run)
        await anyio.sleep(1.0)
        assert (await text_in(log))[0] == ['"a"']
        go.set()


# ---- what is said -------------------------------------------------------------------------------


@anyio_test
@pytest.mark.parametrize(
    ("fault", "said", "trace"),
    [
        (LeaseLost(2), "the lease on the stream is lost: another producer took it over", False),
        (StreamSealed(cursor_zero(SID)._replace(status="complete")), "the stream ended already, as 'complete'", False),
        (ZeroDivisionError("a fault of a store"), "its log failed", True),
    ],
)
async def test_an_append_that_is_refused_ends_the_stream_in_one_line(
    fault: Exception, said: str, trace: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """To the driver it is a reader that left, of whom nothing is said: here it is text that nobody gets."""

    def refuse(step: str) -> None:
        if step == "append":
            raise fault

    store = Store(at=refuse)
    producer = await make_producer(store, Script("a", 1.0, "b"))
    await producer.run()
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.getMessage().partition(": ")[2] or record.getMessage() for record in records] == [said]
    assert (records[0].exc_info is not None) == trace


# ---- checkpoints --------------------------------------------------------------------------------


@anyio_test
async def test_a_checkpoint_in_the_middle_of_a_character_is_not_stored_and_the_next_one_is() -> None:
    """From half a character nobody can go on."""
    log, whole = Store(), "é".encode()
    source = Script(whole[:1], Checkpoint(1), whole[1:], Checkpoint(2), b"a" + whole[:1], Checkpoint(3), whole[1:])
    await (await make_producer(log, source)).run()
    assert await text_in(log) == (['"é"', '"a"', '"é"'], "complete")
    found = await state(log)
    assert found.checkpoint is not None
    assert (json.loads(found.checkpoint.state), found.checkpoint.at.seq) == (2, 1)


@anyio_test
async def test_a_checkpoint_is_stored_with_the_text_before_it_in_one_step() -> None:
    log, go = Store(), anyio.Event()
    source = Script("a", "b", Checkpoint({"at": 2}), go, "c")
    producer = await make_producer(log, source, policy=EveryTokens(9, first="policy"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(producer.run)
        await anyio.sleep(1.0)
        found = await state(log)
        assert log.appended == [[1]]
        assert (found.checkpoint.at, json.loads(found.checkpoint.state)) == (found.tail, {"at": 2})
        go.set()
    assert (await state(log)).checkpoint.at.seq == 1


@anyio_test
async def test_a_checkpoint_with_nothing_before_it_is_stored_by_itself() -> None:
    log = Store()
    await (await make_producer(log, Script(Checkpoint(0), "a", Checkpoint(1), Checkpoint(2), "b"))).run()
    assert log.appended == [[], [1], [], [], [2], [3]]
    found = (await state(log)).checkpoint
    assert (found.at.seq, found.state) == (1, b"2")


@anyio_test
async def test_a_state_that_is_no_json_fails_the_stream_and_loses_no_text() -> None:
    log, hook = Store(), Hook()
    source = Script("a", lambda: str(Checkpoint({1, 2})), "never")
    await (await make_producer(log, source, policy=EveryTokens(9, first="policy"), on_end=hook)).run()
    assert await text_in(log) == (['"a"'], "failed")
    assert (await state(log)).checkpoint is None
    assert source.closes == 1


@anyio_test
async def test_frames_behind_a_checkpoint_are_not_stored_under_it() -> None:
    """As they come together where the stream ends while a checkpoint is in hand."""
    log = Store()
    producer = await make_producer(log, Script())
    stage = producer._driver.stage
    marked = stage.push("a", 0.0) + stage.push(Checkpoint("s"), 0.0)
    await producer.sink.send(marked + stage.push("b", 0.0) + stage.finish(0.0))
    found = await state(log)
    assert (found.checkpoint.at.seq, found.tail.seq, found.tail.status) == (1, 3, "complete")
    assert log.appended == [[1], [2, 3]]


# ---- a log in trouble ---------------------------------------------------------------------------


@anyio_test
@pytest.mark.parametrize("step", ["append", "append, done"])
async def test_an_append_whose_outcome_is_unknown_is_repeated_and_taken_once(step: str) -> None:
    log = Store(at=away(step, times=3))
    producer = await make_producer(log, Script("a", Checkpoint(1), "b"))
    await producer.run()
    assert await text_in(log) == (['"a"', '"b"'], "complete")
    assert log.calls.count("append") == 4 + 3
    assert (await state(log)).checkpoint.at.seq == 1


@anyio_test
async def test_a_log_that_stays_away_for_too_long_ends_the_generation_and_frees_the_lease() -> None:
    log, script = Store(at=away("append")), Script("a", "b")
    producer = await make_producer(log, script, patience=5.0)
    await producer.run()
    assert anyio.current_time() == pytest.approx(5.0, abs=0.1)
    assert (script.steps, script.closes) == (1, 1)
    found = await state(log)
    assert (found.tail, found.held) == (cursor_zero(SID), False)


@anyio_test
async def test_a_refusal_that_is_no_trouble_is_not_repeated() -> None:
    log, script = Store(), Script("a", lambda: MemoryLog.purge(log, sid=SID), "b")
    await (await make_producer(log, script)).run()
    assert (script.steps, script.closes) == (2, 1)
    assert log.calls.count("append") <= 2
    with pytest.raises(UnknownStream):
        await state(log)


# ---- the lease ----------------------------------------------------------------------------------


async def held_at(log: MemoryLog, times: list[float], found: list[bool]) -> None:
    for time in times:
        await anyio.sleep_until(time)
        found.append((await state(log)).held)


@anyio_test
async def test_the_lease_is_renewed_while_nothing_is_appended() -> None:
    log, found = Store(), list[bool]()
    producer = await make_producer(log, Script("a", 100.0, "b"), ttl=15.0, stall=None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(producer.run)
        await held_at(log, [14.9, 29.9, 60.0, 99.9], found)
    assert found == [True] * 4
    assert 15 <= log.calls.count("renew") <= 20
    assert (await text_in(log))[1] == "complete"


@anyio_test
async def test_an_append_renews_the_lease_and_no_other_call_does() -> None:
    log = Store()
    await (await make_producer(log, Script(*["a", 1.0] * 60), ttl=15.0)).run()
    assert "renew" not in log.calls


async def never(step: str) -> None:
    if step == "renew":
        await anyio.sleep_forever()


@anyio_test
@pytest.mark.parametrize("at", [away("renew"), away("renew, done"), never], ids=["away", "unanswered", "hangs"])
async def test_a_holder_that_cannot_renew_stops_before_another_may_hold_the_lease(at: Any) -> None:
    log, script = Store(at=at), Script("a", anyio.Event())
    producer = await make_producer(log, script, ttl=15.0, stall=None)
    await producer.run()
    assert 10.0 <= anyio.current_time() < 15.0  # the lease ends then, unless a call that seemed to fail renewed it
    assert script.closes == 1
    assert await text_in(log) == (['"a"'], None)
    assert producer.outcome is not None
    assert producer.outcome.status == "gone"
    assert not (await state(log)).held  # let go, so that nobody has to wait


@anyio_test
async def test_a_holder_that_renews_at_last_goes_on() -> None:
    log, script = Store(at=away("renew", times=2)), Script("a", 60.0, "b")
    await (await make_producer(log, script, ttl=15.0, stall=None)).run()
    assert (await text_in(log))[1] == "complete"


@anyio_test
async def test_a_lease_is_as_old_as_the_call_that_gave_it() -> None:
    log, script = Store(at=away("renew")), Script(anyio.Event())
    producer = await make_producer(log, script, ttl=15.0, renewed=anyio.current_time() - 9.0)
    await producer.run()
    assert anyio.current_time() <= 6.0
    assert script.closes == 1


@anyio_test
@pytest.mark.parametrize("trouble", [0, 2])
async def test_an_append_renews_the_lease_from_when_it_was_sent(trouble: int) -> None:
    """Not from when it was answered: the store may have counted from before."""
    log = Store(slow=1.0)
    producer = await make_producer(log, Script())
    sent: list[float] = []

    def at(step: str) -> None:
        if step == "append":
            sent.append(anyio.current_time() - 1.0)
            if len(sent) <= trouble:
                raise LogUnavailable("it is away")

    log.at = at
    await producer.sink.send(producer._driver.stage.push("a", 0.0))
    assert producer.sink.renewed == sent[-1] < anyio.current_time() - 1.5


@anyio_test
async def test_a_renewal_that_comes_too_late_for_the_end_is_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    log = Store(slow=1.5)  # the renewal is sent at 3.2, and refused at 4.7; the end is stored at 4.5, answered at 6
    producer = await make_producer(log, Script("a"), ttl=9.6)
    await producer.run()
    assert "renew" in log.calls
    assert producer.outcome is not None
    assert (producer.outcome.status, producer.outcome.delivered, caplog.records) == ("complete", "unknown", [])


async def lapsed(log: Store) -> None:
    """Another takes the lease, as if it had ended."""
    await MemoryLog.release(log, Lease(SID, 1, 15.0))
    await MemoryLog.take_over(log, SID, 1, 1000.0)


@anyio_test
async def test_whoever_lost_the_lease_appends_nothing_and_closes_its_source_at_once() -> None:
    log = Store()
    script = Script("a", lambda: lapsed(log), "b", "c")
    producer = await make_producer(log, script)
    await producer.run()
    assert await text_in(log) == (['"a"'], None)
    assert (script.steps, script.closes) == (2, 1)
    assert (await state(log)).held  # the other's lease is not touched


@anyio_test
async def test_whoever_lost_the_lease_in_silence_learns_of_it_by_the_next_renewal() -> None:
    log = Store()
    script = Script("a", lambda: lapsed(log), anyio.Event())
    await (await make_producer(log, script, ttl=15.0, stall=None)).run()
    assert anyio.current_time() <= 6.0
    assert script.closes == 1
    assert (await text_in(log))[1] is None


# ---- signals ------------------------------------------------------------------------------------


@anyio_test
async def test_a_recorded_cancel_ends_the_stream_as_cancelled_whenever_it_came() -> None:
    for early in (True, False):
        log, script = Store(), Script("a", anyio.Event())
        producer = await make_producer(log, script)
        async with anyio.create_task_group() as tasks:
            if early:
                await log.signal(SID, "cancel")
            tasks.start_soon(producer.run)
            await anyio.sleep(1.0)
            if not early:
                await log.signal(SID, "cancel")
        assert (await text_in(log))[1] == "cancelled"
        assert script.closes == 1 if script.tasks else early


@anyio_test
async def test_a_sign_that_it_is_read_is_heard_and_a_grant_changes_nothing() -> None:
    log, signs = Store(), list[float]()
    producer = await make_producer(log, Script("a", 100.0), stall=None)
    producer.on_read = lambda: signs.append(anyio.current_time())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(producer.run)
        for time in (1.0, 50.0):
            await anyio.sleep_until(time)
            await log.signal(SID, "grant")
            await log.signal(SID, "read")
    assert signs == [1.0, 50.0]


@anyio_test
async def test_a_purged_stream_is_not_generated_any_longer() -> None:
    log, script = Store(), Script("a", anyio.Event())
    producer = await make_producer(log, script, stall=None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(producer.run)
        await anyio.sleep(1.0)
        await MemoryLog.purge(log, sid=SID)
    assert anyio.current_time() < 2.0
    assert script.closes == 1


class Deaf(Store):
    """Signals cannot be read for a while."""

    trouble = 3

    async def signals(self, sid: str, after: int, timeout: float) -> Any:  # noqa: ASYNC109  # the contract's
        if self.trouble:
            self.trouble -= 1
            raise LogUnavailable("it is away")
        return await super().signals(sid, after, timeout)


@anyio_test
async def test_signals_are_listened_to_again_after_trouble() -> None:
    log, script = Deaf(), Script("a", anyio.Event())
    producer = await make_producer(log, script, stall=None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(producer.run)
        await log.signal(SID, "cancel")
    assert anyio.current_time() == pytest.approx(3.0, abs=0.1)
    assert (await text_in(log))[1] == "cancelled"


# ---- a server that goes away --------------------------------------------------------------------


@anyio_test
async def test_a_server_that_goes_away_says_no_end_and_lets_the_lease_go() -> None:
    log, script = Store(), Script("a", "b", anyio.Event())
    producer = await make_producer(log, script, policy=EveryTokens(9), stall=None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(producer.run)
        await anyio.sleep(1.0)
        tasks.cancel_scope.cancel()
    assert await text_in(log) == (['"a"', '"b"'], None)  # what was held, too
    assert not (await state(log)).held
    assert script.closes == 1


@anyio_test
async def test_one_that_is_told_to_shut_down_lets_go_of_its_stream_with_what_it_holds() -> None:
    log = Store()
    script = Script("a", "b", 1000.0)
    hook = Hook()
    producer = await make_producer(log, script, policy=EveryTokens(5), on_end=hook)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(producer.run)
        await anyio.sleep(1)
        producer.shut_down()
    assert await text_in(log) == (['"a"', '"b"'], None)
    assert not (await log.state(SID)).held
    assert [(outcome.status, outcome.let_go) for outcome in hook.outcomes] == [("shutdown", True)]
    assert hook.outcomes == [producer.outcome]
    assert (script.closes, producer.outcome and producer.outcome.status) == (1, "shutdown")
    assert anyio.current_time() < 2


@anyio_test
async def test_a_lease_that_cannot_be_let_go_holds_nobody() -> None:
    for at in (away("release"), lambda step: anyio.sleep_forever() if step == "release" else None):
        log = Store(at=at)
        producer = await make_producer(log, Script("a", anyio.Event()), stall=None)
        before = anyio.current_time()
        with anyio.move_on_after(1.0):
            await producer.run()
        assert anyio.current_time() - before <= 2.1


# ---- every interruption at every point ----------------------------------------------------------


@attrs.define
class Case:
    log: Store
    script: Script
    producer: Producer
    parts: list[str]  # all that the source says
    status: str = "complete"


async def plain(log: Store) -> Case:
    script = Script("a", 0.5, "b", "c", 3.0, "d")
    policy = Within(0.4, first="policy")
    return Case(log, script, await make_producer(log, script, policy=policy, ttl=2.0), ["a", "b", "c", "d"])


async def marked(log: Store) -> Case:
    script = Script(Checkpoint(0), "a", Checkpoint(1), 0.5, "b", "c", Checkpoint(3))
    return Case(log, script, await make_producer(log, script), ["a", "b", "c"])


async def failing(log: Store) -> Case:
    script = Script("a", 0.5, "b", SourceFailed("overloaded", "try later"))
    return Case(log, script, await make_producer(log, script), ["a", "b"], "failed")


async def troubled(log: Store) -> Case:
    log.at = away("append, done", "renew", times=4)
    script = Script("a", 2.0, "b")
    return Case(log, script, await make_producer(log, script, ttl=3.0), ["a", "b"])


async def by_scope(case: Case, interruption: Interruption) -> bool:
    with anyio.CancelScope() as scope:
        interruption.arm(scope.cancel)
        await case.producer.run()
        interruption.act = None
    return scope.cancelled_caught


async def by_task(case: Case, interruption: Interruption) -> bool:
    def cancel() -> None:
        task.cancel()

    async def drive() -> None:
        interruption.arm(cancel)
        await case.producer.run()

    task = asyncio.get_running_loop().create_task(drive())
    try:
        await task
    except asyncio.CancelledError:
        return True
    finally:
        interruption.act = None
    return False


async def by_cancel(case: Case, interruption: Interruption) -> bool:
    interruption.arm(case.producer.cancel)
    await case.producer.run()
    interruption.act = None
    return False


async def by_leave(case: Case, interruption: Interruption) -> bool:
    """Its lease is lost."""
    interruption.arm(lambda: case.producer.sink.leave("its lease is lost"))
    await case.producer.run()
    interruption.act = None
    return False


Way = Callable[[Case, Interruption], Any]
WAYS: list[Way] = [by_scope, by_task, by_cancel, by_leave]
PAIRS = [(backend, way) for backend in BACKENDS for way in WAYS if not (way is by_task and backend == "trio")]


async def check(case: Case, way: Way, raised: bool, reached: bool) -> None:
    script, producer = case.script, case.producer
    assert script.closes == (1 if script.tasks else 0)
    assert len(set(script.tasks)) <= 1
    frames = await frames_in(case.log)
    assert [frame.seq for frame in frames] == list(range(1, len(frames) + 1))
    text = "".join([json.loads(frame.data) for frame in frames if frame.status is None])
    whole = "".join(case.parts)
    assert whole.startswith(text)
    found = await state(case.log)
    status = found.tail.status
    assert producer.outcome is not None
    if status == case.status:
        assert text == whole
    if not reached or (way in (by_scope, by_task) and not raised):
        assert status == case.status
    elif way in (by_scope, by_task):
        assert status in (None, case.status)
    elif way is by_cancel:
        assert status in ("cancelled", case.status)
    else:
        assert status in (None, case.status)
    if status is None:
        assert not found.held, "the lease was not let go"
    if found.checkpoint is not None:
        before = [json.loads(frame.data) for frame in frames if frame.seq <= found.checkpoint.at.seq]
        assert len("".join(before)) == int(found.checkpoint.state)


@pytest.mark.parametrize("build", [plain, marked, failing, troubled])
@pytest.mark.parametrize(("backend", "way"), [pytest.param(b, w, id=f"{w.__name__}-{b}") for b, w in PAIRS])
def test_nothing_breaks_wherever_a_producer_is_interrupted(build: Any, backend: str, way: Way) -> None:
    at, reached = 0, True
    statuses = set()
    while reached:
        at += 1
        interruption = Interruption(at)

        async def test(interruption: Interruption = interruption) -> str | None:
            case = await build(Store())
            raised = await way(case, interruption)
            await check(case, way, raised, interruption.done)
            if backend == "asyncio":  # trio's own task groups leave none behind
                assert len(asyncio.all_tasks()) == 1
            return str((await state(case.log)).tail.status)

        try:
            statuses.add(run(backend, test, interruption=interruption, seed=at))
        except AssertionError as exc:
            raise AssertionError(f"at point {at}: {exc}") from exc
        reached = interruption.done
    assert at > 10
    assert len(statuses) > 1, "no point of this stream made a difference"


@anyio_test
async def test_a_cancel_says_why() -> None:
    log, hook = Store(), Hook()
    producer = await make_producer(log, Script("a", anyio.Event()), on_end=hook)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(producer.run)
        await anyio.sleep(1.0)
        producer.cancel(Failure("enough", "it is enough"))
    (last,) = [frame for frame in await frames_in(log) if frame.status]
    assert (last.status, b'"enough"' in last.data) == ("cancelled", True)
    assert producer.exception is None
