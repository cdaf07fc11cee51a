"""A resumable answer over ASGI: start a stream and read it, or go on reading one.

    await LoggedAnswer(guard, source)(scope, receive, send)

First comes the `Claim`: who asks, and what that one may have. Only a claim that *starts* runs the source; a request
that bears a cursor resumes, one whose idempotency key has a stream already reads that one from its start.

The task that serves the request stays until the stream's own task is over, also where its reader left and the
generation goes on: what a framework opened for the request, a session, is there for as long as the source uses it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final
from urllib.parse import parse_qsl

import attrs
from typing_extensions import Unpack

from streamguard.adapters.admitting import admitted
from streamguard.adapters.asgi import refuse_early, request_facts, send_refusal
from streamguard.adapters.cors import CORS, cors_of
from streamguard.adapters.options import AnswerOptions, StreamNames, StreamOptions
from streamguard.adapters.reading import REUSED, Reading
from streamguard.adapters.refusals import unavailable
from streamguard.adapters.seal import Receive, Scope, Send
from streamguard.adapters.shutdown import GOING_AWAY
from streamguard.adapters.watching import asked_of, request_labels
from streamguard.app import OWN, Endpoint, StreamGuard
from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.errors import Failure
from streamguard.core.exchange import NO_STORE, Granted, Refusal, RequestFacts, come_back, problem, terms
from streamguard.core.negotiate import parse_key
from streamguard.log.base import LogUnavailable, StreamExists, StreamInfo
from streamguard.observe.hooks import Outcome
from streamguard.runtime.runs import Cancel, OnDisconnect, Run, Unannounced
from streamguard.runtime.slots import Slot
from streamguard.runtime.source import Producer, TokenSource

__all__ = [
    "MIN_SECRET",
    "Claim",
    "LoggedAnswer",
    "fingerprint_of",
    "logged_endpoint",
    "make_claim",
    "register_resumer",
    "route_of",
    "with_slot",
]

logger = logging.getLogger("streamguard")

MIN_SECRET: Final = 22  # characters of a key, or a name, that is all that keeps strangers out: 128 random bits
FORBIDDEN: Final = problem(403, "forbidden", "this is not allowed")

_NOT_STARTED: Final = "a stream could not be started, and its request was answered 503 log_unavailable: %s"
_NOT_INSTALLED: Final = (
    'this guard is not installed: nobody can come back to its streams. Call guard.install(app, "/streams") after every '
    "add_middleware"
)

Body = Callable[[], Awaitable[bytes]]


@attrs.frozen
class Claim:
    """What a request may have: a refusal, the stream `found` under its key, what is behind a cursor, or a new stream
    (`starts`). `key` is in its scope, `fingerprint` what was asked for under it, `slot` the new stream's."""

    facts: RequestFacts
    principal: str = ""
    refused: Refusal | None = None
    key: str | None = None
    fingerprint: str | None = None
    found: StreamInfo | None = None
    slot: Slot | None = None

    @property
    def starts(self) -> bool:
        facts = self.facts
        return self.refused is None and self.found is None and facts.cursor is None and facts.method != "HEAD"

    def let_go(self) -> None:
        """Release the slot, if it has one: for a stream that is not started."""
        if self.slot is not None:
            self.slot.release()


async def with_slot(
    guard: StreamGuard, claim: Claim, request: Any, receive: Receive, read: Callable[[], Awaitable[object]]
) -> Claim:
    """The claim with a slot, where it starts a stream and the guard has limits: after a wait, perhaps, or refused, as
    any is that would start one in a process that goes. `read`, which reads the body, is awaited before a wait."""
    if not claim.starts:
        return claim
    if not guard.ready:
        return attrs.evolve(claim, refused=come_back(claim.facts, *GOING_AWAY))
    if guard.admission is None or claim.slot is not None:
        return claim
    limits, drain, who = guard.admission, guard.draining, claim.principal
    place = await admitted(limits, claim.facts, request, receive, drain=drain, principal=who, prepare=read)
    claim = attrs.evolve(claim, slot=place.slot, refused=place.refused)
    if claim.key is None or not place.waited:
        return claim
    try:
        # The same request, sent again, may have had its turn first: its stream is there for this one too.
        looked = await _looked_up(guard, attrs.evolve(claim, refused=None))
    except BaseException:
        claim.let_go()
        raise
    if looked.starts:
        return claim
    claim.let_go()
    return looked


async def make_claim(guard: StreamGuard, request: Any, scope: Scope, body: Body) -> Claim:
    """Ask who may have what; the principal first, then everything else. `body` is read only for a key's sake."""
    facts = request_facts(scope)
    principal = await guard.principal(request, "start" if facts.cursor is None else "read")
    if principal is None:
        return Claim(facts, refused=FORBIDDEN)
    claim = Claim(facts, principal)
    if not claim.starts:
        return claim
    try:
        key = _key(facts)
    except ValueError as exc:
        return attrs.evolve(claim, refused=problem(400, "bad_key", str(exc)))
    if key is None:
        return claim
    if not principal and len(key) < MIN_SECRET:
        why = f"an Idempotency-Key without a principal has {MIN_SECRET} characters or more"
        return attrs.evolve(claim, refused=problem(400, "weak_key", why))
    scoped = _digest([principal, facts.method, route_of(scope), key])
    fingerprint = fingerprint_of(facts, scope, await body())
    return await _looked_up(guard, attrs.evolve(claim, key=scoped, fingerprint=fingerprint))


async def _looked_up(guard: StreamGuard, claim: Claim) -> Claim:
    """The claim with the stream that its key has."""
    try:
        found = await guard.log.find_key(str(claim.key))
    except LogUnavailable as exc:
        return attrs.evolve(claim, refused=unavailable(claim.facts, exc, message=_NOT_STARTED))
    refused = REUSED if found is not None and found.fingerprint != claim.fingerprint else None
    return attrs.evolve(claim, found=found, refused=refused)


def fingerprint_of(facts: RequestFacts, scope: Scope, body: bytes) -> str:
    """What a key stands for: another request under the same key is another one. Where a reader stands, and what it
    negotiates, is no part of it."""
    query = [pair for pair in parse_qsl(facts.query, keep_blank_values=True) if pair[0] not in ("after", "sg")]
    return _digest([facts.method, scope.get("path", ""), query], body)


def _key(facts: RequestFacts) -> str | None:
    """The request's idempotency key. Raises ValueError for one that is not well-formed."""
    key = facts.headers.get("idempotency-key", "").strip().strip('"')
    return key or parse_key(facts.query)


def route_of(scope: Scope) -> str:
    """The route's own path where the framework tells it, else the request's."""
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else str(scope.get("path", ""))


def _digest(parts: list[Any], more: bytes = b"") -> str:
    return hashlib.sha256(json.dumps(parts).encode() + b"\n" + more).hexdigest()


def register_resumer(guard: StreamGuard, stream: StreamOptions, options: AnswerOptions, function: Any) -> StreamOptions:
    """Make known to the guard what goes on with the streams of an endpoint, `function`; its options, with that name.

    Raises ValueError for a name that is another's, or that is none.
    """
    endpoint = _endpoint(stream, options)
    if endpoint is None:
        return stream
    return attrs.evolve(stream, resumer_name=guard.resumers.register(endpoint, stream.resumer_name, function))


def logged_endpoint(
    guard: StreamGuard,
    function: Any,
    named: StreamNames,
    wrap: Callable[[Any, tuple[StreamOptions, AnswerOptions]], Any],
) -> Any:
    """What `guard.stream` makes of an endpoint; of None, the decorator that does. `wrap` is given the endpoint and its
    options. Raises as StreamOptions.split and `register_resumer` do."""
    stream, options = StreamOptions.split(named)

    def wrapped(function: Any) -> Any:
        # Now: a process is asked for another's stream before it has one of its own.
        return wrap(function, (register_resumer(guard, stream, options, function), options))

    return wrapped if function is None else wrapped(function)


def _endpoint(stream: StreamOptions, options: AnswerOptions) -> Endpoint | None:
    if stream.resumer is None:
        return None
    how = (options.dialect, options.flush, options.timing, options.on_end, stream.on_disconnect)
    return Endpoint(stream.resumer, *how)


def _require_installed(guard: StreamGuard) -> None:
    """Say once that nobody can come back, where that is so."""
    if guard.path is None and not guard.told:
        guard.told = True
        logger.error(_NOT_INSTALLED)


class LoggedAnswer:
    """An endpoint's answer, as an ASGI application for one request.

    `source` is what a TokenSource takes; `request` what `authorize` is given (the scope, by default), `body` the
    request's body, or a function that reads it. `claim` is one that was made for this request already. Options are
    those of AnswerOptions and StreamOptions; after the call, `outcome` says how the stream ended that it started.
    """

    def __init__(
        self,
        guard: StreamGuard,
        source: Producer,
        *,
        status: int = 200,
        headers: Iterable[tuple[str, str]] = (),
        request: Any = None,
        body: bytes | Body = b"",
        claim: Claim | None = None,
        options: tuple[StreamOptions, AnswerOptions] | None = None,
        **named: Unpack[StreamNames],
    ) -> None:
        self.guard = guard
        self.stream, self.options = StreamOptions.split(named) if options is None else options
        self.source = TokenSource(source, buffer=self.options.buffer)
        self.status = status
        self.headers = list(headers)
        self.request = request
        self.body = body
        self.claim = claim
        self.refused: Refusal | None = None  # what its body says against it, where an adapter has looked
        self.run: Run | None = None
        self._served = False
        self._cancelled: list[Failure | None] = []  # cancels that came before there was a run

    @property
    def outcome(self) -> Outcome | None:
        """How the stream ended; None before, and for a request that started none."""
        return None if self.run is None else self.run.producer.outcome

    def cancel(self, failure: Failure | None = None) -> None:
        """End the stream as `cancelled`; harmless once it has ended. From the event loop that serves it."""
        if self.run is not None:
            self.run.producer.cancel(failure)
        else:
            self._cancelled.append(failure)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._served:  # two streams of one source would each get every other item
            logger.error("a LoggedAnswer serves one request, and was given a second: make one for each request")
            await send_refusal(Refusal(500, [NO_STORE, ("content-length", "0")]), scope, send)
            return
        self._served = True
        reading = Reading(self.guard, self.options, scope, receive, send)
        try:
            await self._answer(reading)
        finally:
            if self.run is None:  # nobody opened it, and nothing may leak
                if self.claim is not None:
                    self.claim.let_go()
                await self.source.aclose()

    async def _answer(self, reading: Reading) -> None:
        facts, scope = reading.facts, reading.scope
        refused = refuse_early(self.options, scope, reading.receive, reading.send, facts, self.guard.observe)
        if refused is not None:
            await reading.refuse(refused)
            return
        request = scope if self.request is None else self.request
        claim = self.claim or await make_claim(self.guard, request, scope, self._body)
        if self.refused is not None and claim.starts:
            await reading.refuse(self.refused)
            return
        self.claim = claim = await with_slot(self.guard, claim, request, reading.receive, self._body)
        if claim.refused is not None:
            await reading.refuse(claim.refused)
        elif facts.cursor is not None:

            async def fingerprint() -> str:
                return fingerprint_of(facts, scope, await self._body())

            again = fingerprint if facts.method == "POST" else None
            await reading.resume(Cursor.parse(facts.cursor), claim.principal, again)
        elif claim.found is not None:
            await reading.begin(claim.found, self.headers or None, self.status)
        else:
            await self._start(reading, claim, request)

    async def _body(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else await self.body()

    async def _start(self, reading: Reading, claim: Claim, request: Any) -> None:
        name = self.stream.name_of(request)
        endpoint = _endpoint(self.stream, self.options)
        shared = None if endpoint is None else self.guard.resumers.of_request(endpoint, self.stream.resumer_name)
        keys = self.options.granted(claim.facts)
        own = self._own(shared, keys)
        if claim.facts.method == "HEAD":
            info = StreamInfo("", self.options.dialect.name, options=own)
            await reading.read(info, cursor_zero(""), self.headers, self.status)
            return
        _require_installed(self.guard)
        try:
            run = await self.guard.start(
                self.source,
                principal=claim.principal,
                dialect=self.options.dialect,
                flush=self.options.policy(keys),
                timing=self.options.timing,
                on_disconnect=self._on_disconnect(claim, named=name is not None),
                on_end=self.options.on_end,
                name=name,
                key=claim.key,
                fingerprint=claim.fingerprint,
                negotiated=terms(claim.facts).negotiated,
                options=own,
                labels=request_labels(claim.facts, reading.scope), asked=asked_of(claim.facts, reading.scope),
                resumer=endpoint if shared is None else None,
                slot=claim.slot,
            )
        except StreamExists as exc:  # another request with this key was faster
            claim.let_go()  # a reader needs none
            if exc.info.fingerprint != claim.fingerprint:
                await reading.refuse(REUSED)
            else:
                await reading.begin(exc.info, self.headers or None, self.status)
            return
        except LogUnavailable as exc:
            await reading.refuse(unavailable(claim.facts, exc, message=_NOT_STARTED))
            return
        self.run = run
        for failure in self._cancelled:
            run.producer.cancel(failure)
        try:
            info = StreamInfo(run.sid, self.options.dialect.name, options=own)
            await reading.read(info, cursor_zero(run.sid), self.headers, self.status, run=run)
        finally:
            run.leave()
        await run.over.wait()

    def _on_disconnect(self, claim: Claim, *, named: bool) -> OnDisconnect:
        """What becomes of the stream where nobody reads it any more: that of a reader who cannot come back is over."""
        facts, policy = claim.facts, self.stream.on_disconnect or self.guard.on_disconnect
        can_resume = terms(facts).negotiated or facts.event_source or claim.key is not None or named
        return policy if can_resume or isinstance(policy, Cancel) else Unannounced()

    def _own(self, resumer: str | None, keys: Granted) -> dict[str, Any]:
        """The settings that go with the stream, whoever serves it."""
        stream, wire = self.stream, self.options.wire
        own: dict[str, Any] = {"exclusive": stream.exclusive, "confidential": stream.confidential}
        if wire is not None:
            own["wire"] = wire.name
        if self.options.compress is not None:
            own["compress"] = "gzip"
        if keys.flush == "token":
            own["flush"] = "token"
        if resumer is not None:
            own["resumer"] = resumer
        own[CORS] = cors_of(self.headers)
        return {OWN: {key: value for key, value in own.items() if value}}
