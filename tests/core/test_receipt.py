"""What a reader gets, as a value and in one line."""

from __future__ import annotations

import json

import attrs
import pytest

from streamguard.core.cursor import Cursor
from streamguard.core.receipt import UNREAD, AnswerFrame, Receipt, Verdict
from tests.core.wire.streams import SID


def test_a_frame_is_its_place_and_what_its_data_says() -> None:
    frame = AnswerFrame(3, "block", "é".encode(), "t", {"a": 1}, {0: "t", 1: "u"})
    assert (frame.seq, frame.name, frame.raw, frame.data, frame.text) == (3, "block", "é".encode(), "é", "t")
    assert (frame.item, frame.texts) == ({"a": 1}, {0: "t", 1: "u"})
    assert repr(frame) == "AnswerFrame(3, 'block', 'é')"
    plain = AnswerFrame(1, None, b'"a"', "a")
    assert (plain.item, plain.texts) == (None, None)


def test_data_that_is_no_utf8_is_shown_with_replacement_characters() -> None:
    assert AnswerFrame(0, None, b"a\xff", "").data == "a\ufffd"


def test_json_that_nothing_needed_so_far_is_parsed_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    loads = json.loads
    monkeypatch.setattr("json.loads", lambda text: parsed.append(text) or loads(text))
    frame = AnswerFrame(1, None, b'{"a":[1]}', "", UNREAD)
    assert parsed == []
    assert frame.item == {"a": [1]}
    assert frame.item is frame.item
    assert parsed == ['{"a":[1]}']


def test_the_verdicts_are_six() -> None:
    assert [verdict.value for verdict in Verdict] == [
        "complete", "truncated", "corrupt", "gap", "failed", "unverified",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("receipt", "line"),
    [
        (Receipt(Verdict.COMPLETE, frames=12, crc=0xAB), "COMPLETE, 12 frames, crc 000000ab"),
        (Receipt(Verdict.CORRUPT, code="seq", frames=2, crc=1), "CORRUPT (seq), 2 frames, crc 00000001"),
        (Receipt(Verdict.UNVERIFIED, proved_by="marker"), "UNVERIFIED, proved by marker"),
        (Receipt(Verdict.TRUNCATED), "TRUNCATED"),
        (Receipt(Verdict.COMPLETE, frames=1, crc=0), "COMPLETE, 1 frames, crc 00000000"),
        (Receipt(Verdict.COMPLETE, frames=2, crc=0, resumes=1), "COMPLETE, 2 frames, crc 00000000, 1 resume"),
        (Receipt(Verdict.GAP, frames=2, crc=0, resumes=2, duplicates=9), "GAP, 2 frames, crc 00000000, 2 resumes"),
    ],
)
def test_a_receipt_in_one_line(receipt: Receipt, line: str) -> None:
    assert str(receipt) == line


def test_a_receipt_cannot_be_altered_and_begins_empty() -> None:
    receipt = Receipt(Verdict.TRUNCATED)
    assert attrs.asdict(receipt) == {
        "verdict": Verdict.TRUNCATED, "status": None, "code": None, "frames": 0, "bytes": 0, "crc": None,
        "cursor": None, "finish_reason": None, "usage": None, "failure": None, "proved_by": None,
        "first_frame": None, "longest_gap": None, "duration": None, "resumes": 0, "duplicates": 0,
    }  # fmt: skip
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        receipt.frames = 1  # type: ignore[misc]
    assert Receipt(Verdict.GAP, cursor=Cursor(SID, 1, 2, 3)).cursor == Cursor(SID, 1, 2, 3)
