"""Signs of life and flush deadlines: what leaves while the source is silent, and what never does."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

from streamguard.core.errors import SourceFailed
from streamguard.core.flush import EveryTokens, HoldBack, Within, any_of
from streamguard.core.items import Block
from streamguard.core.receipt import Verdict
from tests.runtime.fakes import Script, Served, Wire, serve
from tests.runtime.virtual import BACKENDS, run

pytestmark = pytest.mark.anyio

TOOL = Block("tool_call", {"id": "1", "name": "look", "arguments": "{}"})


def kinds(wire: Wire) -> list[str]:
    """What was sent, in order, with heartbeats in their places."""
    marks = re.findall(rb': hb |event: (?:ping|end)|data: "([^"]*)"', wire.body)
    ends = iter(re.findall(rb': hb |event: (?:ping|end)|data: "', wire.body))
    names = {b": hb ": "beat", b"event: ping": "beat", b"event: end": "end"}
    return [names.get(mark, text.decode()) for mark, text in zip(ends, marks, strict=True)]


# ---- heartbeats ---------------------------------------------------------------------------------


async def ours() -> list[str]:
    return kinds((await serve(Script("a", 3.5, "b", "c"), heartbeat=1.0).run()).wire)


async def naive() -> list[str]:
    """Heartbeats as they are usually written: the next token with a time limit. It cancels the generator."""
    source = Script("a", 3.5, "b", "c")()
    sent = []
    while True:
        try:
            sent.append(await asyncio.wait_for(source.__anext__(), 1.0))
        except asyncio.TimeoutError:
            sent.append("beat")
        except StopAsyncIteration:
            return [*sent, "end"]


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(ours, id="ours"),
        pytest.param(naive, id="naive", marks=pytest.mark.xfail(strict=True, raises=AssertionError)),
    ],
)
def test_a_pause_of_three_heartbeats_costs_no_token(stream: Callable[[], Any]) -> None:
    assert run("asyncio", stream) == ["a", "beat", "beat", "beat", "b", "c", "end"]


async def test_a_pause_of_three_heartbeats_costs_no_token_on_any_loop() -> None:
    assert await ours() == ["a", "beat", "beat", "beat", "b", "c", "end"]


async def test_heartbeats_count_from_the_request_not_from_the_first_token() -> None:
    served = await serve(Script(3.5, "a"), heartbeat=1.0).run()
    assert kinds(served.wire) == ["beat", "beat", "beat", "a", "end"]
    assert served.wire.times[1:4] == [1.0, 2.0, 3.0]


async def test_a_token_puts_the_next_heartbeat_off() -> None:
    served = await serve(Script("a", 0.9, "b", 0.9, "c", 1.5, "d"), heartbeat=1.0).run()
    assert kinds(served.wire) == ["a", "b", "c", "beat", "d", "end"]


async def test_a_busy_source_needs_no_heartbeat() -> None:
    served = await serve(Script(*["x", 0.1] * 100), heartbeat=1.0).run()
    assert served.wire.beats == 0


async def test_no_heartbeat_without_an_interval() -> None:
    assert (await serve(Script("a", 500.0, "b"), heartbeat=None).run()).wire.beats == 0


async def test_no_heartbeat_follows_the_terminal_though_it_falls_due_in_its_send() -> None:
    wire = Wire(slow=lambda number, data: 5.0 if b"event: end" in data else 0.0)
    served = await serve(Script("a", 0.5), wire, heartbeat=1.0).run()
    assert kinds(wire) == ["a", "end"]
    assert served.wire.overlaps == 0


@pytest.mark.parametrize("ending", ["returns", "raises"])
async def test_no_heartbeat_while_the_end_lingers(ending: str) -> None:
    script = Script("a", SourceFailed("x", "y")) if ending == "raises" else Script("a")
    served = await serve(script, heartbeat=1.0, linger=20.0).run()
    assert kinds(served.wire)[-1] == "end"
    assert served.wire.beats == 0


async def test_no_heartbeat_while_a_send_is_pending() -> None:
    """A reader that does not drain would only get more that it cannot take."""
    wire = Wire(slow=lambda number, data: 10.0 if b'"b"' in data else 0.0)
    served = await serve(Script("a", "b", "c"), wire, heartbeat=1.0).run()
    assert kinds(wire) == ["a", "b", "c", "end"]
    assert wire.overlaps == served.wire.beats == 0


async def test_a_token_that_comes_while_a_heartbeat_is_sent_waits_for_it() -> None:
    wire = Wire(slow=lambda number, data: 3.0 if b": hb" in data else 0.0)
    await serve(Script("a", 2.0, "b", "c"), wire, heartbeat=1.0).run()
    assert kinds(wire) == ["a", "beat", "b", "c", "end"]
    assert wire.overlaps == 0
    assert wire.read().verdict is Verdict.COMPLETE


async def test_the_end_that_comes_while_a_heartbeat_is_sent_waits_for_it() -> None:
    wire = Wire(slow=lambda number, data: 3.0 if b": hb" in data else 0.0)
    await serve(Script("a", 2.0), wire, heartbeat=1.0).run()
    assert kinds(wire) == ["a", "beat", "end"]
    assert wire.overlaps == 0


async def test_heartbeats_go_on_after_a_send_in_which_one_was_due() -> None:
    """The watcher gave way to the driver; the driver wakes it when it parks."""
    wire = Wire(slow=lambda number, data: 5.0 if b'"b"' in data else 0.0)
    served = await serve(Script("a", "b", 2.5, "c"), wire, heartbeat=1.0).run()
    assert kinds(wire) == ["a", "b", *["beat"] * served.wire.beats, "c", "end"]
    assert served.wire.beats >= 2


async def test_heartbeats_go_on_after_headers_that_took_long() -> None:
    """Nothing was parked when the first one was due, and the source then loads for a long time."""

    async def load() -> Any:
        await anyio.sleep(10.5)
        return Script("a")()

    served = await serve(load, Wire(slow=lambda number, data: 5.0 if number == 1 else 0.0), heartbeat=2.0).run()
    assert served.wire.beats >= 4


async def test_signs_of_life_of_many_streams_leave_together_and_none_late() -> None:
    """The loop then wakes for a few of them at once."""
    streams = [serve(Script(1_000.0), heartbeat=256.0, stall=None) for _ in range(50)]
    async with anyio.create_task_group() as tasks:
        for served in streams:
            tasks.start_soon(served.run)
            await anyio.sleep(0.1)
    wires = [served.wire for served in streams]
    beats = [[at for at, sent in zip(wire.times, wire.chunks, strict=True) if b": hb" in sent] for wire in wires]
    assert set(itertools.chain(*beats)) == {256.0 * round + second for round in (1, 2, 3) for second in range(5)}
    for number, those in enumerate(beats):
        times = [number * 0.1, *those]
        assert all(255.0 < late - early <= 256.0 for early, late in itertools.pairwise(times))


@pytest.mark.parametrize(("form", "size"), [("comment", 100), ("padded", 2048), ("ping", 120)])
async def test_every_form_of_heartbeat_stands_at_a_frame_edge(form: str, size: int) -> None:
    served = await serve(Script("a", 3.5, "b"), heartbeat=1.0, beat=form).run()
    mark = b"event: ping" if form == "ping" else b": hb "
    beats = [chunk for chunk in served.wire.chunks if chunk.startswith(mark)]
    assert len(beats) == served.wire.beats == 3
    assert all(len(beat) >= size for beat in beats) if form == "padded" else all(len(beat) <= size for beat in beats)
    assert served.wire.read().verdict is Verdict.COMPLETE


async def test_padding_gets_through_a_proxy_that_holds_two_kilobytes_and_is_off_by_default() -> None:
    for form, passed in (("padded", 3), ("comment", 0)):
        served = await serve(Script("a", 3.5, "b"), heartbeat=1.0, beat=form).run()
        held = b""
        through = 0
        for chunk in served.wire.chunks[2:5]:  # the opening and one token before them
            held += chunk
            if len(held) >= 2048:
                through += 1
                held = b""
        assert through == passed


async def test_the_first_token_may_take_three_times_as_long_as_a_proxy_waits() -> None:
    served = await serve(Script(180.0, "a"), heartbeat=15.0).run()
    times = served.wire.times
    assert max(late - early for early, late in itertools.pairwise(times)) < 60
    assert served.wire.text == "a"


async def test_a_wall_clock_that_jumps_changes_nothing(monkeypatch: Any) -> None:
    jumps = iter([0.0, 3600.0, -3600.0] * 1000)
    monkeypatch.setattr(time, "time", lambda: 1e9 + next(jumps))
    served = await serve(Script("a", 3.5, "b"), heartbeat=1.0, stall=5.0).run()
    assert kinds(served.wire) == ["a", "beat", "beat", "beat", "b", "end"]
    assert served.wire.times[2:5] == [1.0, 2.0, 3.0]


async def test_a_step_that_is_pending_survives_every_heartbeat() -> None:
    """The source's own step is never interrupted to get the clock back."""
    script = Script("a", 50.0, "b")
    await serve(script, heartbeat=1.0).run()
    assert script.cancels == 0
    assert script.returns == 1


# ---- flush deadlines ----------------------------------------------------------------------------


async def test_held_text_leaves_in_time_though_the_source_is_silent() -> None:
    served = await serve(Script("a", "b", 5.0, "c"), policy=Within(0.05)).run()
    assert kinds(served.wire) == ["a", "b", "c", "end"]
    assert served.wire.times[2] == pytest.approx(0.05)


async def test_the_window_of_a_policy_that_holds_the_first_text_too() -> None:
    """Tokens a and b in one window, then a tool call, then c, then the end."""
    served = await serve(Script("a", 0.01, "b", 5.0, TOOL, "c"), policy=Within(0.05, first="policy")).run()
    assert [part.type if isinstance(part, Block) else part for part in served.wire.parts] == ["ab", "tool_call", "c"]
    assert served.wire.times[1] == pytest.approx(0.05)


async def test_held_text_leaves_before_a_block_and_at_the_end_without_waiting() -> None:
    served = await serve(Script("a", "b", TOOL, "c"), policy=Within(50.0, first="policy")).run()
    assert [part.type if isinstance(part, Block) else part for part in served.wire.parts] == ["ab", "tool_call", "c"]
    assert served.wire.times[-1] == 0.0


async def test_a_deadline_that_is_earlier_than_what_the_watcher_waits_for_wakes_it() -> None:
    served = await serve(Script(20.0, "a", "b", 20.0, "c"), policy=Within(0.5), heartbeat=15.0).run()
    at = served.wire.times[kinds(served.wire).index("b") + 1]  # after the opening
    assert at == pytest.approx(20.5)


async def test_a_deadline_that_passes_while_the_driver_sends_is_met_when_it_parks() -> None:
    wire = Wire(slow=lambda number, data: 1.0 if b'"a"' in data else 0.0)
    served = await serve(Script("a", "b", "c", 60.0, "d"), wire, policy=any_of(EveryTokens(99), Within(0.5))).run()
    assert kinds(wire)[:2] == ["a", "bc"]
    assert served.wire.times[2] == pytest.approx(1.5)


async def test_a_deadline_that_passes_in_the_send_that_follows_it() -> None:
    """Text is held, then a block is sent slowly past the window, then more text comes and the source is silent."""
    wire = Wire(slow=lambda number, data: 2.0 if b"tool_call" in data else 0.0)
    served = await serve(Script(TOOL, "a", 60.0, "b"), wire, policy=Within(0.5, first="policy"), heartbeat=None).run()
    assert served.wire.times[2] == pytest.approx(2.5)
    assert kinds(wire) == ["a", "b", "end"]


async def test_each_window_of_many_is_met() -> None:
    served = await serve(Script(*["x", 0.3] * 20), policy=Within(0.5, first="policy")).run()
    gaps = [late - early for early, late in itertools.pairwise(served.wire.times[1:-1])]
    assert served.wire.text == "x" * 20
    assert max(gaps) <= 0.6 + 1e-9


async def test_what_a_stop_string_may_begin_is_not_released_by_a_deadline_or_a_heartbeat() -> None:
    policy = HoldBack(["</think>"], flush=Within(0.5, first="policy"))
    served = await serve(Script("a", "</th", 5.0, "ink>b"), policy=policy, heartbeat=1.0).run()
    assert kinds(served.wire)[:2] == ["a", "beat"]
    assert served.wire.text == "a</think>b"


async def test_a_flush_counts_as_a_sign_of_life() -> None:
    served = await serve(Script("a", "b", 1.7, "c"), policy=Within(0.8), heartbeat=1.0).run()
    assert kinds(served.wire) == ["a", "b", "c", "end"]


async def test_a_flush_that_is_sent_as_a_token_comes_keeps_the_order() -> None:
    wire = Wire(slow=lambda number, data: 2.0 if b'"b"' in data else 0.0)
    await serve(Script("a", "b", 1.0, "c", 9.0, "d"), wire, policy=Within(0.5)).run()
    assert kinds(wire) == ["a", "b", "c", "d", "end"]
    assert wire.overlaps == 0
    assert wire.read().verdict is Verdict.COMPLETE


async def test_a_failure_in_the_middle_of_a_flush_comes_after_it() -> None:
    wire = Wire(slow=lambda number, data: 2.0 if b'"b"' in data else 0.0)
    served = await serve(Script("a", "b", 1.0, SourceFailed("x", "y")), wire, policy=Within(0.5)).run()
    assert kinds(wire) == ["a", "b", "end"]
    assert served.outcome.status == "failed"


async def test_two_writers_never_meet_whatever_falls_due() -> None:
    """Tokens, flushes and heartbeats over a slow transport, with periods that drift through each other."""

    async def source() -> AsyncIterator[str]:
        for n in range(60):
            yield f"{n} "
            await anyio.sleep((n * 37 % 101) / 50)

    for slow in (0.0, 0.13, 0.5, 1.1):
        served: Served = await serve(source, Wire(slow=slow), policy=Within(0.4), heartbeat=0.7).run()
        assert served.wire.text == "".join(f"{n} " for n in range(60))
        assert served.wire.overlaps == 0


# ---- a source that never lets the loop run ------------------------------------------------------


async def busy(until: Callable[[], bool], text: str) -> AsyncIterator[str]:
    """A model that is stepped on the loop."""
    deadline = time.monotonic() + 5.0
    while not until() and time.monotonic() < deadline:
        yield text


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("text", ["", "held"])
def test_a_source_that_never_suspends_is_no_silence(text: str, backend: str) -> None:
    wire = Wire(blocks=False)

    async def stream() -> str | None:  # on a loop whose time passes while nothing waits
        held = EveryTokens(10**6, first="policy")
        source = busy(lambda: wire.body.count(b": hb ") >= 3, text)
        served = serve(lambda: source, wire, policy=held, clock=time.monotonic, heartbeat=0.05, write=None)
        return (await served.run()).outcome.status

    assert anyio.run(stream, backend=backend) == "complete"
    assert wire.body.count(b": hb ") >= 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_reader_of_a_source_that_never_suspends_is_not_taken_for_slow(backend: str) -> None:
    async def stream() -> str | None:
        until = time.monotonic() + 0.3
        source = busy(lambda: time.monotonic() > until, "")
        served = serve(lambda: source, Wire(blocks=False), clock=time.monotonic, heartbeat=0.02, write=0.05)
        return (await served.run()).outcome.status

    assert anyio.run(stream, backend=backend) == "complete"
