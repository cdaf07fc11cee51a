"""A verified answer, without I/O: what came, what is known about it, and what is needed next.

A driver for an HTTP library does four things and decides nothing:

    1  sends the request with `REQUEST_HEADERS` and gives the response's head to `open`
    2  takes frames with `take` and hands them on
    3  when there is none, does what `needs` says: reads bytes for `feed`, or reads on to the end
    4  when nothing is needed, raises what `error` answers, or ends

An answer ends normally only if it is COMPLETE, or UNVERIFIED with a proven end. Everything good is
handed out first; then the error is raised, with the text so far attached. Time is an argument, and
only the time spent in reads counts against a limit: a slow caller must not look like a stalled server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from io import StringIO
from typing import Final, Literal

import attrs

from streamguard.client.body import coding_of, may_be_read
from streamguard.client.limits import LIMITS, ReaderLimits
from streamguard.core.arguments import require, require_whole_number
from streamguard.core.cursor import Cursor
from streamguard.core.dialect import Dialect, dialect_named
from streamguard.core.errors import (
    ConnectLimitExceeded,
    FirstByteLimitExceeded,
    LimitExceeded,
    LivenessLimitExceeded,
    LocalProtocolError,
    StallLimitExceeded,
    StreamClosed,
    StreamGuardError,
    TruncatedStream,
    UnexpectedResponse,
)
from streamguard.core.negotiate import Answer as Promise
from streamguard.core.negotiate import parse_answer
from streamguard.core.receipt import AnswerFrame, Receipt, Verdict
from streamguard.core.verify import StreamVerifier
from streamguard.core.wire import MAX_FRAME, Wire, wire_for_content_type

__all__ = [
    "LINGER",
    "REQUEST_HEADERS",
    "AnswerState",
    "Needs",
]

REQUEST_HEADERS: Final = (
    ("Streamguard", "v=1"),
    ("Accept", "text/event-stream, application/x-ndjson, application/vnd.streamguard.v1"),
    # A compressed answer saves little, is held back by whatever compresses it, and can be a bomb.
    ("Accept-Encoding", "identity"),
    ("Cache-Control", "no-cache"),
)

# How long to read on after the terminal, in seconds, so that the connection can serve the next
# request. The server waits as long for us to close.
LINGER: Final = 0.25
MAX_REFUSAL: Final = 64 * 1024  # bytes kept of the body of an answer that is no stream
MAX_REDIRECTS: Final = 20  # as in the Fetch standard, and in httpx

_WITH_BODY: Final = (200, 201, 202, 203)  # a 206 is a part of something
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_TERMINAL: Final = (Verdict.COMPLETE, Verdict.FAILED)  # what a terminal can say

_UNGUARDED: Final = (
    "the server does not say that it guards (no Streamguard header): is @guarded on its endpoint? "
    "A provider's own stream needs its end marker, or dialect=Raw(profile=… or end=…)"
)

Needs = Literal["bytes", "end", "nothing"]


@attrs.define
class _Refusal:
    """An answer that is no stream, as far as it was read."""

    status: int
    content_type: str
    why: str
    body: bytes = b""

    def error(self) -> UnexpectedResponse:
        return UnexpectedResponse(self.status, self.content_type, self.body[:MAX_REFUSAL], self.why)


class AnswerState:
    """One answer as it is read. `now` is when the request is sent, in monotonic seconds.

    `dialect`, `lenient` and `max_frame` are as in StreamVerifier.
    """

    def __init__(
        self,
        now: float,
        *,
        dialect: str | Dialect | None = None,
        lenient: bool = False,
        limits: ReaderLimits = LIMITS,
        max_frame: int = MAX_FRAME,
    ) -> None:
        # Here, since what is wrong should fail before a request is paid for.
        require("limits", limits, ReaderLimits, "ReaderLimits(first_byte=30)")
        require_whole_number("max_frame", max_frame)
        self._dialect = None if dialect is None else dialect_named(dialect)
        self._lenient = lenient
        self.limits = limits
        self._max_frame = max_frame
        self._verifier = StreamVerifier()  # of the stream that `open` finds
        self._refusal: _Refusal | None = None
        self._framed = True
        self._redirects = 0
        self._unfollowed: str | None = None
        self._frames: deque[AnswerFrame] = deque()
        self._handed = 0  # frames that were taken
        self._guarded = False  # the server said so
        self._text = StringIO()
        self._received = 0
        self._error: StreamGuardError | None = None
        self._over = False
        self._began = self._last = now
        self._seen = 0  # frames, when bytes last came
        self._waited = 0.0  # in reads, since a frame came
        self._first_frame: float | None = None
        self._longest_gap: float | None = None

    # ---- the head of the response -------------------------------------------------------------

    def follow(self, status: int, location: str | None, why_not: str | None = None) -> bool:
        """Whether a redirect is to be followed; `why_not` is the driver's own reason against it. An empty
        `Location` would lead to where it came from."""
        if status not in _REDIRECTS or not (location or "").strip() or self._redirects >= MAX_REDIRECTS:
            return False
        if why_not is not None:
            self._unfollowed = why_not
            return False
        self._redirects += 1
        return True

    def open(
        self, status: int, headers: Mapping[str, str], version: str | None, accept_encoding: str = "identity"
    ) -> bool:
        """Take the response's head in: whether a stream follows. If not, `needs` still asks for some
        of the body, and `error` says what came instead.

        `headers` are found by any case; `version` is the HTTP version, or None where no connection
        carries the body; `accept_encoding` is what the request asked for.
        """
        content_type = headers.get("content-type", "")
        wire = wire_for_content_type(content_type)
        promise = parse_answer(headers.get("streamguard"))
        self._guarded = promise is not None
        if promise is not None and (self._dialect is None or self._dialect.name != promise.dialect):
            self._dialect = _known(promise.dialect)  # the server knows what it wrote
        why = self._why_not(status, wire, promise)
        coding = coding_of(headers.get("content-encoding", ""))
        if why is None and not may_be_read(coding, accept_encoding):
            why = f"the body is encoded as {coding!r}, which was not asked for"
        if why is not None or wire is None:
            self._refusal = _Refusal(status, content_type, why or "the content type is that of no stream")
            return False
        self._framed = _framed(headers, version)
        self._verifier = StreamVerifier(
            wire=wire,
            dialect=self._dialect,
            zero=None if promise is None else promise.cursor,
            lenient=self._lenient,
            max_frame=self._max_frame,
        )
        return True

    def _why_not(self, status: int, wire: Wire | None, promise: Promise | None) -> str | None:
        if status in _REDIRECTS:
            if self._unfollowed is not None:
                return self._unfollowed
            return "too many redirects" if self._redirects >= MAX_REDIRECTS else "a redirect to nowhere"
        if status not in _WITH_BODY:
            return "no stream"
        if wire is None:
            return None
        if promise is not None and promise.wire != wire.name:
            return f"the Streamguard header promises {promise.wire!r}, and this is {wire.name!r}"
        as_text = self._dialect is not None and self._dialect.name == "text"
        if wire.name == "plain" and not as_text:
            return "plain text proves no end, and is read only if dialect='text' is asked for"
        if as_text and wire.name != "plain":  # the end of its bytes would prove the end of the stream
            return f"dialect 'text' is that of text/plain, and this is {wire.name!r}"
        return None

    # ---- bytes in, frames out -----------------------------------------------------------------

    @property
    def needs(self) -> Needs:
        """What to do when `take` has nothing: `bytes` for `feed`, or all that follows the terminal, up
        to the `end`, for at most `LINGER` seconds."""
        if self._over or self._error is not None:
            return "nothing"
        if self._refusal is not None:
            limit = self.limits.first_byte
            enough = len(self._refusal.body) >= MAX_REFUSAL or (limit is not None and self._waited >= limit)
            return "nothing" if enough else "bytes"
        if self._verifier.verdict is None:
            return "bytes"
        at_terminal = self._verifier.state == "ended" and self._verifier.verdict in _TERMINAL
        return "end" if at_terminal else "nothing"

    def take(self, had: int | None = None) -> AnswerFrame | None:
        """The next good frame, or None if what came so far completes no more.

        `had` is how many frames the taker has had. Raises StreamClosed if that is not all that were taken: what
        is left would look like a whole answer. Where none is left, raises the answer's error, if there is one.
        """
        if had is not None and had != self._handed:
            if not self._frames:
                self.conclude()
            raise StreamClosed(
                "text that was handed out already is not repeated: "
                "go on with the first iteration, or take the whole by `answer.read()`"
            )
        if not self._frames:
            return None
        self._handed += 1
        frame = self._frames.popleft()
        if frame.text:
            self._received += len(frame.text)
            if self._received <= self.limits.max_received:
                self._text.write(frame.text)
        return frame

    def feed(self, data: bytes, began: float, now: float) -> None:
        """Bytes that came: the read of them began at `began`, and it is `now`."""
        if self._refusal is not None:
            self._refusal.body += data
            self._waited += now - began
            return
        self._frames.extend(self._verifier.feed(data))
        self._arrived(began, now)
        stall = self.limits.stall
        if stall is not None and self._waited >= stall and self.needs == "bytes":
            self._error = StallLimitExceeded(stall, self.cursor)

    def end(self, began: float, now: float, *, clean: bool, cause: Exception | None = None) -> None:
        """No more bytes. `clean`: the connection's own framing said so; else `cause` may say what broke it."""
        self._frames.extend(self._verifier.end(clean=clean and self._framed))
        self._arrived(began, now)
        self._over = True
        error = self._verifier.error()
        if error is not None and cause is not None:
            error.__cause__ = cause
        if clean and isinstance(error, TruncatedStream) and self._looks_unguarded():
            error.explained(_UNGUARDED)

    def silent(self, began: float, now: float, cause: Exception | None = None) -> None:
        """A read took longer than it may."""
        if self.needs == "end":
            self.end(began, now, clean=False)
            return
        self._last = now
        stall, liveness = self.limits.stall, self.limits.liveness
        if stall is not None and (liveness is None or stall < liveness):
            self._error = StallLimitExceeded(stall, self.cursor)
        else:
            self._error = LivenessLimitExceeded(liveness or 0.0, self.cursor)
        self._error.__cause__ = cause

    def settle(self, now: float) -> None:
        """After the terminal nothing ended the bytes in time: the answer is known all the same."""
        if self.needs == "end":
            self.end(now, now, clean=False)

    def close(self, within: str = "") -> None:
        """This side reads no further. What was already taken in stays. `within` is where it could have read on."""
        if self.needs == "bytes":
            advice = f": read it inside the `{within}`" if within else ""
            self._error = StreamClosed(f"this side closed the answer before its end{advice}")

    # ---- what is known ------------------------------------------------------------------------

    @property
    def error(self) -> StreamGuardError | None:
        """What to raise once all frames are taken and nothing is needed; None for a good answer."""
        if self._refusal is not None:
            return self._refusal.error()
        return self._error if self._error is not None else self._verifier.error(self.received)

    def conclude(self) -> None:
        """Raise the error, if there is one."""
        if (error := self.error) is not None:
            raise error

    @property
    def received(self) -> str:
        """The text taken so far, up to `max_received` characters."""
        return self._text.getvalue()

    def whole(self) -> str:
        """The same, if it is all of it. Raises LocalProtocolError if some was not kept."""
        limit = self.limits.max_received
        if self._received > limit:
            raise LocalProtocolError(f"the answer has {self._received} characters, and {limit} are kept: iterate it")
        return self.received

    @property
    def cursor(self) -> Cursor | None:
        """The last cursor whose checks held."""
        return self._verifier.cursor

    @property
    def receipt(self) -> Receipt:
        """What is known so far; final at the end."""
        return attrs.evolve(
            self._verifier.receipt,
            first_frame=self._first_frame,
            longest_gap=self._longest_gap,
            duration=self._last - self._began,
        )

    # ---- answers that never began -------------------------------------------------------------

    def unconnected(self) -> LimitExceeded:
        """The error for a connection that took too long."""
        return ConnectLimitExceeded(self.limits.connect or 0.0)

    def unanswered(self) -> LimitExceeded:
        """The error for a response that took too long."""
        return FirstByteLimitExceeded(self.limits.first_byte or 0.0)

    def dropped(self) -> TruncatedStream:
        """The error for a connection that ended before its response."""
        return TruncatedStream(detail="the connection ended before any response came")

    # ---- small parts --------------------------------------------------------------------------

    def _looks_unguarded(self) -> bool:
        """Whether nothing in the answer is from a server that guards, nor from a provider whose end is known."""
        if self._guarded or self.cursor is not None:
            return False
        if self._dialect is not None:
            return self._dialect.name == "native"  # which no provider writes
        return not self._received and not any(frame.text for frame in self._frames)

    def _arrived(self, began: float, now: float) -> None:
        self._waited += now - began
        self._last = now
        if self._verifier.frames == self._seen:
            return
        if self._first_frame is None:
            self._first_frame = now - self._began
        else:
            self._longest_gap = max(self._longest_gap or 0.0, self._waited)
        self._seen = self._verifier.frames
        self._waited = 0.0


def _known(dialect: str) -> Dialect | None:
    """A promised dialect by its name; one that this version does not know is read as a provider's events."""
    try:
        return dialect_named(dialect)
    except ValueError:
        return None


def _framed(headers: Mapping[str, str], version: str | None) -> bool:
    """Whether the body's end is more than the end of the connection, which proves nothing."""
    if version is None or not version.startswith("HTTP/1"):
        return True
    return "content-length" in headers or "chunked" in headers.get("transfer-encoding", "").lower()
