"""Going on with a stream whose process is gone.

Whoever reads such a stream takes its lease and asks the application's *resumer*, which answers where the text goes on:

    Continue(source)    behind all that the log has: the source makes what is missing, and nothing else. For a model
                        that is asked to go on from the text so far.
    Replay(source)      the source makes the whole again, or all behind the checkpoint that it was given. What the log
                        has is compared with it, text and blocks, and only what lies beyond is new. For a source that
                        makes the same each time.

Nothing else will do. With the position left open text would stand twice, or be missing, in an answer that is sealed as
complete; and a source that makes another text than before is found out (`diverged`) instead of being appended.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import attrs

from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.dialect import Dialect
from streamguard.core.errors import SourceFailed
from streamguard.core.frame import Frame
from streamguard.core.items import Block, Checkpoint, Finish, Item, TextIntake
from streamguard.log.base import StreamInfo, StreamLog, StreamState
from streamguard.runtime.source import Producer, TokenSource

__all__ = ["Continue", "Orphan", "Replay", "Resumer", "frames_of", "orphan", "taken_up"]

DIVERGED: Final = "the source makes another text than the one that was sent before its process died"
Part = str | Block


@attrs.frozen
class Continue:
    """`source` yields what comes behind the log's tail."""

    source: Producer


@attrs.frozen
class Replay:
    """`source` yields what came before again: from the start, or with `from_checkpoint` from the last checkpoint."""

    source: Producer
    from_checkpoint: bool = False


@attrs.frozen
class Orphan:
    """A stream that nobody generates, as its resumer sees it.

    `info` is what its start fixed, `tail` where it stands, `checkpoint` the last state that its source gave (None: it
    gave none), `text_after` the text that came behind that state, `parts` all text and blocks so far, in order.
    """

    info: StreamInfo
    tail: Cursor
    checkpoint: Any
    parts: tuple[Part, ...]
    parts_after: tuple[Part, ...]

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join([part for part in self.parts if isinstance(part, str)])

    @property
    def text_after(self) -> str:
        """The text behind the checkpoint; all of it where there is none."""
        return "".join([part for part in self.parts_after if isinstance(part, str)])


Resumer = Callable[[Orphan], Any]


async def frames_of(log: StreamLog, after: Cursor, tail: Cursor) -> list[Frame]:
    """The frames behind `after`, up to `tail`."""
    frames: list[Frame] = []
    while after.seq < tail.seq:
        page = await log.read(after)
        if not page:
            break
        frames += page
        last = page[-1]
        after = Cursor(after.sid, last.seq, last.offset, last.crc)
    return frames


async def orphan(log: StreamLog, state: StreamState, dialect: Dialect) -> tuple[Orphan, list[Frame]]:
    """What a resumer is told, and all frames so far. Raises CursorTrimmed where the log does not have them any more."""
    frames = await frames_of(log, cursor_zero(state.info.sid), state.tail)
    at = state.checkpoint
    behind = [frame for frame in frames if at is None or frame.seq > at.at.seq]
    found = None if at is None else json.loads(at.state)
    parts, after = tuple(_parts(frames, dialect)), tuple(_parts(behind, dialect))
    return Orphan(state.info, state.tail, found, parts, after), frames


def _parts(frames: list[Frame], dialect: Dialect) -> list[Part]:
    """What frames say, as a source would yield it: adjacent text as one piece."""
    reader = dialect.reader()
    parts: list[Part] = []
    for frame in frames:
        reading = reader.read(frame.name, frame.data.decode())
        text = reading if isinstance(reading, str) else reading.text if reading is not None else ""
        if text and parts and isinstance(parts[-1], str):
            parts[-1] += text
        elif text:
            parts.append(text)
        if reading is not None and not isinstance(reading, str) and isinstance(reading.item, Block):
            parts.append(reading.item)
    return parts


def taken_up(answer: object, orphan: Orphan) -> TokenSource:
    """The source to go on with. Raises TypeError for an answer that does not say where it begins."""
    if isinstance(answer, Continue):
        return TokenSource(answer.source)
    if isinstance(answer, Replay):
        expected = orphan.parts_after if answer.from_checkpoint else orphan.parts
        return TokenSource(_beyond(TokenSource(answer.source), list(expected)))
    raise TypeError(f"a resumer answers Continue(source) or Replay(source), not {type(answer).__name__}")


async def _beyond(source: TokenSource, expected: list[Part]) -> AsyncIterator[Item]:
    """What `source` yields beyond what is expected of it. Raises SourceFailed where it differs."""
    intake = TextIntake()
    expected.reverse()  # the next one is the last
    async with source:
        async for item in source:
            if not expected:
                yield item
            elif isinstance(item, (str, bytes)):
                text = intake.text(item) if isinstance(item, str) else intake.bytes(item)
                rest = _matched(text, expected)
                if rest:
                    yield rest
            elif isinstance(item, Block):
                if expected.pop() != item:
                    raise SourceFailed("diverged", DIVERGED)
            elif not isinstance(item, (Finish, Checkpoint)):
                raise TypeError(f"Replay compares text and blocks, and the source yielded {type(item).__name__}")
        if expected:
            raise SourceFailed("diverged", DIVERGED)


def _matched(text: str, expected: list[Part]) -> str:
    """What of `text` lies beyond the expected text."""
    head = expected[-1]
    if not isinstance(head, str):
        if text:
            raise SourceFailed("diverged", DIVERGED)
        return ""
    if len(text) < len(head):
        if not head.startswith(text):
            raise SourceFailed("diverged", DIVERGED)
        expected[-1] = head[len(text) :]
        return ""
    if not text.startswith(head):
        raise SourceFailed("diverged", DIVERGED)
    expected.pop()
    rest = text[len(head) :]
    if rest and expected:
        raise SourceFailed("diverged", DIVERGED)
    return rest
