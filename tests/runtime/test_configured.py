"""What a guard is configured with, and what `authorize` answers: a slip is told in one line, with what to write."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import attrs
import pytest

from streamguard.app import OWN, StreamGuard, anyone_with_the_id
from streamguard.core.cursor import new_sid
from streamguard.log.base import Retention, StreamInfo
from streamguard.log.memory import MemoryLog
from streamguard.log.sqlite import SQLiteLog
from streamguard.runtime.checkpoints import CheckpointEvery
from streamguard.runtime.configured import principal_of
from streamguard.runtime.runs import Cancel, Detach, ReadOn
from streamguard.runtime.takeover import Continue, Replay

PAGE = "in streamguard's documentation: how-to/take-over-after-a-crash.md"


@attrs.frozen
class User:
    id: int


@pytest.mark.parametrize("answer", [True, False, "", 7, 0, User(7), b"ann"], ids=repr)
def test_an_answer_that_names_nobody_is_refused(answer: Any) -> None:
    with pytest.raises(TypeError) as caught:
        principal_of(answer)
    assert str(caught.value) == (
        f"authorize answers who asks, as a text, or None for no; it answered {answer!r}: every user would be one. "
        f"Return the user's id, for example str(user.id)"
    )


def test_a_user_nobody_and_anyone_are_answers() -> None:
    assert (principal_of("ann"), principal_of(None)) == ("ann", None)
    anyone = principal_of(anyone_with_the_id(None, "read"))
    assert (anyone, type(anyone)) == ("", str)


@pytest.mark.anyio
async def test_the_first_request_is_refused_by_either_kind_of_function() -> None:
    async def later(request: Any, action: str) -> Any:
        return True

    authorize: Any
    for authorize in (later, lambda request, action: True):
        with pytest.raises(TypeError, match="it answered True: every user would be one"):
            await StreamGuard(MemoryLog(), authorize=authorize).principal(None, "start")
    assert await StreamGuard(MemoryLog(), authorize=anyone_with_the_id).principal(None, "start") == ""


POLICY = "on_disconnect is a Cancel(), Detach(grace=60) or ReadOn(seconds=60), not "
LOG = 'log is a log, for example MemoryLog() or SQLiteLog("streams.db"), not '
AUTHORIZE = "authorize is a function of (request, action), not "


def one(request: Any) -> str:
    return "ann"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on_disconnect": 60}, POLICY + "60"),
        ({"on_disconnect": Cancel}, POLICY + "the class Cancel"),
        ({"on_disconnect": None}, POLICY + "None"),
        ({"log": "streams.db"}, LOG + "'streams.db'"),
        ({"log": MemoryLog}, LOG + "the class MemoryLog"),
        ({"log": None}, LOG + "None"),
        ({"authorize": "ann"}, AUTHORIZE + "'ann'"),
        ({"authorize": one}, AUTHORIZE + "the function one"),
        ({"authorize": User}, AUTHORIZE + "the class User"),
        ({"ttl": "15"}, "ttl is a number above zero, not '15'"),
        ({"ttl": True}, "ttl is a number above zero, not True"),
        ({"patience": None}, "patience is a number of zero or more, not None"),
        ({"max_readers": "8"}, "max_readers is a whole number of at least 1, not '8'"),
        ({"max_readers": 2.5}, "max_readers is a whole number of at least 1, not 2.5"),
        ({"max_takeovers": "2"}, "max_takeovers is a whole number of at least 0, not '2'"),
        ({"max_takeovers": 1.5}, "max_takeovers is a whole number of at least 0, not 1.5"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_argument_of_another_kind_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError) as caught:
        StreamGuard(**{"log": MemoryLog(), "authorize": anyone_with_the_id, **options})
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ttl": 0}, "ttl is a number above zero, not 0"),
        ({"ttl": float("nan")}, "ttl is a number above zero, not nan"),
        ({"patience": -1}, "patience is a number of zero or more, not -1"),
        ({"max_readers": 0}, "max_readers is a whole number of at least 1, not 0"),
        ({"max_takeovers": -1}, "max_takeovers is a whole number of at least 0, not -1"),
    ],
    ids=str,
)
def test_an_argument_out_of_range_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        StreamGuard(MemoryLog(), **{"authorize": anyone_with_the_id, **options})


def test_what_may_be_called_with_two_is_an_authorize() -> None:
    class Who:
        def __call__(self, request: Any, action: str) -> str:
            return "ann"

    good: Any
    for good in (Who(), functools.partial(lambda log, request, action: "ann", None), anyone_with_the_id, max):
        StreamGuard(MemoryLog(), authorize=good, on_disconnect=ReadOn(seconds=60))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Detach("60"), "grace is a number of zero or more, not '60'"),  # type: ignore[arg-type]
        (lambda: Detach(None), "grace is a number of zero or more, not None"),  # type: ignore[arg-type]
        (lambda: ReadOn(seconds="60"), "seconds is a number of zero or more, not '60'"),  # type: ignore[arg-type]
        (lambda: Retention(after_end="600"), "after_end is a number above zero, not '600'"),  # type: ignore[arg-type]
        (lambda: Retention(unsealed=None), "unsealed is a number above zero, not None"),  # type: ignore[arg-type]
    ],
)
def test_a_time_that_is_no_number_is_refused_by_its_name(make: Any, said: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(said)}$"):
        make()


@pytest.mark.parametrize("kind", [Continue, Replay])
@pytest.mark.parametrize("value", [None, "abc", 7], ids=repr)
def test_what_is_no_source_is_refused_where_a_resumer_says_it(kind: Any, value: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{kind.__name__}\(source\): {type(value).__name__} is no source: "):
        kind(value)


def test_a_source_without_a_state_is_told_who_asks_for_it() -> None:
    with pytest.raises(TypeError) as caught:
        CheckpointEvery(items=5).over(iter(["a"]))
    assert str(caught.value) == "the source has no method state(): CheckpointEvery asks it for the state"


def test_a_url_is_no_file_of_a_log() -> None:
    for url in ("sqlite:///streams.db", "redis://localhost"):
        with pytest.raises(ValueError, match=r'^path must be that of a file, for example "streams.db", and no URL;'):
            SQLiteLog(url)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("options", "why"),
    [({}, "it has no resumer that others know"), ({"resumer": "m.resume"}, "its resumer is not known here: m.resume")],
    ids=["none", "unknown"],
)
async def test_an_orphans_end_is_told_with_its_reason(options: Any, why: str, caplog: Any) -> None:
    guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id)
    info = StreamInfo(new_sid(), "native", principal="ann", options={OWN: options})
    await guard.log.release(await guard.log.create(info, 15.0))
    await guard.lost(await guard.log.state(info.sid))
    (line,) = [record.message for record in caplog.records if record.name == "streamguard"]
    assert (Path(__file__).parents[2] / "docs" / PAGE.partition(": ")[2]).is_file()
    assert line == f"stream {info.sid[:8]}: nobody generates it any more; it ended as failed: {why} ({PAGE})"
