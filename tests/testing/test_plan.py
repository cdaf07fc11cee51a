"""Where in a response something happens, by bytes alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.testing.plan import Gate, Hold, Plan, RandomCut


@given(st.integers(0, 2**32), st.integers(0, 1000))
def test_a_random_cut_stays_between_its_bounds(seed: int, index: int) -> None:
    cut = RandomCut(seed=seed, low=5, high=9)(index).cut_at
    assert cut is not None
    assert 5 <= cut <= 9


@pytest.mark.parametrize(
    "wrong",
    [
        {"cut_at": -1},
        {"stall_at": -1},
        {"delay": -0.1},
        {"hold": -1},
        {"idle": 0},
        {"rate": 0},
        {"rate": float("nan")},
        {"end": "rst"},
    ],
)
def test_an_impossible_plan_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Plan(**wrong)


@given(
    st.lists(st.binary(max_size=9), max_size=9),
    st.none() | st.integers(0, 40),
    st.none() | st.integers(0, 40),
    st.sampled_from([b"", b"\x00", b"\x00\x00", b"\x00\x01\x00"]),
)
def test_a_gate_counts_the_same_in_whatever_pieces(
    pieces: list[bytes], cut: int | None, stall: int | None, after: bytes
) -> None:
    def passed(pieces: list[bytes]) -> tuple[bytes, int | None, bool]:
        gate = Gate(Plan(cut_at=cut, stall_at=stall, after=after))
        out = b""
        stalled = None
        for piece in pieces:
            rest = piece
            while rest:
                passing, event, rest = gate.take(rest)
                out += passing
                if event == "cut":
                    return out, stalled, True
                if event == "stall":
                    stalled = len(out)
        return out, stalled, False

    whole = b"".join(pieces)
    by_pieces = passed(pieces)
    assert by_pieces == passed([whole[at : at + 1] for at in range(len(whole))])
    out, _, was_cut = by_pieces
    assert whole.startswith(out)
    start = whole.find(after) + len(after) if after in whole else len(whole)
    if cut is not None and was_cut:
        assert len(out) == start + cut
    else:
        assert out == whole


@given(
    st.lists(st.binary(max_size=9), max_size=9), st.integers(0, 40), st.sampled_from([b"", b"\x00", b"\x00\x01\x00"])
)
def test_a_hold_lets_nothing_pass_below_its_size_and_everything_from_then_on(
    pieces: list[bytes], size: int, after: bytes
) -> None:
    hold = Hold(Plan(hold=size, after=after))
    came = out = b""
    for piece in pieces:
        came += piece
        out += hold.take(piece)
        start = came.find(after) + len(after) if after in came else len(came)
        held = size > 0 and len(came) - start < size
        assert out == (came[:start] if held else came)
    assert out + hold.drain() == came
    assert hold.drain() == b""
