"""How a stream that was cut is resumed: when to ask for what follows, with which request, and when to give up. No I/O.

A resume is a GET that bears the last good cursor, to the address that the answer named or, where the request was a GET,
to its own; never a second POST, which could start a second generation. A stream that names no address and was not born
by a GET cannot be resumed.

Waits are drawn at random, below a bound that doubles, so that the readers of a server that went down do not come back
all at once. A server's own wish (`retry:`, `Retry-After`) is waited for before that. Only a *new frame* gives the
attempts back: a server that accepts every resume and then sends nothing would be asked for ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import random
from typing import Any, Final, Protocol

import attrs
from typing_extensions import Self

from streamguard.client.head import Refusal, problem_in, retry_after
from streamguard.client.request import Address, same_origin
from streamguard.core.arguments import is_number, one_line, shown, whole_number
from streamguard.core.cursor import Cursor
from streamguard.core.errors import LocalProtocolError, StreamGap, VerdictError

__all__ = ["Attempt", "JoinableAddress", "ResumePolicy", "ResumeState", "vet_resume", "way_back"]

# What a server answers that is in trouble now, and may not be later.
_LATER: Final = (408, 425, 429, 500, 502, 503, 504)
# What it answers where it has no more of the stream, each with the code of a server that says no more.
_NO_MORE: Final = {404: "unknown_stream", 409: "misfit", 410: "trimmed"}
_MAX_DETAIL: Final = 200  # characters of what a server says that stand in an error
_BUSY: Final = "busy"  # the code of a conflict that ends: another connection of this reader is not gone yet


def _seconds(instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
    if not is_number(value):
        raise TypeError(f"{attribute.name} is a number of seconds, not {shown(value)}")
    if not 0 <= value < math.inf:
        raise ValueError(f"{attribute.name} is a number of seconds from 0 on, not {value!r}")


@attrs.frozen
class ResumePolicy:
    """How often a stream is resumed, and how fast. Times are seconds.

    `attempts`: how many in a row may bring no new frame. `base` is the bound of the first wait; it doubles with each
    attempt in a row. `max_wait` bounds every wait: a `retry:` above it is cut short, and a server whose `Retry-After`
    is above it is not asked again.
    """

    attempts: int = attrs.field(default=5, validator=whole_number)
    base: float = attrs.field(default=0.5, validator=_seconds)
    max_wait: float = attrs.field(default=30.0, validator=_seconds)


class JoinableAddress(Address, Protocol):
    """An address that a relative one can be resolved against."""

    def join(self, url: Any) -> Self: ...


@attrs.frozen
class Attempt:
    """What to do next: wait so many seconds, then GET `url` with these headers beside those of the request."""

    wait: float
    url: JoinableAddress
    headers: tuple[tuple[str, str], ...]


class ResumeState:
    """The attempts to resume one stream at `url`. `draw` answers numbers from 0 up to 1."""

    def __init__(self, policy: ResumePolicy, url: JoinableAddress, draw: Callable[[], float] = random) -> None:
        self.policy = policy
        self.url = url
        self.why = ""  # there is no further attempt
        self.retry = 0.0  # seconds that the server wants to be left alone, after each end of a connection
        self._draw = draw
        self._spent = 0
        self._at: Cursor | None = None  # of the last attempt

    def again(self, cursor: Cursor, asked: float = 0.0) -> Attempt | None:
        """The next attempt, behind `cursor`; None to give up. `asked`: the seconds of a `Retry-After`."""
        policy = self.policy
        if self._at is None or cursor.seq > self._at.seq:
            self._at, self._spent = cursor, 0
        if self._spent >= policy.attempts:
            attempts = "1 attempt" if self._spent == 1 else f"{self._spent} attempts"
            self.why = f"{attempts} to resume it brought no new frame"
            return None
        bound = min(policy.max_wait, policy.base * 2.0 ** min(self._spent, 64))
        self._spent += 1
        wait = min(policy.max_wait, max(asked, self.retry) + bound * self._draw())
        return Attempt(wait, self.url, (("Last-Event-ID", str(cursor)),))

    def refused(self, refusal: Refusal) -> Attempt | VerdictError | None:
        """What an answer that is no stream means: another attempt, a verdict, or the end of all attempts."""
        cursor = self._at
        if cursor is None:
            raise LocalProtocolError("nothing was asked for")
        status = refusal.status
        code, detail = problem_in(refusal.body)
        if status in _LATER or (status == 409 and code == _BUSY):
            asked = retry_after(refusal.headers) or 0.0
            if asked <= self.policy.max_wait:
                return self.again(cursor, asked)
            self.why = f"the server wants to be left alone for {asked:g} s"
            return None
        if status in _NO_MORE:
            told = f": {one_line(detail[:_MAX_DETAIL])}" if detail else ""
            detail = f"the server does not have what follows (HTTP {status}){told}"
            return StreamGap(cursor.seq + 1, None, cursor=cursor, detail=detail, code=code or _NO_MORE[status])
        if status == 204:
            self.why = "the server says that nothing follows, and there was no terminal"
        else:
            self.why = f"the server did not resume it: {refusal.why} (HTTP {status})"
        return None


def vet_resume(resume: object) -> None:
    """Raise TypeError unless `resume` is what `way_back` takes."""
    if not (resume is None or isinstance(resume, (bool, ResumePolicy))):
        raise TypeError(f"resume is True, False or ResumePolicy(attempts=5), not {shown(resume)}")


def way_back(
    resume: bool | ResumePolicy | None, address: str | None, method: str, url: JoinableAddress | None
) -> ResumeState | None:
    """How a stream can be resumed that answered a request of `method` to `url`; None if it cannot.

    `resume` is the caller's choice: False for never, None for where the server names an `address`. Otherwise a stream
    that a GET began goes on at its own. An address of another origin is none: the request's headers are not for that.
    """
    if resume is False or url is None:
        return None
    policy = resume if isinstance(resume, ResumePolicy) else ResumePolicy()
    if address is None:
        return ResumeState(policy, url) if resume is not None and method == "GET" else None
    try:
        target = url.join(address)
    except Exception:  # whatever the library's addresses raise for one that is none
        return None
    return ResumeState(policy, target) if same_origin(url, target) else None
