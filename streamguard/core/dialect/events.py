"""What the dialects of named events have in common: a stream that begins, parts that open and close, an end.

In `anthropic`, `openai-responses`, `ui` and `ag-ui` a text is not one event: the stream is announced, a part is
opened, its pieces follow, and it is closed before anything else comes. `EventEncoder` keeps these books, and a
dialect fills in what its events look like. Each writer of a block first finds out whether it can be written, then
takes what must stand before it (`_before`), so that a refused block leaves nothing half open.

A source may also yield the provider's own events, made elsewhere. In `RelayingEncoder` they are a whole stream by
themselves: they pass as `raw` passes them, and its end is theirs.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

import attrs

from streamguard.core.dialect.base import Payload, Sent, refuse_wire, summary
from streamguard.core.dialect.blocks import as_mapping, awaited
from streamguard.core.dialect.raw import RawEncoder
from streamguard.core.errors import Failure, SourceFailed, UnsupportedItem, failure_from
from streamguard.core.items import Block, Ending, Event
from streamguard.core.jsontext import dumps

__all__ = ["EventEncoder", "RelayingEncoder", "failure_of", "parsed"]

_TORN: Final = Failure("unproven_end", "the process that made this stream died inside a block", retryable=True)

_WHOLE: Final = (None, "text")  # what may be open between two items


def failure_of(ending: Ending) -> Failure:
    """Why the stream failed; its status where nobody said."""
    return ending.failure or Failure(ending.status, f"the stream ended as {ending.status}")


def parsed(event: Event) -> Mapping[str, Any]:
    """An event's JSON object, or none."""
    try:
        return as_mapping(json.loads(event.data))
    except (ValueError, RecursionError):
        return {}


class EventEncoder(ABC):
    """One stream of events that open and close."""

    name: ClassVar[str]
    text: None = None  # a text is several events

    def __init__(self) -> None:
        self._begun = False
        self._open: str | None = None  # the kind of the part that is open
        self._parts = 0  # how many were opened
        self._asked = 0  # tool calls without a result
        self._writers: dict[str, Callable[[Block], list[Payload]]] = {}

    # ---- what a dialect fills in ----------------------------------------------------------------

    @abstractmethod
    def _start(self) -> list[Payload]:
        """What announces the stream."""

    @abstractmethod
    def _say(self, text: str) -> list[Payload]:
        """Text, in a part that is opened for it where none is open."""

    @abstractmethod
    def _close(self) -> list[Payload]:
        """The end of the open part of text."""

    @abstractmethod
    def _own(self, item: Event | Mapping[str, Any], ending: Ending) -> list[Payload]:
        """An event that was made elsewhere."""

    @abstractmethod
    def _finish(self, ending: Ending) -> list[Payload]:
        """What stands before the terminal of a complete stream."""

    @abstractmethod
    def _last(self, ending: Ending) -> Payload:
        """The terminal."""

    @abstractmethod
    def _follow(self, payload: Mapping[str, Any]) -> None:
        """Keep the books of an event that another encoder made."""

    def _other(self, block: Block) -> list[Payload]:
        """A block that has no writer."""
        what = f"a block of type {block.type!r}"
        raise UnsupportedItem(what, self.name, "there is room for: " + ", ".join(self._writers))

    # ---- a DialectEncoder -----------------------------------------------------------------------

    def item(self, item: Sent, ending: Ending) -> list[Payload]:
        if self._open not in _WHOLE:  # nothing can follow half a block but the end of the stream
            raise SourceFailed(_TORN.code, _TORN.message)
        if isinstance(item, str):
            return [*self._begin(), *self._say(item)]
        if isinstance(item, Block):
            payloads = self._writers.get(item.type, self._other)(item)
            self._asked += awaited(item.type)
            return payloads
        return self._own(item, ending)

    def wire(self, piece: bytes, ending: Ending) -> list[Payload]:
        raise refuse_wire(self.name)

    def judge(self, ending: Ending) -> Failure | None:
        if self._open not in _WHOLE:
            return _TORN
        ending.reasons.setdefault(0, "tool_calls" if self._asked > 0 else "stop")
        if (last := max(ending.reasons)) > 0:
            what = f"the end of choice {last}"
            return failure_from(UnsupportedItem(what, self.name, "there is one answer; `openai` has room for several"))
        return ending.aborted()

    def closing(self, ending: Ending) -> list[Payload]:
        if ending.status != "complete":
            return []
        return [*self._before(), *self._finish(ending)]

    def terminal(self, ending: Ending, frames: int, size: int) -> Payload:
        return attrs.evolve(self._last(ending), extra=summary(ending, frames, size))

    def follow(self, name: str | None, data: bytes, ending: Ending) -> None:
        self._begun = True
        self._follow(as_mapping(json.loads(data)))

    # ---- shared by the dialects -----------------------------------------------------------------

    def _begin(self) -> list[Payload]:
        if self._begun:
            return []
        self._begun = True
        return self._start()

    def _before(self) -> list[Payload]:
        """What must stand before anything that is not text."""
        payloads = self._begin()
        if self._open is not None:
            payloads += self._close()
            self._open = None
        return payloads

    def _event(self, kind: str, **fields: Any) -> Payload:
        return Payload(dumps({"type": kind, **fields}), kind)


class RelayingEncoder(EventEncoder):
    """The same, or a provider's own events from first to last."""

    def __init__(self) -> None:
        super().__init__()
        self._relay: RawEncoder | None = None

    @abstractmethod
    def _is_ours(self, payload: Mapping[str, Any]) -> bool:
        """Whether a stream's first event is one that this encoder writes, and not a provider's."""

    def item(self, item: Sent, ending: Ending) -> list[Payload]:
        if self._relay is not None and isinstance(item, (str, Block)):
            raise self._mixed("text" if isinstance(item, str) else "a block")
        return super().item(item, ending)

    def _own(self, item: Event | Mapping[str, Any], ending: Ending) -> list[Payload]:
        if self._begun:
            raise self._mixed("a provider's own event")
        if isinstance(item, Event):
            if item.data.strip() == "[DONE]":
                return []  # some servers end every stream so; in these dialects nobody expects it
            kind = item.event or parsed(item).get("type")
        else:
            kind = item.get("type")
            item = Event(dumps(item).decode())
        if not isinstance(kind, str):
            raise UnsupportedItem("an event without a type", self.name, "yield text, a block, or the provider's events")
        if self._relay is None:
            self._relay = RawEncoder("provider", "openai", negotiated=False)
        return self._relay.item(attrs.evolve(item, event=kind), ending)

    def _mixed(self, what: str) -> UnsupportedItem:
        return UnsupportedItem(f"{what} between others", self.name, "a provider's own events are the whole stream")

    def judge(self, ending: Ending) -> Failure | None:
        return super().judge(ending) if self._relay is None else self._relay.judge(ending)

    def closing(self, ending: Ending) -> list[Payload]:
        return super().closing(ending) if self._relay is None else self._relay.closing(ending)

    def terminal(self, ending: Ending, frames: int, size: int) -> Payload:
        if self._relay is None:
            return super().terminal(ending, frames, size)
        return attrs.evolve(self._relay.terminal(ending, frames, size), extra=summary(ending, frames, size))

    def follow(self, name: str | None, data: bytes, ending: Ending) -> None:
        if not self._begun and self._relay is None and not self._is_ours(as_mapping(json.loads(data))):
            self._relay = RawEncoder("provider", "openai", negotiated=False)
        if self._relay is None:
            super().follow(name, data, ending)
        else:
            self._relay.follow(name, data, ending)
