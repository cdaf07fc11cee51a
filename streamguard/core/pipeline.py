"""The stages joined: items -> flush -> encode -> guard -> bytes. Read this module first.

    push(item, now)      whatever a source yields
    tick(now)            time passed; `deadline()` says when to call it
    finish(now)          the source returned
    fail(failure, now)   it did not

Two classes, one code. `FrameStage` is the first half: items in, frames out, as a log stores them.
`Pipeline` adds the guard and the carrier, for the connection that a source feeds directly.

What makes the promise hold is here in few lines: text that the policy holds back leaves before every
item that is not text and before every ending, and the terminal is made only after the characters that
came in were compared with those that were framed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from zlib import crc32

from streamguard.core.adaptive import Pressure
from streamguard.core.arguments import shown
from streamguard.core.cursor import Cursor, chain
from streamguard.core.errors import Failure, LocalProtocolError, failure_from
from streamguard.core.flush import FlushPolicy
from streamguard.core.flush_stage import MAX_HELD
from streamguard.core.frame import Frame, TextFields
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.item_stage import ItemStage
from streamguard.core.items import Block, Ending, Event, Finish, Item
from streamguard.core.jsontext import whole_text

__all__ = ["FrameStage", "ItemStage", "Pipeline", "require_stage"]


def require_stage(stage: object, kind: type, order: str = "policy, encoder, guard") -> None:
    """Raise TypeError unless `stage` is a `kind`; `order` is that of the stages."""
    if not isinstance(stage, kind):
        raise TypeError(f"{shown(stage)} stands where a {kind.__name__} belongs: {order}")


class FrameStage:
    """items -> flush -> encode: what a log stores, and the first half of a Pipeline."""

    def __init__(self, flush: FlushPolicy, encoder: FramedEncoder) -> None:
        require_stage(encoder, FramedEncoder)
        self.encoder = encoder
        self.source = ItemStage(flush)
        self.text: Callable[[str], Any] = encoder.text  # or `text_fields`, where a text by itself is wanted as a tuple
        # Frames that have a number and were not handed out yet: an item that raises must not take
        # the text that left before it along.
        self._made: list[Frame] = []

    def push(self, item: Item, now: float) -> list[Frame]:
        """The frames that leave as `item` comes. Raises for an item that cannot be sent."""
        if type(item) is str and not self._made and self.encoder.plain_text and item:
            source = self.source
            if item.isascii() and not source.intake.torn:
                source.items += 1  # as `ItemStage.text` does, and `FlushStage.push`, without the calls
                flush = source.flush
                if flush.immediate:
                    flush.left += len(item)
                    text = item
                else:
                    text = flush.push(item, now)
            else:
                text = source.text(item, now)
            if not text:
                return []
            if len(text) * 4 <= self.encoder.max_text:
                return [self.text(text)]
            self._made += self.encoder.texts(text)
        elif not self.encoder.takes_text and isinstance(item, (str, bytes)):
            self._made += self.encoder.wire(whole_text(item).encode() if isinstance(item, str) else item)
        else:
            self._encode(self.source.push(item, now))
        return self._taken()

    def tick(self, now: float) -> list[Frame]:
        """The frames that time releases."""
        self._encode(self.source.tick(now))
        return self._taken()

    def finish(self, now: float) -> list[Frame]:
        """The last frames, now that the source returned: complete, or failed if it is not.

        Raises StreamFinished if the stream ended already, and nothing else: a fault on the way to the
        terminal, the dialect's too, is what the terminal then tells.
        """
        try:
            self._drain()
            if self.source.flush.taken != self.encoder.chars:
                raise LocalProtocolError(
                    f"{self.source.flush.taken} characters came in and {self.encoder.chars} were framed"
                )
            self._made += self.encoder.finish()
        except Exception as exc:
            return self.fail(failure_from(exc), now)
        return self._taken()

    def fail(self, failure: Failure, now: float, status: str = "failed") -> list[Frame]:
        """The last frames of a stream that did not complete, after all the text that came in.

        Raises StreamFinished if the stream ended already, ValueError for a status that is no failure's.
        """
        try:
            self._drain()
        except Exception:
            pass  # the held text cannot be sent: the first failure is the one to tell
        self._made += self.encoder.fail(failure, status)
        return self._taken()

    def drain(self) -> list[Frame]:
        """The frames of all that is held, for a stream that goes on elsewhere."""
        self._drain()
        return self._taken()

    def deadline(self) -> float | None:
        """When to call `tick`."""
        return self.source.deadline()

    def _drain(self) -> None:
        text = self.source.drain()
        self.encoder.ending.items += self.source.items
        self.source.items = 0
        if text:
            self._made += self.encoder.texts(text)

    def _encode(self, items: list[Item]) -> None:
        for item in items:
            if isinstance(item, str):
                self._made += self.encoder.texts(item)
            elif isinstance(item, Finish):
                self.encoder.ending.merge(item)
            elif isinstance(item, (Block, Event, Mapping)):
                self._made += self.encoder.item(item)

    def _taken(self) -> list[Frame]:
        frames = self._made
        self._made = []
        return frames


class Pipeline:
    """items -> flush -> encode -> guard -> bytes, and nothing else."""

    def __init__(self, flush: FlushPolicy, encoder: FramedEncoder, guard: CompletionGuard) -> None:
        require_stage(guard, CompletionGuard)
        self.encoder = encoder
        self.guard = guard
        self.stage = FrameStage(flush, encoder)
        self._source, self._flush = self.stage.source, self.stage.source.flush
        self.deadline, self.timed, self.sampled = self._flush.deadline, self._flush.timed, self._flush.sampled
        self.lost = 0  # frames with content that were made, and that the guard did not let through
        self._parts: list[bytes] = []  # what was admitted in a call that raised; leaves with the next one
        self._whole = encoder.max_text // 4  # so many characters fit a frame whatever they are
        self._clean = encoder.plain_text  # whether nothing waits that belongs before a text
        self._stencil: Any = getattr(encoder.dialect, "stencil", None)  # of one that re-frames serialised events
        self._straight = self._relays = self._stencil is not None  # and before an event that is cut out of its piece
        self._most = encoder.max_block
        # A run: texts, one after the other, of which the stages are told at its end, all at once.
        self._limit = 0  # characters of a text that goes on with the run; none, where there is no run
        self._immediate = self._flush.immediate
        self._counts = self._flush.every > 1
        self._items = self._chars = self._bytes = 0
        self._last: TextFields = encoder.last
        self._quote = encoder.quote
        self._written: Callable[[TextFields], bytes]  # the carrier's, in a run

    def open(self, *, resume: str | None = None) -> bytes:
        """The first bytes of the connection, before the source is started."""
        return self.guard.open(self.encoder.zero, own_ids=self.encoder.own_ids, resume=resume)

    def push(self, item: Item, now: float) -> bytes:
        """The bytes that leave as `item` comes, possibly none. Raises for an item that cannot be sent."""
        try:
            if type(item) is str and 0 < len(item) <= self._limit:
                self._items += 1
                if self._immediate and item.isascii():
                    text = item
                else:
                    if self._counts and item.isascii():
                        flush = self._flush  # as `FlushStage.push` does, without the call
                        pieces = flush.pieces
                        pieces.append(item)
                        flush.held = held = flush.held + len(item)
                        if len(pieces) < flush.wanted and held < MAX_HELD:
                            return b""
                        text = flush.counted()
                    else:
                        text = self._flush.push(item, now) if item.isascii() else self._released(item, now)
                        if not text:
                            return b""
                    if len(text) > self._limit:  # also where half a character ended the run
                        return self._text(text)
                try:
                    data = self._quote(text)  # as the stages do, without the calls
                    seq, offset, crc, _ = self._last
                    fields = (seq + 1, offset + len(data), crc32(b"\n\n%b\n" % data, crc), data)
                    written = self._written(fields)
                except BaseException:
                    self._lose(text)
                    raise
                self._last = fields
                self._chars += len(text)
                self._bytes += len(written)
                return written
            self._settle()
            if type(item) is str and self._clean:
                text = self._source.text(item, now)
                return self._text(text) if text else b""
            if type(item) is bytes and self._straight:
                cut = self._stencil.cut
                if cut is not None and (data := cut(item)) is not None and len(data) <= self._most:
                    return self._event(data, self._stencil.name)
            written = self._admitted(self.stage.push(item, now))
            self._straight = self._relays
            return written
        except BaseException:
            self._settle()
            self._clean = self._straight = False  # what the item left behind goes first, should the caller go on
            raise

    def _event(self, data: bytes, name: str | None) -> bytes:
        """An event of `raw` that was cut out of its piece: as the stages do, without the calls."""
        encoder, guard = self.encoder, self.guard
        seq, offset, crc, _ = last = encoder.last
        crc = crc32(b"\n\n%b\n" % data, crc) if name is None else chain(crc, name, None, data)
        encoder.last = fields = (seq + 1, offset + len(data), crc, data)
        self._source.items += 1
        try:
            if name is not None:
                return guard.admit(Frame(*fields, name))
            if guard.last is not last or guard.state != "open":
                return guard.admit_text(fields)
            written = guard.encoder.text(fields)
        except BaseException:
            self._rewind()
            raise
        guard.last = fields
        guard.bytes += len(written)
        return written

    def _released(self, item: str, now: float) -> str:
        """In a run: the text that leaves as `item` comes, which is not plain. Half a character ends the run."""
        source = self._source
        text = source.intake.text(item)
        if source.intake.torn:
            self._settle()
        return self._flush.push(text, now) if text and not (self._immediate and self._limit) else text

    def _text(self, text: str) -> bytes:
        """A text by the stages' own methods; where it leaves them as plain as it found them, a run begins."""
        self._settle()
        if len(text) > self._whole:
            return self._admitted(self.encoder.texts(text))
        fields = self.encoder.text_fields(text)
        try:
            written = self.guard.admit_text(fields)
        except BaseException:
            self._rewind()
            raise
        if not self._source.intake.torn:
            self._quote, self._written, self._last = self.encoder.quote, self.guard.encoder.text, fields
            self._limit = self._whole
        return written

    def _settle(self) -> None:
        """End a run: the stages stand where they would if each of its texts had gone through them."""
        if self._limit:
            self._limit = 0
            source, encoder, guard = self._source, self.encoder, self.guard
            source.items += self._items
            if self._immediate:
                source.flush.left += self._chars
            encoder.chars += self._chars
            guard.bytes += self._bytes
            encoder.last = guard.last = self._last
            self._items = self._chars = self._bytes = 0

    def _lose(self, text: str) -> None:
        """In a run: `text` came in and could not be framed."""
        if self._immediate:
            self._source.flush.left += len(text)
        self._settle()
        self._rewind()

    def sample(self, pressure: Pressure, now: float) -> bool:
        """Tell the flush policy what presses. True where `timed` is another now."""
        changed = self._flush.sample(pressure, now)
        if changed:
            self._settle()  # a run ends as it began: its characters are counted by the way they took
            self._immediate, self.timed = self._flush.immediate, self._flush.timed
        return changed

    def tick(self, now: float) -> bytes:
        """The bytes that time releases."""
        self._settle()
        return self._admitted(self.stage.tick(now))

    def finish(self, now: float) -> bytes:
        """The last bytes, now that the source returned. `guard.status` says what they were."""
        self._settle()
        frames = self.stage.finish(now)
        try:
            return self._admitted(frames)
        except Exception as exc:
            return self.fail(failure_from(exc), now)

    def fail(self, failure: Failure, now: float, status: str = "failed") -> bytes:
        """The last bytes of a stream that did not complete."""
        self._settle()
        return self._admitted(self.stage.fail(failure, now, status))

    def heartbeat(self, *, blocked: bool = False) -> bytes:
        """A sign of life, at a frame edge."""
        self._settle()
        return self.guard.heartbeat(blocked=blocked)

    @property
    def cursor(self) -> Cursor:
        """The last frame that was handed out; cursor zero before any."""
        self._settle()
        return self.encoder.zero if self.guard.state == "unopened" else self.guard.cursor

    @property
    def status(self) -> str | None:
        """The terminal's status, once it was handed out."""
        return self.guard.status

    @property
    def ending(self) -> Ending:
        """What is known of the ending so far."""
        return self.encoder.ending

    @property
    def sent(self) -> int:
        """Bytes handed out, heartbeats included."""
        return self.guard.bytes + self._bytes

    @property
    def items(self) -> int:
        """What the source yielded so far."""
        return self.encoder.ending.items + self._source.items + self._items

    def _admitted(self, frames: list[Frame]) -> bytes:
        try:
            for frame in frames:
                self._parts.append(self.guard.admit(frame))
        except BaseException:
            self._rewind()
            raise
        parts = self._parts
        self._parts = []
        return b"".join(parts)

    def _rewind(self) -> None:
        """After a frame that the carrier refused: else no terminal could follow."""
        self._clean = False
        at = self.guard.cursor
        terminal = self.encoder.finished  # which takes no text along
        # At least one: in a run what was refused is no frame of the encoder's yet.
        self.lost += max(not terminal, self.encoder.last[0] - at.seq - terminal)
        self.encoder.rewind(at if at.sid else self.encoder.zero)  # no sid: it was never opened
