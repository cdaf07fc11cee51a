"""One answer of a model server's, without I/O: its bytes in, items out, and whether it ended.

    answer = Answer(ProviderReader("vllm"), events=False)
    items = answer.feed(piece)       # then: answer.failure, answer.over
    last = answer.end(clean=True)    # raises SourceFailed unless the end is proven

`events` decides what the items are: the provider's own events, unchanged, for dialects that pass them through, or text
and blocks. What proves the end is the business of the reader, which knows the API and the server's profile. Stricter
than what a reader of the stream can be: the bytes must end between two events, and in a body that was not cut off; and
every choice that began must have its finish reason.

A marker that proves nothing is not handed on, nor is an error event: what the server said goes to the log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, Protocol

from streamguard.core.arguments import one_line
from streamguard.core.dialect.base import DialectReader, Reading, blocks_at_end
from streamguard.core.dialect.blocks import as_mapping
from streamguard.core.errors import Failure, FrameTooLarge, SourceFailed
from streamguard.core.items import Block, Event, Item
from streamguard.core.wire.sse import SseDecoder, SseEvent

__all__ = ["Answer", "EventReader"]

logger = logging.getLogger("streamguard")

_DONE: Final = "[DONE]"
_MARKED: Final = ("marker", "marker+reason")
_BEFORE_TEXT: Final = "reasoning"  # the one kind of block that text makes whole; all others end with their choice
# What the same request would meet again. Servers give a status as text, or a word.
_FINAL: Final = frozenset((
    "400", "401", "403", "404", "413", "422",
    "invalid_request_error", "authentication_error", "permission_error", "not_found_error", "request_too_large",
    "billing_error", "context_length_exceeded", "BadRequestError",
))  # fmt: skip


class EventReader(DialectReader, Protocol):
    """What understands a server's events; `ProviderReader` is one."""

    @property
    def begun(self) -> set[int]:
        """The choices of which each must have its finish reason."""
        ...

    def read(self, name: str | None, data: str) -> Reading | None:
        """What an event says; None where that is nothing. Raises ValueError for what outgrows its bounds."""
        ...


class Answer:
    """See the module. `over`: the end marker has come; `failure`: why the answer is not complete, as far as it is
    known; `begun`: whether any event came; `last`: the last event that was read as JSON; `called`: whether a tool call
    came whole. `lenient` takes a last `[DONE]` whose blank line is missing."""

    def __init__(self, reader: EventReader, *, events: bool, lenient: bool = False) -> None:
        self.reader = reader
        self.failure: SourceFailed | None = None
        self.over = False
        self.begun = False
        self.last: Mapping[str, Any] = {}
        self.called = False
        self._events = events
        self._decoder = SseDecoder(lenient=lenient)

    @property
    def settled(self) -> bool:
        """Whether nothing that follows counts any more."""
        return self.over or self.failure is not None

    def feed(self, piece: bytes) -> list[Item]:
        """The items that `piece` completes, up to the end or the failure."""
        out: list[Item] = []
        try:
            for event in self._decoder.feed(piece):
                self._take(event, out)
                if self.settled:
                    break
        except (FrameTooLarge, ValueError) as exc:  # an event or a block above its bound
            logger.warning("the model's server cannot be read: %s", one_line(str(exc)))
            self.failure = SourceFailed("upstream_format", "the model's server sent more at once than may be held")
        return out

    def end(self, clean: bool) -> list[Item]:
        """The items that the end of the bytes completes; `clean`: whether the body was whole by its framing.

        Raises SourceFailed unless the answer is proven to be complete.
        """
        out = self.feed(b"")  # which would raise for an event above its bound
        if not self.settled:
            torn = self._decoder.unfinished
            for event in self._decoder.end() if clean else ():  # none, unless `lenient`
                if event.data.strip() == _DONE:
                    self._take(event, out)
            if not self.over:
                self.failure = self._ended(clean and not torn)
        if self.failure is None and not self._events:
            self._add(Reading(None, blocks=blocks_at_end(self.reader)), out)
        if self.failure is not None:
            raise self.failure
        return out

    def _take(self, event: SseEvent, out: list[Item]) -> None:
        name = None if event.event == "message" else event.event
        reading = self.reader.read(name, event.data)
        if (error := self.reader.error) is not None:
            logger.warning("the model's server sent an error: %s", one_line(str(error)))
            again = error.code not in _FINAL
            self.failure = SourceFailed("upstream_error", "the model's server sent an error", retryable=again)
        if reading is None or self.failure is not None:
            return
        if not self._events and reading.item is None and event.data.strip() != _DONE:
            # `events` passes it on, and its reader sees it; text made of the rest would have a hole that nobody sees.
            self.failure = SourceFailed("upstream_format", "the model's server sent an event that is no JSON object")
            return
        self.begun = True
        if isinstance(reading.item, dict):
            self.last = reading.item
            if not self._events and _is_unread(self.last):
                why = "the model's server sent text or a call in a form that only `events` passes on"
                self.failure = SourceFailed("upstream_format", why)
                return
        if self.reader.proof(False) in _MARKED:
            self.over = True
            self.failure = failure = self._judged()
            if failure is not None:
                return
        if self._events:
            out.append(Event(event.data, name, event.id))
        else:
            self._add(reading, out)

    def _add(self, reading: Reading, out: list[Item]) -> None:
        blocks = reading.blocks
        if (reading.texts and max(reading.texts)) or any("choice" in block.fields for block in blocks):
            self.failure = SourceFailed("upstream_format", "the model's server sent several answers to one request")
            return
        after: list[Block] = []
        for block in blocks:
            self.called = self.called or block.type == "tool_call"
            if block.type == _BEFORE_TEXT:
                out.append(block)
            else:
                after.append(block)
        if reading.text:
            out.append(reading.text)
        out.extend(after)

    def _ended(self, whole: bool) -> SourceFailed | None:
        if whole and self.reader.proof(True) is not None:
            return self._judged()
        reasons = self.reader.reasons
        if whole and reasons and self.reader.begun <= reasons.keys():
            logger.warning(
                "the model's server gave its finish reasons and then no end marker: "
                "if it never sends one, choose profile='transformers'"
            )
        return SourceFailed("upstream_truncated", "the model's server stopped in the middle", retryable=True)

    def _judged(self) -> SourceFailed | None:
        failure = self.reader.judge()
        missing = self.reader.begun - self.reader.reasons.keys()
        if failure is None and missing:
            failure = Failure("unproven_end", f"the end came without a finish reason of choice {min(missing)}", True)
        if failure is None:
            return None
        return SourceFailed(failure.code, failure.message, retryable=failure.retryable)


def _is_unread(payload: Mapping[str, Any]) -> bool:
    """Whether a chunk has text in parts, or a call as it was before there were tools, which some servers repeat
    beside `tool_calls`: what is made of the rest would have a hole."""
    choices = payload.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        delta = as_mapping(as_mapping(choice).get("delta"))
        content = delta.get("content") or as_mapping(choice).get("text")
        if (content and not isinstance(content, str)) or (delta.get("function_call") and not delta.get("tool_calls")):
            return True
    return False
