"""Everything that can go wrong, in one tree.

StreamGuardError
├── LocalProtocolError           this side broke the rules: a source, a policy, a caller
│   ├── UnsupportedItem          a source yielded what this stream cannot carry (also a TypeError)
│   ├── TextAfterFinish          text for a choice that already has its finish reason
│   ├── FinishConflict           two different finish reasons for one choice
│   ├── ItemTooLarge             one block or event above the limit
│   ├── NotSerialisable          NaN, Infinity or an object that JSON has no form for (also a ValueError)
│   ├── FieldRefused             CR, LF or NUL where the wire has no place for it (also a ValueError)
│   ├── PolicyError              a flush policy answered an impossible number
│   ├── StreamFinished           the terminal frame was already written
│   ├── StreamClosed             this side closed the stream
│   └── StreamBroken             the connection under the stream is gone
├── SourceFailed                 raised *by a source* to choose the code and message the reader gets
├── StreamAborted                a stream driven by hand ended in any terminal but `complete`
└── RemoteProtocolError          the other side broke the rules
    ├── WireError                bytes that are not the carrier's format
    │   ├── CursorError          a cursor outside its grammar
    │   └── FrameTooLarge        one frame above the reader's limit
    ├── UnexpectedResponse       an HTTP answer that is no stream
    ├── LimitExceeded            a reader's time limit passed
    │   ├── ConnectLimitExceeded, FirstByteLimitExceeded, LivenessLimitExceeded, StallLimitExceeded
    └── VerdictError             the stream was read, and is not complete
        ├── TruncatedStream      it ended before its terminal frame
        ├── CorruptStream        a frame's own checks failed
        ├── StreamGap            frames are missing
        └── FailedStream         its terminal frame says that it failed

Each carries its facts as attributes and builds its own message from them, so that a caller can
branch on facts and never parses a sentence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

if TYPE_CHECKING:
    from streamguard.core.cursor import Cursor

__all__ = [
    "StreamGuardError",
    "LocalProtocolError",
    "UnsupportedItem",
    "TextAfterFinish",
    "FinishConflict",
    "ItemTooLarge",
    "NotSerialisable",
    "FieldRefused",
    "PolicyError",
    "StreamFinished",
    "StreamClosed",
    "StreamBroken",
    "SourceFailed",
    "StreamAborted",
    "RemoteProtocolError",
    "WireError",
    "CursorError",
    "FrameTooLarge",
    "UnexpectedResponse",
    "LimitExceeded",
    "ConnectLimitExceeded",
    "FirstByteLimitExceeded",
    "LivenessLimitExceeded",
    "StallLimitExceeded",
    "VerdictError",
    "TruncatedStream",
    "CorruptStream",
    "StreamGap",
    "FailedStream",
    "Failure",
    "failure_from",
]


# Characters of a failure's code and message. Whatever a source puts into them, an exception object or
# a megabyte, a terminal frame can carry: at the end of a stream nothing may raise.
_MAX_CODE: Final = 128
_MAX_MESSAGE: Final = 4096


def _code(value: object) -> str:
    return str(value)[:_MAX_CODE]


def _message(value: object) -> str:
    return str(value)[:_MAX_MESSAGE]


@attrs.frozen
class Failure:
    """Why a stream did not complete, as the reader is told: safe to show, details stay in the log."""

    code: str = attrs.field(converter=_code)
    message: str = attrs.field(converter=_message)
    retryable: bool = False
    resumable: bool = False


class StreamGuardError(Exception):
    """Root of the tree."""

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is otherwise rebuilt from its message alone, which none of these take: it could
        # not be copied, nor leave the process that raised it.
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(cls: type[StreamGuardError], args: tuple[Any, ...], facts: dict[str, Any]) -> StreamGuardError:
    exc = cls.__new__(cls, *args)
    exc.__dict__.update(facts)
    return exc


class LocalProtocolError(StreamGuardError):
    """This side broke the rules. `code` is what the reader's terminal frame will carry."""

    code = "internal"


class UnsupportedItem(LocalProtocolError, TypeError):
    """A source yielded something that its dialect has no form for (`dialect` is empty: that none has)."""

    code = "unsupported_item"

    def __init__(self, kind: str, dialect: str, advice: str = "") -> None:
        self.kind = kind
        self.dialect = dialect
        where = f"dialect {dialect!r} cannot carry" if dialect else "no dialect can carry"
        super().__init__(f"a source yielded {kind}, which {where}" + (f": {advice}" if advice else ""))


class TextAfterFinish(LocalProtocolError):
    """Text for a choice whose finish reason was already given."""

    code = "text_after_finish"

    def __init__(self, choice: int, reason: str) -> None:
        self.choice = choice
        self.reason = reason
        super().__init__(f"choice {choice} already finished with {reason!r}; no text may follow")


class FinishConflict(LocalProtocolError):
    """Two different finish reasons for one choice."""

    code = "finish_conflict"

    def __init__(self, choice: int, first: str, second: str) -> None:
        self.choice = choice
        self.first = first
        self.second = second
        super().__init__(f"choice {choice} finished with {first!r}, then with {second!r}")


class ItemTooLarge(LocalProtocolError):
    """One block or event above the limit, in bytes of its serialised data."""

    code = "item_too_large"

    def __init__(self, size: int, limit: int, advice: str = "raise `max_block`, or send a reference to it") -> None:
        self.size = size
        self.limit = limit
        super().__init__(f"an item of {size} bytes is above the limit of {limit}; {advice}")


class NotSerialisable(LocalProtocolError, ValueError):
    """A value that JSON has no form for."""

    code = "not_serialisable"


class FieldRefused(LocalProtocolError, ValueError):
    """A field that holds CR, LF or NUL, which would end or alter it on the wire, or is too long for it."""

    code = "field_refused"

    def __init__(self, field: str, why: str = "holds CR, LF or NUL, which the wire has no place for") -> None:
        self.field = field
        super().__init__(f"the {field} field {why}")


class PolicyError(LocalProtocolError):
    """A flush policy answered anything but an int from zero to the number of characters held."""

    code = "policy_error"

    def __init__(self, policy: str, answer: object, held: int) -> None:
        self.policy = policy
        self.answer = answer
        self.held = held
        # A number, and no other answer's repr: that may be the text itself, or raise.
        shown = f"{answer:d}" if type(answer) is int and abs(answer) < 2**63 else f"a {type(answer).__name__}"
        super().__init__(f"{policy} answered {shown}; {held} characters are held: answer an int from 0 to {held}")


class StreamFinished(LocalProtocolError):
    """The stream already wrote its terminal frame; nothing may follow it."""

    def __init__(self, status: str) -> None:
        self.status = status
        super().__init__(f"the stream already ended as {status!r}")


class StreamClosed(LocalProtocolError):
    """This side closed the stream before it ended, or has handed out already what is asked for."""


class StreamBroken(LocalProtocolError):
    """The connection under the stream is gone."""


class SourceFailed(StreamGuardError):
    """Raise this in a source to choose what the reader is told.

    Any other exception reaches the reader as its class name only, because messages of
    exceptions hold secrets more often than one thinks.
    """

    def __init__(self, code: str, message: str, *, retryable: bool = False) -> None:
        self.failure = Failure(code, message, retryable)
        super().__init__(f"{code}: {message}")


class StreamAborted(StreamGuardError):
    """A stream driven by hand ended in a terminal other than `complete`: abort the connection."""

    def __init__(self, status: str, failure: Failure | None) -> None:
        self.status = status
        self.failure = failure
        super().__init__(f"the stream ended as {status!r}" + (f" ({failure.code})" if failure else ""))


class RemoteProtocolError(StreamGuardError):
    """The other side broke the rules."""


class WireError(RemoteProtocolError):
    """Bytes that are not the carrier's format."""


class CursorError(WireError):
    """A cursor outside the grammar of the wire protocol, section 1."""

    def __init__(self, text: str) -> None:
        self.text = text[:128]
        super().__init__(f"not a cursor: {self.text!r}")


class FrameTooLarge(WireError):
    """One frame above the reader's limit, in bytes."""

    def __init__(self, size: int, limit: int) -> None:
        self.size = size
        self.limit = limit
        super().__init__(f"a frame of at least {size} bytes is above the reader's limit of {limit}")


class UnexpectedResponse(RemoteProtocolError):
    """The server answered with something that is no stream. `retry_after`: seconds that it wants to be left alone."""

    def __init__(
        self, status: int, content_type: str, body: bytes, why: str = "", *, retry_after: float | None = None
    ) -> None:
        self.status = status
        self.content_type = content_type
        self.body = body
        self.retry_after = retry_after
        head = body[:200].decode("utf-8", "replace")
        super().__init__(
            f"{why or 'no stream'}: HTTP {status}, {content_type or 'no content type'}"
            + (f", beginning {head!r}" if head else "")
        )


class LimitExceeded(RemoteProtocolError):
    """A reader's time limit passed. `seconds` is the limit; `cursor` the last good one, if any."""

    what = "a time limit passed"

    def __init__(self, seconds: float, cursor: Cursor | None = None) -> None:
        self.seconds = seconds
        self.cursor = cursor
        super().__init__(f"{self.what} within {seconds:g} s" + (f" after {cursor}" if cursor else ""))


class ConnectLimitExceeded(LimitExceeded):
    what = "no connection"


class FirstByteLimitExceeded(LimitExceeded):
    what = "no response"


class LivenessLimitExceeded(LimitExceeded):
    what = "no byte, not even a heartbeat,"


class StallLimitExceeded(LimitExceeded):
    what = "no frame, only heartbeats,"


class VerdictError(RemoteProtocolError):
    """The stream was read and is not complete.

    `cursor` is the last one whose checks held, `received` the text handed out before the end.
    """

    def __init__(self, message: str, *, cursor: Cursor | None = None, received: str = "") -> None:
        self.cursor = cursor
        self.received = received
        super().__init__(message)


class TruncatedStream(VerdictError):
    """The bytes ended before the terminal frame. `frames` is how many events came where none has a cursor."""

    def __init__(self, *, cursor: Cursor | None = None, received: str = "", detail: str = "", frames: int = 0) -> None:
        self.detail = detail
        self.frames = frames
        if cursor is None and frames:
            where = f"after {frames} event{'s' if frames > 1 else ''} without its end marker"
        else:
            where = f"{f'after {cursor}' if cursor else 'before any verified frame'} without its terminal frame"
        why = f": {detail}" if detail else ""
        super().__init__(f"the stream ended {where}{why}", cursor=cursor, received=received)

    def explained(self, detail: str) -> TruncatedStream:
        """This error, whose message says more now: what is known where its bytes came from."""
        self.args = (f"{self}{';' if self.detail else ':'} {detail}",)
        self.detail = f"{self.detail}; {detail}" if self.detail else detail
        return self


class CorruptStream(VerdictError):
    """A frame failed its checks. `code` names the first check that failed."""

    def __init__(self, code: str, *, cursor: Cursor | None = None, received: str = "", detail: str = "") -> None:
        self.code = code
        self.detail = detail
        where = f"the frame after {cursor}" if cursor else "the first frame"
        super().__init__(
            f"{where} is corrupt ({code})" + (f": {detail}" if detail else ""), cursor=cursor, received=received
        )


class StreamGap(VerdictError):
    """Frames are missing between the last good one and the next. `code` says why, where the server did."""

    def __init__(
        self,
        expected: int,
        got: int | None,
        *,
        cursor: Cursor | None = None,
        received: str = "",
        detail: str = "",
        code: str | None = None,
    ) -> None:
        self.expected = expected
        self.got = got
        self.detail = detail
        self.code = code
        super().__init__(
            f"frame {expected} is missing"
            + (f", {got} came instead" if got is not None else "")
            + (f": {detail}" if detail else ""),
            cursor=cursor,
            received=received,
        )


class FailedStream(VerdictError):
    """The stream's own terminal says that it did not complete."""

    def __init__(
        self, status: str, failure: Failure | None, *, cursor: Cursor | None = None, received: str = ""
    ) -> None:
        self.status = status
        self.failure = failure
        self.code = failure.code if failure else None
        code = "" if failure is None or failure.code == status else f": {failure.code}"  # else it is said twice
        why = f"{code}: {failure.message}" if failure else ""
        super().__init__(f"the stream ended as {status!r}{why}", cursor=cursor, received=received)


def failure_from(exc: BaseException) -> Failure:
    """What a reader may be told of `exc`: our own errors in full, a source's by class name only. Never raises."""
    try:
        if isinstance(exc, SourceFailed) and isinstance(exc.failure, Failure):
            return exc.failure
        if isinstance(exc, LocalProtocolError):
            return Failure(exc.code, str(exc))
    except Exception:
        pass  # a subclass that left out `super().__init__()`, or whose text cannot be made
    return Failure("source_error", type(exc).__name__)
