"""What tells a stream from every other answer, and what judges one: the same however its bytes are cut."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.adapters import middleware_judge
from streamguard.adapters.middleware_judge import Judged, LineJudge, judge_of, kind_of
from streamguard.core.dialect import Raw, raw
from streamguard.core.items import Event
from streamguard.core.wire.sse import SseDecoder
from tests.adapters.middleware_apps import DONE, chunk

LINES = b'{"done": false}\n\n{"t": "\xe2\x82\xac"}\r\n[1]\n{"done": true}\n'


def judged(data: bytes, cuts: list[int], kind: Any = "lines", clean: bool = True, **rule: Any) -> Judged:
    judge = judge_of(kind, Raw(**{"end": "known", **rule}))
    at = 0
    for cut in sorted({cut % (len(data) + 1) for cut in cuts} | {len(data)}):
        judge.feed(data[at:cut])
        at = cut
    return judge.end(clean=clean)


@pytest.mark.parametrize(
    "kind", ["text/event-stream", "Text/Event-Stream;charset=UTF-8", "application/x-ndjson", "text/plain"]
)
def test_the_kind_is_told_by_the_content_type(kind: str) -> None:
    message = {"type": "http.response.start", "status": 200, "headers": [(b"Content-Type", kind.encode())]}
    assert kind_of(message) == ("events" if "vent" in kind else "lines" if "json" in kind else None)
    assert [kind_of({**message, "status": status}) for status in (404, 204, 205)] == [None] * 3
    assert kind_of({**message, "trailers": True}) is None


@given(st.lists(st.integers(0, 200), max_size=20), st.integers(0, len(LINES)))
def test_lines_are_judged_alike_however_they_are_cut(cuts: list[int], size: int) -> None:
    data = LINES[:size]
    whole = judged(data, [])
    assert judged(data, cuts) == judged(data, list(range(size))) == whole
    # The last line counts without its line end, as it does for whoever reads lines.
    assert (whole.verdict == "complete") == (size >= len(LINES) - 1 or size == 0)


@given(st.lists(st.integers(0, 400), max_size=20))
def test_events_are_judged_alike_however_they_are_cut(cuts: list[int]) -> None:
    data = chunk("a") + chunk(reason="stop") + DONE
    assert judged(data, cuts, "events") == Judged("complete", proved=True)
    assert judged(data[:-1], cuts, "events").verdict == "truncated"


def last(event: Event) -> bool:
    return event == Event('{"last": 1}')


@pytest.mark.parametrize(
    ("rule", "lines", "verdict"),
    [
        ("provider", b'{"n": 1}\n', "truncated"),
        ("provider", b'{"done": true}\n', "complete"),
        ("asgi", b'{"done": false}\n', "complete"),
        ("endless", b'{"done": false}\n', "complete"),
        pytest.param(last, b'{"n": 1}\n{"last": 1}\n', "complete", id="its own, last"),
        pytest.param(last, b'{"last": 1}\n{"n": 1}\n', "failed", id="its own, and more"),
        ("asgi", b'{"error": {"code": "oom", "message": "full"}}\n', "failed"),
    ],
    ids=str,
)
def test_the_rules_hold_for_lines(rule: Any, lines: bytes, verdict: str) -> None:
    assert judged(lines, [], end=rule).verdict == verdict


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (b'{"code": "oom", "type": "t"}', "oom"),
        (b'{"code": {"prompt": "my diary"}, "type": "t"}', "t"),
        (b'{"code": "my diary"}', "upstream_error"),
        (b'"full"', "upstream_error"),
    ],
)
def test_a_code_is_a_word_and_what_else_a_line_says_there_is_not_taken(error: bytes, code: str) -> None:
    failure = judged(b'{"error": ' + error + b"}\n", []).failure
    assert failure is not None
    assert failure.code == code


def test_a_line_that_nobody_could_read_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware_judge, "MAX_FRAME", 100)
    judge = LineJudge(Raw(end="known"))
    for _ in range(50):
        judge.feed(b"x" * 10)
    assert sum(map(len, judge._rest)) <= 100
    judge.feed(b'\n{"done": true}\n')
    assert judge.end(clean=True) == Judged("complete", proved=True)


@pytest.mark.parametrize("step", [1, 7, 10, 64, 105, 1000])
@pytest.mark.parametrize(
    ("data", "verdict"),
    [
        (b'{"n": 1}\n{"image": "' + b"x" * 500, "truncated"),
        (b'{"n": 1}\n{"image": "' + b"x" * 500 + b'"}', "truncated"),  # who could say that it is whole?
        (b'{"image": "' + b"x" * 500 + b'"}\n', "complete"),
        (b"x" * 500 + b'\n{"n": 1}\n{"n', "truncated"),
        (b'"' + b"x" * 98 + b'"', "complete"),
        (b'{"done": false}\n["' + b"x" * 500 + b'\n{"done": true}', "complete"),
        (b"x" * 105 + b'{"error": "no"}\n', "complete"),  # its last piece by itself is no line
        (b'{"done": true}\n"' + b"x" * 500 + b'"\n', "failed"),
    ],
)
def test_a_line_too_long_to_hold_is_judged_alike_however_it_is_cut(
    step: int, data: bytes, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware_judge, "MAX_FRAME", 100)
    assert judged(data, list(range(0, len(data), step))).verdict == verdict


def test_a_line_too_long_to_hold_is_no_last_event_to_know_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware_judge, "MAX_FRAME", 100)
    assert judged(b'{"n": 1}\n' + b"x" * 500 + b"\n", []) == Judged("complete", last="")


def test_an_event_that_no_reader_takes_fails_by_the_code_that_a_guarded_stream_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(raw, "SseDecoder", partial(SseDecoder, max_frame=100))
    failure = judged(b"data: " + b"x" * 100_000 + b"\n\n", [], "events").failure
    assert failure is not None
    assert failure.code == "item_too_large"
