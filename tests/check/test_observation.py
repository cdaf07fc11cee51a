"""An answer and its times: what follows from when its pieces came."""

from __future__ import annotations

import gzip
import zlib

import pytest

from streamguard.check.observation import BUCKETS, Observation, histogram
from tests.check.faulty import DONE, chunk
from tests.check.seen import END, SSE, paced, seen


def test_times_are_those_since_the_request_left() -> None:
    run = seen((0.2, b": hb\n"), (0.5, chunk("a").encode()), (0.7, chunk("b").encode()), (0.75, END), head=0.1, end=0.8)
    assert [round(at or 0, 3) for at in (run.head, run.first_byte, run.first_token, run.last_byte, run.ended)] == [
        0.1, 0.2, 0.5, 0.75, 0.8,
    ]  # fmt: skip
    assert [round(gap, 3) for gap in run.gaps] == [0.2]
    assert round(run.usual_gap, 3) == 0.2
    assert round(run.longest_silence, 3) == 0.3
    assert round(run.tail_silence, 3) == 0.05
    assert (len(run.beats), run.text, run.clean) == (1, "ab", True)


def test_tokens_that_come_at_once_are_one_arrival() -> None:
    lump = (chunk("a") + chunk("b") + chunk("c")).encode()
    run = seen((0.1, lump), (0.1005, chunk("d").encode()), (0.4, lump), (0.4, END))
    assert run.bursts == [4, 3]
    assert seen((0.1, END)).bursts == [2]  # without any text each event counts


def test_an_answer_of_which_nothing_came_has_no_times() -> None:
    run = Observation(0.0)
    assert (run.streamed, run.api, run.guarded, run.resume, run.sid) == (False, "", False, None, None)
    assert (run.tail_silence, run.usual_gap, run.longest_silence) == (0.0, 0.0, 0.0)
    assert (run.bursts, run.first_token) == ([], None)
    run.over(3.0, clean=False, why="reset")
    assert (run.ended, run.tail_silence, run.why, run.end) == (3.0, 3.0, "reset", None)


@pytest.mark.parametrize(
    ("status", "headers", "why"),
    [
        (404, SSE, "the answer's status is 404"),
        (206, SSE, "the answer's status is 206"),
        (200, {"content-type": "application/json"}, "its content type is 'application/json', that of no stream"),
        (200, {}, "it has no content type"),
        (200, {**SSE, "content-encoding": "br"}, "the body is encoded as 'br', which cannot be read here"),
    ],
)
def test_what_is_no_stream_says_why_and_how_it_begins(status: int, headers: dict[str, str], why: str) -> None:
    run = seen((0.1, b"x" * 3000), status=status, headers=headers)
    assert (run.streamed, run.refusal, len(run.said)) == (False, why, 2000)


def test_a_compressed_answer_is_read_and_must_come_to_its_own_end() -> None:
    coded = {**SSE, "content-encoding": "gzip"}
    data = gzip.compress(chunk("a").encode() + END)
    whole = seen((0.1, data), headers=coded)
    assert (whole.text, whole.clean, whole.size) == ("a", True, len(data))
    cut = seen((0.1, data[:-9]), headers=coded)
    assert (cut.clean, cut.why) == (False, "the compressed body stops before its own end")
    damaged = seen((0.1, b"no gzip at all"), headers=coded)
    assert "damaged" in damaged.why
    assert not damaged.clean
    assert seen((0.1, zlib.compress(END)), headers={**SSE, "content-encoding": "deflate"}).clean


@pytest.mark.parametrize(
    ("version", "headers", "framed"),
    [
        ("HTTP/1.1", SSE, True),
        ("HTTP/1.1", {"content-type": "text/event-stream"}, False),
        ("HTTP/1.0", {"content-type": "text/event-stream"}, False),
        ("HTTP/1.0", {"content-type": "text/event-stream", "content-length": "9"}, True),
        ("HTTP/2", {"content-type": "text/event-stream"}, True),
    ],
)
def test_whether_the_end_of_a_body_is_more_than_that_of_its_connection(
    version: str, headers: dict[str, str], framed: bool
) -> None:
    assert seen((0.1, END), version=version, headers=headers).framed == framed


def test_events_that_are_called_text_are_read_as_events() -> None:
    run = seen((0.1, (chunk("a") + chunk(reason="stop") + DONE).encode()), headers={"content-type": "text/plain"})
    assert (run.mislabelled, run.api, run.text) == (True, "OpenAI chat completions", "a")
    text = seen((0.1, b"some "), (0.2, b"data: text"), headers={"content-type": "text/plain"})
    assert (text.mislabelled, text.text) == (False, "some data: text")


def test_the_text_that_is_kept_is_bounded() -> None:
    run = seen(*[(0.1, chunk("x" * 700_000).encode())] * 4)
    assert len(run.text) == 1_400_000


def test_a_histogram_counts_every_gap_once() -> None:
    assert histogram([]) == [0] * (len(BUCKETS) + 1)
    assert histogram([0.001, 0.0011, 0.02, 99.0]) == [1, 1, 1, 0, 0, 0, 0, 0, 1]
    assert sum(histogram(seen(*paced()).gaps)) == 23
