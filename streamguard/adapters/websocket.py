"""Guarded streams over WebSockets, whatever the framework (wire protocol, section 10).

A framework's adapter gives a `Socket`, accepted, and the scope of its handshake. Here the handshake is judged and the
first message read; the rest is a `Session`'s, and what serves every other request.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import anyio
import attrs

from streamguard.adapters.asgi import GuardedAnswer
from streamguard.adapters.logged import LoggedAnswer, register_resumer
from streamguard.adapters.options import AnswerOptions, StreamOptions, no_endpoint
from streamguard.adapters.pool import in_pool, is_function
from streamguard.adapters.seal import Scope
from streamguard.adapters.websocket_session import REFUSED, Refused, Session, Socket, object_of
from streamguard.app import Action, StreamGuard
from streamguard.core.cursor import looks_like_cursor
from streamguard.core.wire import Binary, Ndjson

__all__ = ["FIRST", "SUBPROTOCOL", "First", "Opening", "SocketEndpoint", "read_first", "why_no_handshake"]

SUBPROTOCOL: Final = "streamguard.v1"
FIRST: Final = 5.0  # seconds that a reader has for its first message
_MAX_FIRST: Final = 1024 * 1024  # characters of that one
_UNBLOCKING: Final = (inspect.isasyncgenfunction, inspect.isgeneratorfunction, inspect.iscoroutinefunction)

# Of the handshake's headers: what is said in the first message, and what is about its own answer.
_NOT_OURS: Final = frozenset(
    (b"accept", b"accept-encoding", b"last-event-id", b"streamguard", b"connection", b"upgrade")
)


@attrs.frozen
class First:
    """A reader's first message: {"streamguard": "v=1, …", "after": "<cursor>", "wire": "binary", "body": …}, each of
    them optional. `body` is the application's own, any JSON."""

    asked: str | None = None
    after: str | None = None
    binary: bool = False
    body: Any = None

    @classmethod
    def parse(cls, message: str) -> First:
        """Raises Refused."""
        if len(message) > _MAX_FIRST:
            raise Refused(413, "too_large")
        said = object_of(message)
        asked, after, wire = said.get("streamguard"), said.get("after"), said.get("wire", "json")
        if not isinstance(asked, (str, type(None))) or wire not in ("json", "binary"):
            raise Refused(400, "bad_message")
        if after is not None and not (isinstance(after, str) and looks_like_cursor(after)):
            raise Refused(400, "bad_message")
        return cls(asked, after, wire == "binary", said.get("body"))

    def scope(self, handshake: Mapping[str, Any]) -> Scope:
        """The scope of a request over HTTP that asks for the same."""
        headers = [(name, value) for name, value in handshake["headers"] if _passes(name)]
        if self.asked is not None or b"sg=" not in handshake.get("query_string", b""):
            headers.append((b"streamguard", (self.asked or "v=1").encode("latin-1", "replace")))
        if self.after is not None:
            headers.append((b"last-event-id", self.after.encode()))
        return {**handshake, "type": "http", "method": "GET", "http_version": "1.1", "headers": headers}

    def options(self, options: AnswerOptions) -> AnswerOptions:
        """How the stream is served: its carrier is the messages, whatever it began with."""
        return attrs.evolve(options, wire=Binary() if self.binary else Ndjson(), compress=None, unsealed="allow")


async def read_first(socket: Socket) -> First | None:
    """The first message; None if there is none to answer: then the socket was closed."""
    try:
        with anyio.fail_after(FIRST):
            message = await socket.receive()
        return None if message is None else First.parse(message)
    except TimeoutError:
        await socket.close(REFUSED + 408, "no_first_message")
    except Refused as no:
        await socket.close(REFUSED + no.status, no.reason)
    return None


def why_no_handshake(headers: Mapping[str, str], origins: Collection[str]) -> str | None:
    """Why a handshake is refused, or None. `headers` have lower-case names. A page of another origin than the host's
    may not open one, unless it is among `origins`, or "*" is: a browser asks for no leave, and sends its cookies."""
    offered = [name.strip() for name in headers.get("sec-websocket-protocol", "").split(",")]
    if SUBPROTOCOL not in offered:
        return f"the subprotocol {SUBPROTOCOL} is not offered"
    origin = headers.get("origin")
    if origin is None or "*" in origins or origin in origins:
        return None
    if origin.partition("://")[2] == headers.get("host"):
        return None
    return "another origin"


@attrs.frozen
class Opening:
    """What an endpoint is called with: the framework's own object of the handshake, and the application's part of the
    first message, any JSON."""

    request: Any
    body: Any


class SocketEndpoint:
    """An endpoint whose streams go over WebSockets, in any framework. `guard` and `stream` are those of streams in a
    log, `origins` the pages of other origins that may open one. Raises TypeError for what is no function, ValueError
    for dialect `text`, which has no cursors."""

    def __init__(
        self,
        function: Callable[[Opening], Any],
        options: AnswerOptions,
        origins: Collection[str] = (),
        guard: StreamGuard | None = None,
        stream: StreamOptions | None = None,
    ) -> None:
        if not is_function(function):
            raise TypeError(no_endpoint(function, "guarded_websocket" if guard is None else "guard.websocket"))
        if isinstance(origins, str):
            raise TypeError(f'origins are several: origins=["{origins}"]')
        First().options(options)  # now: it may be one that cannot be
        if guard is not None and stream is not None:
            stream = register_resumer(guard, stream, options, function)
        self.function, self.options, self.origins, self.guard, self.stream = function, options, origins, guard, stream

    def refused(self, headers: Mapping[str, str], *, deflates: bool) -> str | None:
        """Why a handshake is refused, or None. `deflates`: whether the server may compress messages, which tells of
        what is in them by their length (BREACH)."""
        if deflates and self.stream is not None and self.stream.confidential:
            return "a confidential stream is not compressed: turn permessage-deflate off"
        return why_no_handshake(headers, self.origins)

    async def serve(self, socket: Socket, request: Any, handshake: Mapping[str, Any]) -> None:
        """One stream on a socket that was accepted; `request` is what `authorize` is given."""
        first = await read_first(socket)
        if first is None:
            return
        session = Session(socket, first.scope(handshake), first.body, binary=first.binary, guard=self.guard)
        source = functools.partial(self.function, Opening(request, first.body))
        if not any(kind(self.function) for kind in _UNBLOCKING):
            source = functools.partial(in_pool, source)
        options = first.options(self.options)
        answer: GuardedAnswer | LoggedAnswer
        if self.guard is None or self.stream is None:
            answer = GuardedAnswer(source, options=options)
        else:
            both = self.stream, options
            answer = LoggedAnswer(self.guard, source, body=session.body, options=both)
        answer.request = request
        await session.serve(answer, functools.partial(self._principal, request))

    async def _principal(self, request: Any, action: Action) -> str | None:
        return None if self.guard is None else await self.guard.principal(request, action)


def _passes(name: bytes) -> bool:
    return name not in _NOT_OURS and not name.startswith(b"sec-websocket-")
