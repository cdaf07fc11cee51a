"""The picture of the live page: every number, what differs from one to the next, and what bounds it."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from streamguard.core.cursor import Cursor
from streamguard.core.errors import Failure
from streamguard.observe.hooks import (
    Acknowledged,
    Blocked,
    Closed,
    Counts,
    FirstFrame,
    Opened,
    Outcome,
    RequestLabels,
    Stalled,
    StreamDetails,
    Terminal,
)
from streamguard.observe.live import HISTOGRAMS, Live
from tests.observe.mixed import KINDS, expected_of

SECRET = "the application's own words"
STATE, SINCE, ITEMS, RATE, FRAMES, SENT, BLOCKED, ACKED, RESUMED = range(5, 14)


class Clock:
    """A time that stands still."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Stream:
    """A stream whose events a test tells."""

    def __init__(self, live: Live, part: Any = "direct", **labels: str) -> None:
        self.live = live
        self.far = Counts()
        self.details = StreamDetails(part, "AAAAAAAA", RequestLabels(**labels), 0.0, 0.0)
        live.opened(Opened(self.details, 0.0, lambda: self.far))

    def goes(self, items: int, waits: float | None = 0.0) -> None:
        if not self.far.items:
            self.live.first_frame(FirstFrame(self.details, 0.0, 0.3))
        self.far = Counts(self.far.items + items, self.far.frames + items, 0, 10 * (self.far.items + items), waits)

    def ends(self, status: str = "complete") -> None:
        self.live.terminal(Terminal(self.details, 1.0, status, ""))
        failure = None if status == "complete" else Failure("source_error", SECRET)
        cursor = Cursor("A" * 22, 1, 2, 3, status)
        ended = Outcome(
            status, None, failure, self.far.items, self.far.frames, 0, 0, None, cursor, "unknown", 0.0, 0.5, 0.1, 2.0
        )
        self.live.closed(Closed(self.details, 2.0, ended))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def live(clock: Clock) -> Live:
    return Live(password="p" * 16, clock=clock)


def rows(picture: Any) -> list[Any]:
    return list(picture["rows"].values())


def test_every_number_of_mixed_streams_is_what_was_done_to_them() -> None:
    live = Live(password="p" * 16, abnormal=1000)
    expected = expected_of(3 * len(KINDS), 5, live)

    def told(name: str) -> int:
        return round(sum(number for key, number in expected.items() if key.partition("{")[0] == f"streamguard_{name}"))

    by_status: Counter[str] = Counter()
    for key, number in expected.items():
        if key.startswith("streamguard_streams_closed_total"):
            by_status[key.partition('status="')[2].partition('"')[0]] += round(number)
    picture = live.newest().whole
    head = picture["head"]
    counted = {
        "opened": "streams_opened_total", "refused": "requests_refused_total", "stalls": "stalls_total",
        "resumes": "resumes_total", "takeovers": "takeovers_total", "lost": "tokens_lost_total", "items": "items_total",
    }  # fmt: skip
    assert {name: head[name] for name in counted} == {name: told(metric) for name, metric in counted.items()}
    assert all(head[name] > 0 for name in counted)
    assert head["closed"] == dict(by_status)
    assert (rows(picture), sum(head["open"].values()), head["rate"]) == ([], 0, 0)
    assert head["abnormal"] == len(picture["records"]) > 0
    for name in HISTOGRAMS[:3]:
        assert sum(picture["histograms"][name]) == told(f"{name}_count"), name


def test_a_row_says_how_far_a_stream_is_and_how_it_stands(live: Live, clock: Clock) -> None:
    stream = Stream(live, request_id="one", route="/chat")
    first = rows(live.newest().whole)[0]
    stream.goes(20)
    clock.now += 2
    row = rows(live.newest().step)[0]
    assert first[:4] == row[:4] == ["AAAAAAAA", "direct", "/chat", "one"]
    assert (first[STATE], first[ITEMS], first[RATE]) == ("starting", 0, 0.0)
    assert (row[STATE], row[ITEMS], row[RATE], row[FRAMES], row[SENT]) == ("streaming", 20, 10.0, 20, 200)
    live.blocked(Blocked(stream.details, 0.0, "transport", 1.5))
    live.acknowledged(Acknowledged(stream.details, 0.0, 7, None))
    live.stalled(Stalled(stream.details, 0.0, 60.0))
    clock.now += 1
    row = rows(live.newest().step)[0]
    assert (row[STATE], row[RATE], row[BLOCKED], row[ACKED], row[RESUMED]) == ("stalled", 0.0, 1.5, 7, None)
    live.terminal(Terminal(stream.details, 0.0, "stalled", "stalled"))
    clock.now += 1
    assert rows(live.newest().step)[0][STATE] == "ending"


def test_a_stream_that_waits_for_its_source_is_told_from_one_that_waits_for_its_reader(
    live: Live, clock: Clock
) -> None:
    source, reader = Stream(live), Stream(live)
    for stream in (source, reader):
        stream.goes(1)
    began = rows(live.newest().whole)[0][SINCE]
    source.far = attrs.evolve(source.far, waits=30.0)
    reader.far = attrs.evolve(reader.far, waits=None)
    clock.now += 40
    whole = live.newest().whole
    assert [row[STATE] for row in rows(whole)] == ["streaming", "reader"]
    assert [round(whole["head"]["now"] - row[SINCE]) for row in rows(whole)] == [30, 40]
    assert rows(whole)[1][SINCE] == began


def test_a_step_has_what_differs_and_makes_the_next_picture_of_the_one_before(live: Live, clock: Clock) -> None:
    flowing, silent, short = Stream(live), Stream(live), Stream(live)
    for stream in (flowing, silent, short):
        stream.goes(1)
    known = json.loads(json.dumps(live.newest().whole))
    for turn in range(5):
        flowing.goes(3)
        silent.far = attrs.evolve(silent.far, waits=turn + 1.0)
        if turn == 2:
            short.ends("failed")
        clock.now += 1
        picture = live.newest()
        step = json.loads(json.dumps(picture.step))
        known["rows"] = {key: row for key, row in known["rows"].items() if key not in step["gone"]} | step["rows"]
        known["records"] += step["records"]
        known["histograms"] |= step["histograms"]
        whole = json.loads(json.dumps(picture.whole))
        assert {name: known[name] for name in ("rows", "records", "histograms")} == {
            name: whole[name] for name in ("rows", "records", "histograms")
        }
    assert list(step["rows"]) == ["1"]  # the silent one did not change
    assert (step["gone"], step["records"], step["histograms"]) == ([], [], {})


def test_all_who_look_in_one_period_share_a_picture_and_nothing_is_made_while_nobody_does(
    live: Live, clock: Clock
) -> None:
    asked: list[int] = []
    stream = Stream(live)

    def count() -> Counts:
        asked.append(1)
        return Counts()

    live.opened(Opened(attrs.evolve(stream.details), 0.0, count))
    one, other = live.newest(), live.newest()
    assert one is other
    assert (len(asked), live.pause) == (1, 1.0)
    clock.now += 0.75
    assert (live.newest(), live.pause) == (one, 0.25)
    clock.now += 100
    assert live.newest().number == live.number == 2
    assert len(asked) == 2


def test_a_picture_shows_so_many_streams_first_those_not_heard_of_for_longest_in_their_order(clock: Clock) -> None:
    live = Live(password="p" * 16, rows=3, abnormal=2, clock=clock)
    streams = [Stream(live, request_id=str(number)) for number in range(8)]
    for number, stream in enumerate(streams):
        stream.goes(1, waits=float(number in (1, 4, 6)))
    clock.now += 1
    live.newest()
    whole = live.newest().whole
    assert [row[3] for row in rows(whole)] == ["1", "4", "6"]
    assert whole["head"]["open"]["direct"] == 8
    for stream in streams:
        stream.ends("failed")
    clock.now += 1
    whole = live.newest().whole
    assert [record["number"] for record in whole["records"]] == [7, 8]
    assert (whole["head"]["abnormal"], rows(whole)) == (8, [])


def test_a_picture_asks_so_many_streams_however_many_are_open_and_all_of_them_in_turn(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamguard.observe.live._LOOKS", 5)
    live = Live(password="p" * 16, rows=3, clock=clock)
    asked: list[int] = []
    streams = [Stream(live, "reader" if number == 0 else "direct", request_id=str(number)) for number in range(20)]
    for number, stream in enumerate(streams):
        entry = live._open[stream.details]
        entry.count = lambda stream=stream, number=number: (asked.append(number), stream.far)[1]  # type: ignore[misc]
    for turn in range(8):
        for number, stream in enumerate(streams):
            stream.goes(2, waits=float(turn) if number in (2, 11, 17) else 0.0)
        asked.clear()
        clock.now += 1
        whole = live.newest().whole
        assert len(asked) == len(set(asked)) <= 5 + 3
    assert [row[3] for row in rows(whole)] == ["2", "11", "17"]
    assert [row[ITEMS] for row in rows(whole)] == [16] * 3  # what is shown is asked each time
    assert whole["head"]["open"] == {"direct": 19, "producer": 0, "reader": 1}
    assert 19 * 8 <= whole["head"]["items"] <= 19 * 16
    assert whole["head"]["rate"] == 38.0
    for stream in streams[:10]:
        stream.ends()
    for _ in range(4):
        clock.now += 1
        whole = live.newest().whole
    assert (whole["head"]["items"], whole["head"]["rate"]) == (19 * 16, 0.0)
    for stream in streams[10:]:
        stream.ends()
    clock.now += 1
    whole = live.newest().whole
    assert (whole["head"]["items"], whole["head"]["rate"], rows(whole)) == (19 * 16, 0.0, [])


def test_a_stream_may_open_and_close_while_another_is_asked(live: Live, clock: Clock) -> None:
    first, ending = Stream(live), Stream(live)
    ending.goes(5)

    def count() -> Counts:
        thread = threading.Thread(target=lambda: (Stream(live), ending.ends()))
        thread.start()
        thread.join(5)
        assert not thread.is_alive()
        return Counts(1)

    live._open[first.details].count = count
    whole = live.newest().whole
    assert (list(whole["rows"]), whole["head"]["items"]) == (["1"], 6)


def test_a_stream_that_cannot_say_how_far_it_is_takes_nothing_from_the_others(live: Live, clock: Clock) -> None:
    broken, other = Stream(live), Stream(live)
    for stream in (broken, other):
        stream.goes(1)
    live.newest()

    def count() -> Counts:
        raise RuntimeError

    live._open[broken.details].count = count
    other.goes(1)
    clock.now += 1
    assert [row[ITEMS] for row in rows(live.newest().whole)] == [1, 2]


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from strings(each)


def test_a_picture_has_no_words_of_the_application_and_bounds_what_came_with_a_request(live: Live) -> None:
    stream = Stream(live, request_id="r" * 5000, route="/" * 5000)
    open_now = live.newest().whole
    stream.ends("failed")
    live._last.due = 0.0
    texts = [*strings(open_now), *strings(live.newest().whole)]
    assert max(map(len, texts)) == 80
    assert not [text for text in texts if SECRET in text or "A" * 9 in text]


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({}, TypeError, "it must be told who may see them"),
        ({"password": "p" * 16, "authorize": print}, TypeError, "it must be told who may see them"),
        ({"password": "p" * 15}, ValueError, "at least 16 characters"),
        ({"password": 1234567890123456}, TypeError, "password is a text"),
        ({"password": "p" * 16, "period": 0.01}, ValueError, "from 0.05 to 60"),
        ({"password": "p" * 16, "rows": 0}, ValueError, "rows"),
        ({"password": "p" * 16, "abnormal": 0}, ValueError, "abnormal"),
    ],
)
def test_it_is_not_made_without_saying_who_may_see_it_nor_of_nonsense(
    given: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        Live(**given)


def test_only_the_password_is_admitted_and_none_where_there_is_none() -> None:
    assert Live(password="pässword" * 2).admits("pässword".encode() * 2)
    assert not Live(password="p" * 16).admits(b"")
    assert not Live(authorize=print).admits(b"")
