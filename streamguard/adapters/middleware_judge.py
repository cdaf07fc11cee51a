"""What an answer that streams already says about its own end: told from its first message, judged by its bytes.

`kind_of` tells a stream from every other answer. `EventJudge` reads server-sent events, `LineJudge` one JSON object a
line. Both hold a bounded part of what they read and change nothing of it: the same rules that a guarded stream of
dialect `raw` ends by, beside the bytes instead of round them; and for events the same encoder.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Literal, Protocol

import attrs

from streamguard.adapters.seal import Message
from streamguard.core.codes import code_in
from streamguard.core.dialect import Raw
from streamguard.core.dialect.blocks import as_error
from streamguard.core.dialect.raw import RawEncoder
from streamguard.core.errors import Failure, StreamGuardError, failure_from
from streamguard.core.framing import FramedEncoder
from streamguard.core.items import Event
from streamguard.core.jsontext import dumps
from streamguard.core.wire.base import MAX_FRAME

__all__ = [
    "UNENDED",
    "EventJudge",
    "Judge",
    "Judged",
    "Kind",
    "LineJudge",
    "is_unjudged",
    "judge_of",
    "kind_of",
    "piece_of",
    "read_start",
]

Kind = Literal["events", "lines"]
JudgedAs = Literal["complete", "truncated", "failed"]

UNENDED: Final = Failure("unended", "the application stopped before the last part of its answer", retryable=True)

_EVENTS: Final = b"text/event-stream"
_TAIL: Final = 256  # bytes of a stream's end that are looked at for its last event
_PIECES: Final = 8  # in so many it may come
_MARK: Final = 60  # characters of an event that may be a marker
_LINES: Final = frozenset([b"application/" + name for name in (b"x-ndjson", b"ndjson", b"jsonl", b"x-jsonl")])
_UNMARKED: Final = Failure("unproven_end", "the stream ended without its end marker", retryable=True)


def read_start(message: Message) -> tuple[Message, Kind | None]:
    """An `http.response.start` as it is to be sent on, and what kind of stream begins with it. Headers may be of any
    kind that can be gone through, and gone through once."""
    if not isinstance(message.get("headers", ()), (list, tuple)):
        message = {**message, "headers": list(message["headers"])}
    return message, kind_of(message)


def piece_of(message: Message) -> bytes:
    """The bytes of an `http.response.body`. Applications send any buffer, which most servers take, and may fill it anew
    behind their `send`."""
    piece: Any = message.get("body", b"")
    return bytes(piece) if type(piece) is not bytes and isinstance(piece, (bytearray, memoryview)) else piece


def kind_of(message: Message) -> Kind | None:
    """What kind of stream begins with this `http.response.start`; None where it is none, or must be left alone.

    A body with a length, a content coding or trailers is left alone, an answer that is guarded already, and one whose
    status allows no body: 204, by which a server tells an EventSource not to come back, and 205.
    """
    if not 200 <= message["status"] < 300 or message["status"] in (204, 205) or message.get("trailers"):
        return None
    kind: Kind | None = None
    headers: Iterable[tuple[bytes, bytes]] = message.get("headers", ())
    for name, value in headers:
        name = bytes(name).lower()
        if name == b"content-type":
            essence = bytes(value).partition(b";")[0].strip().lower()
            kind = "events" if essence == _EVENTS else "lines" if essence in _LINES else None
        if name in (b"content-length", b"streamguard"):
            return None
        if name == b"content-encoding" and bytes(value).strip().lower() != b"identity":
            return None
    return kind


def is_unjudged(message: Message) -> bool:
    """Whether a body that begins with this `http.response.start`, and is of no kind that is judged, has no length
    either: then nothing but its framing says whether it is whole."""
    names = {bytes(name).lower() for name, _ in message.get("headers", ())}
    return 200 <= message["status"] < 300 and not names & {b"content-length", b"streamguard"}


@attrs.frozen
class Judged:
    """How a stream ended by its bytes. `proved`: whether something in them proves the end, whatever came behind it.
    `last` is the last event of one that is whole and needed no marker for that, as the rule that knows it again."""

    verdict: JudgedAs
    failure: Failure | None = None
    proved: bool = False
    last: str | None = None


class Judge(Protocol):
    """Reads a stream beside its way."""

    def feed(self, data: bytes) -> None: ...

    def end(self, *, clean: bool) -> Judged:
        """The bytes are over; `clean` says whether the application itself ended them."""
        ...


class EventJudge:
    """Server-sent events: framed as guard mode would frame them, and judged by the same encoder."""

    def __init__(self, rule: Raw) -> None:
        self._framed = FramedEncoder(rule)
        encoder = self._framed.dialect
        assert isinstance(encoder, RawEncoder)
        self._encoder = encoder
        self._stencil = encoder.stencil
        self._failure: Failure | None = None  # of an event that could not be framed
        self._kept: deque[bytes] = deque(maxlen=_PIECES)
        self._keep = self._kept.append

    def feed(self, data: bytes) -> None:
        """Raises what a rule of the application's own raises."""
        self._keep(data)
        cut = self._stencil.cut
        if (cut is None or cut(data) is None) and self._failure is None:
            try:
                self._framed.wire(data)
            except StreamGuardError as exc:
                self._failure = failure_from(exc)

    def end(self, *, clean: bool) -> Judged:
        encoder, framed = self._encoder, self._framed
        if self._failure is not None:
            return Judged("failed", self._failure)
        if not clean and not encoder.asks_marker:
            return Judged("truncated", UNENDED)
        framed.finish()
        failure = framed.ending.failure
        if failure is None:
            last = _last_event(b"".join(self._kept)[-_TAIL:]) if encoder.ends_freely else None
            return Judged("complete", proved=encoder.marked or bool(framed.ending.reasons), last=last)
        return Judged("truncated" if failure.code == "unproven_end" and not encoder.marked else "failed", failure)


class LineJudge:
    """One JSON object a line. Ollama's end with one whose `done` is true, and are told by that key.

    By `provider` such a line is required, by `known` where any line has the key; a function is given each line as an
    Event; by the other rules the application's own end is the end.
    """

    def __init__(self, rule: Raw) -> None:
        self._rule = rule
        self._rest: list[bytes] = []
        self._size = 0
        self._keyed = False  # whether a line said if it is the last one
        self._marked = False
        self._overrun = False
        self._error: Failure | None = None
        self._last = b""

    @property
    def inside(self) -> bool:
        """Whether the bytes so far end inside a line."""
        return self._size > 0

    def feed(self, data: bytes) -> None:
        rest, *others = data.split(b"\n")
        self._hold(rest)
        for rest in others:
            if self._size <= MAX_FRAME:
                self._line(b"".join(self._rest))
            else:
                self._pass_over()
            self._rest, self._size = [], 0
            self._hold(rest)

    def end(self, *, clean: bool) -> Judged:
        # Of a line too long to hold nobody can say that it is whole.
        torn = self._size > MAX_FRAME or (self.inside and not self._line(b"".join(self._rest)))
        if self._error is not None:
            return Judged("failed", self._error)
        if torn:
            return Judged("truncated", Failure("unproven_end", "the stream ended inside a line", retryable=True))
        if callable(self._rule.end) or self._rule.end == "provider" or (self._rule.end == "known" and self._keyed):
            if not self._marked:
                return Judged("truncated", _UNMARKED)
            if self._overrun:
                return Judged("failed", Failure("unproven_end", "lines followed the end marker"))
            return Judged("complete", proved=True)
        return Judged("complete", last=_as_rule(self._last)) if clean else Judged("truncated", UNENDED)

    def error_line(self, failure: Failure) -> bytes:
        """The line that tells a reader of `failure`; empty where it would be read as the rest of another."""
        if self.inside:
            return b""
        if self._keyed:
            return dumps({"error": failure.message or failure.code}) + b"\n"  # as Ollama writes it
        return dumps({"error": attrs.asdict(failure)}) + b"\n"

    def _hold(self, part: bytes) -> None:
        if part:
            self._size += len(part)
            if self._size <= MAX_FRAME:
                self._rest.append(part)
            else:  # nobody could read it; its last piece by itself may look like a line
                self._rest.clear()

    def _pass_over(self) -> None:
        """A line has ended that was too long to hold."""
        self._last = b""
        self._overrun = self._overrun or self._marked

    def _line(self, line: bytes) -> bool:
        """Take a line in; whether it is one, and not the beginning of one."""
        text = line.strip()
        if not text:
            return True
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return False
        self._last = text
        self._overrun = self._overrun or self._marked
        if isinstance(value, dict):
            self._keyed = self._keyed or isinstance(value.get("done"), bool)
            if (error := as_error(value.get("error"))) is not None:
                self._fail(error)
            marks = value.get("done") is True
        else:
            marks = False
        if callable(self._rule.end):
            marks = self._rule.end(Event(text.decode("utf-8", "replace")))
        self._marked = self._marked or marks
        return True

    def _fail(self, error: Any) -> None:
        if self._error is None:
            detail = error if isinstance(error, dict) else {"message": error}
            code = code_in(detail.get("code"), detail.get("type"))
            self._error = Failure(code, str(detail.get("message") or "the application sent an error"))


def _last_event(tail: bytes) -> str:
    """The rule that knows the last event again, of which the bytes are the end; empty where it began before them."""
    lines = tail.replace(b"\r\n", b"\n").replace(b"\r", b"\n").rstrip(b"\n").split(b"\n")
    data: list[bytes] = []
    for number, line in enumerate(reversed(lines), 1):
        field, _, value = line.partition(b":")
        if not line:
            break
        if number == len(lines) and len(tail) >= _TAIL:
            return ""
        if field == b"event":
            return f"event.event == {_shown(value)}"
        if field == b"data":
            data.insert(0, value.removeprefix(b" "))
    return _as_rule(b"\n".join(data))


def _as_rule(data: bytes) -> str:
    return f"event.data == {_shown(data)}" if data and len(data) <= _MARK else ""


def _shown(value: bytes) -> str:
    return repr(value.strip().decode("utf-8", "replace")[:_MARK])


def judge_of(kind: Kind, rule: Raw) -> EventJudge | LineJudge:
    """A fresh judge of one stream."""
    return EventJudge(rule) if kind == "events" else LineJudge(rule)
