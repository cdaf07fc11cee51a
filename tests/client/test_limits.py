"""What a reader waits for: each limit is a number of seconds, or None."""

from __future__ import annotations

from typing import Any

import pytest

from streamguard.client.limits import ReaderLimits

TIMES = ["connect", "first_byte", "liveness", "stall"]


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize("value", [0, -1])
def test_a_limit_is_above_zero_and_none_says_that_there_is_none(name: str, value: Any) -> None:
    limit: Any = {name: value}
    with pytest.raises(ValueError, match=f"^{name} is above 0, or None for no limit, not {value}$"):
        ReaderLimits(**limit)
    limit[name] = None
    assert getattr(ReaderLimits(**limit), name) is None


@pytest.mark.parametrize("name", TIMES)
def test_a_limit_is_a_number_of_seconds(name: str) -> None:
    wrong: Any = {name: "5"}
    with pytest.raises(TypeError, match=f"^{name} is a number of seconds, or None for no limit, not '5'$"):
        ReaderLimits(**wrong)


@pytest.mark.parametrize("value", ["5", None, 1.5, 0])
def test_what_is_kept_is_a_number_of_characters(value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^max_received is a whole number of at least 1, not "):
        ReaderLimits(max_received=value)
