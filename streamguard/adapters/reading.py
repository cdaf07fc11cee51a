"""One connection that reads a stream of the log, over ASGI.

`resume` answers a request that bears a cursor, `begin` one that reads from the start; both look first, and refuse by
the table of the wire protocol, section 3. `read` streams: it joins the stream's readers, and drives the stored frames
to this connection until the stream is over, or this connection is.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import quote

import attrs

from streamguard.adapters.asgi import Ended, answer_whole, compressed, merged_headers, refuse, request_facts
from streamguard.adapters.asgi_sink import AsgiSink
from streamguard.adapters.cors import kept_cors, with_cors
from streamguard.adapters.first import look_at_first
from streamguard.adapters.options import AnswerOptions
from streamguard.adapters.refusals import why_not
from streamguard.adapters.seal import Receive, Scope, Send
from streamguard.adapters.shutdown import GOING_AWAY, learn
from streamguard.adapters.watching import asked_of, tell_refused, watched
from streamguard.app import StreamGuard, own_options
from streamguard.core.compress import Gzip
from streamguard.core.credit import Credit
from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.dialect import dialect_named, has_abort_part
from streamguard.core.errors import Failure, SourceFailed, failure_from
from streamguard.core.exchange import (
    Granted,
    Refusal,
    Terms,
    answer_headers,
    come_back,
    early_failure,
    nothing_more,
    problem,
    terms,
)
from streamguard.core.frame import Frame, status_of
from streamguard.core.guard import CompletionGuard
from streamguard.core.wire import Wire
from streamguard.log.base import LogError, StreamInfo, StreamState
from streamguard.observe.hooks import Outcome
from streamguard.runtime.direct import DirectDriver
from streamguard.runtime.flow import MISSED, Flow
from streamguard.runtime.own import origin_of
from streamguard.runtime.reader import Page, ReplayStage
from streamguard.runtime.readers import Busy, Reader
from streamguard.runtime.rotation import rotation
from streamguard.runtime.runs import Run
from streamguard.runtime.seen import Unseen
from streamguard.runtime.sink import Stage
from streamguard.runtime.source import TokenSource
from streamguard.runtime.takeover import said

__all__ = ["ROOT", "Reading"]

ROOT: Final = "streamguard.root"  # in the scope: where the application that has the endpoints is mounted

_PATH: Final = "/:@!$&'()*+,;="  # what stands as itself in a path (RFC 3986, section 3.3), beside what always does
_EXPOSED: Final = ("access-control-expose-headers", "streamguard")
UNBEGUN: Final = "unbegun"  # how a stream ended that was shut down before its headers
REPLACED: Final = Failure("replaced", "a newer reader of the same stream took this one's place")
SILENT: Final = Failure("gone", f"the reader answered none of {MISSED} signs of life")
REUSED: Final = problem(422, "key_reused", "this key was used for another request")

Fingerprint = Callable[[], Awaitable[str]]
Headers = Iterable[tuple[str, str]]


class _Sink(AsgiSink):
    """A response. `clean` answers whether an end that is no completion may be clean all the same."""

    started = False

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, status: int, headers: Iterable[tuple[bytes, bytes]]
    ) -> None:
        super().__init__(scope, receive, send, status, headers)
        self.clean: Callable[[], bool] = lambda: False

    async def start(self) -> None:
        self.started = True
        await super().start()

    async def abort(self) -> None:
        await (self.end() if self.clean() else super().abort())

    def kill(self, *, drop: bool) -> bool:
        return super().kill(drop=drop) if drop or not self.clean() else False


class Reading:
    """One connection that reads one stream from a cursor on."""

    def __init__(self, guard: StreamGuard, options: AnswerOptions, scope: Scope, receive: Receive, send: Send) -> None:
        self.guard = guard
        self.options = options
        self.scope, self.receive, self.send = scope, receive, send
        self.facts = request_facts(scope)
        self.info: StreamInfo | None = None  # the stream, once it is known to be the asker's
        self._tail: Cursor | None = None  # where the stream stood when a reader came back to it
        if guard.on_sigterm:
            learn(guard.draining)  # where no seal of `install` does, as in plain ASGI

    async def refuse(self, refused: Refusal) -> None:
        refused = with_cors(refused, self.info)
        tell_refused(self.guard.observe, refused, self.facts, self.scope)
        await refuse(refused, self.scope, self.receive, self.send, self.options.timing.linger)

    async def resume(self, cursor: Cursor, principal: str, fingerprint: Fingerprint | None = None) -> None:
        """Answer a request that bears a cursor: the frames behind it, or why there are none.

        `fingerprint` is that of a request which must be the one that started the stream, where it had a key.
        """
        try:
            state = await self.guard.find(cursor.sid, principal)
            self.info, self._tail = state.info, state.tail
            if fingerprint is not None and state.info.fingerprint not in (None, await fingerprint()):
                await self.refuse(REUSED)
                return
            if cursor.status is not None or (state.sealed and cursor[:4] == state.tail[:4]):
                await self._had_it_all(cursor, state)
                return
            over = self._sees_none(await self.guard.log.read(cursor, limit=1))
        except LogError as exc:
            # A final status says that the reader has it all, whether the stream is kept or not.
            await self.refuse(why_not(self.facts, cursor, exc) if cursor.status is None else nothing_more())
            return
        await (self.refuse(nothing_more()) if over else self.read(state.info, cursor))

    async def begin(self, info: StreamInfo, headers: Headers | None = None, status: int = 200) -> None:
        """Answer a request that reads a stream from its start. `headers` are as in `read`."""
        self.info, zero = info, cursor_zero(info.sid)
        try:
            over = self._sees_none(await self.guard.log.read(zero, limit=1))
        except LogError as exc:
            await self.refuse(why_not(self.facts, zero, exc))
            return
        await (self.refuse(nothing_more()) if over else self.read(info, zero, headers, status))

    def _sees_none(self, behind: Sequence[Frame]) -> bool:
        """Whether the reader can see none of the frames behind its cursor, and would come back for them for ever: an
        end that is a comment bears no id."""
        return self.facts.asks_for_ever and bool(behind) and behind[0].bare

    async def read(
        self,
        info: StreamInfo,
        cursor: Cursor,
        headers: Headers | None = None,
        status: int = 200,
        *,
        run: Run | None = None,
    ) -> None:
        """Stream the frames behind `cursor`, to the end of the stream or of this connection. `headers` are the
        application's, None where it is not asked. `run` is given by whoever started the stream: a failure before the
        first item is then raised, where it can still become a status."""
        self.info = info
        headers = kept_cors(info) if headers is None else headers
        if self.facts.method == "HEAD":
            await self.refuse(Refusal(status, [*self._headers(info, None, [], self._granted(info, headers)), *headers]))
            return

        async def stream(hold: Send) -> Ended:
            ended = await self._read({}, hold, info, cursor, headers, status, run)
            if run is None or ended[0] == "complete":
                return ended
            await run.over.wait()  # who made the stream knows why it failed
            outcome = run.producer.outcome
            return ended if outcome is None else (ended[0], outcome.failure)

        if self.guard.draining.over:
            await self.refuse(come_back(self.facts, *GOING_AWAY))
            return
        try:
            if self.facts.http_version == "1.0" and self.options.http10 == "buffer":
                await answer_whole(stream, self.scope, self.send)
                return
            ended, _ = await self._read(self.scope, self.send, info, cursor, headers, status, run)
            if ended == UNBEGUN:
                await self.refuse(come_back(self.facts, *GOING_AWAY))
        except Busy:
            await self.refuse(problem(409, "busy", "another client reads this stream, which takes one at a time"))
        except SourceFailed as exc:  # in peek mode, before the headers
            await self.refuse(early_failure(failure_from(exc)))

    async def _read(
        self,
        scope: Scope,
        send: Send,
        info: StreamInfo,
        cursor: Cursor,
        headers: Headers,
        status: int,
        started: Run | None,
    ) -> Ended:
        """See `read`; how the stream ended. Raises Busy, and SourceFailed in peek mode before the headers."""
        agreed = terms(self.facts)
        dialect, guard = dialect_named(info.dialect), CompletionGuard(self._carrier(info, agreed))
        flow = self._flow(agreed, cursor) if scope else None
        tells = None if agreed.negotiated or self.facts.event_source or dialect.own_ids else dialect
        stage = ReplayStage(guard, cursor, own_ids=dialect.own_ids, resume=self._address, flow=flow, tells=tells)

        def replace() -> None:
            stage.parting = "replaced"
            driver.cancel(REPLACED)

        asgi, origin = (scope, self.receive, send), origin_of(info) if started is None else started.producer.origin
        seen = watched(self.guard.observe, stage, self.options.timing, self.facts, asgi, origin)
        client = self.facts.headers.get("streamguard-client")
        reader = Reader(cursor._replace(status=None), lambda: stage.cursor, replace, client, flow=flow, seen=seen)
        keys = self._granted(info, headers, flow)
        fields = merged_headers(self._headers(info, reader, [_EXPOSED], keys), headers)
        sink = _Sink(scope, self.receive, send, status, fields)
        # Who verifies knows a cancel from a completion, and its own principal asked for it.
        aborts = has_abort_part(dialect)
        sink.clean = lambda: stage.status == "cancelled" and (agreed.negotiated or (aborts and stage.was_cancelled))
        sink.keep(self.options.window, self.options.timing.write)
        run = self.guard.runs.get(cursor.sid)
        if run is not None:
            readers, draining = self.guard.readers, self.guard.draining
            stage.stands = functools.partial(run.stands, lambda: draining.over or readers.others(reader))
        seen.follows(None if run is None else run.producer.seen, credit=flow is not None)
        leave = self._rotation(stage, run, agreed) if scope else None
        pages = self.guard.pages(cursor, rows=True, leave=leave, flow=flow)
        if started is not None and self.options.timing.peek:  # else the headers have left before the first page
            pages = _peeked(pages, started, sink)
        outgoing = compressed(stage, sink, self._compressing(info), keys)
        driver = self._driver(pages, outgoing, sink, started, agreed, seen)
        if flow is not None:
            flow.gone = lambda: driver.drop(SILENT)
            flow.waited = functools.partial(seen.blocked, "credit")
        outcome = await self._served(driver, reader, run, exclusive=bool(own_options(info).get("exclusive")))
        if outcome.status == "shutdown" and not sink.started:
            return UNBEGUN, None
        return stage.status or "cut", stage.ending.failure

    async def _served(
        self, driver: DirectDriver[bytes], reader: Reader, run: Run | None, *, exclusive: bool
    ) -> Outcome:
        """Run the driver as one of the stream's readers. Raises Busy."""
        # After whatever may raise: nobody would take out again who joined before it.
        self.guard.readers.join(reader, limit=self.guard.max_readers, exclusive=exclusive)
        if run is not None:
            run.join()
        if reader.start.seq:
            tail = self._tail
            reader.seen.resumed(reader.start.seq, None if tail is None else tail.seq - reader.start.seq)
        try:
            joined = self.guard.draining.joined(driver.shut_down, reader=True)
            with joined, self.guard.grants.heard(reader):
                return await driver.run()
        finally:
            try:
                if run is not None:
                    run.leave()
            finally:
                self.guard.readers.leave(reader)

    def _rotation(self, stage: ReplayStage, run: Run | None, agreed: Terms) -> Callable[[], bool] | None:
        """What ends this connection for its age: only where the reader of one that just ends comes back by itself."""
        age, comes_back = self.guard.max_connection_age, agreed.negotiated and self.guard.path is not None
        if age is None or not (comes_back or self.facts.event_source):
            return None

        def rotate() -> None:
            stage.parting = "rotate"
            if run is not None:
                run.seen()  # else its leaving could end the run, before it is back

        leave = rotation(age, rotate)
        # A client gives up that comes back again and again for nothing: one that was given no frame here stays.
        return lambda: stage.items > 0 and leave()

    def _flow(self, agreed: Terms, cursor: Cursor) -> Flow | None:
        """What a reader that gives credit may be sent; None for one that does not, or could not be heard."""
        request, timing = agreed.request, self.options.timing
        if request is None or request.credit is None or min(request.credit) < 1 or self.guard.path is None:
            return None
        at = cursor._replace(status=None)
        credit = Credit(*request.credit, at)
        return Flow(credit, at, limit=timing.write, beats=timing.heartbeat is not None, clock=timing.clock)

    def _driver(
        self,
        pages: AsyncGenerator[Page, None],
        stage: Stage[bytes],
        sink: _Sink,
        started: Run | None,
        agreed: Terms,
        seen: Unseen,
    ) -> DirectDriver[bytes]:
        timing = self.options.timing
        if timing.stall is not None:
            # A stream whose source fell silent is given its end meanwhile: at the same limit its readers would leave in
            # that moment, and never be told.
            timing = attrs.evolve(timing, stall=timing.stall + timing.close + self.guard.patience)
        return DirectDriver(
            TokenSource(pages),  # type: ignore[arg-type]
            stage,
            sink,
            timing,
            abort=self.options.abort == "always" or not agreed.negotiated,
            request_id=self.facts.headers.get("x-request-id"),
            asked=asked_of(self.facts, self.scope),
            on_first=None if started is None or self.options.dialect.name == "raw" else self._look,
            seen=seen,
        )

    def _look(self, page: Any) -> None:
        """At the first text of a stream that began here, as its frame has it: which is what the source yielded, unless
        its flush policy cut that in two."""
        first = Frame(*page[0]) if isinstance(page[0], tuple) else page[0]
        look_at_first(said(self.options.dialect.reader(), first.name, first.data))

    def _headers(
        self, info: StreamInfo, reader: Reader | None, more: list[tuple[str, str]], keys: Granted
    ) -> list[tuple[str, str]]:
        wire = self._carrier(info, terms(self.facts))
        fields = answer_headers(
            None if reader is None else cursor_zero(reader.sid),
            content_type=wire.content_type,
            dialect=info.dialect,
            wire=wire.name,
            resume=self._address,
            reader=None if reader is None else reader.name,
            granted=keys,
            compresses=self._compressing(info).compress is not None,
        )
        if own_options(info).get("confidential"):
            # What compresses answers leaves one alone that names a coding already.
            fields.append(("content-encoding", "identity"))
        return [*fields, *more]

    def _compressing(self, info: StreamInfo) -> AnswerOptions:
        """The options, with the compression that the stream's own endpoint has where this one has none. A confidential
        stream has none at all: the length of what is compressed tells of what else is in it."""
        own, options = own_options(info), self.options
        if own.get("confidential"):
            return attrs.evolve(options, compress=None)
        return attrs.evolve(options, compress=Gzip()) if options.compress is None and "compress" in own else options

    def _granted(self, info: StreamInfo, headers: Headers, flow: Flow | None = None) -> Granted:
        """What this reader is granted; how text is flushed was settled by the request that started the stream."""
        keys = self._compressing(info).granted(self.facts, headers)
        request = terms(self.facts).request
        if flow is not None and request is not None:
            keys = attrs.evolve(keys, credit=request.credit)
        if keys.flush is None:
            return keys
        return attrs.evolve(keys, flush="token" if own_options(info).get("flush") == "token" else "chunk")

    @property
    def _address(self) -> str | None:
        """The endpoints' path, percent-encoded: where an application is mounted is known decoded: it holds anything."""
        return None if self.guard.path is None else quote(str(self.scope.get(ROOT, "")) + self.guard.path, safe=_PATH)

    def _carrier(self, info: StreamInfo, agreed: Terms) -> Wire:
        """The endpoint's own carrier, else the one that the stream began with; an EventSource reads only one, and a
        client that verifies any, though what it accepts makes it look like one."""
        options, name = self.options, own_options(info).get("wire")
        if options.wire is None and name is not None and (agreed.negotiated or not self.facts.event_source):
            options = attrs.evolve(options, wire=name)
        return options.carrier(agreed)

    async def _had_it_all(self, cursor: Cursor, state: StreamState) -> None:
        """The reader has every frame. A POST of an SDK gets the last one again, others are told to stop. Raises
        LogError where the frames cannot be had any more."""
        if terms(self.facts).negotiated or self.facts.method != "POST" or not state.sealed:
            await self.refuse(nothing_more())
            return
        before = state.first
        try:
            async for page in self.guard.pages(state.first):
                for frame in page:
                    if frame.status is None:
                        before = Cursor(cursor.sid, frame.seq, frame.offset, frame.crc)
        except SourceFailed as exc:
            if isinstance(exc.__cause__, LogError):  # as what it is, which says how the request is refused
                raise exc.__cause__ from None
            raise
        await self.read(state.info, before)


async def _peeked(pages: AsyncGenerator[Page, None], run: Run, sink: _Sink) -> AsyncGenerator[Page, None]:
    """The pages; raises what the source raised before its first item, as long as nothing was sent."""
    async with aclosing(pages):
        async for page in pages:
            if status_of(page[-1]) is not None and not sink.started and not run.producer.items:
                await run.over.wait()
                if run.producer.exception is not None and not sink.started:
                    raise run.producer.exception
            yield page
