"""Streams recorded from real servers: read by their own markers, and passed through `raw`.

`index.json` has a row a file: the text and reason of every choice, and the verdict that a careful client
reaches. Rows with the verdict `http_error` are answers that are no streams.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streamguard.core.dialect import Raw
from streamguard.core.errors import FailedStream
from streamguard.core.receipt import Verdict
from streamguard.core.wire import Binary, Ndjson, Sse, SseDecoder, Wire
from tests.core.wire.streams import SID, Answer, chunkings, read, written

FOLDER = Path(__file__).parents[1] / "cases" / "recorded"
ROWS: list[dict[str, Any]] = [
    row for row in json.loads((FOLDER / "index.json").read_text(encoding="utf-8")) if row["verdict"] != "http_error"
]
VERDICTS = {"complete": Verdict.UNVERIFIED, "truncated": Verdict.TRUNCATED, "failed": Verdict.FAILED}

every = pytest.mark.parametrize("row", ROWS, ids=lambda row: row["file"].removesuffix(".sse"))


def recorded(row: dict[str, Any]) -> bytes:
    return (FOLDER / row["file"]).read_bytes()


def dialect(row: dict[str, Any]) -> Raw:
    return Raw(profile="transformers") if row["server"].startswith("transformers") else Raw()


def texts(row: dict[str, Any]) -> dict[int, str]:
    return {int(choice): text for choice, text in row["text"].items() if text}


def events(data: bytes) -> list[tuple[str, str]]:
    return [(event.event, event.data) for event in SseDecoder().feed(data)]


def test_the_recordings_are_all_here() -> None:
    assert len(ROWS) == 106
    assert [row["verdict"] for row in ROWS].count("complete") == 99
    assert {row["file"] for row in ROWS} <= {path.name for path in FOLDER.iterdir()}
    for row in ROWS:
        assert len(recorded(row)) == row["bytes"]


@every
def test_a_recording_is_read_with_the_verdict_and_the_text_of_a_careful_client(row: dict[str, Any]) -> None:
    data = recorded(row)
    clean = row["http_end"] == "clean"
    first = read(data, dialect=dialect(row), clean=clean)
    assert len(SseDecoder().feed(data)) == row["events"]
    for chunks in chunkings(data):
        answer = read(chunks, dialect=dialect(row), clean=clean)
        assert answer.verdict is VERDICTS[row["verdict"]]
        if row["text"]:
            assert answer.texts == texts(row)
        assert answer.receipt == first.receipt
    reasons = {int(choice): reason for choice, reason in row["finish"].items() if reason != "failed"}
    found = first.receipt.finish_reason
    if isinstance(found, dict):
        assert {int(choice): reason for choice, reason in found.items()} == reasons
    elif row["api"] not in ("openai-responses", "anthropic-messages"):
        assert found == reasons.get(0)
    if row["verdict"] == "complete":
        assert first.receipt.proved_by == ("marker+reason" if _marked(row) else "framing")
    else:
        assert first.receipt.proved_by is None


def _marked(row: dict[str, Any]) -> bool:
    return row["done_marker"] or row["api"] in ("openai-responses", "anthropic-messages")


def assert_passed_through(row: dict[str, Any], chunks: list[bytes], wire: Wire) -> Answer:
    parts = written(chunks, dialect(row), wire)
    answer = read(parts, dialect=dialect(row), wire=wire)
    if row["text"]:
        assert answer.texts == texts(row)
    if row["verdict"] == "complete":
        assert answer.verdict is Verdict.COMPLETE
    else:
        assert answer.verdict is Verdict.FAILED
        assert isinstance(answer.error, FailedStream)
    return answer


@every
def test_a_recording_passes_through_with_the_same_payload(row: dict[str, Any]) -> None:
    data = recorded(row)
    source = events(data)
    whole, _, halves, _, _, pieces = chunkings(data)
    for chunks in (whole, halves, pieces):
        answer = assert_passed_through(row, chunks, Sse())
        out = events(b"".join(written(chunks, dialect(row), Sse())))
        if row["verdict"] == "complete":
            assert out == source
        elif row["verdict"] == "failed":
            # A marker after an error is a lie, and is not passed on; the error stays the end.
            assert out == [event for event in source if event[1] != "[DONE]"]
        else:
            assert out[: len(source)] == source
            failure = [json.loads(text) for _, text in out[len(source) :]]
            assert "error" in failure[-1]
            assert len(failure) == (2 if row["api"] == "openai-responses" else 1)
            assert answer.code == "unproven_end"


@every
@pytest.mark.parametrize("wire", [Sse(ids="id"), Ndjson(), Binary()], ids=["id", "ndjson", "binary"])
def test_a_recording_passes_through_in_every_carrier(row: dict[str, Any], wire: Wire) -> None:
    assert_passed_through(row, [recorded(row)], wire)


@every
def test_a_recording_cut_at_an_events_edge_is_never_taken_for_the_whole(row: dict[str, Any]) -> None:
    data = recorded(row)
    edges = [at + 2 for at in range(len(data)) if data.startswith((b"\n\n", b"\r\n\r\n"), at)]
    last = max(at for at, (name, text) in enumerate(events(data)) if text.strip())
    whole = None
    for edge in sorted({0, *edges[:20], *edges[-20:], *edges[:: max(1, len(edges) // 40)]}):
        cut = data[:edge]
        count = len(events(cut))
        answer = read(cut, dialect=dialect(row))
        through = read(written([cut], dialect(row), Sse()), dialect=dialect(row))
        if count > last or _proved(row, cut):
            whole = answer.verdict
            continue
        assert answer.verdict in (Verdict.TRUNCATED, Verdict.FAILED)
        assert through.verdict is Verdict.FAILED
    assert whole is not Verdict.TRUNCATED or row["verdict"] == "truncated"


def _proved(row: dict[str, Any], cut: bytes) -> bool:
    """Whether a part of a recording is whole by its server's own rule: reasons for all that began, or a marker."""
    if dialect(row) == Raw() or row["api"] in ("openai-responses", "anthropic-messages"):
        markers = ("[DONE]", "response.completed", "response.incomplete", "message_stop")
        return any(text == "[DONE]" or name in markers for name, text in events(cut)) or any(
            json.loads(text).get("type") in markers for _, text in events(cut) if text.startswith("{")
        )
    begun, reasons = set(), set()
    for _, text in events(cut):
        for choice in json.loads(text).get("choices", []) if text.startswith("{") else []:
            begun.add(choice["index"])
            if choice.get("finish_reason"):
                reasons.add(choice["index"])
    return bool(begun) and begun <= reasons


def test_a_guarded_recording_cut_at_every_frame_is_truncated() -> None:
    row = next(row for row in ROWS if row["file"] == "lcp_chat_stop.sse")
    blocks = b"".join(written([recorded(row)], Raw(), Sse())).split(b"\n\n")
    for count in range(len(blocks) - 1):
        assert read(b"".join([block + b"\n\n" for block in blocks[:count]]), dialect="raw").verdict is Verdict.TRUNCATED
    assert SID.encode() in blocks[0]
