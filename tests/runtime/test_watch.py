"""The write deadline: a reader that does not read ends its stream, a slow one does not.

In virtual time. `Wire.backlog` is what a transport took and its socket did not; None where a server does not show it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from streamguard.core.flush import EveryTokens, Within, any_of
from tests.runtime.fakes import Hook, Script, Served, Wire, serve

pytestmark = pytest.mark.anyio

LIMIT = 8.0
EXACT = LIMIT / 4  # how exactly the deadline is kept


def deaf(*, backlog: int | None, after: int = 2) -> Wire:
    """A connection whose reader takes nothing after so many writes: the next one waits for ever."""
    wire = Wire()

    async def on_send(number: int, data: bytes) -> None:
        if number > after:
            wire.backlog = backlog
            await anyio.Event().wait()

    wire._on_send = on_send
    return wire


def dropped(served: Served, *, at: float) -> None:
    """The stream ended as slow, at that time, and its connection was dropped."""
    outcome = served.outcome
    assert (outcome.status, outcome.delivered) == ("slow", "no")
    assert outcome.failure is not None
    assert outcome.failure.code == "slow"
    assert at <= outcome.ended - outcome.started <= at + EXACT
    assert (served.wire.kills, served.wire.drops) == (1, 1)
    assert served.wire.calls[-1] == "abort"


@pytest.mark.parametrize("backlog", [None, 70_000])
async def test_a_write_that_nothing_is_taken_of_ends_the_stream(backlog: int | None) -> None:
    source = Script("a", "b", "c", "d", "e")
    served = await serve(source, deaf(backlog=backlog), write=LIMIT, stall=None, heartbeat=None).run()
    dropped(served, at=LIMIT)
    assert (source.steps, source.closes) == (2, 1)


@pytest.mark.parametrize("heartbeat", [None, 15.0])
@pytest.mark.parametrize("backlog", [None, 70_000])
async def test_the_deadline_is_of_this_write_and_not_of_the_silence_before_it(
    backlog: int | None, heartbeat: float | None
) -> None:
    wire = deaf(backlog=backlog, after=2 if heartbeat is None else 5)  # three of them
    served = serve(Script("a", 50.0, "b", "c"), wire, write=LIMIT, stall=None, heartbeat=heartbeat)
    await served.run()
    dropped(served, at=50.0 + LIMIT)


@pytest.mark.parametrize("heartbeat", [None, 15.0])
async def test_a_token_after_a_silence_that_is_not_taken_ends_the_stream_though_its_write_did_not_wait(
    heartbeat: float | None,
) -> None:
    def on_send(number: int, data: bytes) -> None:
        wire.backlog = len(data) if b'"b"' in data else 0

    wire = Wire(on_send=on_send)
    await (served := serve(Script("a", 50.0, "b", 100.0), wire, write=LIMIT, stall=None, heartbeat=heartbeat)).run()
    dropped(served, at=50.0 + LIMIT)


async def test_a_sign_of_life_that_is_not_taken_ends_the_stream() -> None:
    def on_send(number: int, data: bytes) -> None:
        wire.backlog = len(data) if number == 4 else 0  # the second one

    wire = Wire(on_send=on_send)
    await (served := serve(Script("a", 100.0), wire, write=LIMIT, stall=None, heartbeat=15.0)).run()
    dropped(served, at=30.0 + LIMIT)


async def test_a_stream_that_is_not_read_at_all_ends_too() -> None:
    """The headers are the first write that waits."""
    wire = Wire(on_start=anyio.Event().wait)
    source = Script("a")
    served = await serve(source, wire, write=LIMIT).run()
    assert served.outcome.status == "slow"
    assert (source.steps, wire.drops) == (0, 1)


@pytest.mark.parametrize("policy", [None, any_of(EveryTokens(100), Within(0.5))])
async def test_a_reader_that_takes_a_little_now_and_then_is_waited_for(policy: Any) -> None:
    """Longer than the deadline, for one write: what counts is whether anything moves."""
    wire = Wire()

    async def on_send(number: int, data: bytes) -> None:
        if number == 2:
            for left in range(10, -1, -1):
                wire.backlog = left
                await anyio.sleep(LIMIT / 2)

    wire._on_send = on_send
    wire.backlog = 0
    served = await serve(Script("a", "b", "c"), wire, policy=policy, write=LIMIT, stall=None).run()
    assert served.outcome.status == "complete"
    assert served.outcome.ended >= 5 * LIMIT
    assert wire.kills == 0


async def test_a_server_that_takes_whatever_it_is_given_hides_no_reader_that_takes_nothing() -> None:
    """What is unsent then grows, by a little more than was written."""
    wire = Wire()

    def on_send(number: int, data: bytes) -> None:
        wire.backlog = (wire.backlog or 0) + len(data) + 7

    wire._on_send = on_send
    source = Script(*["a", 0.5] * 100)
    served = await serve(source, wire, write=LIMIT, stall=None).run()
    dropped(served, at=LIMIT)


async def test_a_reader_that_takes_a_little_is_waited_for_at_the_terminal_too() -> None:
    """The write of the last words waits behind what is unsent, for longer than the deadline."""
    wire = Wire()

    async def on_send(number: int, data: bytes) -> None:
        if b"event: end" in data:
            for left in range(10, -1, -1):
                wire.backlog = left
                await anyio.sleep(LIMIT / 2)

    async def drains() -> None:
        wire.backlog = 11

    wire._on_send = on_send
    served = await serve(Script("a", "b", drains), wire, write=LIMIT, stall=None).run()
    assert (served.outcome.status, served.outcome.delivered) == ("complete", "unknown")
    assert wire.kills == 0


async def test_a_terminal_that_waits_behind_what_nobody_takes_is_given_up() -> None:
    wire = Wire()

    async def on_send(number: int, data: bytes) -> None:
        if b"event: end" in data:
            await anyio.Event().wait()

    def fill() -> None:
        wire.backlog = 11

    wire._on_send = on_send
    served = await serve(Script("a", fill), wire, write=LIMIT, stall=None).run()
    assert served.outcome.delivered == "no"
    assert wire.drops == 1
    assert served.outcome.ended - served.outcome.started <= 2 * LIMIT


async def test_what_waits_in_a_write_was_not_taken() -> None:
    """A large item counts as written before it is: once it was, the reader need not take as much again at once."""
    wire = Wire()
    source = Script("a" * 60, "b" * 60, *([1.0] * 40))

    async def on_send(number: int, data: bytes) -> None:
        if number == 3:  # behind the opening and the first item
            wire.backlog = 70
            await anyio.sleep(1.0)
        if number >= 3:
            wire.backlog = 140

    async def reads() -> None:
        while True:
            await anyio.sleep(1.0)
            if wire.backlog is not None:
                wire.backlog = max(0, wire.backlog - 5)

    wire._on_send = on_send
    served = serve(source, wire, write=LIMIT, stall=None, heartbeat=None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reads)
        await served.run()
        tasks.cancel_scope.cancel()
    assert served.outcome.status == "complete"


async def test_without_a_deadline_a_reader_is_waited_for() -> None:
    wire = Wire(slow=lambda number, data: 10_000.0 if number == 2 else 0.0)
    served = await serve(Script("a", "b"), wire, write=None).run()
    assert served.outcome.status == "complete"


# ---- what the clock writes ------------------------------------------------------------------------


def beating(backlog: int) -> tuple[Wire, Callable[[], None]]:
    wire = Wire()

    def fill() -> None:
        wire.backlog = backlog

    return wire, fill


async def test_signs_of_life_pause_while_the_socket_does_not_drain() -> None:
    wire, fill = beating(500)

    def drain() -> None:
        wire.backlog = 0

    served = serve(Script("a", fill, 4.5, drain, 3.0, "b"), wire, heartbeat=1.0, write=None)
    await served.run()
    beats = [time for time, chunk in zip(wire.times, wire.chunks, strict=True) if b": hb " in chunk]
    assert beats == [5.0, 6.0, 7.0]


async def test_a_silent_source_does_not_hide_a_reader_that_takes_nothing() -> None:
    wire, fill = beating(500)
    source = Script("a", fill, anyio.Event())
    served = await serve(source, wire, heartbeat=1.0, write=LIMIT, stall=None).run()
    dropped(served, at=LIMIT)
    assert source.cancels == 1


async def test_a_flush_that_waits_for_the_reader_ends_at_the_deadline_too() -> None:
    policy = any_of(EveryTokens(100), Within(0.5))
    source = Script("a", anyio.Event())
    served = serve(source, deaf(backlog=70_000, after=1), policy=policy, heartbeat=None, write=LIMIT, stall=None)
    await served.run()
    assert served.outcome.status == "slow"
    assert (source.closes, served.wire.drops) == (1, 1)


async def test_last_words_that_nobody_takes_are_given_up() -> None:
    wire = deaf(backlog=70_000, after=2)
    served = await serve(Script("a", "b"), wire, write=LIMIT).run()
    assert served.outcome.delivered == "no"
    assert served.outcome.ended - served.outcome.started <= LIMIT + EXACT
    assert wire.drops == 1


# ---- after the end --------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["complete", "failed"])
async def test_a_stream_that_is_over_keeps_its_task_until_its_bytes_left(ending: str) -> None:
    wire, fill = beating(500)
    drained = anyio.Event()

    async def drain() -> None:
        await anyio.sleep(20.0)
        wire.backlog = 400
        await anyio.sleep(20.0)
        wire.backlog = 0
        drained.set()

    script = ["a", fill, *([OSError("no")] if ending == "failed" else [])]
    served = serve(Script(*script), wire, write=30.0)

    def kill(*, drop: bool) -> bool:
        assert not drop
        return True

    wire.kill = kill  # type: ignore[method-assign]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(drain)
        await served.run()
        assert drained.is_set()
    assert served.outcome.status == ending
    assert served.outcome.delivered == ("unknown" if ending == "complete" else "no")


@pytest.mark.parametrize("ending", ["complete", "failed"])
async def test_a_stream_that_is_over_and_not_read_is_dropped_and_was_not_delivered(ending: str, caplog: Any) -> None:
    wire, fill = beating(500)
    kills: list[bool] = []

    def kill(*, drop: bool) -> bool:
        kills.append(drop)
        return True

    wire.kill = kill  # type: ignore[method-assign]
    script = ["a", fill, *([OSError("no")] if ending == "failed" else [])]
    served = await serve(Script(*script), wire, write=LIMIT, linger=0.0).run()
    assert (served.outcome.status, served.outcome.delivered) == (ending, "no")
    assert kills == ([True] if ending == "complete" else [False, True])
    (line,) = caplog.messages  # the first reason, once
    assert ("its end was not taken: slow: " in line) is (ending == "complete")
    assert LIMIT <= served.outcome.ended - served.outcome.started <= LIMIT + EXACT


@pytest.mark.parametrize("backlog", [None, 500])
async def test_an_end_that_waits_for_a_reader_that_takes_nothing_is_given_up(backlog: int | None, caplog: Any) -> None:
    """A transport that is full after the last part lets the end of the body wait."""

    def full() -> Any:
        wire.backlog = backlog
        return anyio.sleep_forever()

    wire = Wire(on_end=full)
    served = await serve(Script("a"), wire, write=LIMIT).run()
    assert (served.outcome.status, served.outcome.delivered) == ("complete", "no")
    assert (wire.kills, wire.drops) == (1, 1)
    assert LIMIT <= served.outcome.ended - served.outcome.started <= 2 * LIMIT + EXACT
    (line,) = caplog.messages
    assert "its end was not taken: slow: " in line


async def test_a_reader_that_leaves_while_its_body_is_ended_may_have_it_all() -> None:
    wire = Wire(on_end=lambda: (wire.left.set(), anyio.sleep(1.0))[1])
    served = await serve(Script("a"), wire, write=LIMIT).run()
    assert (served.outcome.status, served.outcome.delivered) == ("complete", "unknown")
    assert wire.calls[-1] == "end"


async def test_a_transport_that_cannot_be_looked_at_harms_nothing(caplog: Any) -> None:
    wire = Wire()

    def unsent() -> int:
        raise ConnectionError("no such thing")

    wire.unsent = unsent  # type: ignore[method-assign]
    served = await serve(Script("a", 2.5, "b"), wire, heartbeat=1.0).run()
    assert served.outcome.status == "complete"
    assert wire.beats == 2
    assert caplog.text.count("cannot be seen") == 1


# ---- what it costs --------------------------------------------------------------------------------


def wakes_of(served: Served, monkeypatch: Any) -> list[float]:
    """When the clock of the stream looks at its reader, which is at each wake."""
    wakes: list[float] = []
    stuck = served.driver._line.stuck

    def noted(now: float, sent: int, *, writing: bool) -> bool:
        wakes.append(now)
        return stuck(now, sent, writing=writing)

    monkeypatch.setattr(served.driver._line, "stuck", noted)
    return wakes


@pytest.mark.parametrize("backlog", [None, 0])
async def test_the_clock_of_a_quiet_stream_wakes_for_its_beats_alone(backlog: int | None, monkeypatch: Any) -> None:
    served = serve(Script("a", 410.0, "b", 410.0, "c"), Wire(), heartbeat=20.0, write=LIMIT)
    served.wire.backlog = backlog
    wakes = wakes_of(served, monkeypatch)
    await served.run()
    assert served.wire.beats == 40
    assert len(wakes) <= 40 + 4  # after each token once or twice, until it is known to be taken


async def test_the_clock_of_a_quiet_stream_without_heartbeats_sleeps(monkeypatch: Any) -> None:
    served = serve(Script("a", 410.0, "b", 410.0, "c"), heartbeat=None, stall=None, write=LIMIT)
    wakes = wakes_of(served, monkeypatch)
    await served.run()
    assert len(wakes) <= 4


@pytest.mark.parametrize("limit", [float("inf"), 1e308])
async def test_limits_without_end_are_never_due(limit: float, monkeypatch: Any) -> None:
    served = serve(Script("a", 410.0, "b"), heartbeat=limit, stall=limit, write=limit)
    wakes = wakes_of(served, monkeypatch)
    await served.run()
    assert (served.outcome.status, served.wire.beats, wakes) == ("complete", 0, [])


async def test_a_heartbeat_of_the_smallest_interval_is_one() -> None:
    served = await serve(Script("a", 0.01, "b"), heartbeat=5e-324).run()
    assert 1 <= served.wire.beats <= 11


async def test_the_clock_of_a_busy_stream_wakes_a_few_times_a_deadline(monkeypatch: Any) -> None:
    served = serve(Script(*["a", 0.5] * 160), heartbeat=20.0, write=LIMIT)
    wakes = wakes_of(served, monkeypatch)
    await served.run()
    assert 38 <= len(wakes) <= 42  # four a deadline


async def test_the_clock_goes_on_to_look_where_something_is_not_taken(monkeypatch: Any) -> None:
    wire, fill = beating(500)

    async def drain() -> None:
        assert wire.backlog
        wire.backlog -= 1

    served = serve(Script("a", fill, *[6.0, drain] * 10, "b"), wire, heartbeat=None, stall=None, write=LIMIT)
    wakes = wakes_of(served, monkeypatch)
    await served.run()
    assert 28 <= len(wakes) <= 32
    assert served.outcome.failure is None


async def test_the_outcome_of_a_dropped_reader_is_reported_once() -> None:
    hook = Hook()
    await serve(Script("a", "b", "c"), deaf(backlog=1), hook=hook, write=LIMIT).run()
    assert [outcome.status for outcome in hook.outcomes] == ["slow"]
