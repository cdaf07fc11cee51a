"""What a reader keeps for a reconnect. Resuming itself needs a log."""

from __future__ import annotations

from streamguard.core.wire import SseDecoder


def test_an_empty_id_clears_the_cursor_and_an_absent_one_keeps_it() -> None:
    decoder = SseDecoder()
    seen = [event.last_event_id for event in decoder.feed(b"id: 1\ndata: a\n\nid:\ndata: b\n\ndata: c\n\n")]
    assert seen == ["1", "", ""]
    assert [event.last_event_id for event in SseDecoder().feed(b"id: 1\ndata: a\n\ndata: b\n\n")] == ["1", "1"]


def test_an_id_with_nul_is_ignored() -> None:
    decoder = SseDecoder()
    decoder.feed(b"id: 1\ndata: a\n\nid: 2\x00\ndata: b\n\n")
    assert decoder.last_event_id == "1"
