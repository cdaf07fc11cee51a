"""Wilson's interval: against published values, and for what an interval of a rate must be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.demo.stats import wilson


# From Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_published_intervals_come_out(hits: int, trials: int, low: float, high: float) -> None:
    assert wilson(hits, trials) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(0, 500), st.integers(1, 500))
def test_the_interval_holds_the_rate_and_stays_between_0_and_1(hits: int, more: int) -> None:
    low, high = wilson(hits, hits + more)
    assert 0 <= low <= hits / (hits + more) <= high <= 1
    assert low < high
    assert wilson(more, hits + more) == pytest.approx((1 - high, 1 - low))


def test_nothing_seen_says_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("hits", "trials"), [(-1, 5), (6, 5)])
def test_a_count_that_is_none_is_refused(hits: int, trials: int) -> None:
    with pytest.raises(ValueError, match="no count"):
        wilson(hits, trials)
