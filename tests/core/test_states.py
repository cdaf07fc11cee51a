"""The transition table, row by row."""

from __future__ import annotations

from typing import get_args

import pytest

from streamguard.core.states import FINAL_STATUSES, TABLE, Input, State, step

LEGAL = {
    ("unopened", "opening"): "open",
    ("unopened", "frame"): "open",
    ("unopened", "beat"): "unopened",
    ("unopened", "terminal"): "ended",
    ("unopened", "bye"): "parted",
    ("unopened", "eof"): "cut",
    ("open", "frame"): "open",
    ("open", "beat"): "open",
    ("open", "terminal"): "ended",
    ("open", "bye"): "parted",
    ("open", "eof"): "cut",
    ("ended", "eof"): "closed",
    ("parted", "eof"): "cut",
}


@pytest.mark.parametrize("state", get_args(State))
@pytest.mark.parametrize("event", get_args(Input))
def test_the_table_allows_what_is_listed_here_and_nothing_else(state: State, event: Input) -> None:
    assert step(state, event) == LEGAL.get((state, event))


def test_the_table_knows_every_state_and_input() -> None:
    assert set(get_args(State)) == {"unopened", "open", "ended", "parted", "closed", "cut"} == set(TABLE)
    assert set(get_args(Input)) == {"opening", "frame", "beat", "terminal", "bye", "eof"}
    assert {event for row in TABLE.values() for event in row} == set(get_args(Input))


def test_only_the_end_of_bytes_follows_a_terminal() -> None:
    assert [event for event in get_args(Input) if step("ended", event) is not None] == ["eof"]
    assert step("ended", "eof") == "closed"


def test_a_connection_without_a_terminal_ends_cut() -> None:
    for state in ("unopened", "open", "parted"):
        assert step(state, "eof") == "cut"


def test_a_terminal_bears_one_of_six_statuses() -> None:
    assert FINAL_STATUSES == ("complete", "failed", "cancelled", "stalled", "slow", "shutdown")
