"""A resumable answer over ASGI: start a stream and read it, or go on reading one.

`Reading` is one connection to one stream. `LoggedAnswer` is the endpoint's: it starts the stream that its source makes,
unless the request bears a cursor, or a key that has a stream already; then it reads that one.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from typing import Any, Final

from typing_extensions import Unpack

from streamguard.adapters.asgi import AsgiSink, encode_headers, refuse_early, request_facts, send_refusal
from streamguard.adapters.options import AnswerOptions, Options
from streamguard.adapters.seal import Receive, Scope, Send
from streamguard.app import StreamGuard, new_reader
from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.dialect import dialect_named
from streamguard.core.exchange import (
    Refusal,
    RequestFacts,
    answer_headers,
    cannot_resume,
    nothing_more,
    problem,
    terms,
)
from streamguard.core.guard import CompletionGuard
from streamguard.log.base import (
    CursorMisfit,
    CursorTrimmed,
    LogError,
    LogLost,
    LogUnavailable,
    StreamExists,
    StreamState,
)
from streamguard.runtime.direct import DirectDriver
from streamguard.runtime.reader import ReplayStage
from streamguard.runtime.runs import Cancel, OnDisconnect
from streamguard.runtime.source import Producer, TokenSource

__all__ = ["LoggedAnswer", "Reading", "fingerprint_of"]

logger = logging.getLogger("streamguard")

_MIN_KEY: Final = 22  # characters: of an idempotency key that is all that keeps strangers out


class Reading:
    """One connection that reads one stream from a cursor on."""

    def __init__(self, guard: StreamGuard, options: AnswerOptions, scope: Scope, receive: Receive, send: Send) -> None:
        self.guard = guard
        self.options = options
        self.scope, self.receive, self.send = scope, receive, send
        self.facts = request_facts(scope)

    async def resume(self, cursor: Cursor, principal: str, *, name: str | None = None) -> None:
        """Answer a request that bears a cursor: the frames behind it, or why there are none."""
        try:
            state = await self.guard.find(cursor.sid, principal)
            if cursor.status is not None or (state.sealed and cursor[:4] == state.tail[:4]):
                await self._had_it_all(cursor, state)
                return
            await self.guard.log.read(cursor, limit=1)
        except LogError as exc:
            await self.refuse(_refusal(self.facts, cursor, exc))
            return
        await self.read(state.info.dialect, cursor)

    async def read(
        self, dialect: str, cursor: Cursor, headers: Iterable[tuple[str, str]] = (), status: int = 200
    ) -> None:
        """Stream the frames behind `cursor`, to the end of the stream or of this connection."""
        agreed = terms(self.facts)
        wire = self.options.carrier(agreed)
        own_ids = dialect_named(dialect).own_ids
        stage = ReplayStage(CompletionGuard(wire), cursor, own_ids=own_ids, resume=self.guard.path)
        fields = answer_headers(
            cursor_zero(cursor.sid),
            content_type=wire.content_type,
            dialect=dialect,
            wire=wire.name,
            resume=self.guard.path,
            reader=new_reader(),
        )
        sink = AsgiSink(self.scope, self.receive, self.send, status, encode_headers([*fields, *headers]))
        driver: DirectDriver[bytes] = DirectDriver(
            TokenSource(self.guard.pages(cursor)),  # type: ignore[arg-type]  # pages, which the stage takes
            stage,
            sink,
            self.options.timing,
            abort=self.options.abort == "always" or not agreed.negotiated,
            request_id=self.facts.headers.get("x-request-id"),
        )
        run = self.guard.runs.get(cursor.sid)
        if run is not None:
            run.join()
        try:
            await driver.run()
        finally:
            if run is not None:
                run.leave()

    async def refuse(self, refused: Refusal) -> None:
        await send_refusal(refused, self.scope, self.send)

    async def _had_it_all(self, cursor: Cursor, state: StreamState) -> None:
        """The reader has every frame. A POST of an SDK gets the last one again, others are told to stop."""
        if terms(self.facts).negotiated or self.facts.method != "POST" or not state.sealed:
            await self.refuse(nothing_more())
            return
        before = cursor
        frames = [frame async for page in self.guard.pages(state.first) for frame in page][-2:]
        if len(frames) == 2:
            before = Cursor(cursor.sid, frames[0].seq, frames[0].offset, frames[0].crc)
        elif state.first.seq == 0:
            before = cursor_zero(cursor.sid)
        await self.read(state.info.dialect, before)


def _refusal(facts: RequestFacts, cursor: Cursor, exc: LogError) -> Refusal:
    if isinstance(exc, LogUnavailable):
        return problem(503, "log_unavailable", "the log cannot be reached", ("retry-after", "1"))
    if isinstance(exc, CursorTrimmed):
        return cannot_resume(facts, cursor, 410, "trimmed", "the frames after this cursor are not kept any more")
    if isinstance(exc, LogLost):
        return cannot_resume(facts, cursor, 410, "log_lost", "the log lost the frames before this cursor")
    if isinstance(exc, CursorMisfit):
        return cannot_resume(facts, cursor, 409, "misfit", "the cursor is not one of this stream's")
    return cannot_resume(facts, cursor, 404, "unknown_stream", "the stream of this cursor is not here")


class LoggedAnswer:
    """An endpoint's answer, as an ASGI application for one request.

    `source` is what a TokenSource takes; `name` the application's own name for the stream, `request` what `authorize`
    is given (the scope, by default); options as in AnswerOptions.
    """

    def __init__(
        self,
        guard: StreamGuard,
        source: Producer,
        *,
        status: int = 200,
        headers: Iterable[tuple[str, str]] = (),
        name: str | None = None,
        on_disconnect: OnDisconnect | None = None,
        request: Any = None,
        body: bytes = b"",
        options: AnswerOptions | None = None,
        **named: Unpack[Options],
    ) -> None:
        self.guard = guard
        self.options = AnswerOptions.of(options, named)
        self.source = TokenSource(source, buffer=self.options.buffer)
        self.status = status
        self.headers = list(headers)
        self.name = name
        self.on_disconnect = on_disconnect
        self.request = request
        self.body = body
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reading = Reading(self.guard, self.options, scope, receive, send)
        try:
            await self._answer(reading, scope, receive, send)
        finally:
            if not self._started:
                await self.source.aclose()

    async def _answer(self, reading: Reading, scope: Scope, receive: Receive, send: Send) -> None:
        facts = reading.facts
        refused = refuse_early(self.options, scope, receive, send, facts)
        if refused is not None:
            await reading.refuse(refused)
            return
        action = "start" if facts.cursor is None else "read"
        principal = await self.guard.principal(scope if self.request is None else self.request, action)  # type: ignore[arg-type]
        if principal is None:
            await reading.refuse(problem(403, "forbidden", "this is not allowed"))
        elif facts.cursor is not None:
            await reading.resume(Cursor.parse(facts.cursor), principal)
        elif facts.method == "HEAD":
            wire = self.options.carrier(terms(facts))
            fields = answer_headers(
                None, content_type=wire.content_type, dialect=self.options.dialect.name, wire=wire.name
            )
            await reading.refuse(Refusal(self.status, [*fields, *self.headers]))
        else:
            await self._start(reading, facts, principal)

    async def _start(self, reading: Reading, facts: RequestFacts, principal: str) -> None:
        key = _scoped_key(facts, principal, reading.scope)
        if isinstance(key, Refusal):
            await reading.refuse(key)
            return
        fingerprint = fingerprint_of(facts, reading.scope, self.body) if key else None
        agreed = terms(facts)
        can_resume = agreed.negotiated or facts.event_source or key is not None
        try:
            run = await self.guard.start(
                self.source,
                principal=principal,
                dialect=self.options.dialect,
                flush=self.options.flush,
                timing=self.options.timing,
                on_disconnect=self.on_disconnect if can_resume else Cancel(),
                on_end=self.options.on_end,
                name=self.name,
                key=key,
                fingerprint=fingerprint,
                negotiated=agreed.negotiated,
                request_id=facts.headers.get("x-request-id"),
            )
        except StreamExists as exc:
            if exc.info.fingerprint != fingerprint:
                await reading.refuse(problem(422, "key_reused", "this key was used for another request"))
                return
            await reading.read(exc.info.dialect, cursor_zero(exc.info.sid), self.headers, self.status)
            return
        except LogUnavailable:
            await reading.refuse(problem(503, "log_unavailable", "the log cannot be reached", ("retry-after", "1")))
            return
        self._started = True
        try:
            await reading.read(self.options.dialect.name, cursor_zero(run.sid), self.headers, self.status)
        finally:
            run.leave()


def _scoped_key(facts: RequestFacts, principal: str, scope: Scope) -> str | Refusal | None:
    """The request's idempotency key in its scope; a refusal for one that strangers could guess."""
    key = facts.headers.get("idempotency-key", "").strip().strip('"')
    if not key:
        return None
    if not principal and len(key) < _MIN_KEY:
        return problem(400, "weak_key", f"an Idempotency-Key without a principal has {_MIN_KEY} characters or more")
    path = scope.get("path", "")
    return hashlib.sha256("\n".join([principal, facts.method, path, key]).encode()).hexdigest()


def fingerprint_of(facts: RequestFacts, scope: Scope, body: bytes) -> str:
    """What a key stands for: another request under the same key is another one."""
    head = f"{facts.method}\n{scope.get('path', '')}\n{facts.query}\n".encode()
    return hashlib.sha256(head + body).hexdigest()
