"""The endpoints of all streams, as one ASGI application (wire protocol, section 8).

    GET     /streams            the frames behind a cursor, then live ones; or a stream from its start
    HEAD    /streams            the same without a body
    POST    /streams            {"reader": …, "ack": "<cursor>", "credit": [frames, bytes]}
    DELETE  /streams            cancel
    GET     /streams/status     how it stands, as JSON, without any of its text
    GET     /streams/selftest   a stream that fails on purpose, to see whether its abort arrives
    GET     /streams/<sid>      for EventSource, which can set no header; it may be switched off
    GET     /streams/streamguard.js    the JavaScript client, to everybody
    GET     /streams/dashboard  the live page, where a Live is among the guard's observers

A stream is named by a cursor (`Last-Event-ID`, `?after=`), by `Streamguard-Stream: <sid>`, or by the application's own
name for it (`?name=`), which means the newest of the caller's. Ids stay out of addresses, and so of access logs, save
where an EventSource asks and in `?after=`. Everything is refused to whom `authorize` refuses it, before anything is
looked up; another's stream and none at all are the same answer.

OPTIONS is left to the application: a CORS layer outside of it answers preflights, with CORS_HEADERS allowed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Final
from urllib.parse import parse_qs

from typing_extensions import Unpack

from streamguard.adapters.asgi import GuardedAnswer, refuse_early
from streamguard.adapters.dashboard import dashboard_of
from streamguard.adapters.logged import FORBIDDEN
from streamguard.adapters.module import MODULE, module_answer
from streamguard.adapters.options import AnswerOptions, Options
from streamguard.adapters.reading import ROOT, Reading
from streamguard.adapters.reconnect import find_named
from streamguard.adapters.refusals import NOT_HERE, unavailable, why_not
from streamguard.adapters.seal import ASGIApp, Message, Receive, Scope, SealMiddleware, Send, mark_guarded
from streamguard.adapters.shutdown import DRAIN
from streamguard.adapters.workers import declared_workers
from streamguard.app import Action, StreamGuard
from streamguard.core.arguments import shown
from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.errors import CursorError, SourceFailed
from streamguard.core.exchange import NO_STORE, Refusal, RequestFacts, cannot_resume, problem
from streamguard.log.base import LogError, LogUnavailable, StreamSealed, StreamState, UnknownStream
from streamguard.runtime.grants import Told

__all__ = ["CORS_EXPOSED", "CORS_HEADERS", "Endpoints", "RootedSeal", "require_path"]

logger = logging.getLogger("streamguard")

CORS_HEADERS: Final = (
    "Streamguard",
    "Streamguard-Stream",
    "Streamguard-Client",
    "Last-Event-ID",
    "Idempotency-Key",
    "Content-Type",
)
"""What a page of another origin must be allowed to send."""
CORS_EXPOSED: Final = ("Streamguard",)
"""What it must be allowed to read."""

_METHODS: Final = {"": "GET, HEAD, POST, DELETE, OPTIONS", "selftest": "GET, OPTIONS"}
_ACTIONS: Final[dict[str, Action]] = {"GET": "read", "HEAD": "read", "POST": "ack", "DELETE": "cancel"}
_MAX_BODY: Final = 4096  # bytes of a POST, which are a hundred
_NAMELESS: Final = problem(400, "no_stream", "name the stream: Last-Event-ID, Streamguard-Stream or ?name=")
_NO_CURSOR: Final = problem(
    400, "no_stream", "the Last-Event-ID is no cursor: it is the id of an event, as it came"
)
_UNKNOWN: Final = problem(404, "unknown_stream", NOT_HERE)
_MISFIT: Final = problem(409, "misfit", "the cursor is not one of this stream's, or was not sent to this reader")
_NOT_SHARED: Final = (
    "%s keeps streams in one process, and this server was started with %d workers: a reader that comes back to another "
    "worker is refused (404 unknown_stream). Use SQLiteLog or RedisLog, or one worker"
)
_NOT_HERE: Final = problem(409, "not_here", "this process does not serve that reader")
_FORM: Final = 'the body is {"reader": "…", "ack": "<cursor>", "credit": [frames, bytes]}, the last two optional'
_NOT_TOLD: Final = problem(400, "bad_request", _FORM)
_UNHEARD: Final[dict[str, Refusal]] = {"not here": _NOT_HERE, "misfit": _MISFIT}


class RootedSeal(SealMiddleware):
    """The seal of an application that has the endpoints: it also notes where that is mounted, for their address.

    At the application's shutdown it lets go of the streams that `guard` generates, before the application's own
    clean-up, whose resources their sources use; and closes the log, with `close_log`.
    """

    def __init__(self, app: ASGIApp, guard: StreamGuard | None = None, *, close_log: bool = True) -> None:
        super().__init__(app)
        if guard is not None:
            self.draining = guard
        self._guard = guard
        self._close_log = close_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        guard = self._guard
        if scope["type"] in ("http", "websocket"):
            scope[ROOT] = scope.get("root_path", "")
            scope[DRAIN] = self.draining.draining
        if scope["type"] != "lifespan" or guard is None:
            await super().__call__(scope, receive, send)
            return

        async def receive_and_let_go() -> Message:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await _started(guard, send)
            if message["type"] == "lifespan.shutdown":
                await guard.aclose(close_log=self._close_log)
            return message

        await super().__call__(scope, receive_and_let_go, send)


async def _started(guard: StreamGuard, send: Send) -> None:
    """Raise RuntimeError for a guard that cannot serve any more, and tell the server: one that only meets an exception
    takes the application for one that has no such protocol, and serves."""
    try:
        await guard.require_open()
    except RuntimeError as exc:
        await send({"type": "lifespan.startup.failed", "message": str(exc)})
        raise


class _Refused(Exception):
    """An answer that is no stream, from where it was found out."""

    def __init__(self, refused: Refusal) -> None:
        self.refused = refused


class Endpoints:
    """The application. `path` is where it stands, `by_id` whether a stream's id may stand in an address; `request_of`
    makes what `authorize` is given, the scope by default. Options are how streams are served that are resumed here;
    dialect and flush policy are those that a stream began with."""

    def __init__(
        self,
        guard: StreamGuard,
        path: str = "/streams",
        *,
        by_id: bool = True,
        request_of: Callable[[Scope, Receive], Any] | None = None,
        **named: Unpack[Options],
    ) -> None:
        require_path(path)
        self.guard = guard
        self.path = path
        self.by_id = by_id
        self.options = AnswerOptions.of_resumes(named)
        self._request_of = request_of
        self._dashboard = dashboard_of(guard)
        guard.path = path
        workers = declared_workers()
        if workers > 1 and not getattr(guard.log, "shared", True):
            logger.warning(_NOT_SHARED, type(guard.log).__name__, workers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the endpoints of streams speak HTTP, and were given {scope['type']!r}")
        mark_guarded(scope)
        reading = Reading(self.guard, self.options, scope, receive, send)
        try:
            await self._serve(reading, self._tail(scope))
        except _Refused as no:
            await reading.refuse(no.refused)
        except LogUnavailable as exc:
            await reading.refuse(unavailable(reading.facts, exc))

    def _tail(self, scope: Scope) -> str:
        """What stands in the path behind the endpoints' own."""
        path, root = str(scope["path"]), str(scope.get("root_path", ""))
        for prefix in (root, self.path):
            if prefix and (path == prefix or path.startswith(prefix + "/")):
                path = path[len(prefix) :]
        return path.strip("/")

    async def _serve(self, reading: Reading, tail: str) -> None:
        facts = reading.facts
        allowed = _METHODS.get(tail, "GET, HEAD, OPTIONS")
        if facts.method == "OPTIONS":
            raise _Refused(Refusal(204, [NO_STORE, ("allow", allowed)]))
        if facts.method not in allowed.split(", "):
            raise _Refused(problem(405, "method_not_allowed", f"allowed: {allowed}", ("allow", allowed)))
        if tail == MODULE:
            await reading.refuse(module_answer(facts))
            return
        request = reading.scope if self._request_of is None else self._request_of(reading.scope, reading.receive)
        if self._dashboard is not None and self._dashboard.is_at(tail):
            await self._dashboard.serve(reading, tail, request)
            return
        action: Action = {"status": "status", "selftest": "start"}.get(tail, _ACTIONS[facts.method])  # type: ignore[assignment]
        principal = await self.guard.principal(request, action)
        if principal is None:
            raise _Refused(FORBIDDEN)
        if tail == "selftest":
            await _selftest(reading)
        elif tail == "status":
            await self._status(reading, await self._found(reading, principal))
        elif facts.method == "POST":
            await self._acknowledge(reading, principal)
        elif facts.method == "DELETE":
            await self._cancel(reading, await self._found(reading, principal))
        else:
            await self._read(reading, tail, principal)

    # ---- the verbs ----------------------------------------------------------------------------

    async def _read(self, reading: Reading, tail: str, principal: str) -> None:
        facts = reading.facts
        refused = refuse_early(self.options, reading.scope, reading.receive, reading.send, facts, self.guard.observe)
        if refused is not None:
            raise _Refused(refused)
        sid = tail or facts.headers.get("streamguard-stream")
        if tail and not (self.by_id and _is_sid(tail)):
            raise _Refused(problem(404, "no_such_endpoint", "there is nothing at this address"))
        if facts.cursor is not None:
            cursor = Cursor.parse(facts.cursor)
            if sid is not None and sid != cursor.sid:
                raise _Refused(cannot_resume(facts, cursor, 409, "misfit", "the cursor is another stream's"))
            await reading.resume(cursor, principal)
            return
        zero = cursor_zero(sid or "")
        try:
            state = await self._state(facts, sid, principal)
        except LogError as exc:
            raise _Refused(why_not(facts, zero, exc)) from None
        await reading.begin(state.info)

    async def _acknowledge(self, reading: Reading, principal: str) -> None:
        facts = reading.facts
        if facts.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            # A form of another site's page could be posted here without asking; JSON cannot.
            raise _Refused(problem(415, "not_json", "the body is application/json"))
        try:
            told = Told.parse(await _body(reading))
        except ValueError:
            raise _Refused(_NOT_TOLD) from None
        state = await self._found(reading, principal)
        try:
            heard = await self.guard.grants.hear(told, state.info.sid)
        except UnknownStream:  # it was purged meanwhile
            raise _Refused(_UNKNOWN) from None
        if heard in _UNHEARD:
            raise _Refused(_UNHEARD[heard])
        if heard == "passed on":  # whether there is such a reader, nobody knows here
            await reading.refuse(Refusal(202, [NO_STORE, ("content-length", "0")]))
            return
        # A reader that did not ask for it is slowed by its transport; a grant changes nothing there.
        refused = [("streamguard", "v=1, credit=?0")] if heard == "no credit" else []
        await reading.refuse(Refusal(204, [NO_STORE, *refused]))

    async def _cancel(self, reading: Reading, state: StreamState) -> None:
        try:
            await self.guard.cancel(state.info.sid)
        except UnknownStream:  # it was purged meanwhile
            raise _Refused(_UNKNOWN) from None
        except StreamSealed as sealed:
            raise _Refused(problem(409, "ended", f"the stream ended already, as {sealed.tail.status}")) from None
        await reading.refuse(Refusal(204, [NO_STORE]))

    async def _status(self, reading: Reading, state: StreamState) -> None:
        tail, own = state.tail, self.guard
        body = {
            "status": tail.status or "streaming",
            "dialect": state.info.dialect,
            "name": state.info.name,
            "cursor": str(tail),
            "first": str(state.first),
            "frames": tail.seq,
            "bytes": tail.offset,
            "age": round(state.age, 3),
            "cancelled": state.cancelled,
            "generated": state.held and not state.sealed,
            "readers_here": own.readers.count(state.info.sid),
        }
        data = json.dumps(body).encode()
        headers = [("content-type", "application/json"), NO_STORE, ("content-length", str(len(data)))]
        await reading.refuse(Refusal(200, headers, data))

    # ---- which stream ---------------------------------------------------------------------------

    async def _found(self, reading: Reading, principal: str) -> StreamState:
        """The stream that a request names. Raises _Refused: another's and none are the same."""
        facts = reading.facts
        sid = facts.headers.get("streamguard-stream")
        if sid is None and facts.cursor is not None:
            sid = Cursor.parse(facts.cursor).sid
        try:
            state = await self._state(facts, sid, principal)
        except UnknownStream:
            raise _Refused(_UNKNOWN) from None
        reading.info = state.info
        return state

    async def _state(self, facts: RequestFacts, sid: str | None, principal: str) -> StreamState:
        """The stream of an id, else of the name in the query. Raises what the log raises, and _Refused."""
        if sid is not None:
            if not _is_sid(sid):
                raise UnknownStream(sid)
            return await self.guard.find(sid, principal)
        query = parse_qs(facts.query)
        name = query.get("name", [""])[0]
        if not name:
            raise _Refused(_NO_CURSOR if "after" in query or facts.headers.get("last-event-id") else _NAMELESS)
        return await find_named(self.guard, name, principal)


def require_path(path: Any) -> None:
    """Raise TypeError or ValueError for what is no path to stand at."""
    if not isinstance(path, str):
        raise TypeError(f'the path is a text, for example "/streams", not {shown(path)}')
    if not path.startswith("/") or path.endswith("/"):
        raise ValueError(f"the path begins with a slash and does not end with one, as /streams does; not {path!r}")
    if "{" in path or "}" in path:
        raise ValueError(f"the path is the same for each request, as /streams is, without {{parameters}}; not {path!r}")


def _is_sid(text: str) -> bool:
    try:
        return Cursor.parse(f"{text}.0.0.00000000").sid == text
    except CursorError:
        return False


async def _body(reading: Reading) -> bytes:
    """The body of a POST. Raises _Refused for one that is far too long, or breaks off."""
    body, more = b"", True
    while more:
        message = await reading.receive()
        if message["type"] == "http.disconnect":
            raise _Refused(problem(400, "bad_request", "the body broke off"))
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > _MAX_BODY:
            raise _Refused(problem(413, "too_large", f"the body is at most {_MAX_BODY} bytes"))
    return body


async def _selftest(reading: Reading) -> None:
    async def failing() -> AsyncIterator[str]:
        for word in ("this ", "stream ", "fails ", "on ", "purpose"):
            yield word
        raise SourceFailed("selftest", "this stream fails on purpose")

    await GuardedAnswer(failing(), options=reading.options)(reading.scope, reading.receive, reading.send)
