"""`raw`: a provider's own events, re-framed as they are.

The payload of every event passes to the byte; only the framing and the end are ours. The event that
could be the last one (the provider's marker, or its error) is held until the source returns, because
only then is it known to be the terminal frame, and because a marker after a fault is a lie that must
not be passed on.

What proves the end is chosen by name:

    "provider"   the provider's own marker and finish reasons (the default), by `profile`
    "known"      the same where the events are of an API that is known, else "asgi"
    "asgi"       the source's return is the end, an exception is a failure
    "endless"    the same, for streams that have no end of their own
    a function   `marker(event) -> bool`, true for the event that ends the stream

`str` and `bytes` from a source are pieces of a serialised SSE stream and are decoded first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from streamguard.core.cursor import looks_like_cursor
from streamguard.core.dialect.base import YIELD_EVENT, Payload, Sent, is_event_fields, summary
from streamguard.core.dialect.provider import EndRule, ProviderReader, ProviderStream, Seen, settled
from streamguard.core.dialect.stencil import Stencil
from streamguard.core.errors import (
    Failure,
    FieldRefused,
    FrameTooLarge,
    ItemTooLarge,
    NotSerialisable,
    UnsupportedItem,
)
from streamguard.core.frame import fits
from streamguard.core.items import Block, Ending, Event
from streamguard.core.jsontext import dumps, whole_text
from streamguard.core.wire.sse import SseDecoder, SseEvent

__all__ = ["Raw", "RawEncoder"]

_MAX_NAME: Final = 255  # bytes; the binary carrier has one byte for a name's length

_UNFINISHED: Final = (
    "the source ended inside an event: `raw` takes whole server-sent events, each up to its blank line; "
    "for text choose native or openai"
)


class RawEncoder:
    """One stream of a provider's events."""

    def __init__(self, end: EndRule, profile: str, negotiated: bool) -> None:
        self._end: EndRule = end
        self._negotiated = negotiated
        self._seen = ProviderStream(profile)
        self.stencil = Stencil()  # what it cuts out is an ordinary event, of which nothing is noted
        self._decoder = SseDecoder()
        self._held: tuple[Seen, Payload] | None = None
        self._after_end = False
        # What events of a piece became: one that raises must not take those before it along.
        self._made: list[Payload] = []

    @property
    def asks_marker(self) -> bool:
        """Whether an event must come that ends the stream, as far as is known by now."""
        return self._marks_end()

    @property
    def ends_freely(self) -> bool:
        """Whether the source's own end is enough, behind whatever event, as far as is known by now."""
        return self._end in ("asgi", "endless") or (self._end == "known" and not self._seen.sure)

    @property
    def marked(self) -> bool:
        """Whether it came."""
        if callable(self._end):
            return self._held is not None and self._held[0] == "marker"
        return self._marks_end() and self._seen.ended

    def text(self, text: str) -> bytes:
        raise UnsupportedItem("text", "raw", "yield events, or pieces of an SSE stream")

    def wire(self, piece: bytes, ending: Ending) -> list[Payload]:
        stencil = self.stencil
        if stencil.cut is not None and (data := stencil.cut(piece)) is not None:
            ending.items += 1
            return [Payload(data, stencil.name)]
        stencil.begin()
        for event in self._decoded(piece):
            ending.items += 1
            name = None if event.event == "message" else event.event
            self._made += self._event(Event(event.data, name, event.id), ending)
        stencil.read(piece, rests=self._held is None and not callable(self._end), noted=self._seen.noted())
        return self._taken()

    def _decoded(self, piece: bytes) -> list[SseEvent]:
        try:
            return self._decoder.feed(piece)
        except FrameTooLarge as exc:
            raise _too_large(exc) from None

    def item(self, item: Sent, ending: Ending) -> list[Payload]:
        if isinstance(item, (Block, str)):
            raise UnsupportedItem(type(item).__name__, "raw", "yield the provider's own event for it")
        self.stencil.reset()  # it may be held
        if not isinstance(item, Event):
            if is_event_fields(item):
                raise UnsupportedItem("a mapping of an event's fields", "raw", YIELD_EVENT)
            item = Event(dumps(item).decode())
        return self._event(item, ending)

    def judge(self, ending: Ending) -> Failure | None:
        self._note(ending)
        if self._decoder.unfinished and self._seen.error is None:
            # The event that is missing its end was yielded, and cannot be sent.
            return Failure("unproven_end", _UNFINISHED, retryable=True)
        if settled(self._end, self._seen) == "provider":
            return self._seen.judge()
        if callable(self._end) and self._seen.error is None:
            if self._held is None or self._after_end:
                return Failure("unproven_end", "the stream ended without its end marker", retryable=True)
            return None
        return self._seen.error

    def closing(self, ending: Ending) -> list[Payload]:
        self.stencil.reset()
        return self._taken() + self._closing(ending)

    def _taken(self) -> list[Payload]:
        made = self._made
        self._made = []
        return made

    def _closing(self, ending: Ending) -> list[Payload]:
        held = self._held
        if ending.status == "complete":
            if held is not None and not self._marks_end():
                self._held = None
                return [held[1]]
            return []
        if held is not None and held[0] == "marker":
            self._held = None  # a marker that proves nothing is not passed on
        if self._seen.api == "responses" and (self._held is None or self._seen.error is None):
            self._seen.sequence += 1
            response = {"status": "failed", "error": self._error(ending)}
            failed = {"type": "response.failed", "sequence_number": self._seen.sequence, "response": response}
            try:
                data = dumps({**failed, "response": {**self._seen.response, **response}})
            except NotSerialisable:  # NaN, which some servers write into their JSON; an ending must not fail by it
                data = dumps(failed)
            return [Payload(data, "response.failed")]
        return []

    def terminal(self, ending: Ending, frames: int, size: int) -> Payload:
        if self._held is not None:
            return self._held[1]
        if ending.status == "complete":
            # No marker of the provider's own: readers that verify get ours, others a comment.
            return Payload(summary(ending, frames, size), "end") if self._negotiated else Payload(b"")
        return self._failure(ending)

    def settings(self) -> Mapping[str, Any]:
        return {}  # an end rule may be a function: it comes with the endpoint

    def follow(self, name: str | None, data: bytes, ending: Ending) -> None:
        self._seen.observe(name, data.decode())

    def _event(self, event: Event, ending: Ending) -> list[Payload]:
        payload = self._payload(event)
        seen, _ = self._seen.observe(payload.name, event.data)
        if callable(self._end) and seen != "error":
            seen = "marker" if self._end(event) else "event"
        payloads = []
        if self._held is not None and self._held[0] == "error" and seen == "marker":
            return []  # a marker after an error is a lie: the error stays the end
        last = self._held is not None and (self._held[0] == "error" or self._marks_end())
        if last and seen == "event" and not event.data:
            return []  # a sign of life after what may be the end: heartbeats are ours to send
        if self._held is not None:
            self._after_end = self._held[0] == "marker"
            if not (self._after_end and settled(self._end, self._seen) == "provider"):
                payloads.append(self._held[1])  # else it was no end: an SDK would stop at it, satisfied
            self._held = None
        if seen == "event":
            payloads.append(payload)
        else:
            self._held = (seen, attrs.evolve(payload, extra=None))
        self._note(ending)
        return payloads

    def _payload(self, event: Event) -> Payload:
        # `message` is how a reader names an event without a name, so it is chained as none.
        name = event.event if event.event not in (None, "", "message") else None
        data = whole_text(event.data).encode()
        extra = None
        # Refused here, since an event that is held becomes the terminal, which nothing may refuse.
        if name is not None:
            size = len(name.encode())
            if size > _MAX_NAME:
                raise UnsupportedItem(f"an event name of {size} bytes", "raw", f"{_MAX_NAME} fit")
            if not fits(name.encode()):
                raise FieldRefused("event")
        if not fits(data.replace(b"\n", b"")):
            raise FieldRefused("data")
        # A source that is itself guarded: its cursors are another stream's, and are never relayed.
        if event.id is not None and not looks_like_cursor(event.id):
            extra = event.id.encode()
            if not fits(extra):  # and here, before the frame has a number: it could not be taken back
                raise FieldRefused("id")
        return Payload(data, name, extra)

    def _note(self, ending: Ending) -> None:
        ending.reasons = dict(self._seen.reasons)
        ending.usage = dict(self._seen.usage) if self._seen.usage is not None else None

    def _marks_end(self) -> bool:
        """Whether the held event is the end by this stream's rule, and not an ordinary one."""
        return callable(self._end) or settled(self._end, self._seen) == "provider"

    def _error(self, ending: Ending) -> dict[str, Any]:
        failure = ending.failure or Failure(ending.status, f"the stream ended as {ending.status}")
        return {"code": failure.code, "message": failure.message, "type": ending.status, "param": None}

    def _failure(self, ending: Ending) -> Payload:
        """The terminal in the form that makes the provider's own SDK raise."""
        error = self._error(ending)
        if self._seen.api in ("chat", "completions"):
            return Payload(dumps({"error": error}))
        if self._seen.api == "anthropic":
            return Payload(dumps({"type": "error", "error": {**error, "type": "api_error"}}), "error")
        if self._seen.api == "responses":
            self._seen.sequence += 1
            fields = {"type": "error", **error, "sequence_number": self._seen.sequence, "error": error}
            return Payload(dumps(fields | {"type": "error"}), "error")
        return Payload(dumps({"error": error}), "error")


def _too_large(error: FrameTooLarge) -> ItemTooLarge:
    """The same, which is a reader's error, as the source is told of it."""
    return ItemTooLarge(error.size, error.limit, "no reader takes more at once: send a reference to it")


@attrs.frozen
class Raw:
    """The dialect `raw`: `end` says what proves the end, `profile` names the provider's server."""

    end: EndRule = "provider"
    profile: str = "openai"

    name = "raw"
    own_ids = False
    takes_text = False

    def __attrs_post_init__(self) -> None:
        if not callable(self.end) and self.end not in ("provider", "known", "asgi", "endless"):
            raise ValueError(f"unknown end rule {self.end!r}: provider, known, asgi, endless, or a function")
        ProviderStream(self.profile)  # an unknown profile is refused here, not at the first request

    def encoder(self, *, negotiated: bool = False) -> RawEncoder:
        return RawEncoder(self.end, self.profile, negotiated)

    def reader(self) -> ProviderReader:
        return ProviderReader(self.profile, self.end)
