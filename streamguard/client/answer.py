"""A verified answer, without I/O: what came, what is known about it, and what is needed next.

A driver for an HTTP library does four things and decides nothing:

    1  sends the request with `REQUEST_HEADERS` and gives the response's head to `open`
    2  takes frames with `take` and hands them on
    3  when there is none, does what `needs` says: reads bytes for `feed`, reads on to the end, or makes the
       `attempt` to resume and gives the head of its answer to `reopen`
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

from streamguard.client.head import MAX_REFUSAL, Redirects, Refusal, known_dialect, read_head
from streamguard.client.limits import LIMITS, ReaderLimits
from streamguard.client.resume import Attempt, JoinableAddress, ResumePolicy, ResumeState, vet_resume, way_back
from streamguard.client.times import Times
from streamguard.core.arguments import require, require_whole_number
from streamguard.core.cursor import Cursor
from streamguard.core.dialect import Dialect, dialect_named
from streamguard.core.errors import (
    ConnectLimitExceeded,
    CorruptStream,
    FirstByteLimitExceeded,
    LimitExceeded,
    LivenessLimitExceeded,
    LocalProtocolError,
    StallLimitExceeded,
    StreamClosed,
    StreamGuardError,
    TruncatedStream,
    VerdictError,
)
from streamguard.core.receipt import AnswerFrame, Receipt, Verdict
from streamguard.core.verify import StreamVerifier
from streamguard.core.wire import MAX_FRAME

__all__ = ["LINGER", "REQUEST_HEADERS", "AnswerState", "Needs"]

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

_TERMINAL: Final = (Verdict.COMPLETE, Verdict.FAILED)  # what a terminal can say

_UNGUARDED: Final = (
    "the server does not say that it guards (no Streamguard header): is @guarded on its endpoint? "
    "A provider's own stream needs its end marker, or dialect=Raw(profile=… or end=…)"
)

# The reason of a bye that another connection of the same reader caused: to come back would drive that one out again.
_REPLACED: Final = "replaced"

Needs = Literal["bytes", "end", "resume", "nothing"]


class AnswerState:
    """One answer as it is read. `now` is when the request is sent, in monotonic seconds.

    `dialect`, `lenient` and `max_frame` are as in StreamVerifier, `resume` is as in `way_back`.
    """

    def __init__(
        self,
        now: float,
        *,
        dialect: str | Dialect | None = None,
        lenient: bool = False,
        limits: ReaderLimits = LIMITS,
        max_frame: int = MAX_FRAME,
        resume: bool | ResumePolicy | None = None,
    ) -> None:
        # Here, since what is wrong should fail before a request is paid for.
        require("limits", limits, ReaderLimits, "ReaderLimits(first_byte=30)")
        require_whole_number("max_frame", max_frame)
        vet_resume(resume)
        self._dialect = None if dialect is None else dialect_named(dialect)
        self._lenient = lenient
        self.limits = limits
        self._max_frame = max_frame
        self._verifier = StreamVerifier()  # of the stream that `open` finds
        self._refusal: Refusal | None = None
        self._framed = True
        self._resume = resume
        self._back: ResumeState | None = None  # of a stream that can be resumed
        self._promised: str | None = None  # the dialect that the server named
        self.attempt: Attempt | None = None  # what to do next, if `needs` is "resume"
        self._redirects = Redirects()
        self._frames: deque[AnswerFrame] = deque()
        self._handed = 0  # frames that were taken
        self._guarded = False  # the server said so
        self._text = StringIO()
        self._received = 0
        self._error: StreamGuardError | None = None
        self._over = False
        self._times = Times(now)

    # ---- the head of the response -------------------------------------------------------------

    def follow(self, status: int, location: str | None, why_not: str | None = None) -> bool:
        """Whether a redirect is to be followed; `why_not` is the driver's own reason against it. An empty
        `Location` would lead to where it came from."""
        return self._redirects.follow(status, location, why_not)

    def open(
        self,
        status: int,
        headers: Mapping[str, str],
        version: str | None,
        accept_encoding: str = "identity",
        *,
        method: str = "GET",
        url: JoinableAddress | None = None,
    ) -> bool:
        """Take the response's head in: whether a stream follows. If not, `needs` still asks for some
        of the body, and `error` says what came instead.

        `headers` are found by any case; `version` is the HTTP version, or None where no connection
        carries the body; `accept_encoding`, `method` and `url` are of the request that this answers.
        """
        head = read_head(status, headers, version, accept_encoding, self._dialect)
        promise = head.promise
        self._guarded = promise is not None
        if promise is not None:
            self._promised = promise.dialect
            if self._dialect is None or self._dialect.name != promise.dialect:
                self._dialect = known_dialect(promise.dialect)  # the server knows what it wrote
        if head.wire is None or head.why is not None:
            self._refusal = Refusal(status, headers, self._redirects.why(status) or head.why or "")
            return False
        self._framed = head.framed
        self._verifier = StreamVerifier(
            wire=head.wire,
            dialect=self._dialect,
            zero=None if promise is None else promise.cursor,
            lenient=self._lenient,
            max_frame=self._max_frame,
        )
        self._back = way_back(self._resume, None if promise is None else promise.resume, method, url)
        return True

    # ---- resuming -----------------------------------------------------------------------------

    def reopen(
        self, status: int, headers: Mapping[str, str], version: str | None, accept_encoding: str, now: float
    ) -> bool:
        """Take in the head of the answer to an attempt: whether the stream goes on. As in `open`."""
        self.attempt = None
        self._over = False
        self._times.apart(now)
        head = read_head(status, headers, version, accept_encoding, self._dialect)
        if head.wire is None or head.why is not None:
            self._refusal = Refusal(status, headers, head.why or "")
            return False
        self._error = None
        self._framed = head.framed
        promise = head.promise
        self._verifier.resume(head.wire, None if promise is None else promise.cursor)
        if promise is not None and self._promised not in (None, promise.dialect):
            detail = f"the answer goes on in dialect {promise.dialect!r}, and began in {self._promised!r}"
            self._verifier.give_up(CorruptStream("grammar", cursor=self.cursor, detail=detail))
        return True

    def missed(self, cause: Exception, now: float) -> None:
        """An attempt found no answer."""
        self._times.apart(now)
        self._lost(cause)

    def _lost(self, cause: Exception | None = None) -> None:
        """A connection, or an attempt at one, came to nothing: plan the next one, or give up."""
        back, cursor = self._back, self.cursor
        if back is None or cursor is None:
            return
        if self._verifier.parting == _REPLACED:
            self._give_up("another reader took this one's place", cause)
            return
        if self._verifier.retry is not None:
            back.retry = self._verifier.retry / 1000
        self.attempt = back.again(cursor)
        if self.attempt is None:
            self._give_up(back.why, cause)

    def _refused(self, back: ResumeState, refusal: Refusal) -> None:
        """The answer to an attempt is no stream, and as much of it came as is read."""
        self._refusal = None
        outcome = back.refused(refusal)
        if isinstance(outcome, VerdictError):
            outcome.__cause__ = refusal.error()
            self._error = None
            self._verifier.give_up(outcome)
        elif outcome is None:
            self._give_up(back.why, refusal.error())
        else:
            self.attempt = outcome

    def _give_up(self, why: str, cause: Exception | None) -> None:
        """What ended the last connection is the answer's error."""
        self.attempt = None
        self._over = True
        error = self._error or self._verifier.error()
        if error is not None and cause is not None:
            error.__cause__ = cause
        if isinstance(error, TruncatedStream):
            error.explained(why)

    # ---- bytes in, frames out -----------------------------------------------------------------

    @property
    def needs(self) -> Needs:
        """What to do when `take` has nothing: `bytes` for `feed`, or all that follows the terminal, up
        to the `end`, for at most `LINGER` seconds; or make the `attempt` to `resume`."""
        if self.attempt is not None:
            return "resume"
        if self._over:
            return "nothing"
        if self._refusal is not None:
            limit = self.limits.first_byte
            enough = len(self._refusal.body) >= MAX_REFUSAL or (limit is not None and self._times.waited >= limit)
            return "nothing" if enough else "bytes"
        if self._error is not None:
            return "nothing"
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
            self._times.read(began, now, self._verifier.frames)
            if self._back is not None and self.needs == "nothing":
                self._refused(self._back, self._refusal)
            return
        self._frames.extend(self._verifier.feed(data))
        self._times.read(began, now, self._verifier.frames)
        stall = self.limits.stall
        if stall is not None and self._times.waited >= stall and self.needs == "bytes":
            self._error = StallLimitExceeded(stall, self.cursor)
        elif self._back is not None and self._verifier.state == "parted":
            self.end(now, now, clean=False)  # nothing follows a bye, and a connection may stay open after it

    def end(self, began: float, now: float, *, clean: bool, cause: Exception | None = None) -> None:
        """No more bytes. `clean`: the connection's own framing said so; else `cause` may say what broke it."""
        if self._refusal is not None:
            self._times.read(began, now, self._verifier.frames)
            self._over = True
            if self._back is not None:
                self._refused(self._back, self._refusal)
            return
        self._frames.extend(self._verifier.end(clean=clean and self._framed))
        self._times.read(began, now, self._verifier.frames)
        self._over = True
        error = self._verifier.error()
        if error is not None and cause is not None:
            error.__cause__ = cause
        if isinstance(error, TruncatedStream):
            if clean and self._looks_unguarded():
                error.explained(_UNGUARDED)
            self._lost()

    def silent(self, began: float, now: float, cause: Exception | None = None) -> None:
        """A read took longer than it may."""
        if self.needs == "end" or self._refusal is not None:
            self.end(began, now, clean=False)
            return
        self._times.read(began, now, self._verifier.frames)
        stall, liveness = self.limits.stall, self.limits.liveness
        if stall is not None and (liveness is None or stall < liveness):
            self._error = StallLimitExceeded(stall, self.cursor)
        else:
            self._error = LivenessLimitExceeded(liveness or 0.0, self.cursor)
        self._error.__cause__ = cause
        self._lost()

    def settle(self, now: float) -> None:
        """After the terminal nothing ended the bytes in time: the answer is known all the same."""
        if self.needs == "end":
            self.end(now, now, clean=False)

    def close(self, within: str = "", error: StreamGuardError | None = None) -> None:
        """This side reads no further, for `error`; `within` is where it could have. What was taken in stays."""
        if self.needs in ("bytes", "resume"):
            if self._back is not None:
                self._back = self.attempt = self._refusal = None
            advice = f": read it inside the `{within}`" if within else ""
            self._error = error or StreamClosed(f"this side closed the answer before its end{advice}")

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
    def beats(self) -> int:
        """How many signs of life came."""
        return self._verifier.beats

    @property
    def receipt(self) -> Receipt:
        """What is known so far; final at the end."""
        return attrs.evolve(
            self._verifier.receipt,
            first_frame=self._times.first_frame,
            longest_gap=self._times.longest_gap,
            duration=self._times.duration,
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
