"""One request, passed through to the byte: what an application is whose answers are another server's.

The request's body is streamed, as it comes; so is the answer's, a `send` for each piece that the upstream sent. Nothing
is taken apart, but for one thing: an event stream that the upstream compressed, which could not be guarded as it is.

Two tasks: one asks, the other waits for the client to leave, once all of the request has come; before that it looks
whether the client has hung up, which a server does not see that is not read from. Who leaves ends the request, and with
it the connection to the upstream, which is how a model's server learns of it: at once, whether it has begun to answer
or not. Where GuardMiddleware keeps the stream for a client that may come back, it says so later,
or never.

An answer that breaks off is never ended. As a stream it fails, by the exception; any other answer is broken off too.

Observers are told of each request before it leaves, and when it is over; and of each that is answered here in place of
an upstream that gave no answer, as refused: whether it would have been given a stream nobody knows. What they want to
be sent along, the `traceparent` of a span of their own, replaces the client's; without observers that passes as it
came.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from typing import Any, Final, Protocol

import anyio
import attrs

from streamguard.adapters.asgi import request_facts, send_refusal
from streamguard.adapters.middleware_judge import kind_of
from streamguard.adapters.seal import Message, Receive, Scope, Send, mark_aborted
from streamguard.adapters.transport import hung_up, transport_of
from streamguard.adapters.watching import request_labels, tell_refused
from streamguard.client.body import Body, coding_of
from streamguard.core.arguments import one_line
from streamguard.core.errors import SourceFailed
from streamguard.core.exchange import Refusal, problem
from streamguard.core.jsontext import dumps
from streamguard.observe.hooks import Observers, Passed, Passing
from streamguard.proxy.headers import Fields, answer_fields, is_ambiguous, replaced, request_fields, values
from streamguard.proxy.upstream import Answer, Upstream, UpstreamFailed

__all__ = ["Asked", "Relay", "target_of"]

logger = logging.getLogger("streamguard")

_LOOK: Final = 1.0  # seconds between two looks at a client whose body the upstream does not take
_TAKEN_APART: Final = ("gzip", "deflate")
_UNGUARDED: Final = (
    "the upstream compresses its event streams (%s), which cannot be guarded so: they pass as they are. Turn its "
    "compression off for text/event-stream"
)
_UNFRAMED: Final = (
    "the upstream ends its streams by closing their connection: of one that bears no end marker of a known API nobody "
    "can tell a cut from an end. Start the proxy with --end provider to refuse those"
)
_AMBIGUOUS: Final = (
    "a client sent the header %s, which does not go on to the upstream: many a server takes such a name, with an "
    "underscore, for the same with a dash, and who sends one could say what only a proxy may"
)


class _Left(Exception):
    """The client broke its request off."""


class Asked(Protocol):
    """Whom a relay asks: a Pool."""

    upstream: Upstream

    async def ask(
        self, method: bytes, target: bytes, fields: Fields, content: AsyncIterator[bytes] | None = None
    ) -> Answer: ...

    async def aclose(self) -> None: ...


class Relay:
    """The application. `kept` are names of headers that no client can have dropped; `observers` are told what is
    passed on."""

    def __init__(self, pool: Asked, *, kept: tuple[bytes, ...] = (), observers: Observers | None = None) -> None:
        self.pool = pool
        self.kept = kept
        self.observers = observers
        self._said: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        exchange, observers = _Exchange(self, scope, receive, send), self.observers
        if observers is None:
            await exchange.serve()
            return
        request = Passing(request_labels(request_facts(scope), scope), scope["method"], scope.get("scheme", "http"))
        exchange.along = observers.passing(request)
        try:
            await exchange.serve()
        finally:
            observers.tell(Passed(request, exchange.status, exchange.cause, exchange.answered))

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.pool.aclose()
                await send({"type": "lifespan.shutdown.complete"})
                return

    def say(self, text: str, *what: object) -> None:
        """Warn of it, once."""
        if text not in self._said:
            self._said.add(text)
            logger.warning(text, *what)


def target_of(scope: Scope, base: bytes = b"") -> bytes:
    """The target of a request, as the client wrote it, behind the upstream's own path."""
    path, query = bytes(scope["raw_path"]), bytes(scope["query_string"])
    target = path if path == b"*" else base + path
    return b"%b?%b" % (target, query) if query else target


class _Exchange:
    """One request. `along` are headers that go along in place of its own; `failed` is what its stream failed by,
    `status` the upstream's, `answered` that of its answer, `cause` the code of how the upstream failed."""

    def __init__(self, relay: Relay, scope: Scope, receive: Receive, send: Send) -> None:
        self.along: Mapping[str, str] = {}
        self.failed: SourceFailed | None = None
        self.status: int | None = None
        self.answered: int | None = None
        self.cause = ""
        self._relay = relay
        self._scope = scope
        self._receive = receive
        self._send = send
        self._tasks: Any = None
        self._watches = False
        self._looks = False

    async def serve(self) -> None:
        """All of it. Raises `failed`."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            await self._run()
            tasks.cancel_scope.cancel()
        if self.failed is not None:  # not through the group, which would wrap it
            raise self.failed

    async def _run(self) -> None:
        """Ask, and answer; the group's cancellation breaks it off."""
        try:
            answer = await self._asked()
        except _Left:
            return
        except UpstreamFailed as exc:
            self.cause, self.answered = exc.code, exc.status
            self._log(exc, "")
            refused = _refused(exc)
            tell_refused(self._relay.observers, refused, request_facts(self._scope), self._scope)
            await send_refusal(refused, self._scope, self._send)
            return
        self.status = self.answered = answer.status
        try:
            await self._answer(answer)
        finally:
            with anyio.CancelScope(shield=True):
                await answer.aclose()

    # ---- the request ----------------------------------------------------------------------------

    async def _asked(self) -> Answer:
        scope, relay = self._scope, self._relay
        upstream = relay.pool.upstream
        client = scope.get("client")
        fields = request_fields(
            scope["headers"],
            host=upstream.authority,
            client=client[0] if client else None,
            scheme=scope.get("scheme", "http"),
            kept=relay.kept,
        )
        for name, _ in scope["headers"]:
            if is_ambiguous(name, relay.kept):
                relay.say(_AMBIGUOUS, one_line(name.decode("latin-1")))
        bodied = bool(values(fields, b"content-length") or values(fields, b"transfer-encoding"))
        if not bodied:
            self._begin_watching()
        if self.along:
            fields = replaced(fields, self.along)
        method = scope["method"].encode("latin-1")
        target = target_of(scope, upstream.base)
        answer = await relay.pool.ask(method, target, fields, self._body() if bodied else None)
        self._begin_watching()  # of a body that the upstream did not want to its end, the rest is read by nobody else
        return answer

    async def _body(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise _Left
            more = message.get("more_body", False)
            if not more:
                self._begin_watching()
            elif not self._looks:
                self._looks = True
                self._tasks.start_soon(self._look)
            if message.get("body"):
                yield message["body"]

    def _begin_watching(self) -> None:
        if not self._watches:
            self._watches = True
            self._tasks.start_soon(self._watch)

    async def _look(self) -> None:
        """End the exchange when the client hangs up while its body waits for the upstream to take it."""
        transport = transport_of(self._scope, self._receive)
        while transport is not None and not self._watches:
            await anyio.sleep(_LOOK)
            if hung_up(transport.socket()):
                self._tasks.cancel_scope.cancel()
                return

    async def _watch(self) -> None:
        """End the exchange when the client leaves."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._tasks.cancel_scope.cancel()

    # ---- the answer -----------------------------------------------------------------------------

    async def _answer(self, answer: Answer) -> None:
        scope, fields = self._scope, answer_fields(answer.fields, answer.status)
        start: Message = {"type": "http.response.start", "status": answer.status, "headers": fields}
        plain = scope["method"] == "HEAD"
        body = answer.body
        guarded = not plain and kind_of(start) is not None
        coding = coding_of(b",".join(values(fields, b"content-encoding")).decode("latin-1"))
        if not guarded and not plain and coding != "identity":
            # As it would be without its coding: is it one to be guarded?
            bare = {**start, "headers": [field for field in fields if field[0].lower() != b"content-encoding"]}
            if kind_of(bare) is not None and coding in _TAKEN_APART:
                start, body, guarded = bare, _taken_apart(body, coding), True
            elif kind_of(bare) is not None:
                self._relay.say(_UNGUARDED, coding)
        if guarded:
            answer.wait_for_ever()  # GuardMiddleware has a clock for it, and heartbeats
            if not answer.framed:
                self._relay.say(_UNFRAMED)
        await self._pass(answer, start, body, guarded)

    async def _pass(self, answer: Answer, start: Message, body: AsyncIterable[bytes], guarded: bool) -> None:
        send = self._send
        try:
            await send(start)
            with answer.told():
                async for piece in body:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except UpstreamFailed as exc:
            self.cause = exc.code
            if guarded:
                self.failed = SourceFailed(exc.code, exc.message, retryable=True)
                return
            self._log(exc, ", in its answer")
            mark_aborted(self._scope)  # and return: a body without its last message is the abort
        except OSError:
            pass  # nobody takes it any more

    def _log(self, exc: UpstreamFailed, when: str) -> None:
        asked = one_line(f"{self._scope['method']} {self._scope['path']}")  # a path may have line ends in it
        cause = one_line(f" ({exc.__cause__})") if exc.__cause__ is not None else ""
        logger.warning("%s: %s%s%s", asked, exc.message, when, cause)


def _refused(exc: UpstreamFailed) -> Refusal:
    """The answer where there is none of the upstream's: a problem, in which an SDK finds what it looks for in an
    `error` of its own server."""
    refused = problem(exc.status, exc.code, exc.message, retry=exc.status != 400)
    kind = "invalid_request_error" if exc.status == 400 else "server_error"
    body = dumps({**json.loads(refused.body), "error": {"message": exc.message, "type": kind, "code": exc.code}})
    headers = [(name, value) for name, value in refused.headers if name != "content-length"]
    return attrs.evolve(refused, headers=[*headers, ("content-length", str(len(body)))], body=body)


async def _taken_apart(body: AsyncIterable[bytes], coding: str) -> AsyncIterator[bytes]:
    """A compressed body, in pieces of bounded size."""
    taken = Body(coding)
    broken = UpstreamFailed("upstream_broke", "the upstream's compressed body is damaged, or not whole", 502)
    async for data in body:
        taken.put(data)
        try:
            while (piece := taken.take()) is not None:
                if piece:
                    yield piece
        except zlib.error:
            raise broken from None
    if not taken.whole:
        raise broken
