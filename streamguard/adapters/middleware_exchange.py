"""One request through the middleware, in either mode.

`Observed` stands beside the answer: every message passes as it is, in the order and at the moment in which it came, and
the judge reads along. `Guarded` decides at the first message. A stream is driven by a task of its own, beside the
application's, which is the one that the server called it in: what the application raises behind its answer still
reaches the server, and what it raises inside one becomes the terminal.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import attrs

from streamguard.adapters.admitting import Place, admitted
from streamguard.adapters.asgi import GuardedAnswer, request_facts
from streamguard.adapters.inner_ends import InnerEnds
from streamguard.adapters.logged import FORBIDDEN, Claim, LoggedAnswer, route_of
from streamguard.adapters.middleware_body import LATE, AppBody, SharedReceive, no_body
from streamguard.adapters.middleware_judge import (
    UNENDED,
    EventJudge,
    Judged,
    Kind,
    LineJudge,
    is_unjudged,
    judge_of,
    piece_of,
    read_start,
)
from streamguard.adapters.middleware_lines import LinesAnswer
from streamguard.adapters.middleware_report import Refused, Report, Verdict
from streamguard.adapters.options import AnswerOptions, StreamOptions
from streamguard.adapters.same_key import Begun, nobody_waits
from streamguard.adapters.seal import ASGIApp, Message, Receive, Scope, Send, ended_by_base, mark_guarded
from streamguard.app import StreamGuard
from streamguard.core.dialect import Raw
from streamguard.core.errors import Failure, failure_from
from streamguard.observe.hooks import Outcome
from streamguard.runtime.closing import let_go

__all__ = ["Guarded", "Observed", "Serving"]

logger = logging.getLogger("streamguard")


class _Counted:
    """A request whose stream is counted."""

    def __init__(self, report: Report, scope: Scope) -> None:
        self.report = report
        self.scope = scope
        self.inner = InnerEnds(scope)

    def count(
        self, verdict: Verdict, failure: Failure | None, *, tell: bool = False, judged: Judged | None = None
    ) -> None:
        """Count it; with `tell` the log has a line for one that was refused. `judged` is what its bytes say."""
        request_id = next((value for name, value in self.scope["headers"] if name == b"x-request-id"), b"")
        endpoint = f"{self.scope['method']} {route_of(self.scope)}"
        name = request_id.decode("latin-1") or None
        self.report.add(endpoint, verdict, failure, name)
        if judged is not None and verdict == "complete":
            self.report.ended(endpoint, judged.last)
        if tell and verdict == "failed" and failure is not None:
            self.report.log(Refused(endpoint, verdict, failure.code, failure.message, name))


class Observed(_Counted):
    """A request in report mode: no byte is changed, nothing is aborted, and nothing is raised that was not."""

    def __init__(self, report: Report, rule: Raw, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(report, scope)
        self._rule = rule
        self._receive = receive
        self._send = send
        self._judge: EventJudge | LineJudge | None = None
        self._unjudged = False  # and was not counted yet
        self._left = False
        self._ended = False
        self._by_base: float | None = None  # when a BaseHTTPMiddleware ended it

    async def run(self, app: ASGIApp) -> None:
        try:
            await app(self.scope, self._watched, self._passed)
        except BaseException as exc:
            self._over(exc)
            raise
        self._over(None)

    async def _watched(self) -> Message:
        message = await self._receive()
        self._left = self._left or message["type"] == "http.disconnect"
        return message

    def _passed(self, message: Message) -> Awaitable[None]:  # no coroutine: it would be one more at every token
        if message["type"] == "http.response.body":
            if self._judge is not None:
                try:
                    self._judge.feed(piece_of(message))
                except Exception:
                    logger.exception("GuardMiddleware: a stream could not be judged, and passes unjudged")
                    self._judge = None
                if not message.get("more_body", False):
                    self._ended = not self.inner.missing
                    self._by_base = time.monotonic() if not self.inner.sent and ended_by_base() else None
            elif self._unjudged and message.get("more_body") and message.get("body"):
                self._unjudged = False
                self.report.unjudged += 1
        elif message["type"] == "http.response.start":
            message, kind = read_start(message)
            self._judge = None if kind is None else judge_of(kind, self._rule)
            self._unjudged = kind is None and is_unjudged(message)
        return self._send(message)

    def _over(self, exc: BaseException | None) -> None:
        if self._judge is None:
            return
        try:
            judged = self._judge.end(clean=self._ended)
        except Exception:
            logger.exception("GuardMiddleware: the end of a stream could not be judged")
            return
        late = self._by_base is not None and time.monotonic() - self._by_base < LATE
        left = self._left or isinstance(exc, OSError) or type(exc).__name__ == "ClientDisconnect"
        stopped = left or (exc is not None and not isinstance(exc, Exception))
        if isinstance(exc, Exception) and not left and (late or not self._ended):
            self.count("failed", failure_from(exc), tell=True)
        elif self._ended or (stopped and judged.verdict == "complete" and judged.proved):
            # Also where the reader left behind the marker, as SDKs do.
            verdict: Verdict = "complete" if judged.verdict == "complete" else "failed"
            self.count(verdict, judged.failure, tell=True, judged=judged)
        elif left:
            self.count("left", None)
        else:  # as the guard would end it, whatever the bytes say
            self.count("failed", UNENDED, tell=True)


@attrs.define
class Serving:
    """How a request's stream is served: the middleware's settings, and what the request may have. `begun` is called
    once its answer has."""

    report: Report
    rule: Raw
    guard: StreamGuard | None
    options: tuple[StreamOptions, AnswerOptions]
    claim: Claim | None = None
    begun: Begun = nobody_waits


class Guarded(_Counted):
    """A request in guard mode."""

    def __init__(self, serving: Serving, scope: Scope, receive: SharedReceive, send: Send) -> None:
        super().__init__(serving.report, scope)
        self._serving = serving
        self._receive = receive
        self._send = send
        self._handle: Callable[[Message], Awaitable[None]] = self._begin
        self._application = anyio.CancelScope()
        self._tasks: Any = None
        self._error: BaseException | None = None  # what reaches the server
        self._body: AppBody | None = None
        self._counted = False  # as one that is not judged
        self._returned = anyio.Event()  # the application has, or raised
        self.resumes_elsewhere = False  # the application answered with a resumable stream of its own

    @property
    def streams(self) -> bool:
        """Whether the answer is a stream, which then has the claim's slot."""
        return self._body is not None

    async def run(self, app: ASGIApp) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                await self._run(app)
        finally:
            if self._body is not None:
                self._body.over()  # of a request that was cancelled: a stream in a log would wait for ever
        if self._error is not None:
            raise self._error

    async def _run(self, app: ASGIApp) -> None:
        try:
            with self._application:
                await app(self.scope, self._receive.application, self._passed)
            self._over(None)
        except BaseException as exc:
            if isinstance(exc, anyio.get_cancelled_exc_class()):
                if self._body is not None:
                    self._body.gone()
                raise
            if not isinstance(exc, Exception):
                self._error = exc  # not through the group, which would wrap it
            self._over(exc)

    def _passed(self, message: Message) -> Awaitable[None]:  # no coroutine: it would be one more at every token
        return self._handle(message)

    async def _begin(self, message: Message) -> None:
        """The first messages, up to the one that says what the answer is."""
        if message["type"] != "http.response.start":
            await self._send(message)
            return
        message, kind = read_start(message)
        if kind is None:
            self._handle = self._unjudged if is_unjudged(message) else self._send
            self.resumes_elsewhere = any(
                name.lower() == b"streamguard" and b"resume=" in value for name, value in message.get("headers", ())
            )
            await self._send(message)
            return
        buffer = self._serving.options[1].buffer
        body = AppBody(self._receive, self._application, self._tasks, buffer, self.inner, kind)
        self._body, self._handle = body, body.send
        mark_guarded(self.scope)
        self._tasks.start_soon(self._answer, body, message, kind)
        await body.opened()

    def _unjudged(self, message: Message) -> Awaitable[None]:
        """A part of an answer that is not judged. An end that a BaseHTTPMiddleware made waits for what the application
        raised, which would come behind it."""
        if message["type"] == "http.response.body":
            if message.get("more_body"):
                if message.get("body") and not self._counted:
                    self._counted = True
                    self.report.unjudged += 1
            elif not message.get("body") and not self.inner.sent and ended_by_base():
                return self._end_late(message)
        return self._send(message)

    async def _end_late(self, message: Message) -> None:
        missing = self.inner.missing

        async def end() -> None:
            with anyio.move_on_after(LATE):
                await self._returned.wait()
            if self._error is None and not missing:  # else the server breaks the answer off
                try:
                    await self._send(message)
                except Exception as exc:
                    self._error = exc  # not through the group, which would wrap it

        self._tasks.start_soon(end)

    def _over(self, exc: BaseException | None) -> None:
        """The application has returned, or raised."""
        self._returned.set()  # who waits for it runs behind this
        if self._body is not None:
            behind = self._body.ended and self._body.source.ended
            self._body.over(exc)
            if exc is not None and not behind:
                if self._body.stopped:
                    let_go(exc)
                return  # it is in the terminal, and in the log; or was how the application stopped when told to
        self._error = self._error or exc

    async def _answer(self, body: AppBody, start: Message, kind: Kind) -> None:
        """Drive what the application sends to the reader."""
        stream, options = self._serving.options
        own = options.on_end

        def ended(outcome: Outcome) -> Awaitable[None] | None:
            self._count_outcome(outcome)
            return None if own is None else own(outcome)

        options = attrs.evolve(options, on_end=ended, buffer=None)
        headers = [(bytes(name).decode("latin-1"), bytes(value).decode("latin-1")) for name, value in start["headers"]]
        status, guard = start["status"], self._serving.guard
        request = None if guard is None else guard.request_of(self.scope, no_body)
        answer: GuardedAnswer | LoggedAnswer
        try:
            if kind == "lines":
                answer = LinesAnswer(body.source, status=status, headers=headers, options=options)
                if guard is not None:
                    answer.options = attrs.evolve(options, observe=guard.observe)
                    answer.place = await self._place(guard, request)
            elif guard is None:
                answer = GuardedAnswer(body.source, status=status, headers=headers, options=options)
            else:
                answer = LoggedAnswer(
                    guard,
                    body.source,
                    status=status,
                    headers=headers,
                    request=request,
                    claim=self._serving.claim,
                    options=(stream, options),
                )
            await answer(self.scope, self._receive.driver, self._send)
        except Exception as exc:  # before the answer began: a seal that is missing, or an application that refuses
            self._error = self._error or exc
            self._application.cancel()

    async def _place(self, guard: StreamGuard, request: Any) -> Place:
        """What the guard says to lines, which are no stream of its log: who may start, and when."""
        claim = self._serving.claim
        known = claim is not None and claim.refused is None
        principal = claim.principal if claim is not None and known else await guard.principal(request, "start")
        if principal is None:
            return Place(refused=FORBIDDEN)
        if claim is not None and claim.slot is not None:
            return Place(claim.slot)
        if guard.admission is None or not guard.ready:
            return Place()
        facts, receive = request_facts(self.scope), self._receive.driver
        return await admitted(guard.admission, facts, request, receive, drain=guard.draining, principal=principal)

    def _count_outcome(self, outcome: Outcome) -> None:
        verdict: Verdict = "complete" if outcome.status == "complete" else "failed"
        if outcome.status in ("gone", "slow", "cancelled"):
            verdict = "left"
        self.count(verdict, outcome.failure)  # the driver told it
