"""What the head of a response says: which stream follows, or why none does. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

import attrs

from streamguard.client.body import coding_of, may_be_read
from streamguard.core.dialect import Dialect, dialect_named
from streamguard.core.errors import UnexpectedResponse
from streamguard.core.negotiate import Answer as Promise
from streamguard.core.negotiate import parse_answer
from streamguard.core.wire import Wire, wire_for_content_type

__all__ = [
    "MAX_REDIRECTS",
    "MAX_REFUSAL",
    "Head",
    "Problem",
    "Redirects",
    "Refusal",
    "known_dialect",
    "problem_in",
    "read_head",
    "retry_after",
]

MAX_REFUSAL: Final = 64 * 1024  # bytes kept of the body of an answer that is no stream
MAX_REDIRECTS: Final = 20  # as in the Fetch standard, and in httpx

_REDIRECTS: Final = (301, 302, 303, 307, 308)
_WITH_BODY: Final = (200, 201, 202, 203)  # a 206 is a part of something


@attrs.define
class Redirects:
    """The redirects of one request."""

    followed: int = 0
    unfollowed: str | None = None  # the driver's own reason against one

    def follow(self, status: int, location: str | None, why_not: str | None) -> bool:
        """As in `AnswerState.follow`."""
        if status not in _REDIRECTS or not (location or "").strip() or self.followed >= MAX_REDIRECTS:
            return False
        if why_not is not None:
            self.unfollowed = why_not
            return False
        self.followed += 1
        return True

    def why(self, status: int) -> str | None:
        """Why a redirect was not followed; None for what is none."""
        if status not in _REDIRECTS:
            return None
        if self.unfollowed is not None:
            return self.unfollowed
        return "too many redirects" if self.followed >= MAX_REDIRECTS else "a redirect to nowhere"


@attrs.define
class Refusal:
    """An answer that is no stream, as far as it was read. `headers` are found by any case."""

    status: int
    headers: Mapping[str, str]
    why: str
    body: bytes = b""

    def error(self) -> UnexpectedResponse:
        content_type, later = self.headers.get("content-type", ""), retry_after(self.headers)
        return UnexpectedResponse(self.status, content_type, self.body[:MAX_REFUSAL], self.why, retry_after=later)


class Problem(NamedTuple):
    """What a problem (RFC 9457) says of itself."""

    code: str | None = None
    detail: str = ""


def problem_in(body: bytes) -> Problem:
    """The problem that is the body of a refusal; an empty one for what is none."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return Problem()
    if not isinstance(fields, dict):
        return Problem()
    code, detail = fields.get("code"), fields.get("detail")
    return Problem(code if isinstance(code, str) else None, detail if isinstance(detail, str) else "")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds from either form of `Retry-After`; None where there is none. A date is compared with the server's own."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        until, now = (parsedate_to_datetime(value) for value in (text, headers.get("date", "")))
        return max(0.0, (until - now).total_seconds())
    except (TypeError, ValueError, OverflowError):
        return None


@attrs.frozen
class Head:
    """The head of a response that a stream follows, unless `why` says why there is none.

    `framed`: whether the body's end is more than the end of the connection, which proves nothing.
    """

    wire: Wire | None
    promise: Promise | None
    framed: bool
    why: str | None


def read_head(
    status: int, headers: Mapping[str, str], version: str | None, accept_encoding: str, dialect: Dialect | None
) -> Head:
    """Take a head apart. `dialect` is what the reader expects, where the server promises none; the rest is as in
    `AnswerState.open`."""
    wire = wire_for_content_type(headers.get("content-type", ""))
    promise = parse_answer(headers.get("streamguard"))
    if promise is not None and (dialect is None or dialect.name != promise.dialect):
        dialect = known_dialect(promise.dialect)
    why = _why_not(status, wire, promise, dialect)
    coding = coding_of(headers.get("content-encoding", ""))
    if why is None and not may_be_read(coding, accept_encoding):
        why = f"the body is encoded as {coding!r}, which was not asked for"
    if why is None and wire is None:
        why = "the content type is that of no stream"
    return Head(wire, promise, _framed(headers, version), why)


def known_dialect(name: str) -> Dialect | None:
    """A promised dialect by its name; one that this version does not know is read as a provider's events."""
    try:
        return dialect_named(name)
    except ValueError:
        return None


def _why_not(status: int, wire: Wire | None, promise: Promise | None, dialect: Dialect | None) -> str | None:
    if status not in _WITH_BODY:
        return "no stream"
    if wire is None:
        return None
    if promise is not None and promise.wire != wire.name:
        return f"the Streamguard header promises {promise.wire!r}, and this is {wire.name!r}"
    as_text = dialect is not None and dialect.name == "text"
    if wire.name == "plain" and not as_text:
        return "plain text proves no end, and is read only if dialect='text' is asked for"
    if as_text and wire.name != "plain":  # the end of its bytes would prove the end of the stream
        return f"dialect 'text' is that of text/plain, and this is {wire.name!r}"
    return None


def _framed(headers: Mapping[str, str], version: str | None) -> bool:
    if version is None or not version.startswith("HTTP/1"):
        return True
    return "content-length" in headers or "chunked" in headers.get("transfer-encoding", "").lower()
