"""Observers for tests."""

from __future__ import annotations

from typing import Any

from streamguard.observe.hooks import (
    AbortNotCarried,
    Acknowledged,
    Blocked,
    Closed,
    FirstFrame,
    Frames,
    Observer,
    Opened,
    Passed,
    ReaderGone,
    Refused,
    Resumed,
    Sampled,
    SourceClosed,
    Stalled,
    TakenOver,
    Terminal,
)

__all__ = ["HOOKS", "Noted"]

HOOKS: dict[str, type] = {
    "opened": Opened,
    "first_frame": FirstFrame,
    "frames": Frames,
    "stalled": Stalled,
    "blocked": Blocked,
    "resumed": Resumed,
    "taken_over": TakenOver,
    "terminal": Terminal,
    "acknowledged": Acknowledged,
    "reader_gone": ReaderGone,
    "sampled": Sampled,
    "source_closed": SourceClosed,
    "refused": Refused,
    "passed": Passed,
    "abort_not_carried": AbortNotCarried,
    "closed": Closed,
}


class Noted(Observer):
    """Keeps every event, in order."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.sources: list[Any] = []

    def attached(self, source: Any) -> None:
        self.sources.append(source)

    def names(self, part: str | None = None) -> list[str]:
        """The hooks that were called, in order, of the parts of this kind."""
        kinds = {kind: name for name, kind in HOOKS.items()}
        return [kinds[type(event)] for event in self.events if part in (None, part_of(event))]

    def one(self, kind: type, part: str | None = None) -> Any:
        """The only event of its kind."""
        (event,) = self.all(kind, part)
        return event

    def all(self, kind: type, part: str | None = None) -> list[Any]:
        return [event for event in self.events if type(event) is kind and part in (None, part_of(event))]


def part_of(event: Any) -> str:
    return "" if isinstance(event, (Refused, Passed)) else str(event.stream.part)


def _keep(self: Noted, event: Any) -> None:
    self.events.append(event)


for _name in HOOKS:
    setattr(Noted, _name, _keep)
