"""What leaves with a request, whom a redirect may hand it to, and how long its answer's head may take.

Nothing here knows an HTTP library but by one seam, the `trace` extension of httpcore, which is called
as each step of a request begins and ends.

`first_byte` is a limit on all that happens between the request's first byte and the head of the answer.
A library's own timeout is one on each read, and a head that dribbles in, or a flood of `103 Early
Hints`, never lets a single read take long.

    async   a cancel scope, whose deadline is set when the request begins to leave
    sync    nothing can interrupt a read, but each one asks anew how long it may take: `_SecondsLeft`
            answers in whole seconds, rounded up, and raises when there are none
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import Any, Final, Protocol, TypedDict, cast

import anyio
import attrs

from streamguard.client.limits import ReaderLimits
from streamguard.core.arguments import did_you_mean, shown
from streamguard.core.cursor import Cursor
from streamguard.core.errors import CursorError, LocalProtocolError

__all__ = [
    "Address",
    "HeadLimit",
    "RequestOptions",
    "is_safe_header",
    "same_origin",
    "stays_in_resume",
    "vet_call",
    "vet_place",
    "why_not_follow",
]

# What a redirect may carry to another origin. A key may stand in a header of any other name. The
# length is of a body that is empty: one that is not stays here.
_SAFE: Final = frozenset(
    {
        "accept",
        "accept-encoding",
        "accept-language",
        "cache-control",
        "connection",
        "content-length",
        "content-type",
        "host",
        "streamguard",
        "user-agent",
    }
)


_OF_ONE_REQUEST: Final = frozenset({"cookie", "expect", "idempotency-key", "range", "trailer", "transfer-encoding"})


class RequestOptions(TypedDict, total=False):
    """What httpx builds the request from, under its own names; `follow_redirects` is the client's choice if absent."""

    content: Any
    data: Any
    files: Any
    json: Any
    params: Any
    headers: Any
    cookies: Any
    extensions: Any
    auth: Any
    follow_redirects: bool


_OWN: Final = ("client", "dialect", "lenient", "limits", "max_frame", "resume", "credit")
_HTTPX: Final = tuple(sorted(RequestOptions.__optional_keys__))

# Names that are no options, and what is there instead.
_ELSEWHERE: Final = {
    **{field.name: f": write limits=ReaderLimits({field.name}=…);" for field in attrs.fields(ReaderLimits)},
    "timeout": ": write limits=ReaderLimits(stall=…);",
    "wire": ": the server's answer says which carrier it is;",
}


def vet_call(name: str, client: object, kind: type, options: Mapping[str, Any]) -> None:
    """Raise TypeError unless `client` is a `kind` or None and each option has a name that httpx knows."""
    if client is not None and not isinstance(client, kind):
        raise TypeError(f"`{name}` needs an httpx.{kind.__name__} as its client, not {shown(client)}")
    for option in options:
        if option not in _HTTPX:
            advice = _ELSEWHERE.get(option) or did_you_mean(option, _OWN + _HTTPX) or ";"
            known = f"its own are {', '.join(_OWN)}; to httpx go {', '.join(_HTTPX)}"
            raise TypeError(f"unknown option {option!r}{advice} {known}")


def vet_place(last_event_id: str, after: Sequence[str]) -> None:
    """Raise LocalProtocolError for a request that bears a cursor behind the start, in its `Last-Event-ID` or in its
    query's `after`. Checksums are chained: from there on nothing can be verified without what stands before it, and the
    server's right answer would look corrupt. Values that are no cursors of ours say where in another's stream."""
    for where, values in (("Last-Event-ID", last_event_id.split(",")), ("?after=", after)):
        if any(_is_behind_start(value.strip()) for value in values):
            raise LocalProtocolError(
                f"a client verifies from the start, and cannot begin behind a cursor: ask without {where} "
                "(?name=…, or Streamguard-Stream: <sid>), and the whole comes again, verified"
            )


def _is_behind_start(text: str) -> bool:
    try:
        return Cursor.parse(text).seq > 0
    except CursorError:
        return False


class Address(Protocol):
    """An address as httpx gives it: `port` is None for the scheme's own."""

    @property
    def scheme(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int | None: ...


def is_safe_header(name: str) -> bool:
    """Whether a header of this name may follow a redirect to another origin."""
    return name.lower() in _SAFE


def stays_in_resume(name: str) -> bool:
    """Whether a header of this name goes along with a resume: not what speaks of the request's body, of another
    version of its answer, or of the one request that it was. Cookies are chosen anew."""
    name = name.lower()
    return not name.startswith(("content-", "if-")) and name not in _OF_ONE_REQUEST


def same_origin(a: Address, b: Address) -> bool:
    """Whether what `a` was given may be given to `b`: the same origin, or the same host, now by TLS."""
    upgrade = (a.scheme, b.scheme, a.port, b.port) == ("http", "https", None, None)
    return a.host == b.host and (upgrade or (a.scheme, a.port) == (b.scheme, b.port))


def why_not_follow(follows: bool, away: bool, headers: Mapping[str, str]) -> str | None:
    """Why a redirect is not followed, or None. `follows` is the caller's choice, `away` says that it leads
    to another origin, `headers` are those of the request that would follow, names in lower case."""
    if not follows:
        return "a redirect, and this client follows none (follow_redirects)"
    if away and (headers.get("content-length", "0") != "0" or "transfer-encoding" in headers):
        return "a redirect to another origin, which does not get the request's body"
    return None


class _SecondsLeft:
    """A timeout for `socket.settimeout` that is less each time it is asked for."""

    def __init__(self, until: float) -> None:
        self._until = until

    def __index__(self) -> int:
        left = self._until - monotonic()
        if left <= 0:
            raise TimeoutError("no response in time")  # as a read does that takes too long
        return math.ceil(left)


class HeadLimit:
    """The limits of one exchange, redirects included. `timeouts` is httpx's extension of that name, read
    anew as each part of a request begins; `theirs` is the caller's own trace, if any."""

    def __init__(self, limits: ReaderLimits, theirs: Callable[[str, Any], Any] | None = None) -> None:
        connect, first_byte = limits.connect, limits.first_byte
        self.timeouts = {"connect": connect, "pool": connect, "write": first_byte, "read": first_byte}
        self._limits = limits
        self._theirs = theirs
        self._until: float | None = None
        self._scope: anyio.CancelScope | None = None

    def scope(self) -> anyio.CancelScope:
        """The scope to send the next request in."""
        scope = self._scope = anyio.CancelScope()
        scope.deadline = self._deadline()
        return scope

    def came(self, read: float | None) -> None:
        """A head came. `read` is how long one read of its body may take."""
        self.timeouts["read"] = read

    def trace(self, name: str, info: Mapping[str, Any]) -> None:
        """httpcore's `trace`, without an event loop."""
        self._note(name)
        if self._until is not None and name.endswith(".receive_response_headers.started"):
            self.timeouts["read"] = cast("float", _SecondsLeft(self._until))
        if self._theirs is not None:
            self._theirs(name, info)

    async def atrace(self, name: str, info: Mapping[str, Any]) -> None:
        """httpcore's `trace`, with one."""
        if self._note(name) and self._scope is not None:
            self._scope.deadline = self._deadline()
        if self._theirs is not None:
            await cast("Awaitable[object]", self._theirs(name, info))

    def _note(self, name: str) -> bool:
        """Whether the first request of the exchange begins to leave, now."""
        limit = self._limits.first_byte
        if limit is None or self._until is not None or not name.endswith(".send_request_headers.started"):
            return False
        self._until = monotonic() + limit
        return True

    def _deadline(self) -> float:
        if self._until is not None:
            left = self._until - monotonic()
        else:  # not sent yet, or by a transport that tells nothing of its steps
            connect, first_byte = self._limits.connect, self._limits.first_byte
            left = math.inf if connect is None or first_byte is None else connect + first_byte
        return anyio.current_time() + left
