"""items -> flush: whole characters in, text that may leave out; everything else in order with it."""

from __future__ import annotations

from collections.abc import Mapping

from streamguard.core.errors import UnsupportedItem
from streamguard.core.flush import FlushPolicy
from streamguard.core.flush_stage import FlushStage
from streamguard.core.items import Block, Checkpoint, Event, Finish, Item, Joined, TextIntake

__all__ = ["ItemStage"]


class ItemStage:
    """The first stage of a stream."""

    def __init__(self, flush: FlushPolicy) -> None:
        self.flush = FlushStage(flush)
        self.intake = TextIntake()
        self.items = 0  # what the source yielded: non-empty text, blocks, events, mappings

    def push(self, item: Item, now: float) -> list[Item]:
        """What may leave now. Raises TypeError for what no source may yield."""
        if isinstance(item, str):
            if isinstance(item, Joined) and item:
                self.items += item.pieces - 1  # `text` counts one
            text = self.text(item, now)
            return [text] if text else []
        if isinstance(item, bytes):
            if not item:
                return []
            self.items += 1
            text = self.intake.bytes(item)
            text = self.flush.push(text, now) if text else ""
            return [text] if text else []
        if not isinstance(item, (Block, Event, Mapping, Finish, Checkpoint)):
            raise _unsupported(item)
        if isinstance(item, Finish) and item.reason is None:
            return [item]  # usage on the way ends nothing, and tears no character
        if isinstance(item, Checkpoint) and self.intake.torn:
            return []  # from half a character nobody can go on; and to send it would tear it
        if not isinstance(item, (Finish, Checkpoint)):
            self.items += 1
        text = self.drain()
        return [text, item] if text else [item]

    def text(self, piece: str, now: float) -> str:
        """The hot path: the text that leaves as `piece` comes, possibly none."""
        if not piece:
            return ""
        self.items += 1
        if self.intake.torn or not piece.isascii():
            piece = self.intake.text(piece)
            if not piece:
                return ""
        return self.flush.push(piece, now)

    def tick(self, now: float) -> list[Item]:
        text = self.flush.tick(now)
        return [text] if text else []

    def drain(self) -> str:
        """All that is held, an incomplete character as U+FFFD."""
        rest = self.intake.end()
        if rest:
            self.flush.hold(rest)
        return self.flush.drain()

    def deadline(self) -> float | None:
        return self.flush.deadline()


def _unsupported(item: object) -> UnsupportedItem:
    """The refusal of what no source may yield."""
    if item is None:
        return UnsupportedItem("None", "", "skip None; a PushSource ends with finish()")
    if isinstance(item, type) and issubclass(item, (Block, Event, Finish, Checkpoint)):
        return UnsupportedItem(f"the class {item.__name__}", "", f"yield an instance, {item.__name__}(…)")
    return UnsupportedItem(type(item).__name__, "", "yield text as str or UTF-8 bytes, or a Block or Finish")
