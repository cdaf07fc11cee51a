"""What a terminal frame says of its stream: the summary in it or beside it, as a reader takes it.

`native` has it in the data of `end`; the dialects of the SDKs, whose terminals have no room for more, beside it with a
checksum of its own; in `raw` it is either, or there is none. Where a dialect always has one, its loss is a fault.

`last_frames` has the blocks that the end makes whole: calls that nothing closed before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final
from zlib import crc32

from streamguard.core.cursor import Cursor
from streamguard.core.dialect.base import DialectReader, blocks_at_end
from streamguard.core.errors import CorruptStream, Failure
from streamguard.core.frame import Frame
from streamguard.core.receipt import AnswerFrame
from streamguard.core.wire.base import Received

__all__ = ["SUMMARY_BESIDE", "failure_beside", "failure_in", "last_frames", "read_summary"]

SUMMARY_BESIDE: Final = ("openai", "openai-responses", "anthropic", "ui", "ag-ui")  # those that foreign SDKs read


def read_summary(
    record: Received, cursor: Cursor, dialect: str | None, after: Cursor | None
) -> Mapping[str, Any] | None:
    """The summary of the terminal `record` at `cursor`, where its dialect has a place for that; `after` is the last
    good cursor. Raises CorruptStream."""
    inside = record.name == "end" and dialect not in SUMMARY_BESIDE
    text = record.data.decode("utf-8", "replace") if inside else None
    if record.extra is not None and dialect != "native":
        check, _, text = record.extra.partition(" ")
        if check != f"{crc32(text.encode('utf-8', 'replace'), cursor.crc):08x}":
            raise CorruptStream(
                "checksum", cursor=after, detail="the summary beside the terminal does not match its checksum"
            )
    if text is None:
        if dialect == "native" or dialect in SUMMARY_BESIDE:
            raise CorruptStream("guard_stripped", cursor=after, detail="the terminal came without its summary")
        return None
    try:
        summary = json.loads(text)
    except (ValueError, RecursionError):
        summary = None
    if isinstance(summary, dict) and summary.keys() >= {"status", "frames", "bytes"}:
        if dialect is None and record.extra is None:
            detail = "a stream of `native` came without its `open` event"
            raise CorruptStream("guard_stripped", cursor=after, detail=detail)
        return summary
    if dialect in ("raw", None) and record.extra is None:
        return None  # the source's own last event happens to be named so
    raise CorruptStream("grammar", cursor=after, detail="the terminal's summary is none")


def failure_in(summary: Mapping[str, Any] | None) -> Failure | None:
    """The failure that a summary tells of."""
    error = summary.get("error") if summary is not None else None
    if not isinstance(error, dict):
        return None
    return Failure(
        str(error.get("code")),
        str(error.get("message")),
        bool(error.get("retryable")),
        bool(error.get("resumable")),
    )


def failure_beside(frame: Frame) -> Failure | None:
    """The failure that the summary beside the data of a terminal tells of; of a frame of ours, which is not checked."""
    return None if frame.extra is None else failure_in(json.loads(frame.extra.partition(b" ")[2]))


def last_frames(reader: DialectReader, seq: int = 0, name: str | None = None, data: bytes = b"") -> list[AnswerFrame]:
    """One frame with the blocks that a proven end makes whole, if any: the terminal, where there is one."""
    blocks = blocks_at_end(reader, data.decode("utf-8", "replace"))
    return [AnswerFrame(seq, name, data, "", None, None, blocks)] if blocks else []
