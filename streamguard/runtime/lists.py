"""Stages that make lists, of items or of frames, for a driver whose sink takes no bytes.

They have no guard, so no cursor of a connection and no sign of life.
"""

from __future__ import annotations

from typing import Any

from streamguard.core.adaptive import Pressure
from streamguard.core.cursor import Cursor
from streamguard.core.errors import Failure
from streamguard.core.flush import FlushPolicy
from streamguard.core.flush_stage import FlushStage
from streamguard.core.frame import Frame
from streamguard.core.framing import FramedEncoder
from streamguard.core.items import Ending, Finish, Item
from streamguard.core.pipeline import FrameStage, ItemStage

__all__ = ["FrameLists", "ItemLists"]


class _Lists:
    """What both have in common."""

    def __init__(self, flush: FlushStage) -> None:
        self.ending = Ending()
        self.status: str | None = None
        self._flush = flush
        self.timed, self.sampled, self.deadline = flush.timed, flush.sampled, flush.deadline

    cursor = Cursor("", 0, 0, 0)
    sent = 0

    def open(self) -> list[Any]:
        return []

    def heartbeat(self) -> list[Any]:
        return []

    def sample(self, pressure: Pressure, now: float) -> bool:
        changed = self._flush.sample(pressure, now)
        self.timed = self._flush.timed
        return changed


class ItemLists(_Lists):
    """items -> flush, as a stage that can end."""

    def __init__(self, policy: FlushPolicy) -> None:
        self._stage = ItemStage(policy)
        super().__init__(self._stage.flush)
        self.tick = self._stage.tick

    @property
    def items(self) -> int:
        return self._stage.items

    def push(self, item: Item, now: float) -> list[Item]:
        if isinstance(item, Finish):
            self.ending.merge(item)
        return self._stage.push(item, now)

    def finish(self, now: float) -> list[Item]:
        self.status = "complete"
        return self._rest()

    def fail(self, failure: Failure, now: float, status: str = "failed") -> list[Item]:
        self.status = self.ending.status = status
        self.ending.failure = failure
        return self._rest()

    def _rest(self) -> list[Item]:
        text = self._stage.drain()
        return [text] if text else []


class FrameLists(_Lists):
    """items -> flush -> encode, as a stage that can end."""

    def __init__(self, policy: FlushPolicy, encoder: FramedEncoder) -> None:
        self._stage = FrameStage(policy, encoder)
        super().__init__(self._stage.source.flush)
        self.ending = encoder.ending
        self.push = self._stage.push
        self.tick = self._stage.tick

    @property
    def items(self) -> int:
        return self.ending.items + self._stage.source.items

    def finish(self, now: float) -> list[Frame]:
        frames = self._stage.finish(now)
        self.status = frames[-1].status
        return frames

    def fail(self, failure: Failure, now: float, status: str = "failed") -> list[Frame]:
        self.status = status
        return self._stage.fail(failure, now, status)

    def drain(self) -> list[Frame]:
        """What is held, as frames, without an end."""
        return self._stage.drain()
