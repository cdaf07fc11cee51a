"""Heartbeats: what they look like, and that they never stand inside an event."""

from __future__ import annotations

import json

import pytest

from streamguard.core.dialect import Raw
from streamguard.core.wire import Sse, SseDecoder
from tests.scenarios.stacks import chat_chunk, pipeline, read

CHUNK = json.dumps(chat_chunk("x")).encode()
END = [json.dumps(chat_chunk(finish="stop")).encode(), b"[DONE]"]


def test_retry_and_id_without_data_are_state_and_no_event() -> None:
    decoder = SseDecoder()
    events = decoder.feed(b"retry: 1000\n\nid: 5\n\ndata: x\n\n")
    assert [event.data for event in events] == ["x"]
    assert (decoder.retry, decoder.last_event_id) == (1000, "5")


def test_the_default_heartbeat_needs_no_parsing() -> None:
    pipe = pipeline()
    pipe.open()
    beat = pipe.heartbeat()
    assert SseDecoder().feed(beat + b"\n") == []
    assert beat.endswith(b"\n")
    assert b"\n\n" not in beat  # a blank line would be a block without data, which some SDKs parse


def test_the_named_heartbeat_carries_json() -> None:
    pipe = pipeline(wire=Sse(heartbeat="ping"))
    pipe.open()
    (event,) = SseDecoder().feed(pipe.heartbeat())
    assert event.event == "ping"
    assert json.loads(event.data) == {"cursor": str(pipe.cursor)}


@pytest.mark.parametrize("noise", [b": ping\n\n", b":\n\n", b": keep-alive\n", b"event: x\n\n", b"data:\n\n"])
def test_comments_of_an_upstream_never_become_data(noise: bytes) -> None:
    pipe = pipeline(dialect=Raw())
    body = pipe.open()
    for data in (CHUNK, *END):
        body += pipe.push(noise, 0.0) + pipe.push(noise + b"data: %b\n\n" % data, 0.0)
    body += pipe.finish(0.0)
    assert [event.data for event in SseDecoder().feed(body) if event.data] == [
        data.decode() for data in (CHUNK, *END)
    ]
    reading = read([body], dialect=Raw())
    assert reading.text == "x"
    assert reading.complete


def test_events_without_data_are_skipped() -> None:
    body = b"data: %b\n\ndata:\n\nevent: ping\ndata: \n\n" % CHUNK
    body += b"".join(b"data: %b\n\n" % data for data in END)
    reading = read([body])
    assert reading.text == "x"
    assert reading.complete


def test_an_empty_comment_is_ignored() -> None:
    assert SseDecoder().feed(b":\n\n") == []
    comments: list[str] = []
    SseDecoder(on_comment=comments.append).feed(b":\n\n:beat\n")
    assert comments == ["", "beat"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(b"event: x\n", b"data: %b\n\n" % CHUNK, id="between the name and the data"),
        pytest.param(b"data: %b" % CHUNK[:9], CHUNK[9:] + b"\n\n", id="inside a data line"),
        pytest.param(b"data: %b\n" % CHUNK, b"\n", id="before the blank line"),
    ],
)
def test_a_heartbeat_of_a_relay_stands_only_between_events(before: bytes, after: bytes) -> None:
    """The upstream pauses inside an event for longer than the interval."""
    pipe = pipeline(dialect=Raw())
    body = pipe.open() + pipe.push(before, 0.0) + pipe.heartbeat() + pipe.push(after, 0.0)
    body += b"".join(pipe.push(b"data: %b\n\n" % data, 0.0) for data in END) + pipe.finish(0.0)
    assert [event.data for event in SseDecoder().feed(body)] == [data.decode() for data in (CHUNK, *END)]
    assert read([body], dialect=Raw()).complete


def test_a_padded_heartbeat_fills_two_kilobytes_and_is_not_the_default() -> None:
    padded, plain = pipeline(wire=Sse(heartbeat="padded")), pipeline()
    opening = padded.open()
    plain.open()
    beat = padded.heartbeat()
    assert len(beat) >= 2048
    assert len(plain.heartbeat()) < 128
    assert read([opening, beat, padded.push("a", 0.0), beat, padded.finish(0.0)]).complete
