"""The driver: how a stream ends, and what is done to its source."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

from streamguard.core.errors import SourceFailed, StreamBroken
from streamguard.core.flush import EveryTokens, FlushPolicy
from streamguard.core.items import Block, Finish
from streamguard.core.receipt import Verdict
from streamguard.runtime.cancellation import OutsideCancellation
from streamguard.runtime.source import TokenSource
from tests.runtime.fakes import VARIABLE, Hook, Script, Served, Wire, serve
from tests.runtime.virtual import BACKENDS, run

pytestmark = pytest.mark.anyio

COUNTS = hasattr(asyncio.Task, "cancelling")  # Python 3.11: a task knows whether it was cancelled
TOKENS = ("a", "b", "c", "d")


class Odd:
    """A policy that does `act` when the third piece comes, or in `tick`, or in `deadline`."""

    def __init__(self, act: Callable[[int], Any], where: str = "push") -> None:
        self.act = act
        self.where = where
        self.count = 0

    def push(self, piece: str, held: int, now: float) -> int:
        self.count += 1
        if self.where == "push":
            return self.act(held) if self.count == 3 else held  # type: ignore[no-any-return]
        return 0

    def tick(self, held: int, now: float) -> int:
        return self.act(held) if self.where == "tick" else 0  # type: ignore[no-any-return]

    def deadline(self) -> float | None:
        if self.where == "deadline":
            return self.act(0)  # type: ignore[no-any-return]
        return 5.0 if self.where == "tick" else None


def fails(held: int) -> int:
    raise ArithmeticError("in a policy")


def status_of(served: Served) -> tuple[str, str | None]:
    failure = served.wire.read().failure
    return served.outcome.status, failure.code if failure is not None else None


# ---- complete -----------------------------------------------------------------------------------


async def test_a_source_that_returns_is_complete() -> None:
    served = await serve(Script("a", 1.0, "b", Finish("stop", {"total_tokens": 2}))).run()
    assert served.wire.calls == ["start", "send", "send", "send", "send", "end"]
    assert served.wire.read().verdict is Verdict.COMPLETE
    assert served.wire.text == "ab"


async def test_a_source_without_items_is_complete() -> None:
    served = await serve(Script()).run()
    assert served.outcome.status == "complete"
    assert served.outcome.items == 0
    assert served.outcome.first_item is None


async def test_terminal_and_clean_end_follow_the_last_token_at_once() -> None:
    served = await serve(Script("a", 1.0, "b", Finish("stop"))).run()
    assert served.wire.times[-1] == served.wire.times[-2] == served.outcome.ended


async def test_the_order_of_calls_is_one_start_n_bodies_one_end() -> None:
    served = await serve(Script("a", "b", "c"), Wire(slow=0.1)).run()
    calls = served.wire.calls
    assert calls[0] == "start"
    assert calls[-1] == "end"
    assert set(calls[1:-1]) == {"send"}
    assert len(calls) == 2 + 1 + 3 + 1  # opening, three tokens, terminal


async def test_the_headers_and_the_opening_leave_before_the_source_is_asked() -> None:
    seen: list[list[str]] = []
    served = serve(Script(lambda: seen.append(list(served.wire.calls)), "a"))
    await served.run()
    assert seen == [["start", "send"]]
    assert served.wire.chunks[0].startswith(b": streamguard 1 ")


# ---- failed -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 3, len(TOKENS)])
async def test_a_source_that_raises_fails_after_what_it_yielded(count: int, caplog: Any) -> None:
    script = Script(*TOKENS[:count], ConnectionError("secret-host:5432"), *TOKENS[count:])
    served = await serve(script, policy=EveryTokens(8, first="policy")).run()
    assert served.wire.text == "".join(TOKENS[:count])
    assert status_of(served) == ("failed", "source_error")
    assert served.wire.calls[-1] == "abort"
    assert b"secret-host" not in served.wire.body  # details are for the log
    assert b"ConnectionError" in served.wire.body
    assert "secret-host" in caplog.text
    assert script.closes == 1


async def test_an_error_terminal_and_the_abort_come_within_the_time_for_hanging_up() -> None:
    served = await serve(Script("a", 1.0, SourceFailed("overloaded", "later", retryable=True)), linger=0.25).run()
    assert served.wire.times[-1] == 1.0
    assert served.outcome.ended == 1.25
    failure = served.wire.read().failure
    assert failure is not None
    assert (failure.code, failure.message, failure.retryable) == ("overloaded", "later", True)


async def test_a_reader_that_hangs_up_on_an_error_is_not_waited_for() -> None:
    served = serve(Script("a", SourceFailed("overloaded", "later")), linger=10.0)
    served.wire._on_send = lambda number, data: served.wire.left.set() if b"event: end" in data else None
    await served.run()
    assert served.outcome.ended == 0.0
    assert served.wire.calls[-1] == "abort"


@pytest.mark.parametrize("wrong", [object(), 7, None, ["a"]])
async def test_a_wrong_type_fails_the_stream(wrong: Any) -> None:
    async def source() -> AsyncIterator[Any]:
        yield "a"
        yield wrong
        yield "never"

    served = await serve(source, policy=EveryTokens(8, first="policy")).run()
    assert served.wire.text == "a"
    assert status_of(served) == ("failed", "unsupported_item")


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        (Odd(fails), "source_error"),
        (Odd(lambda held: -1), "policy_error"),
        (Odd(lambda held: held + 1), "policy_error"),
        (Odd(lambda held: None), "policy_error"),
        (Odd(fails, "tick"), "source_error"),
        (Odd(lambda held: -1, "tick"), "policy_error"),
        (Odd(lambda held: held + 1, "tick"), "policy_error"),
        (Odd(fails, "deadline"), "source_error"),
        (Odd(lambda held: "soon", "deadline"), "source_error"),
    ],
)
async def test_a_policy_that_misbehaves_fails_the_stream_and_loses_no_text(policy: FlushPolicy, code: str) -> None:
    script = Script(*TOKENS, 100.0, "late")
    served = await serve(script, policy=policy).run()
    assert status_of(served) == ("failed", code)
    assert "abcd".startswith(served.wire.text)
    assert served.wire.text.startswith("a")
    assert script.closes == 1


async def test_a_policy_whose_deadline_raises_only_in_a_timer_fails_the_stream() -> None:
    """The clock watcher asks too; an exception in it must not take the task group down."""
    asked = 0

    def later(held: int) -> Any:
        nonlocal asked
        asked += 1
        if asked > 2:
            raise ArithmeticError
        return 1.0

    served = await serve(Script("a", 3.0, "b"), policy=Odd(later, "deadline")).run()
    assert status_of(served) == ("failed", "source_error")
    assert served.wire.text == "a"


async def test_a_policy_that_is_always_due_and_never_releases_does_not_spin() -> None:
    policy = Odd(lambda held: 0.0, "deadline")
    served = await serve(Script("a", 95.0, "b"), policy=policy, heartbeat=10.0).run()
    assert served.wire.text == "ab"
    assert served.wire.beats == 9


async def test_loading_that_fails_fails_the_stream() -> None:
    async def load() -> Any:
        await anyio.sleep(2)
        raise SourceFailed("no_such_model", "there is no such model")

    served = await serve(load, heartbeat=0.75).run()
    assert status_of(served) == ("failed", "no_such_model")
    assert served.wire.beats == 2


async def test_loading_something_that_is_no_source_fails_the_stream() -> None:
    assert status_of(await serve(lambda: 5).run()) == ("failed", "source_error")


async def test_heartbeats_leave_while_a_model_loads() -> None:
    script = Script("a")

    async def load() -> Any:
        await anyio.sleep(50)
        return script()

    served = await serve(load, Wire(slow=0.5), heartbeat=15.0).run()
    assert served.wire.beats == 3
    assert served.wire.text == "a"


async def test_a_source_that_raises_our_own_broken_error_failed_and_is_not_taken_for_a_lost_reader() -> None:
    """It may itself read a guarded stream, and meet there what our transport never said."""
    served = await serve(Script("a", StreamBroken("upstream"))).run()
    assert status_of(served) == ("failed", "internal")


def test_a_cancelled_task_that_a_source_awaits_is_the_sources_failure() -> None:
    """Nobody asked this stream to stop; asyncio raises the same exception."""

    async def source() -> AsyncIterator[str]:
        yield "a"
        task = asyncio.ensure_future(asyncio.sleep(10))
        await asyncio.sleep(0)
        task.cancel()
        await task

    async def test() -> Served:
        return await serve(source).run()

    if COUNTS:
        assert status_of(run("asyncio", test)) == ("failed", "source_error")
    else:  # nobody can tell, and a cancellation must never be lost
        with pytest.raises(asyncio.CancelledError):
            run("asyncio", test)


# ---- stalled, cancelled -------------------------------------------------------------------------


@pytest.mark.parametrize("heartbeat", [None, 1.5, 20.0])
@pytest.mark.parametrize("slow", [0.0, 1.0])
async def test_a_silent_source_stalls_when_its_limit_has_passed(heartbeat: float | None, slow: float) -> None:
    """Whatever else is due before or after, and whatever the driver did when the limit was first looked at."""
    script = Script("a", 3.0, "b", 60.0, "c")
    served = await serve(script, Wire(slow=slow), heartbeat=heartbeat, stall=5.0, linger=0.0).run()
    assert status_of(served) == ("stalled", "stalled")
    assert served.wire.text == "ab"
    parked = 3.0 + 3 * slow  # after the opening and two tokens
    assert served.wire.times[-1] == pytest.approx(parked + 5.0 + slow, abs=slow + 0.01)
    assert script.cancels == script.closes == 1


async def test_a_source_may_be_silent_for_as_long_as_it_likes_without_a_limit() -> None:
    served = await serve(Script("a", 50_000.0, "b"), heartbeat=None, stall=None).run()
    assert served.outcome.status == "complete"


async def test_a_slow_reader_is_no_silent_source() -> None:
    served = await serve(Script("a", "b"), Wire(slow=20.0), stall=5.0).run()
    assert served.outcome.status == "complete"


async def test_a_stream_is_cancelled_before_it_runs() -> None:
    script = Script("a")
    served = serve(script)
    served.cancel()
    await served.run()
    assert status_of(served) == ("cancelled", "cancelled")
    assert script.tasks == []


async def test_a_stream_is_cancelled_while_headers_are_sent() -> None:
    """Not parked yet: the source must not be started, however long it would take to load."""
    script = Script(1000.0, "a")
    served = serve(script, Wire(on_start=lambda: anyio.sleep(2)))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.run)
        await anyio.sleep(1)
        served.cancel()
    assert status_of(served) == ("cancelled", "cancelled")
    assert script.tasks == []
    assert anyio.current_time() < 3


async def test_a_stream_is_cancelled_while_its_source_is_idle() -> None:
    script = Script("a", 100.0, "b")
    served = serve(script)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.run)
        await anyio.sleep(1)
        served.cancel()
    assert status_of(served) == ("cancelled", "cancelled")
    assert served.outcome.ended == 1.25
    assert script.cancels == script.closes == 1


async def test_a_stream_is_cancelled_by_its_own_source() -> None:
    def cancel() -> None:
        served.cancel()

    script = Script("a", cancel, "b", "c")
    served = serve(script)
    await served.run()
    assert status_of(served) == ("cancelled", "cancelled")
    assert served.wire.text in ("a", "ab")  # the item that the same step yielded may count or not
    assert script.closes == 1


async def test_a_stream_is_cancelled_in_a_send_which_is_not_torn() -> None:
    script = Script("a", "b", "c")
    served = serve(script, Wire(slow=1.0))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.run)
        await anyio.sleep(2.5)  # the opening, then a, then in the middle of b
        served.cancel()
    assert status_of(served) == ("cancelled", "cancelled")
    assert served.wire.text == "ab"
    assert script.exits == script.closes == 1


async def test_cancelling_twice_or_after_the_end_does_nothing() -> None:
    async def cancel() -> None:
        served.cancel()

    served = serve(Script("a", 1.0), hook=Hook(cancel))
    served.cancel()
    await served.run()
    served.cancel()
    assert served.wire.body.count(b"event: end") == 1


async def test_one_of_two_streams_is_stopped_and_the_other_goes_on() -> None:
    first, second = Script("a", 5.0, "b"), Script("a", 5.0, "b")
    one, other = serve(first), serve(second)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run)
        tasks.start_soon(other.run)
        await anyio.sleep(1)
        one.wire.left.set()
    assert (one.outcome.status, other.outcome.status) == ("gone", "complete")
    assert (first.cancels, second.cancels) == (1, 0)


# ---- the reader leaves --------------------------------------------------------------------------


async def test_a_reader_that_was_never_there_is_an_outcome_too() -> None:
    script = Script("a", 5.0, "b")
    served = serve(script)
    served.wire.left.set()
    await served.run()
    assert served.outcome.status == "gone"
    assert served.outcome.delivered == "no"
    assert served.outcome.ended == 0.0


async def test_a_reader_leaves_while_the_source_is_idle() -> None:
    script = Script("a", 100.0, "b")
    served = serve(script)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.run)
        await anyio.sleep(1)
        served.wire.left.set()
    assert served.outcome.status == "gone"
    assert served.outcome.ended == 1.0
    assert script.cancels == script.closes == 1
    assert served.wire.calls[-1] == "abort"
    assert served.wire.read().verdict is Verdict.TRUNCATED


async def test_a_reader_leaves_while_a_send_hangs() -> None:
    script = Script("a", "b", "c")
    served = serve(script, Wire(slow=lambda number, data: 1e4 if number == 3 else 0.0))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.run)
        await anyio.sleep(1)
        served.wire.left.set()
    assert served.outcome.status == "gone"
    assert served.outcome.ended == 1.0
    assert script.exits == script.closes == 1


@pytest.mark.parametrize("what", ["heartbeat", "terminal", "headers", "flush"])
async def test_a_reader_leaves_while_anything_else_that_is_sent_hangs(what: str) -> None:
    """Not every transport wakes a writer whose reader is gone."""

    async def hang() -> None:
        await anyio.sleep(1e4)

    marks = {"heartbeat": b": hb", "terminal": b"event: end", "flush": b'"b"'}
    wire = Wire(
        slow=lambda number, data: 1e4 if what in marks and marks[what] in data else 0.0,
        on_start=hang if what == "headers" else None,
    )
    script = Script("a", "b", 0.75, SourceFailed("x", "y")) if what == "terminal" else Script("a", "b", 1e5)
    policy = Odd(lambda held: held, "tick") if what == "flush" else None
    served = serve(script, wire, heartbeat=2.0, policy=policy)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.run)
        await anyio.sleep(20)
        served.wire.left.set()
    assert served.outcome.ended == 20.0
    assert served.outcome.delivered == "no"
    assert served.outcome.status == ("failed" if what == "terminal" else "gone")
    assert served.wire.calls[-1] == "abort"


async def test_a_reader_leaves_after_a_cancel_that_waits_for_a_send_that_hangs() -> None:
    served = serve(Script("a", "b", "c"), Wire(slow=lambda number, data: 1e4 if number == 3 else 0.0))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.run)
        await anyio.sleep(1)
        served.cancel()
        await anyio.sleep(1)
        served.wire.left.set()
    assert served.outcome.ended == 2.0
    assert served.outcome.status == "cancelled"
    assert served.outcome.delivered == "no"


@pytest.mark.parametrize("number", [1, 2, 4, 5])
async def test_a_transport_that_refuses_a_write_is_gone(number: int) -> None:
    """The opening, a token, the last token, the terminal."""

    def refuse(at: int, data: bytes) -> None:
        if at == number:
            raise OSError("broken pipe")

    script = Script("a", "b", "c")
    served = await serve(script, Wire(on_send=refuse)).run()
    assert served.outcome.status == ("complete" if number == 5 else "gone")
    assert served.outcome.delivered == "no"
    assert served.wire.calls.count("send") == number
    assert served.wire.calls[-1] == "abort"


async def test_a_transport_that_refuses_the_write_of_a_cancelled_stream_gets_no_terminal() -> None:
    def refuse(at: int, data: bytes) -> None:
        if at == 3:
            served.cancel()
            raise OSError("broken pipe")

    served = serve(Script("a", "b", "c"), Wire(on_send=refuse))
    await served.run()
    assert served.wire.calls.count("send") == 3


async def test_a_transport_that_refuses_the_headers_is_gone() -> None:
    def refuse() -> None:
        raise OSError("broken pipe")

    script = Script("a")
    served = await serve(script, Wire(on_start=refuse)).run()
    assert served.outcome.status == "gone"
    assert script.tasks == []
    assert served.wire.calls == ["start", "abort"]


async def test_a_transport_that_refuses_a_heartbeat_is_gone() -> None:
    def refuse(at: int, data: bytes) -> None:
        if b": hb" in data:
            raise OSError("broken pipe")

    script = Script("a", 100.0, "b")
    served = await serve(script, Wire(on_send=refuse), heartbeat=1.0).run()
    assert served.outcome.status == "gone"
    assert served.outcome.ended == 1.0
    assert script.cancels == 1


async def test_a_transport_that_takes_nothing_and_says_nothing_is_found_by_the_watch() -> None:
    """Some return quietly from every write once the reader has left; only `gone` knows."""
    script = Script(*["x", 0.01] * 1000)
    served = serve(script)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.run)
        await anyio.sleep(0.205)
        served.wire.left.set()
    assert script.steps <= 22


async def test_a_transport_whose_watch_raises_is_gone() -> None:
    class Broken(Wire):
        async def gone(self) -> None:
            await anyio.sleep(1)
            raise RuntimeError("receive failed")

    script = Script("a", 5.0, "b")
    served = await serve(script, Broken()).run()
    assert served.outcome.status == "gone"
    assert script.closes == 1


@pytest.mark.parametrize("where", ["on_end", "on_abort"])
async def test_a_transport_that_cannot_end_is_no_exception_of_the_stream(where: str) -> None:
    def refuse() -> None:
        raise OSError("broken pipe")

    script = Script("a") if where == "on_end" else Script("a", SourceFailed("x", "y"))
    served = serve(script, Wire(**{where: refuse}))
    await served.driver.run()
    assert served.outcome.status == ("complete" if where == "on_end" else "failed")
    assert served.wire.calls[-1] == "abort"


async def test_after_an_error_that_could_not_be_sent_the_next_stream_starts_as_ever() -> None:
    def refuse(at: int, data: bytes) -> None:
        if b"event: end" in data:
            raise OSError("broken pipe")

    served = await serve(Script("a", "b", SourceFailed("x", "y")), Wire(on_send=refuse)).run()
    assert served.outcome.status == "failed"
    assert served.outcome.delivered == "no"
    assert (await serve(Script("a")).run()).outcome.status == "complete"


async def test_a_stream_that_starts_as_another_is_closed_shares_nothing_with_it() -> None:
    for _ in range(100):
        first, second = Script("a", 5.0, "b"), Script("c", 1.0, "d")
        one, other = serve(first), serve(second)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.run)
            await anyio.sleep(1)
            one.wire.left.set()
            tasks.start_soon(other.run)
        assert one.outcome.status == "gone"
        assert other.outcome.status == "complete"
        assert other.wire.text == "cd"


# ---- closing ------------------------------------------------------------------------------------


async def test_one_task_drives_a_source_in_one_context_from_first_step_to_close() -> None:
    VARIABLE.set("request 7")
    script = Script("a", 3.0, "b", 3.0, "c")
    served = serve(script, heartbeat=1.0)
    served.wire._on_send = lambda number, data: served.wire.left.set() if b'"b"' in data else None
    await served.run()
    assert script.closes == 1
    assert len(set(script.tasks)) == 1
    assert set(script.values) == {"request 7"}


class Scoped:
    """A source that opens a scope and a task group around its yields."""

    def __init__(self, *tokens: Any) -> None:
        self.script = Script(*tokens)

    async def __call__(self) -> AsyncIterator[Any]:
        with anyio.CancelScope():
            async with anyio.create_task_group():
                async with TokenSource(self.script) as items:
                    async for item in items:
                        yield item


@pytest.mark.parametrize("way", ["complete", "leave idle", "leave in send", "cancel in send", "policy", "refused"])
async def test_a_source_may_hold_scopes_of_its_own_around_its_yields(way: str, caplog: Any) -> None:
    """They are left before the driver's, in the same task; anyio and trio raise where they are not."""

    def on_send(number: int, data: bytes) -> Any:
        if b'"b"' in data:
            if way == "leave in send":
                served.wire.left.set()
                return anyio.sleep(5)
            if way == "cancel in send":
                served.cancel()
            if way == "refused":
                raise OSError("broken pipe")
        return None

    source = Scoped("a", "b", 10.0 if way == "leave idle" else 0.1, "c", "d")
    policy = Odd(fails) if way == "policy" else None
    served = serve(source, Wire(on_send=on_send), policy=policy)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.run)
        await anyio.sleep(1)
        if way == "leave idle":
            served.wire.left.set()
    expected = {"complete": "complete", "cancel in send": "cancelled", "policy": "failed"}.get(way, "gone")
    assert served.outcome.status == expected
    assert source.script.closes == 1
    assert "closing its source raised" not in caplog.text


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_source_with_scopes_may_be_cancelled_from_outside_in_a_send(backend: str) -> None:
    source = Scoped("a", "b", "c")

    async def test() -> Served:
        served = serve(source, Wire(slow=1.0))
        with anyio.move_on_after(2.5) as scope:
            await served.run()
        assert scope.cancelled_caught
        return served

    assert run(backend, test).outcome.status == "shutdown"
    assert source.script.closes == 1


async def test_a_limit_of_the_sources_own_that_passes_in_our_send_is_no_clean_end_and_no_cancellation() -> None:
    """A scope around a yield is on our stack while we write (PEP 789)."""

    async def source() -> AsyncIterator[str]:
        with anyio.move_on_after(1.5):
            yield "a"
            yield "b"
            yield "c"

    served = serve(source, Wire(slow=1.0))
    await served.run()
    assert served.wire.read().verdict is Verdict.TRUNCATED
    assert served.wire.calls[-1] == "abort"


async def test_a_generator_that_ignores_being_closed_is_logged(caplog: Any) -> None:
    async def source() -> AsyncIterator[str]:
        while True:
            try:
                yield "x"
            except GeneratorExit:
                yield "never"

    served = serve(source)
    served.wire._on_send = lambda number, data: served.wire.left.set() if number == 5 else None
    await served.run()
    assert served.outcome.status == "gone"
    assert "ignored GeneratorExit" in caplog.text


async def test_a_clean_up_that_raises_is_logged_and_changes_no_ending(caplog: Any) -> None:
    async def cleanup() -> None:
        raise OSError("connection pool closed")

    class Client(Script):
        """Closed after its last item, so that the fault is in the close and not in a step."""

        def __aiter__(self) -> Any:
            return self()

        async def aclose(self) -> None:
            await cleanup()

    served = await serve(Client("a", "b")).run()
    assert served.outcome.status == "complete"
    assert served.wire.read().verdict is Verdict.COMPLETE
    assert "connection pool closed" in caplog.text


async def test_a_clean_up_that_takes_its_time_is_waited_for_and_the_reader_is_not_kept() -> None:
    script = Script("a", "b", "c", cleanup=lambda: anyio.sleep(3))
    served = serve(script, policy=Odd(fails), linger=0.0)
    await served.run()
    assert served.wire.times[-1] == 0.0  # told first
    assert served.outcome.ended == 3.0
    assert not served.outcome.abandoned


async def test_a_clean_up_that_hangs_is_given_up_after_its_limit(caplog: Any) -> None:
    script = Script("a", "b", "c", cleanup=anyio.sleep_forever)
    served = serve(script, policy=Odd(fails), close=2.0, linger=0.0)
    await served.run()
    assert served.wire.times[-1] == 0.0
    assert served.outcome.ended == 2.0
    assert served.outcome.abandoned
    assert "did not close in time" in caplog.text


def deaf(seconds: float) -> Callable[[], Any]:
    async def wait() -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(seconds)

    return wait


async def test_a_clean_up_that_cannot_be_interrupted_keeps_neither_reader_nor_outcome(caplog: Any) -> None:
    script = Script("a", "b", "c", cleanup=deaf(100))
    served = serve(script, policy=Odd(fails), close=2.0, linger=0.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.run)
        await anyio.sleep(5)
        assert served.outcome.abandoned
        assert served.outcome.status == "failed"
        assert served.wire.calls[-1] == "abort"
        assert anyio.current_time() == 5
    assert script.closes == 1


@pytest.mark.parametrize("way", ["gone", "cancelled", "stalled"])
async def test_a_source_that_does_not_stop_is_abandoned(way: str, caplog: Any) -> None:
    script = Script("a", deaf(100), "b", "c")
    served = serve(script, stall=1.0 if way == "stalled" else None, close=2.0, linger=0.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.run)
        await anyio.sleep(1)
        if way == "gone":
            served.wire.left.set()
        if way == "cancelled":
            served.cancel()
        await anyio.sleep(1.5)
        assert served.hook.outcomes == []  # within its limit it may still stop
        await anyio.sleep(1)
        assert served.outcome.abandoned  # now the reader was told, the outcome given, the slot may be freed
        assert served.outcome.status == way
        assert served.wire.calls[-1] == "abort"
        assert served.wire.read().status == (None if way == "gone" else way)
        assert "abandoned" in caplog.text
    assert script.closes == 1
    assert served.hook.finished == 1
    served.check()


async def test_a_source_that_comes_back_while_it_is_being_abandoned_tears_nothing() -> None:
    """The watcher is in the middle of the terminal when the driver gets free."""
    script = Script("a", deaf(3.5), "b", "c")
    served = serve(script, Wire(slow=1.0), stall=1.0, close=2.0)
    await served.run()
    assert served.outcome.status == "stalled"
    assert served.wire.read().status == "stalled"
    assert served.outcome.abandoned


async def test_a_source_that_swallows_what_it_is_told_and_goes_on_ends_at_its_next_item() -> None:
    async def source() -> AsyncIterator[str]:
        yield "a"
        try:
            await anyio.sleep(100)
        except anyio.get_cancelled_exc_class():
            pass
        yield "b"
        yield "c"

    served = serve(source, stall=1.0)
    await served.run()
    assert status_of(served) == ("stalled", "stalled")
    assert served.wire.text == "ab"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_source_that_swallows_what_it_is_told_again_and_again_does_not_spin(backend: str) -> None:
    """While it is told to stop, each of its waits ends at once: a processor would be kept busy by nothing."""
    told = 0

    async def source() -> AsyncIterator[str]:
        nonlocal told
        yield "a"
        while anyio.current_time() < 50:
            try:
                await anyio.sleep(50)
            except anyio.get_cancelled_exc_class():
                told += 1
        yield "b"

    async def test() -> Served:
        return await serve(source, stall=1.0, close=2.0, linger=0.0).run()

    assert run(backend, test, tick=0.0001).outcome.abandoned
    assert 1 < told < 2000  # for a tenth of a second, and not for the fifty


@pytest.mark.parametrize("end", ["returns", "raises"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_source_that_hides_a_cancellation_is_not_complete(backend: str, end: str) -> None:
    """It was told to stop, caught that and returned: half an answer, which looks like a whole one."""

    async def source() -> AsyncIterator[str]:
        yield "half an"
        try:
            await anyio.sleep(100)
        except anyio.get_cancelled_exc_class():
            if end == "raises":
                raise ValueError("cancelled") from None
            return
        yield " answer"

    async def by_scope() -> Served:
        served = serve(source)
        with anyio.move_on_after(1) as scope:
            await served.run()
        assert scope.cancelled_caught
        return served

    async def by_task() -> Served:
        served = serve(source)
        task = asyncio.ensure_future(served.run())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return served

    for way in [by_scope, by_task] if backend == "asyncio" and COUNTS else [by_scope]:
        served = run(backend, way)
        served.check()
        assert served.outcome.status == ("failed" if end == "raises" else "shutdown")
        assert served.wire.read().status == served.outcome.status
        assert served.wire.calls[-1] == "abort"


# ---- cancelled from outside, and the end of the process -----------------------------------------


@pytest.mark.parametrize("where", ["source", "flush", "send", "clean-up", "linger", "on_end"])
async def test_a_cancellation_from_outside_comes_out_wherever_it_meets_the_stream(where: str) -> None:
    script = Script("a", "b", 10.0 if where == "source" else 0.0, "c", cleanup=deaf(3) if where == "clean-up" else None)
    if where in ("linger", "clean-up"):
        script = Script("a", "b", SourceFailed("x", "y"), cleanup=script.cleanup)
    if where == "flush":
        script = Script("a", "b", 50.0)
    served = serve(
        script,
        Wire(slow=lambda number, data: 9.0 if where in ("send", "flush") and b'"b"' in data else 0.0),
        policy=Odd(lambda held: held, "tick") if where == "flush" else None,
        hook=Hook(lambda: anyio.sleep(3)) if where == "on_end" else None,
        linger=4.0,
    )
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel_at, 6.0 if where == "flush" else 2.0, scope)
            served.check(await served.driver.run())
    assert scope.cancel_called
    assert served.outcome.status == {"linger": "failed", "clean-up": "failed", "on_end": "complete"}.get(
        where, "shutdown"
    )
    served.check()
    assert script.closes == 1
    assert served.hook.finished == 1


async def cancel_at(time: float, scope: anyio.CancelScope) -> None:
    await anyio.sleep(time - anyio.current_time())
    scope.cancel()


async def test_a_reader_is_told_of_a_shutdown_within_its_limit_though_it_does_not_read() -> None:
    served = serve(Script("a", 10.0), Wire(slow=lambda number, data: 1e6 if b"event: end" in data else 0.0))
    with anyio.move_on_after(2) as scope:
        await served.driver.run()
    assert scope.cancelled_caught
    assert served.outcome.status == "shutdown"
    assert served.wire.calls[-1] == "abort"
    assert served.outcome.ended == pytest.approx(3.0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fatal", [KeyboardInterrupt, SystemExit])
def test_the_end_of_the_process_comes_out_as_it_is(backend: str, fatal: type[BaseException]) -> None:
    """Not in an exception group: nobody catches it there. Reader and application are told first."""
    script = Script("a", fatal())
    box: list[Served] = []

    async def test() -> None:
        box.append(serve(script))
        with pytest.raises(fatal):
            await box[0].driver.run()

    run(backend, test)
    box[0].check()
    assert box[0].outcome.status == "shutdown"
    assert box[0].wire.read().status == "shutdown"
    assert script.closes == 1


async def test_a_cancellation_that_nobody_asked_for_ends_here(monkeypatch: Any) -> None:
    """Whatever raised it: a server takes a CancelledError that comes out for its own."""
    served = serve(Script("a", 5.0, "b"))

    def nobody(self: OutsideCancellation, *, unknown: bool) -> bool:
        return False

    monkeypatch.setattr(OutsideCancellation, "requested", nobody)
    with anyio.move_on_after(1):
        await served.run()
    assert served.outcome.status == "failed"
    assert served.wire.calls[-1] == "abort"


# ---- outcome and reuse --------------------------------------------------------------------------


async def test_usage_counts_though_the_stream_did_not_finish() -> None:
    served = await serve(Script("a", Finish(None, {"prompt_tokens": 9}), "b", SourceFailed("x", "y"))).run()
    assert served.outcome.usage == {"prompt_tokens": 9}
    assert served.outcome.items == 2
    assert served.outcome.status == "failed"


async def test_text_leaves_before_a_block_and_before_every_ending() -> None:
    tool = Block("tool_call", {"id": "1", "name": "look", "arguments": "{}"})
    served = await serve(Script("a", "b", tool, "c"), policy=EveryTokens(8, first="policy")).run()
    assert served.wire.parts[0] == "ab"
    assert served.wire.parts[1].type == "tool_call"
    assert served.wire.parts[2] == "c"


def test_streams_run_in_several_loops_one_after_the_other_and_side_by_side() -> None:
    """No event, lock or task lives longer than its loop."""
    results: list[str] = []

    async def test() -> None:
        results.append((await serve(Script("a", 1.0, "b"), heartbeat=0.5).run()).outcome.status)

    for backend in ("asyncio", "trio", "asyncio"):
        run(backend, test)
    threads = [threading.Thread(target=run, args=("asyncio", test)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["complete"] * 5
