"""Going on with a stream whose process is gone.

Whoever reads such a stream takes its lease and asks the application's *resumer*, which answers where the text goes on:

    Continue(source)    behind all that the log has: the source makes what is missing, and nothing else. For a model
                        that is asked to go on from the text so far.
    Replay(source)      the source makes the whole again, or all behind the checkpoint that it was given. What the log
                        has is compared with it, text and blocks, and only what lies beyond is new. For a source that
                        makes the same each time.

Nothing else will do. With the position left open text would stand twice, or be missing, in an answer that is sealed as
complete; and a source that makes another text than before is found out (`diverged`) instead of being appended.

What is compared is what a reader is given. A block is sent through its dialect first: in `openai` it is a chunk. In a
dialect whose text and blocks are several events each, they are put together again: text and blocks are compared.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.dialect import Dialect, DialectEncoder, DialectReader
from streamguard.core.errors import SourceFailed
from streamguard.core.frame import Frame
from streamguard.core.items import Block, Checkpoint, Ending, Finish, Item, TextIntake
from streamguard.log.base import StreamInfo, StreamLog, StreamState
from streamguard.runtime.source import Producer, TokenSource

__all__ = ["Continue", "Orphan", "Replay", "Resumer", "frames_of", "orphan", "said", "taken_up"]

DIVERGED: Final = "the source makes another text than the one that was sent before its process died"
Part = str | Block | Mapping[str, Any]


def _source(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    try:
        TokenSource(value)
    except TypeError as exc:
        raise TypeError(f"{type(instance).__name__}(source): {exc}") from None


@attrs.frozen
class Continue:
    """`source` yields what comes behind the log's tail."""

    source: Producer = attrs.field(validator=_source)


@attrs.frozen
class Replay:
    """`source` yields what came before again: from the start, or with `from_checkpoint` from the last checkpoint."""

    source: Producer = attrs.field(validator=_source)
    from_checkpoint: bool = False


@attrs.frozen
class Orphan:
    """A stream that nobody generates, as its resumer sees it.

    `info` is what its start fixed, `tail` where it stands, `checkpoint` the last state that its source gave (None: it
    gave none) and `since` the position of that (the start, without). `parts` are all text and blocks so far, in order,
    each as a reader is given it, `parts_after` those behind the checkpoint.
    """

    info: StreamInfo
    tail: Cursor
    checkpoint: Any
    since: Cursor
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
    zero = cursor_zero(state.info.sid)
    frames = await frames_of(log, zero, state.tail)
    since, checkpoint = zero, None
    if state.checkpoint is not None:
        since, checkpoint = state.checkpoint.at, json.loads(state.checkpoint.state)
    behind = [frame for frame in frames if frame.seq > since.seq]
    parts, after = tuple(_parts(frames, dialect)), tuple(_parts(behind, dialect))
    return Orphan(state.info, state.tail, checkpoint, since, parts, after), frames


def _parts(frames: Sequence[Frame], dialect: Dialect) -> list[Part]:
    """What frames say: adjacent text as one piece, and what is no text."""
    reader = dialect.reader()
    whole = _in_pieces(dialect.encoder())
    parts: list[Part] = []
    for frame in frames:
        part = said(reader, frame.name, frame.data, whole)
        if isinstance(part, str) and parts and isinstance(parts[-1], str):
            parts[-1] += part
        elif part is not None:
            parts.append(part)
    return parts


def said(reader: DialectReader, name: str | None, data: bytes, whole: bool = False) -> Part | None:
    """What the data of one frame says: its text if it has any, else the item that it is; with `whole` the block that
    it completes."""
    reading = reader.read(name, data.decode())
    if reading is None or isinstance(reading, str):
        return reading or None
    if whole:
        return reading.text or next(iter(reading.blocks), None)
    return reading.text or reading.item


def _in_pieces(encoder: DialectEncoder) -> bool:
    """Whether a text or block of this dialect is several frames."""
    return encoder.text is None


def taken_up(answer: object, orphan: Orphan, frames: Sequence[Frame], dialect: Dialect) -> TokenSource:
    """The source to go on with. Raises TypeError for an answer that does not say where it begins."""
    if isinstance(answer, Continue):
        return TokenSource(answer.source)
    if isinstance(answer, Replay):
        expected, before = orphan.parts, 0
        if answer.from_checkpoint:
            expected, before = orphan.parts_after, orphan.since.seq
        compared = _Comparison(expected, dialect, frames[:before])
        return TokenSource(_beyond(TokenSource(answer.source), compared))
    raise TypeError(f"a resumer answers Continue(source) or Replay(source), not {type(answer).__name__}")


async def _beyond(source: TokenSource, compared: _Comparison) -> AsyncIterator[Item]:
    """What `source` yields beyond what is expected of it. Raises SourceFailed where it differs."""
    async with source:
        async for item in source:
            if compared.over:
                yield item
                continue
            for rest in compared.take(item):
                yield rest
    for rest in compared.end():
        yield rest


class _Comparison:
    """What a source yields, against what is in the log; it hands out what lies beyond that.

    `before` are the frames that stand before what is expected. Raises SourceFailed where the source differs.
    """

    def __init__(self, expected: Sequence[Part], dialect: Dialect, before: Sequence[Frame]) -> None:
        self._expected = [*expected][::-1]  # the next one is the last
        self._intake = TextIntake()
        self._encoder = dialect.encoder()
        self._reader = dialect.reader()
        self._ending = Ending()
        self._whole = _in_pieces(self._encoder)
        for frame in before:
            self._encoder.follow(frame.name, frame.data, self._ending)

    @property
    def over(self) -> bool:
        """Whether all was compared, and nothing is held."""
        return not self._expected and not self._intake.torn

    def take(self, item: Item) -> list[Item]:
        if isinstance(item, str):
            return self._text(self._intake.text(item))
        if isinstance(item, bytes):
            return self._text(self._intake.bytes(item))
        if isinstance(item, Finish) and item.reason is None:
            return [item]  # usage on the way, which tears no character
        if isinstance(item, Checkpoint) and self._intake.torn:
            return []  # as the stream's own stage does
        out = self._text(self._intake.end())
        if not self._expected or isinstance(item, Finish):  # a second Finish of a choice says the same
            return [*out, item]
        if isinstance(item, Block):
            self._block(item)
        elif not isinstance(item, Checkpoint):  # which is behind what the log has, and of no use there
            raise TypeError(f"Replay compares text and blocks, and the source yielded {type(item).__name__}")
        return out

    def end(self) -> list[Item]:
        """What is held at the source's end. Raises SourceFailed where it ended too early."""
        out = self._text(self._intake.end())
        if self._expected:
            raise SourceFailed("diverged", DIVERGED)
        return out

    def _text(self, text: str) -> list[Item]:
        """What of `text` lies beyond the expected text."""
        if not text or not self._expected:
            return [text] if text else []
        head = self._expected.pop()
        if not isinstance(head, str):
            raise SourceFailed("diverged", DIVERGED)
        length = min(len(text), len(head))
        if text[:length] != head[:length]:
            raise SourceFailed("diverged", DIVERGED)
        if (write := self._encoder.text) is not None:
            write(text[:length])  # the first text of all may have a form of its own
        if head[length:]:
            self._expected.append(head[length:])
        rest = text[length:]
        if rest and self._expected:
            raise SourceFailed("diverged", DIVERGED)
        return [rest] if rest else []

    def _block(self, block: Block) -> None:
        for payload in self._encoder.item(block, self._ending):
            part = said(self._reader, payload.name, payload.data, self._whole)
            if self._whole and not isinstance(part, Block):
                continue  # one of the events around it
            if not self._expected or self._expected.pop() != part:
                raise SourceFailed("diverged", DIVERGED)
