"""The direct path on a thread, by a clock that the test moves: what is sent, when, and how a stream ends."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from streamguard.core.errors import Failure, SourceFailed
from streamguard.core.flush import EveryTokens, Immediate, Within
from streamguard.core.receipt import Verdict
from streamguard.core.verify import StreamVerifier
from streamguard.observe.hooks import Blocked, Outcome, observers_of
from streamguard.runtime.blocking import LOOK, BlockingDriver, BodyAborted
from streamguard.runtime.blocking_source import Quiet
from streamguard.runtime.drain import Drain
from streamguard.runtime.seen import seen_by
from streamguard.runtime.timing import Timing
from tests.observe.noted import Noted
from tests.runtime.fakes import native


class Now:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


@attrs.define
class Scripted:
    """What a driver asks of a BlockingSource. Its script is items, seconds of silence, exceptions, functions to call.

    A wait with a limit lasts as long as that, or the silence; one without ends, as by the shared clock, after twice
    LOOK at the latest. `waits` are the limits that were asked for.
    """

    now: Now
    script: list[Any]
    closes_in: float = 0.0
    refuses: Exception | None = None
    waits: list[float | None] = attrs.field(factory=list)
    limits: list[float] = attrs.field(factory=list)
    starts: int = 0
    interruptions: int = 0

    def start(self) -> None:
        self.starts += 1
        if self.refuses is not None:
            raise self.refuses

    def interrupt(self) -> None:
        self.interruptions += 1

    def close(self, limit: float) -> bool:
        self.limits.append(limit)
        return self.closes_in <= limit

    def next(self, timeout: float | None) -> Any:
        self.waits.append(timeout)
        while self.script:
            act = self.script.pop(0)
            if isinstance(act, float):
                longest = 2 * LOOK if timeout is None else max(timeout, 0.0)
                self.now.time += min(act, longest)
                if act > longest:
                    self.script.insert(0, act - longest)
                    raise Quiet
            elif isinstance(act, BaseException):
                raise act
            elif callable(act):
                act()
            else:
                return act
        raise StopAsyncIteration


@attrs.define
class Play:
    """One stream, as a server serves it: each part at its time, and how it ended."""

    source: Scripted
    driver: BlockingDriver
    ends: list[Outcome]
    parts: list[tuple[float, bytes]] = attrs.field(factory=list)
    raised: BaseException | None = None

    def serve(self, *, write: Callable[[int], object] = lambda number: None) -> Play:
        start = self.source.now.time
        try:
            for part in self.driver:
                self.parts.append((round(self.source.now.time - start, 6), part))
                write(len(self.parts))
        except BaseException as exc:
            self.raised = exc
        self.driver.close()
        return self

    @property
    def body(self) -> bytes:
        return b"".join([part for _, part in self.parts])

    def times(self, mark: bytes) -> list[float]:
        return [time for time, part in self.parts if mark in part]

    @property
    def verifier(self) -> StreamVerifier:
        verifier = StreamVerifier()
        verifier.feed(self.body)
        verifier.end(clean=self.raised is None)
        return verifier

    @property
    def status(self) -> str:
        return self.ends[-1].status


def played(*script: Any, flush: Any = None, now: Now | None = None, source: Any = None, **options: Any) -> Play:
    """A stream of a script that nobody reads yet. Options of Timing and of the driver."""
    now = now or Now()
    limits: dict[str, Any] = {"heartbeat": None, "stall": None, "linger": 0.0}
    limits |= {name: options.pop(name) for name in list(options) if name in attrs.fields_dict(Timing)}
    source = source or Scripted(now, list(script))
    ends: list[Outcome] = []
    stage = native(flush or Immediate())
    options["seen"] = seen_by(observers_of(options.pop("observe", None)), stage, now)
    driver = BlockingDriver(source, stage, Timing(clock=now, **limits), on_end=ends.append, **options)
    return Play(source, driver, ends)


# ---- what is sent, and when ----------------------------------------------------------------------


def test_every_item_leaves_when_it_comes() -> None:
    play = played("one ", 1.0, "two").serve()
    assert (play.times(b"one"), play.times(b"two")) == ([0.0], [1.0])
    assert (play.verifier.verdict, play.raised, play.status) == (Verdict.COMPLETE, None, "complete")


def test_a_stream_without_limits_sets_no_timer_and_is_looked_at_all_the_same() -> None:
    """A wait with a limit of its own costs a timer of the system's, at every token."""
    play = played(*["token "] * 50, heartbeat=15.0, stall=600.0).serve()
    assert set(play.source.waits) == {None}
    assert play.source.starts == 1


def test_signs_of_life_come_at_their_time_in_a_silence_and_start_anew_with_each_token() -> None:
    play = played(35.0, "one", 29.0, "two", heartbeat=15.0).serve()
    assert play.times(b": hb ") == [15.0, 30.0, 50.0]
    assert play.verifier.verdict is Verdict.COMPLETE


def test_they_come_too_while_items_do_of_which_a_policy_holds_the_text() -> None:
    def holding(script: list[Any], heartbeat: float) -> Play:
        return played(*script, flush=EveryTokens(10_000, first="policy"), heartbeat=heartbeat).serve()

    play = holding(["token ", 0.1] * 400, 15.0)
    assert play.times(b": hb ") == pytest.approx([15.0, 30.0], abs=4 * LOOK)
    assert play.verifier.verdict is Verdict.COMPLETE
    assert holding(["token ", 0.01] * 38, 0.1).times(b": hb ") == pytest.approx([0.1, 0.2, 0.3], abs=0.05)


def test_limits_that_are_below_a_look_are_kept_too() -> None:
    play = played("one", 0.5, "two", heartbeat=0.2).serve()
    assert play.times(b": hb ") == [0.2, 0.4]
    stalled = played("one", 9.0, stall=0.2).serve()
    assert stalled.source.now.time == pytest.approx(100.2)
    assert stalled.status == "stalled"


def test_a_write_that_waited_is_no_silence_of_the_source() -> None:
    now = Now()

    def write(number: int) -> None:
        now.time += 40.0  # the reader's connection is slow

    play = played("one", 10.0, "two", 10.0, now=now, stall=30.0, heartbeat=15.0).serve(write=write)
    assert play.status == "complete"
    assert not play.times(b": hb ")


@pytest.mark.parametrize(("at", "script"), [(1, ["one"]), (2, ["one", 50.0, "two"]), (2, ["one", 50.0])])
def test_the_wait_of_a_write_whose_reader_left_is_told_and_is_not_the_silence_before_it(
    at: int, script: list[Any]
) -> None:
    now, noted = Now(), Noted()

    def write(number: int) -> None:
        if number == at:
            now.time += 20.0
            raise BrokenPipeError

    play = played(*script, now=now, observe=noted, write=30.0).serve(write=write)
    assert [(event.by, event.seconds) for event in noted.all(Blocked)] == [("transport", 20.0)]
    assert play.status == "gone"


def test_a_reader_that_leaves_between_two_writes_was_not_waited_for() -> None:
    def write(number: int) -> None:
        raise BrokenPipeError

    noted = Noted()
    assert played("one", 50.0, observe=noted).serve(write=write).status == "gone"
    assert noted.all(Blocked) == []


def test_a_silent_source_ends_its_stream_at_the_limit_and_not_before() -> None:
    assert played("one", 29.9, "two", stall=30.0).serve().status == "complete"
    play = played("one", 1e6, stall=30.0, heartbeat=15.0).serve()
    assert (play.status, play.source.now.time) == ("stalled", 130.0)
    assert isinstance(play.raised, BodyAborted)
    assert play.raised.errno == errno.EPIPE


def test_held_text_leaves_at_its_deadline_though_nothing_comes() -> None:
    play = played("one", 10.0, "two", flush=Within(1.5, first="policy")).serve()
    assert play.times(b"one") == [1.5]
    assert play.verifier.verdict is Verdict.COMPLETE


# ---- before the headers --------------------------------------------------------------------------


def test_headers_wait_for_the_first_item_as_long_as_they_may_and_it_is_not_lost() -> None:
    play = played(0.4, "one", "two", peek=1.0)
    play.driver.peek()
    assert play.source.now.time == pytest.approx(100.4)
    assert play.serve().body.count(b'data: "one"') == 1
    late = played(9.0, "one", peek=1.0)
    late.driver.peek()
    assert late.source.now.time == 101.0
    assert late.serve().status == "complete"


def test_what_fails_while_they_wait_is_raised_and_the_stream_has_failed() -> None:
    for fault in (SourceFailed("overloaded", "later"), ZeroDivisionError()):
        play = played(fault, peek=1.0)
        with pytest.raises(type(fault)):
            play.driver.peek()
        play.driver.close()
        assert (play.status, play.ends[0].items, len(play.source.limits)) == ("failed", 0, 1)


def test_a_source_that_ends_while_they_wait_makes_an_empty_answer() -> None:
    play = played(peek=1.0)
    play.driver.peek()
    assert (play.serve().status, play.source.starts) == ("complete", 1)


def test_without_a_wait_nothing_begins_before_the_body_does() -> None:
    play = played("one")
    play.driver.peek()
    assert not play.source.starts
    play.driver.close()
    assert (play.status, play.source.waits, len(play.source.limits)) == ("gone", [], 1)


# ---- the end -------------------------------------------------------------------------------------


def test_a_source_that_fails_is_told_of_behind_its_items_and_the_body_raises() -> None:
    play = played("one", SourceFailed("overloaded", "later", retryable=True)).serve()
    assert (play.verifier.status, play.status) == ("failed", "failed")
    assert isinstance(play.raised, BodyAborted)
    spared = played("one", SourceFailed("overloaded", "later"), abort=False).serve()
    assert (spared.raised, spared.verifier.verdict) == (None, Verdict.FAILED)


def test_a_source_that_does_not_start_is_told_of_in_band() -> None:
    source = Scripted(Now(), [], refuses=RuntimeError("can't start new thread"))
    play = played(now=source.now, source=source).serve()
    assert (play.status, play.source.waits) == ("failed", [])
    assert play.verifier.verdict is Verdict.FAILED


@pytest.mark.parametrize("method", ["push", "tick", "deadline"])
def test_a_policy_that_raises_fails_its_stream_wherever_it_does(method: str) -> None:
    def broken(*args: Any) -> Any:
        raise ZeroDivisionError

    policy = type("Broken", (Within,), {method: broken})(1.0, first="policy")
    play = played("one", 5.0, "two", flush=policy).serve()
    assert (play.status, type(play.raised)) == ("failed", BodyAborted)
    assert play.body.count(b"event: end\n") == 1


@pytest.mark.parametrize("silence", [[0.1], []])
def test_a_stream_is_cancelled_while_it_waits_and_between_two_items(silence: list[float]) -> None:
    play = played()
    play.source.script = ["one", play.driver.cancel, *silence, "two"]
    play.serve()
    assert (play.status, play.source.interruptions) == ("cancelled", 1)
    assert play.verifier.status == "cancelled"


def test_one_that_is_cancelled_before_it_begins_says_why() -> None:
    play = played("one")
    play.driver.cancel(Failure("enough", "that will do"))
    assert play.serve().ends[0].failure == Failure("enough", "that will do")


def test_the_end_of_a_drains_grace_is_met_in_a_silence_and_among_tokens() -> None:
    for script in (["one", 60.0, "two"], [part for _ in range(100) for part in ("token ", 0.1)]):
        drain = Drain()
        play = played(lambda drain=drain: drain.begin(0.0), *script, drain=drain).serve()
        assert play.status == "shutdown"
        assert play.source.now.time <= 100.0 + 2 * LOOK + 0.1


def test_a_reader_that_left_is_seen_in_a_silence_and_told_nothing() -> None:
    left: list[int] = []
    play = played("one", lambda: left.append(1), 60.0, "two", gone=lambda: bool(left)).serve()
    assert (play.status, play.source.now.time <= 100.0 + 2 * LOOK) == ("gone", True)
    assert b"event: end" not in play.body
    assert isinstance(play.raised, BodyAborted)


def test_a_body_that_is_closed_where_a_write_failed_is_gone_or_slow_by_how_long_that_took() -> None:
    for seconds, status in (1.0, "gone"), (30.0, "slow"):
        play = played("one", "two", write=30.0)
        parts = iter(play.driver)
        while b"one" not in next(parts):
            pass
        play.source.now.time += seconds
        play.driver.close()
        play.driver.close()
        assert [end.status for end in play.ends] == [status]
        assert play.source.limits == [5.0]


def test_a_signal_that_raises_in_the_thread_ends_its_stream_in_order_and_is_raised_behind_it() -> None:
    for fatal in (SystemExit(1), KeyboardInterrupt()):
        play = played("one", fatal).serve()
        assert play.raised is fatal
        assert (play.verifier.status, play.status) == ("shutdown", "shutdown")


def test_a_source_that_does_not_close_in_time_is_abandoned_and_said_so() -> None:
    source = Scripted(Now(), ["one"], closes_in=9.0)
    assert played(now=source.now, source=source, close=2.0).serve().ends[0].abandoned
    assert source.limits == [2.0]


def test_a_failure_whose_terminal_cannot_be_written_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    play = played("one", SourceFailed("overloaded", "later"))
    parts = iter(play.driver)
    while b"event: end" not in next(parts):
        pass
    play.driver.close()  # as a server does where a write failed
    assert play.status == "failed"
    assert len([message for message in caplog.messages if "ended as failed" in message]) == 1


def test_a_trailer_stands_behind_a_clean_end_only() -> None:
    assert played("one", trailer=lambda: b"TRAILER").serve().body.endswith(b"TRAILER")
    assert b"TRAILER" not in played("one", ZeroDivisionError(), trailer=lambda: b"TRAILER").serve().body


def test_a_reader_that_was_told_may_hang_up_by_itself_for_as_long_as_it_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, left = Now(), iter([False, False, True])

    def sleep(seconds: float) -> None:
        now.time += seconds

    monkeypatch.setattr("streamguard.runtime.blocking.time.sleep", sleep)
    play = played("one", ZeroDivisionError(), now=now, linger=5.0, gone=lambda: next(left)).serve()
    assert play.status == "failed"
    assert now.time == pytest.approx(100.02)
    stays = played("one", ZeroDivisionError(), now=now, linger=0.05, gone=lambda: False).serve()
    assert stays.status == "failed"
    assert now.time == pytest.approx(100.08, abs=0.011)


def test_times_of_the_outcome_are_those_of_its_clock_and_the_first_item_is_shown_once() -> None:
    shown: list[Any] = []
    play = played(2.0, "one", 1.0, "two", on_first=shown.append, request_id="r-1").serve()
    outcome = play.ends[0]
    assert shown == ["one"]
    assert (outcome.request_id, outcome.items, outcome.delivered) == ("r-1", 2, "unknown")
    assert (outcome.started, outcome.first_byte, outcome.first_item, outcome.ended) == (100.0, 100.0, 102.0, 103.0)


# ---- a source that is stepped by the thread that iterates ------------------------------------------


def held(seconds: float, **options: Any) -> tuple[Play, list[float]]:
    """A stream whose source holds the thread for so long, asked four times a second whether that is too long; and when
    its connection was cut."""
    cuts: list[float] = []
    play = played(cut=lambda: cuts.append(play.source.now.time - 100.0), **options)

    def hold() -> None:
        for _ in range(int(seconds / LOOK)):
            play.source.now.time += LOOK
            play.driver.overdue()

    play.source.script = ["one", hold, "two"]
    return play.serve(), cuts


def test_a_source_that_holds_the_thread_beyond_the_limit_is_told_of_by_a_cut_connection() -> None:
    play, cuts = held(60.0, stall=30.0)
    assert cuts == [30.0]
    assert (play.status, play.verifier.status) == ("stalled", "stalled")  # where the cut did not reach it


@pytest.mark.parametrize("limits", [{"stall": 30.0}, {}], ids=["in time", "without a limit"])
def test_one_that_comes_back_in_time_is_not(limits: Any) -> None:
    play, cuts = held(29.0, **limits)
    assert (cuts, play.status) == ([], "complete")


def test_one_that_outlasts_a_drain_is_told_of_so_too() -> None:
    drain = Drain()
    drain.begin(0.0)
    play, cuts = held(1.0, drain=drain)
    assert (cuts, play.status) == ([LOOK], "shutdown")
    quick = played(drain=drain, cut=lambda: pytest.fail("it was cut"))  # it is told in band, between two tokens
    quick.source.script = [part for _ in range(10) for part in ("token ", quick.driver.overdue, 0.1)]
    assert quick.serve().verifier.status == "shutdown"


def test_a_write_that_waits_is_not_the_source_that_does() -> None:
    now = Now()
    play = played("one", "two", now=now, stall=30.0, cut=lambda: pytest.fail("it was cut"))

    def write(number: int) -> None:
        now.time += 60.0
        play.driver.overdue()

    assert play.serve(write=write).status == "complete"
