"""The record of how a stream ended: a fact, not a thing to change."""

from __future__ import annotations

from typing import Any, get_args

import attrs
import pytest

from streamguard.core.cursor import Cursor
from streamguard.observe.hooks import Delivered, Outcome

FACTS: dict[str, Any] = {
    "status": "complete",
    "finish_reason": "stop",
    "failure": None,
    "items": 2,
    "frames": 3,
    "bytes": 100,
    "sent": 300,
    "usage": {"total_tokens": 2},
    "cursor": Cursor("A" * 22, 3, 100, 0, "complete"),
    "delivered": "unknown",
    "started": 1.0,
    "first_item": 1.5,
    "first_byte": 1.1,
    "ended": 2.0,
}


def test_an_outcome_is_frozen() -> None:
    outcome: Any = Outcome(**FACTS)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        outcome.status = "failed"


def test_outcomes_of_the_same_facts_are_equal() -> None:
    assert Outcome(**FACTS) == Outcome(**FACTS)
    assert Outcome(**FACTS) != Outcome(**FACTS | {"items": 3})


def test_a_request_without_an_id_and_a_source_that_stopped_are_the_rule() -> None:
    outcome = Outcome(**FACTS)
    assert outcome.request_id is None
    assert (outcome.abandoned, outcome.let_go) == (False, False)


@pytest.mark.parametrize("missing", FACTS)
def test_no_fact_is_guessed(missing: str) -> None:
    with pytest.raises(TypeError, match=missing):
        Outcome(**{name: value for name, value in FACTS.items() if name != missing})


def test_delivery_has_three_answers() -> None:
    assert get_args(Delivered) == ("yes", "no", "unknown")
