"""Readers of server-sent events as real clients have them, each with one fault of its own.

    UnicodeLines      cuts lines wherever Unicode has a line end
    ChunkLines        decodes each chunk by itself, and cuts it at Unicode's line ends
    LineFeedOnly      knows LF and nothing else, and blocks by splitting on a blank line
    StickyId          hands out a block without data once an id was seen
    ShortLines        refuses a line above 64 KiB
    JsonOnEverything  parses the data of every block as JSON, the empty one too
    EofIsSuccess      takes the end of bytes for the end of the answer

An encoding that these read as it was meant is read by everybody. `feed(bytes)` answers the events that it
completed, `end()` what is handed out at the end of bytes. Apart from its fault each is a conforming reader:
whoever reads right reads the same with `streamguard.core.wire.SseDecoder`.
"""

from __future__ import annotations

import codecs
import json
import re
from typing import Any, Final

import attrs

__all__ = [
    "ChunkLines",
    "Decoded",
    "EofIsSuccess",
    "JsonOnEverything",
    "LineDecoder",
    "LineFeedOnly",
    "ShortLines",
    "StickyId",
    "UnicodeLines",
]

_LINE_END: Final = re.compile("\r\n|\r|\n")
_LIMIT: Final = 64 * 1024


@attrs.frozen
class Decoded:
    """One event as a client gets it. `value` is its data parsed, where the client parses it."""

    event: str
    data: str
    id: str | None = None
    value: Any = None


class LineDecoder:
    """What the models have in common: the fields of a block, and a blank line that ends it. No fault yet."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._text = ""
        self._event = ""
        self._data: list[str] = []
        self._id: str | None = None

    def feed(self, data: bytes) -> list[Decoded]:
        """The events that `data` completes."""
        return self._events(self._lines(self._decoder.decode(data)))

    def end(self) -> list[Decoded]:
        """What the end of bytes hands out: nothing, because the last block was not ended by a blank line."""
        return []

    def _events(self, lines: list[str]) -> list[Decoded]:
        found = []
        for line in lines:
            if line:
                self._field(line)
            elif (event := self._block()) is not None:
                found.append(event)
        return found

    def _lines(self, text: str) -> list[str]:
        """The lines that `text` completes. A CR at its end waits: it may be half of a line end."""
        self._text += text
        whole = len(self._text) - self._text.endswith("\r")
        *lines, rest = _LINE_END.split(self._text[:whole])
        self._text = rest + self._text[whole:]
        return lines

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._id = value

    def _block(self) -> Decoded | None:
        """The event of the block that a blank line ended."""
        event, data, self._event, self._data = self._event, self._data, "", []
        return self._decoded(event or "message", "\n".join(data)) if data else None

    def _decoded(self, event: str, data: str) -> Decoded:
        return Decoded(event, data, self._id)


class UnicodeLines(LineDecoder):
    """Lines by `str.splitlines`: U+2028, U+2029, U+0085 and the old separators of ASCII end one too.

    Clients over `httpx.Response.iter_lines`, over `requests.Response.iter_lines(decode_unicode=True)`, and most
    that were written in an afternoon. Text after such a character is a field that nobody knows: it is lost.
    """

    def _lines(self, text: str) -> list[str]:
        self._text += text
        lines = self._text.splitlines(keepends=True)
        # The last line waits for its end, and one that ends in CR for the LF that may follow.
        self._text = lines.pop() if lines and (lines[-1].splitlines() == [lines[-1]] or lines[-1][-1] == "\r") else ""
        return [line.splitlines()[0] for line in lines]


class ChunkLines(LineDecoder):
    """Each chunk of the network decoded by itself and cut into lines by itself; each `data:` line is an event.

    Loops over `response.iter_bytes()` or `reader.read()` without a buffer. A character that the network cut
    becomes U+FFFD, a line that it cut is lost from there on, and blank lines mean nothing.
    """

    def feed(self, data: bytes) -> list[Decoded]:
        lines = data.decode("utf-8", "replace").splitlines()
        return [Decoded("message", line[6:]) for line in lines if line.startswith("data: ")]


class LineFeedOnly(LineDecoder):
    """Blocks by `split("\\n\\n")`, lines by `split("\\n")`.

    The AG-UI client, and most loops over a `fetch` body in JavaScript. Of a server that writes CR LF it reads
    nothing; a CR in a field is part of it.
    """

    def _lines(self, text: str) -> list[str]:
        self._text += text
        *blocks, self._text = self._text.split("\n\n")
        return [line for block in blocks for line in [*filter(None, block.split("\n")), ""]]


class StickyId(LineDecoder):
    """Every blank line hands out an event once an `id:` was seen, with empty data if need be.

    The decoder that the OpenAI and Anthropic Python SDKs share: what belongs to an event is reset, its id is
    not, and a block counts as empty only if it has none.
    """

    def _block(self) -> Decoded | None:
        event, data, self._event, self._data = self._event, self._data, "", []
        if not (event or data or self._id):
            return None
        return self._decoded(event or "message", "\n".join(data))


class ShortLines(LineDecoder):
    """Raises ValueError for a line above `limit` bytes, 64 KiB by default.

    Clients over `readline` of an `asyncio.StreamReader`, whose limit that is, and over its relatives.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        super().__init__()
        self._limit = limit

    def _lines(self, text: str) -> list[str]:
        lines = super()._lines(text)
        for line in [*lines, self._text]:
            if len(line.encode("utf-8", "replace")) > self._limit:
                raise ValueError(f"a line is longer than {self._limit} bytes")
        return lines


class JsonOnEverything(StickyId):
    """The data of every block is parsed as JSON, but for `[DONE]`, which ends it.

    The OpenAI SDK and its many copies. Raises ValueError (JSONDecodeError) for anything else, and so for a
    block without data: a comment and a blank line, once an id was seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.done = False

    def _block(self) -> Decoded | None:
        return None if self.done else super()._block()

    def _decoded(self, event: str, data: str) -> Decoded:
        if data.startswith("[DONE]"):
            self.done = True
            return Decoded(event, data, self._id)
        return Decoded(event, data, self._id, json.loads(data))


class EofIsSuccess(LineDecoder):
    """The answer is whole when the bytes end: nothing else is asked for.

    Twelve of fifteen client libraries that were tried. `complete` is what its user would believe. No encoding
    helps this reader; only a connection that is *aborted* does, which its HTTP library raises for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.complete = False

    def end(self) -> list[Decoded]:
        self.complete = True
        return super().end()
