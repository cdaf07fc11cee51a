"""Where a stream that was cut goes on in another connection: behind the last good frame, and nowhere else.

A server sends what follows the cursor that it was given. One that begins earlier repeats frames, and those are dropped,
if they are the same ones: the first of them may stand anywhere, each next one must follow it by number, length and
checksum, and the last must bear the very cursor that the reader has. A chain continued over the same bytes comes to
the same checksum from one beginning only, so the cursors before are the same ones too. Then a new frame must follow.
"""

from __future__ import annotations

from streamguard.core.cursor import Cursor, chain, cursor_zero
from streamguard.core.errors import CorruptStream, StreamGap

__all__ = ["Joint"]


class Joint:
    """The place behind `at`, until the first new frame is there."""

    def __init__(self, at: Cursor) -> None:
        self.at = at
        self._again = cursor_zero(at.sid)  # the last frame that came again
        self._begun = False

    def repeats(self, cursor: Cursor, name: str | None, data: bytes) -> bool:
        """Whether a frame is one that was there before, to be dropped. What this does not know is not judged.

        Raises CorruptStream for another frame of that number, StreamGap where those that came again break off.
        """
        at, last = self.at, self._again
        if cursor.sid != at.sid or not cursor.seq or last == at:
            return False
        if cursor.seq > at.seq:
            if self._begun:
                raise StreamGap(last.seq + 1, cursor.seq, cursor=at, detail="among the frames that came again")
            return False
        if self._begun or cursor.seq == 1:  # what it follows is known
            follows = (last.seq + 1, last.offset + len(data), chain(last.crc, name, None, data))
            if cursor[1:4] != follows:
                raise self._another(cursor)
        if cursor.status is not None or (cursor.seq == at.seq and cursor != at):
            raise self._another(cursor)
        self._begun = True
        self._again = cursor
        return True

    def _another(self, cursor: Cursor) -> CorruptStream:
        return CorruptStream("seq", cursor=self.at, detail=f"frame {cursor.seq} came again, and is another one")
