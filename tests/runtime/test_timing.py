"""Time limits: what they may be."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from typing import Any

import attrs
import pytest

from streamguard.runtime.timing import DEFAULT_TIMING, Timing


def test_the_defaults_stay_under_the_idle_limits_in_common_use() -> None:
    timing = Timing()
    assert timing == DEFAULT_TIMING
    assert timing.heartbeat is not None
    assert timing.heartbeat < 20  # some content delivery networks wait 20 to 30 s
    assert (timing.stall, timing.write) == (600.0, 30.0)
    assert (timing.peek, timing.close, timing.linger) == (0.0, 5.0, 0.25)


def test_the_clock_is_monotonic() -> None:
    assert Timing().clock is time.monotonic


def test_never_has_a_name_of_its_own() -> None:
    assert Timing(heartbeat=None, stall=None, write=None).write is None


@pytest.mark.parametrize("name", ["heartbeat", "stall", "write"])
@pytest.mark.parametrize("value", [0, 0.0, -1.0, float("nan")])
def test_a_limit_of_zero_is_no_way_to_say_never(name: str, value: float) -> None:
    """A heartbeat every 0 s would be a flood, and a source that is silent for 0 s is every source."""
    with pytest.raises(ValueError, match=f"{name} must be above zero, or None for never"):
        Timing(**{name: value})


@pytest.mark.parametrize("name", ["peek", "close", "linger"])
@pytest.mark.parametrize("value", [-0.1, float("nan")])
def test_a_time_to_wait_is_not_negative(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must be zero or more"):
        Timing(**{name: value})
    assert getattr(Timing(**{name: 0.0}), name) == 0.0


def test_limits_are_checked_when_they_are_changed_and_cannot_be_changed_in_place() -> None:
    with pytest.raises(ValueError, match="heartbeat"):
        attrs.evolve(Timing(), heartbeat=0)
    timing: Any = Timing()
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        timing.close = 1.0


@pytest.mark.parametrize("name", ["heartbeat", "stall", "write", "peek", "close", "linger"])
@pytest.mark.parametrize("value", ["5", True, [5], timedelta(seconds=5)], ids=repr)
def test_a_limit_is_a_number_of_seconds(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"^{name} is a number of seconds, not {re.escape(repr(value))}$"):
        Timing(**{name: value})


@pytest.mark.parametrize("name", ["peek", "close", "linger"])
def test_a_time_to_wait_is_never_for_ever(name: str) -> None:
    with pytest.raises(TypeError, match=f"^{name} is a number of seconds, not None$"):
        Timing(**{name: None})


def test_a_clock_is_called() -> None:
    wrong: Any = 12.5
    with pytest.raises(TypeError, match=r"^clock is a function, not 12\.5$"):
        Timing(clock=wrong)
