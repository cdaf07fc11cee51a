"""Adaptive flush: the window as a function of samples, and what a stage does of it. No loop, no clock."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.core.adaptive import BEHIND, BUSY, HALF, LATE, LEAST, STALE, Adaptive, Pressure, next_window
from streamguard.core.flush import EveryTokens, FlushPolicy, HoldBack, Immediate, any_of
from streamguard.core.flush_stage import FlushStage
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.pipeline import Pipeline
from streamguard.core.receipt import Verdict
from streamguard.core.verify import StreamVerifier
from tests.strategies import clean_texts, clocks

CALM = Pressure()
LATE_LOOP = Pressure(lag=0.2)
LOADED = [LATE_LOOP, Pressure(busy=1.0), Pressure(unsent=10**6)]
BETWEEN = [Pressure(lag=LATE), Pressure(busy=BUSY), Pressure(unsent=BEHIND)]

pressures = st.one_of(
    st.just(CALM),
    st.sampled_from([*LOADED, *BETWEEN]),
    st.builds(Pressure, st.floats(0, 1), st.floats(0, 1), st.integers(0, 10**6)),
)


# ---- the window ----------------------------------------------------------------------------------


@pytest.mark.parametrize("loaded", LOADED)
def test_a_window_doubles_with_each_sample_of_pressure_up_to_its_bound(loaded: Pressure) -> None:
    window, found = 0.0, []
    for _ in range(7):
        window = next_window(window, loaded, 0.03, 0.1)
        found.append(window)
    assert found == [LEAST, 2 * LEAST, 4 * LEAST, 8 * LEAST, 16 * LEAST, 0.1, 0.1]


@pytest.mark.parametrize("between", BETWEEN)
def test_between_the_thresholds_a_window_stays_as_it_is(between: Pressure) -> None:
    """Else the relief that it brings would close it, and the load come back."""
    assert [next_window(window, between, 1.0, 0.1) for window in (0.0, 0.04, 0.1)] == [0.0, 0.04, 0.1]


def test_in_calm_a_window_shrinks_by_half_in_a_fixed_time_and_then_closes() -> None:
    assert next_window(0.08, CALM, HALF, 0.1) == pytest.approx(0.04)
    assert next_window(next_window(0.08, CALM, HALF / 2, 0.1), CALM, HALF / 2, 0.1) == pytest.approx(0.04)
    assert next_window(0.08, CALM, 6 * HALF, 0.1) == 0.0
    assert next_window(0.0, CALM, 0.1, 0.1) == 0.0


def test_a_bound_below_the_least_window_is_kept_and_left_again() -> None:
    assert next_window(0.0, LATE_LOOP, 0.03, 0.001) == 0.001
    assert next_window(0.001, CALM, HALF / 2, 0.001) == pytest.approx(0.001 / 2**0.5)
    assert next_window(0.001, CALM, 2 * HALF, 0.001) == 0.0


@given(st.lists(st.tuples(pressures, st.floats(0, 10)), max_size=30), st.sampled_from([0.001, 0.005, 0.1, 2.0]))
def test_a_window_is_never_above_its_bound_and_closes_in_calm(samples: list[Any], most: float) -> None:
    window = 0.0
    for pressure, elapsed in samples:
        window = next_window(window, pressure, elapsed, most)
        assert 0 <= window <= most
    for _ in range(20):
        window = next_window(window, CALM, HALF, most)
    assert window == 0.0


@given(pressures, pressures, st.floats(0, 0.1), st.floats(0, 1))
def test_more_pressure_never_makes_a_smaller_window(one: Pressure, other: Pressure, window: float, gap: float) -> None:
    worse = Pressure(max(one.lag, other.lag), max(one.busy, other.busy), max(one.unsent, other.unsent))
    assert next_window(window, worse, gap, 0.1) >= next_window(window, one, gap, 0.1)


@pytest.mark.parametrize(
    ("seconds", "error"),
    [(0, ValueError), (-1.0, ValueError), (float("nan"), ValueError), (float("inf"), ValueError), ("1", TypeError)],
)
def test_the_bound_is_a_finite_number_above_zero(seconds: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^seconds is a (finite )?number above zero, not "):
        Adaptive(seconds)


# ---- the policy ----------------------------------------------------------------------------------


def pressed(now: float, *, seconds: float = 0.1) -> Adaptive:
    """A policy with its widest window, sampled at `now`."""
    policy = Adaptive(seconds)
    for _ in range(30):
        policy.sample(LATE_LOOP, now)
    return policy


def test_without_pressure_every_piece_leaves_as_it_comes() -> None:
    policy = Adaptive()
    assert [policy.push("a", 1, now) for now in (0.0, 0.1, 5.0)] == [1, 1, 1]
    policy.sample(CALM, 5.0)
    assert (policy.push("b", 1, 5.0), policy.deadline()) == (1, None)


def test_under_pressure_text_is_held_for_the_window_from_its_first_piece() -> None:
    policy = pressed(1.0)
    assert [policy.push("a", 1, 1.0), policy.push("b", 2, 1.05)] == [0, 0]
    assert policy.deadline() == 1.1
    assert [policy.tick(2, 1.0999), policy.tick(2, 1.1), policy.deadline()] == [0, 2, None]
    assert [policy.push("c", 1, 1.12), policy.push("d", 2, 1.2), policy.push("e", 3, 1.25)] == [0, 0, 3]


def test_what_left_without_being_asked_begins_a_new_window() -> None:
    """All that is held leaves before a block, and the policy is not told."""
    policy = pressed(1.0)
    assert policy.push("a", 1, 1.0) == 0
    assert policy.push("b", 1, 1.09) == 0
    assert policy.deadline() == pytest.approx(1.19)


def test_after_a_pause_the_first_text_does_not_wait() -> None:
    policy = pressed(1.0)
    assert policy.push("a", 1, 1.0 + STALE) == 0
    assert policy.push("ab", 3, 1.01 + STALE) == 3
    assert policy.deadline() is None


def test_what_is_held_when_the_pressure_goes_leaves_with_the_next_piece_or_in_its_time() -> None:
    policy = pressed(1.0)
    assert policy.push("a", 1, 1.0) == 0
    policy.sample(CALM, 4.0)
    assert (policy.window, policy.deadline(), policy.tick(1, 1.1)) == (0.0, 1.1, 1)
    assert policy.push("a", 1, 4.0) == 1


def test_a_policy_that_is_given_to_a_stream_is_copied() -> None:
    policy = Adaptive()
    stage = FlushStage(policy)
    stage.sample(LATE_LOOP, 0.0)
    assert (policy.window, stage.immediate) == (0.0, False)


# ---- the stage -----------------------------------------------------------------------------------


def test_a_stage_holds_nothing_until_it_is_told_of_pressure_and_then_says_so() -> None:
    stage = FlushStage(Adaptive())
    assert (stage.immediate, stage.timed, stage.sampled) == (True, False, True)
    assert [stage.sample(CALM, 0.0), stage.push("a", 0.0)] == [False, "a"]
    assert [stage.sample(LATE_LOOP, 0.03), stage.sample(LATE_LOOP, 0.06)] == [True, False]
    assert (stage.immediate, stage.timed) == (False, True)
    assert stage.push("b", 0.06) == ""
    assert stage.deadline() == pytest.approx(0.07)
    assert stage.push("c", 0.08) == "bc"


def test_a_stage_goes_on_to_ask_while_text_is_held() -> None:
    """What passed it by would overtake that."""
    stage = FlushStage(Adaptive())
    stage.sample(LATE_LOOP, 0.0)
    assert stage.push("a", 0.0) == ""
    assert not stage.sample(CALM, 1.0)
    assert (stage.immediate, stage.timed, stage.deadline()) == (False, True, LEAST)
    assert stage.push("b", 1.0) == "ab"
    assert stage.sample(CALM, 1.03)
    assert (stage.immediate, stage.timed, stage.push("c", 1.03), stage.taken) == (True, False, "c", 3)


class Noting:
    """A policy of somebody's own that takes samples."""

    def __init__(self) -> None:
        self.seen: list[tuple[Pressure, float]] = []

    def __deepcopy__(self, memo: Any) -> Noting:
        return self  # the test's own, to look at

    def push(self, piece: str, held: int, now: float) -> int:
        return held

    def tick(self, held: int, now: float) -> int:
        return held

    def deadline(self) -> float | None:
        return None

    def sample(self, pressure: Pressure, now: float) -> None:
        self.seen.append((pressure, now))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda policy: policy,
        lambda policy: any_of(EveryTokens(3), policy),
        lambda policy: HoldBack("x", flush=any_of(policy, Immediate())),
    ],
)
def test_a_policy_of_ones_own_is_told_wherever_it_stands(wrap: Any) -> None:
    policy = Noting()
    stage = FlushStage(wrap(policy))
    assert stage.sampled
    assert not stage.sample(LATE_LOOP, 2.0)
    assert policy.seen == [(LATE_LOOP, 2.0)]


@pytest.mark.parametrize("policy", [Immediate(), EveryTokens(3), HoldBack("x"), any_of(EveryTokens(2))])
def test_nobody_is_sampled_for_who_takes_no_samples(policy: FlushPolicy) -> None:
    assert not FlushStage(policy).sampled
    assert not FlushStage(policy).sample(LATE_LOOP, 0.0)


def test_under_pressure_hold_back_still_holds_what_may_begin_a_stop_string() -> None:
    stage = FlushStage(HoldBack("<end>", flush=Adaptive()))
    assert stage.push("a<", 0.0) == "a"
    stage.sample(LATE_LOOP, 0.0)
    assert [stage.push("b", 0.0), stage.push("c<", 0.006), stage.push("d", 0.007)] == ["", "<bc", ""]


# ---- the pipeline --------------------------------------------------------------------------------


@given(
    st.lists(st.one_of(clean_texts.filter(bool), st.sampled_from(["a", "é", b"\xe4\xbd", b"\xa0"]), clocks, pressures)),
    st.sampled_from([Adaptive(0.05), any_of(EveryTokens(4), Adaptive()), HoldBack("ab", flush=Adaptive())]),
)
def test_all_text_arrives_whatever_presses_and_whenever(events: list[Any], policy: FlushPolicy) -> None:
    pipeline = Pipeline(policy, FramedEncoder("native"), CompletionGuard("sse"))
    plain = Pipeline(Immediate(), FramedEncoder("native"), CompletionGuard("sse"))
    out, wanted, now = [pipeline.open()], [plain.open()], 0.0
    for event in events:
        if isinstance(event, Pressure):
            timed = pipeline.timed
            assert pipeline.sample(event, now) is (pipeline.timed is not timed)
        elif isinstance(event, float):
            now += event
            out.append(pipeline.tick(now))
        else:
            out.append(pipeline.push(event, now))
            wanted.append(plain.push(event, now))
    reader, other = StreamVerifier(), StreamVerifier()
    texts = [
        "".join([frame.text for frame in verifier.feed(b"".join([*data, stage.finish(now)]))])
        for verifier, data, stage in ((reader, out, pipeline), (other, wanted, plain))
    ]
    assert texts[0] == texts[1]
    assert (reader.verdict, pipeline.items) == (Verdict.COMPLETE, plain.items)


def test_in_a_run_of_texts_the_way_may_change_and_every_character_is_counted() -> None:
    pipeline = Pipeline(Adaptive(), FramedEncoder("native"), CompletionGuard("sse"))
    pipeline.open()
    assert pipeline.sampled
    assert all(pipeline.push(piece, 0.0) for piece in "abcd")
    assert (pipeline.sample(LATE_LOOP, 0.0), pipeline.timed) == (True, True)
    assert [bool(pipeline.push(piece, now)) for piece, now in (("e", 0.0), ("f", 0.001), ("g", 0.006))] == [0, 0, 1]
    assert (pipeline.sample(CALM, 1.0), pipeline.timed) == (True, False)
    assert all(pipeline.push(piece, 1.0) for piece in "hij")
    assert pipeline.finish(1.0)
    assert (pipeline.status, pipeline.items) == ("complete", 10)
