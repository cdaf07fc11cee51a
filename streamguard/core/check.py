"""What is wrong with a frame that is not the one expected.

The checks are made in a fixed order (sid, seq, length, checksum), so that the same fault has the same name however the
bytes were cut. Two names say more than the check that failed: frames that are missing are a gap, and data that is the
same JSON in other words was rewritten by something between.
"""

from __future__ import annotations

import json

from streamguard.core.cursor import Cursor, chain
from streamguard.core.errors import CorruptStream, StreamGap
from streamguard.core.jsontext import dumps

__all__ = ["check_frame"]


def check_frame(after: Cursor, cursor: Cursor, name: str | None, data: bytes) -> None:
    """Compare a frame with its `cursor`; the chain is continued from `after`, the last good one.

    Raises CorruptStream, StreamGap.
    """
    if cursor.sid != after.sid:
        raise CorruptStream("sid", cursor=after, detail=f"it belongs to stream {cursor.sid}")
    if cursor.seq <= after.seq:
        raise CorruptStream("seq", cursor=after, detail=f"frame {cursor.seq} came after frame {after.seq}")
    if cursor.seq > after.seq + 1:
        raise StreamGap(after.seq + 1, cursor.seq, cursor=after)
    right = after.offset + len(data) == cursor.offset
    if right and chain(after.crc, name, cursor.status, data) == cursor.crc:
        return
    if _was_reframed(after, cursor, name, data):
        detail = "something between rewrote the data: pass it through unchanged"
        raise CorruptStream("reframed", cursor=after, detail=detail)
    if not right:
        detail = f"{len(data)} bytes came, {cursor.offset - after.offset} were sent"
        raise CorruptStream("length", cursor=after, detail=detail)
    raise CorruptStream("checksum", cursor=after)


def _was_reframed(after: Cursor, cursor: Cursor, name: str | None, data: bytes) -> bool:
    """Whether the data is the same JSON as was sent, written differently by something between."""
    try:
        again = dumps(json.loads(data))
    except (ValueError, RecursionError):
        return False
    sent = after.offset + len(again) == cursor.offset
    return sent and again != data and chain(after.crc, name, cursor.status, again) == cursor.crc
