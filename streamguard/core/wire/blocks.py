"""The lines and blocks of server-sent events (WHATWG HTML, sections 9.2.5 and 9.2.6), in any chunking.

A chunk is split once, on LF, after CR and CRLF became LF; an unfinished line waits in a list and is
joined once, so the work is linear however the bytes are cut. `str.splitlines()` would be shorter and
wrong: it cuts at U+2028, U+2029, U+0085 and more.

What a comment and a block become is the business of the subclasses in `sse`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, Generic, TypeVar

from streamguard.core.errors import FrameTooLarge

__all__ = ["Blocks"]

_MAX_DIGITS: Final = 100  # of a reconnection time; int() is quadratic in their number

T = TypeVar("T")


class Blocks(ABC, Generic[T]):
    """Bytes to blocks: lines, fields, limits. Subclasses say what a comment and a block become.

    `max_frame` limits one block's data, in bytes; `lenient` takes the end of bytes for a blank line.
    """

    def __init__(self, max_frame: int, lenient: bool) -> None:
        self.retry: int | None = None
        self.last_event_id = ""
        self.max_frame = max_frame
        self.lenient = lenient
        self._limit = max_frame + 1024  # room for the field names and the other fields of a block
        self._bom: bytes | None = b""  # what may still become a byte-order mark; None once decided
        self._after_cr = False
        self._line: list[bytes] = []
        self._size = 0
        self._too_large: FrameTooLarge | None = None
        self._out: list[T] = []
        self._data: list[bytes] = []
        self._event = b""
        self._id: str | None = None
        self._retry: int | None = None
        self._comments: list[str] = []

    def feed(self, data: bytes) -> list[T]:
        """What `data` completes."""
        if self._too_large is not None:
            raise self._too_large
        if self._bom is not None:
            data = self._strip_bom(data)
        if self._after_cr and data:
            self._after_cr = False
            if data[0] == 10:
                data = data[1:]
        if 13 in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return self._lines(data.split(b"\n"))

    def end(self) -> list[T]:
        """End of bytes: what is unfinished is dropped, as the standard says, unless `lenient`."""
        if self._too_large is not None:
            raise self._too_large
        if not self.lenient:
            return []
        return self._lines([b"", b"", b""] if self._line else [b"", b""])

    @property
    def unfinished(self) -> bool:
        """Whether the bytes so far end inside an event. A comment is none."""
        begun = self._data or self._event or self._id is not None
        return bool(begun) or (bool(self._line) and not self._line[0].startswith(b":"))

    def _comment(self, text: str) -> None:
        """A comment's line has ended; `text` is what follows its colon."""
        self._comments.append(text)
        self._size += len(text) + 1

    @abstractmethod
    def _dispatch(self, event: bytes, data: bytes) -> None:
        """A block with data has ended; append what it becomes to `_out`."""
        ...

    def _strip_bom(self, data: bytes) -> bytes:
        # Only one leading mark is removed, and it may come a byte at a time.
        head = (self._bom or b"") + data
        if len(head) < 3 and b"\xef\xbb\xbf".startswith(head):
            self._bom = head
            return b""
        self._bom = None
        return head.removeprefix(b"\xef\xbb\xbf")

    def _lines(self, lines: list[bytes]) -> list[T]:
        last = lines.pop()
        if lines and self._line:
            self._size -= sum(map(len, self._line))  # counted while the line was unfinished
            self._line.append(lines[0])
            lines[0] = b"".join(self._line)
            self._line.clear()
        out: list[T] = []
        self._out = out
        for line in lines:
            if not line:
                if self._size:
                    self._blank()
                    if self._too_large is not None:
                        return self._refuse(self._too_large)
            elif self._size + len(line) > self._limit:
                return self._refuse(FrameTooLarge(self._size + len(line), self.max_frame))
            elif line[:6] == b"data: ":
                self._data.append(line[6:])
                self._size += len(line) - 5
            else:
                self._other(line)
        if last:
            self._line.append(last)
            self._size += len(last)
            if self._size > self._limit:
                return self._refuse(FrameTooLarge(self._size, self.max_frame))
        return out

    def _refuse(self, error: FrameTooLarge) -> list[T]:
        """What was good is handed out, and every later call raises."""
        self._too_large = error
        if not self._out:
            raise error
        return self._out

    def _other(self, line: bytes) -> None:
        # Only what is kept counts: heartbeats without a blank line must not add up to a large frame.
        name, colon, value = line.partition(b":")
        if not name and colon:
            self._comment(value.decode("utf-8", "replace"))
            return
        if value[:1] == b" ":
            value = value[1:]
        if name == b"data":
            self._data.append(value)
            self._size += len(value) + 1
        elif name == b"id" and 0 not in value:
            self._id = value.decode("utf-8", "replace")
            self._size += len(line)
        elif name == b"event":
            self._event = value
            self._size += len(line)
        elif name == b"retry" and value.isdigit() and len(value) <= _MAX_DIGITS:
            self._retry = self.retry = int(value)
            self._size += len(line)

    def _blank(self) -> None:
        if self._id is not None:
            self.last_event_id = self._id
        if self._data:
            data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
            if len(data) > self.max_frame:
                self._too_large = FrameTooLarge(len(data), self.max_frame)
                return
            self._dispatch(self._event, data)
            self._data.clear()
        self._event = b""
        self._id = self._retry = None
        self._size = 0
        if self._comments:
            self._comments = []
