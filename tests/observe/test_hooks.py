"""The record of how a stream ended: a fact, not a thing to change. And who is told of what."""

from __future__ import annotations

import dataclasses
from contextvars import ContextVar, copy_context
from typing import Any, get_args
from unittest.mock import MagicMock

import attrs
import pytest

from streamguard.core.cursor import Cursor
from streamguard.core.errors import Failure
from streamguard.observe.hooks import (
    Closed,
    Delivered,
    Observer,
    Observers,
    Opened,
    Outcome,
    RequestLabels,
    StreamDetails,
    observers_of,
)
from tests.observe.noted import HOOKS, Noted

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


@pytest.mark.parametrize(
    ("code", "cause"), [("overloaded", "overloaded"), ("my diary: I am", "own"), ("a\nb", "own"), ("x" * 65, "own")]
)
def test_a_cause_is_a_code_and_no_text(code: str, cause: str) -> None:
    outcome = Outcome(**{**FACTS, "status": "failed", "failure": Failure(code, "m")})
    assert Closed(STREAM, 1.0, outcome).cause == cause


# ---- observers ----------------------------------------------------------------------------------

STREAM = StreamDetails("direct", "AAAAAAAA", RequestLabels(), 0.0, 0.0)
ASKED = ("attached", "began", "entered", "passing", "trace_of", "every")  # no events


def test_there_is_a_hook_for_every_event_and_each_is_told_of_its_own() -> None:
    noted = Noted()
    events = [kind.__new__(kind) for kind in HOOKS.values()]
    observers = Observers([noted])
    for event in events:
        observers.tell(event)
    assert [id(event) for event in noted.events] == [id(event) for event in events]
    assert {name for name in vars(Observer) if not name.startswith("_")} == {*HOOKS, *ASKED}


@pytest.mark.parametrize(("asked", "of"), [("began", STREAM.labels), ("trace_of", STREAM)])
def test_what_observers_are_asked_is_answered_by_the_first_that_knows(asked: str, of: object) -> None:
    """The origin of a stream, and its trace."""

    def answering(answer: object) -> Observer:
        def answered(asked_of: object) -> object:
            assert asked_of is of
            if isinstance(answer, Exception):
                raise answer
            return answer

        observer = Observer()
        setattr(observer, asked, answered)
        return observer

    answers = [ValueError(), None, 5, "first", "second"]
    assert getattr(Observers([answering(each) for each in answers]), asked)(of) == "first"
    assert getattr(Observers([Observer()]), asked)(of) is None


def test_an_observer_enters_the_context_of_a_source_and_no_other() -> None:
    seen: ContextVar[str] = ContextVar("seen", default="nothing")

    class Entering(Observer):
        def entered(self, stream: StreamDetails) -> None:
            seen.set(stream.name)

    observers, context = Observers([Entering()]), copy_context()
    observers.enter(STREAM, context)
    assert (context[seen], seen.get()) == ("AAAAAAAA", "nothing")
    here = copy_context()
    here.run(observers.enter, STREAM, None)
    assert here[seen] == "AAAAAAAA"


def test_an_observer_without_hooks_is_told_nothing() -> None:
    Observers([Observer()]).tell(Opened(STREAM, 0.0))


def test_several_observers_are_told_in_their_order_and_one_that_is_given_twice_once() -> None:
    order: list[str] = []

    class Named(Observer):
        def __init__(self, name: str) -> None:
            self.name = name

        def opened(self, event: Opened) -> None:
            order.append(self.name)

    one, two = Named("one"), Named("two")
    Observers([one, two, one]).tell(Opened(STREAM, 0.0))
    assert order == ["one", "two"]


@pytest.mark.parametrize("define", [dataclasses.dataclass, attrs.define, attrs.frozen])
def test_observers_that_are_equal_or_cannot_be_hashed_are_two(define: Any) -> None:
    told: list[Any] = []

    class Equal(Observer):
        def opened(self, event: Opened) -> None:
            told.append(self)
            raise ValueError("which is logged by the hook")

    kind = define(type("Kind", (Equal,), {"__annotations__": {"tag": str}, "tag": ""}))
    one, two = kind(), kind()
    assert one == two
    observers = Observers([one, two, one])
    observers.tell(Opened(STREAM, 0.0))
    assert [id(each) for each in told] == [id(one), id(two)]


def test_a_hook_may_be_set_on_an_observer() -> None:
    class Set(Observer):
        def __init__(self) -> None:
            self.opened = told.append  # type: ignore[method-assign, assignment]

    told: list[Any] = []
    event = Opened(STREAM, 0.0)
    Observers([Set()]).tell(event)
    assert told == [event]


def test_a_mock_of_an_observer_is_one() -> None:
    mock = MagicMock(spec=Observer)
    observers = observers_of(mock)
    assert observers is not None
    observers.tell(Opened(STREAM, 0.0))
    assert [called[0] for called in mock.method_calls] == ["opened"]
    assert (observers.every, observers.began(STREAM.labels)) == (0, None)


def test_a_hook_that_is_set_is_refused_too_where_it_would_be_awaited() -> None:
    async def later(event: Opened) -> None:
        raise AssertionError

    with pytest.raises(TypeError, match="is a coroutine function"):
        observers_of(MagicMock(spec=Observer, opened=later))


def test_what_ends_the_program_passes() -> None:
    class Ending(Observer):
        def opened(self, event: Opened) -> None:
            raise SystemExit(3)

    with pytest.raises(SystemExit):
        Observers([Ending()]).tell(Opened(STREAM, 0.0))


def test_what_an_observer_may_ask_is_told_once_given_and_nothing_is_left_out() -> None:
    noted = Noted()
    Observers([noted]).attach("one", None, "two")
    assert noted.sources == ["one", "two"]


def test_a_hook_that_would_be_awaited_is_refused() -> None:
    class Later(Observer):
        async def opened(self, event: Opened) -> None:  # type: ignore[override]
            raise AssertionError

    with pytest.raises(TypeError, match="is a coroutine function"):
        Observers([Later()])


@pytest.mark.parametrize("given", [5, "prometheus", Observer, [Observer], {"a": Observer()}])
def test_what_is_no_observer_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=r"^observe is an Observer, or a list of them"):
        observers_of(given)


def test_one_several_or_none_can_be_given() -> None:
    one = Observer()
    assert observers_of(None) is None
    assert observers_of([]) is None
    several = observers_of([one, Observer()])
    assert several is not None
    assert len(several.members) == 2
    assert observers_of(several) is several
    single = observers_of(one)
    assert single is not None
    assert single.members == (one,)


@pytest.mark.parametrize(
    ("part", "changes", "lost", "whole"),
    [
        ("direct", {}, 0, True),
        ("direct", {"delivered": "no"}, 0, False),
        ("direct", {"status": "failed"}, 0, False),
        ("direct", {"abandoned": True}, 0, False),
        ("direct", {}, 1, False),
        ("producer", {"status": "cancelled"}, 0, False),
        ("reader", {"status": "failed", "delivered": "no"}, 0, True),
        ("reader", {"delivered": "no"}, 0, False),
        ("reader", {"status": "parted"}, 0, False),
    ],
)
def test_a_stream_is_whole_if_nobody_missed_any_of_it(
    part: Any, changes: dict[str, Any], lost: int, whole: bool
) -> None:
    stream = attrs.evolve(STREAM, part=part)
    assert Closed(stream, 1.0, Outcome(**FACTS | changes), lost).whole is whole
