"""Pure ASGI: a guarded answer is an ASGI application, and everything else here serves it.

    await GuardedAnswer(source, dialect="openai")(scope, receive, send)

It decides before the first byte (HEAD, a cursor in the request, HTTP/1.0, a missing seal), then drives
the source with one DirectDriver. A failed stream ends by returning without the last body message; it
never raises, because a raise is a long traceback in the server's log at every failed answer.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Protocol

import anyio
from typing_extensions import Unpack

from streamguard.adapters.admitting import Place, admitted_request
from streamguard.adapters.asgi_sink import AsgiSink
from streamguard.adapters.first import look_at_first
from streamguard.adapters.options import AnswerOptions, Options
from streamguard.adapters.seal import (
    Message,
    Receive,
    Scope,
    SealMiddleware,
    Send,
    UnsealedResponse,
    mark_aborted,
    require_seal,
)
from streamguard.adapters.shutdown import GOING_AWAY, drain_of
from streamguard.adapters.watching import asked_of, tell_refused, watched
from streamguard.core.arguments import one_line
from streamguard.core.cursor import Cursor
from streamguard.core.errors import Failure, SourceFailed, StreamBroken, failure_from
from streamguard.core.exchange import (
    NO_STORE,
    Granted,
    Refusal,
    RequestFacts,
    answer_headers,
    come_back,
    early_failure,
    http10_refusal,
    problem,
    refusal,
    terms,
)
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.pipeline import Pipeline
from streamguard.core.wire import Wire
from streamguard.observe.hooks import Observers, Outcome
from streamguard.runtime.compressed import CompressedStage
from streamguard.runtime.direct import DirectDriver
from streamguard.runtime.sink import Stage
from streamguard.runtime.source import Producer, TokenSource

__all__ = [
    "AnswerOptions",
    "GuardedAnswer",
    "Options",
    "SealMiddleware",
    "Trailing",
    "answer_whole",
    "compressed",
    "encode_headers",
    "merged",
    "merged_headers",
    "refuse",
    "refuse_early",
    "refuse_http10",
    "request_facts",
    "send_refusal",
    "stream_headers",
]

logger = logging.getLogger("streamguard")

Ended = tuple[str, Failure | None]  # a stream's status, and why it is not `complete`

MAX_BUFFERED: Final = 64 * 1024 * 1024  # bytes of an answer that `http10="buffer"` collects; more is a 502


class GuardedAnswer:
    """One guarded answer, as an ASGI application for one request.

    `source` is what a TokenSource takes; `status` and `headers` those of the answer; options as in
    AnswerOptions. After the call `outcome` says how it ended. `place` is what the request got already, if it asked for
    a slot before there was an answer; `request` what the functions of its Limits are given (the scope, by default).
    """

    def __init__(
        self,
        source: Producer,
        *,
        status: int = 200,
        headers: Iterable[tuple[str, str]] = (),
        options: AnswerOptions | None = None,
        **named: Unpack[Options],
    ) -> None:
        self.options = AnswerOptions.of_one(options, named)
        self.place: Place | None = None
        self.request: Any = None
        self.refused: Refusal | None = None  # what its body says against it, where an adapter has looked
        self.sid: str | None = None  # chosen before it is served, where its headers are another's to send
        self.status = status
        self.headers = list(headers)
        self.source = TokenSource(source, buffer=self.options.buffer)
        self.outcome: Outcome | None = None
        self._driver: DirectDriver[bytes] | None = None
        self._served = False
        self._cancelled: list[Failure | None] = []  # cancels that came before there was a driver

    def cancel(self, failure: Failure | None = None) -> None:
        """End the stream as `cancelled`; harmless once it has ended. From the event loop that serves it: raises
        RuntimeError from another thread, and does nothing there."""
        if self._driver is not None:
            self._driver.cancel(failure)
        else:
            self._cancelled.append(failure)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        facts = request_facts(scope)
        if self._served:  # two readers of one source would each get every other item
            logger.error("a GuardedAnswer serves one request, and was given a second: make one for each request")
            await send_refusal(Refusal(500, [NO_STORE, ("content-length", "0")]), scope, send)
            return
        self._served = True
        try:
            refused = self._refused(scope, receive, send, facts)
            if refused is None and facts.method != "HEAD":
                refused = await self._admitted(scope, receive, facts)
            if refused is not None:
                tell_refused(self.options.observe, refused, facts, scope)
                await refuse(refused, scope, receive, send, self.options.timing.linger)
                return
            if facts.method == "HEAD":
                await self._head(scope, receive, send, facts)
            elif facts.http_version == "1.0" and self.options.http10 == "buffer":
                await self._buffered(scope, receive, send, facts)
            else:
                self._driver = self._begun(scope, receive, send, facts)
                ended = await self._run(scope)
                if ended.status == "shutdown" and not self._driver.opened:  # its headers waited for a first item
                    await refuse(come_back(facts, *GOING_AWAY), scope, receive, send, self.options.timing.linger)
        except SourceFailed as exc:  # in peek mode, before the headers: the source chose what is told
            failure = failure_from(exc)
            refused = early_failure(failure)
            outcome = self._driver.outcome if self._driver is not None else None
            name = one_line(f"{outcome.cursor.sid[:8] if outcome is not None else ''} of {asked_of(facts, scope)}")
            why = one_line(f"{failure.code}: {failure.message}")
            logger.warning("stream %s failed before its first item: HTTP %d: %s", name, refused.status, why)
            await send_refusal(refused, scope, send)
        finally:
            if self._driver is None:  # refused before a driver had it: nothing started, and nothing may leak
                await self.source.aclose()
            else:  # also where a cancellation comes out
                self.outcome = self._driver.outcome
            self.let_go()

    def _refused(self, scope: Scope, receive: Receive, send: Send, facts: RequestFacts) -> Refusal | None:
        refused = refuse_early(self.options, scope, receive, send, facts, self.options.observe) or refusal(facts)
        if refused is None and facts.method != "HEAD" and not drain_of(scope).ready:
            return come_back(facts, *GOING_AWAY)
        return refused or self.refused

    async def _admitted(self, scope: Scope, receive: Receive, facts: RequestFacts) -> Refusal | None:
        """Have a slot; else why not."""
        admission = self.options.limits
        if self.place is None and admission is not None:
            request = scope if self.request is None else self.request
            self.place = await admitted_request(admission, facts, request, receive, drain=drain_of(scope))
        return None if self.place is None else self.place.refused

    def let_go(self) -> None:
        """Release the slot, if it has one: for an answer that is over, or is never given."""
        if self.place is not None and self.place.slot is not None:
            self.place.slot.release()

    async def _head(self, scope: Scope, receive: Receive, send: Send, facts: RequestFacts) -> None:
        keys = self.options.granted(facts, self.headers)
        headers = self._headers(None, self.options.carrier(terms(facts)), keys)
        sink = AsgiSink(scope, receive, send, self.status, headers)
        await sink.start()
        await sink.end()

    def _begun(self, scope: Scope, receive: Receive, send: Send, facts: RequestFacts) -> DirectDriver[bytes]:
        """The driver that serves the request, told of the cancels that came before it."""
        stage, sink, abort = self._driven(scope, receive, send, facts)
        sink.keep(self.options.window, self.options.timing.write)
        driver = DirectDriver(
            self.source,
            stage,
            sink,
            self.options.timing,
            abort=abort,
            on_end=self.options.on_end,
            request_id=facts.headers.get("x-request-id"),
            asked=asked_of(facts, scope),
            on_first=None if self.options.dialect.name == "raw" else look_at_first,
            seen=watched(self.options.observe, stage, self.options.timing, facts, (scope, receive, send)),
        )
        for failure in self._cancelled:
            driver.cancel(failure)
        return driver

    def _driven(
        self, scope: Scope, receive: Receive, send: Send, facts: RequestFacts
    ) -> tuple[Stage[bytes], AsgiSink, bool]:
        """What is driven, where to, and whether an end other than `complete` aborts the connection."""
        agreed, keys = terms(facts), self.options.granted(facts, self.headers)
        wire = self.options.carrier(agreed)
        encoder = FramedEncoder(self.options.dialect, sid=self.sid, negotiated=agreed.negotiated)
        sink = AsgiSink(scope, receive, send, self.status, self._headers(encoder.zero, wire, keys))
        pipeline = Pipeline(self.options.policy(keys), encoder, CompletionGuard(wire))
        abort = self.options.abort == "always" or not agreed.negotiated
        return compressed(pipeline, sink, self.options, keys), sink, abort

    async def _run(self, scope: Scope) -> Outcome:
        assert self._driver is not None
        if self.options.observe is not None:
            self.options.observe.attach(drain_of(scope))
        with drain_of(scope).joined(self._driver.shut_down):
            return await self._driver.run()

    def _headers(self, zero: Cursor | None, wire: Wire, keys: Granted) -> list[tuple[bytes, bytes]]:
        return encode_headers(stream_headers(self.options, self.headers, zero, wire, keys))

    async def _buffered(self, scope: Scope, receive: Receive, send: Send, facts: RequestFacts) -> None:
        async def stream(hold: Send) -> Ended:
            self._driver = self._begun({}, receive, hold, facts)  # no scope: the seal must let the 502 through
            outcome = await self._run(scope)
            return outcome.status, outcome.failure

        await answer_whole(stream, scope, send)


def stream_headers(
    options: AnswerOptions, headers: Iterable[tuple[str, str]], zero: Cursor | None, wire: Wire, keys: Granted
) -> list[tuple[str, str]]:
    """All headers of a guarded answer, with those of the application."""
    own = answer_headers(
        zero,
        content_type=wire.content_type,
        dialect=options.dialect.name,
        wire=wire.name,
        granted=keys,
        compresses=options.compress is not None,
    )
    return merged(own, headers)


class Trailing(Protocol):
    """What ends bodies. `trailer` makes what a clean end puts behind one."""

    trailer: Callable[[], bytes]


def compressed(stage: Stage[bytes], sink: Trailing, options: AnswerOptions, keys: Granted) -> Stage[bytes]:
    """`stage` as the connection gets it: itself, or compressed, and then `sink` knows how such a body ends."""
    if keys.compress is None or options.compress is None:
        return stage
    body = options.compress.body()
    sink.trailer = body.end
    return CompressedStage(stage, body)


async def answer_whole(stream: Callable[[Send], Awaitable[Ended]], scope: Scope, send: Send) -> None:
    """The whole answer at once, with its length: the one framing of HTTP/1.0 that shows a cut. `stream` sends it to
    what it is given, and answers how it ended; if not as `complete`, the answer is a 502 that says why."""
    held: list[Message] = []
    size = 0
    too_large = Failure("too_large", f"the answer is above the {MAX_BUFFERED} bytes that are held for HTTP/1.0")

    async def hold(message: Message) -> None:
        nonlocal size
        size += len(message.get("body", b""))
        if size > MAX_BUFFERED:
            logger.warning("an answer over HTTP/1.0 is above the %d bytes that are held: it fails", MAX_BUFFERED)
            raise StreamBroken("the answer is too large to buffer")
        held.append(message)

    status, failure = await stream(hold)
    if status != "complete":
        if size > MAX_BUFFERED:
            failure = too_large
        failure = failure or Failure(status, f"the stream ended as {status}")
        await send_refusal(problem(502, failure.code, failure.message, retry=failure.retryable), scope, send)
        return
    body = b"".join([message["body"] for message in held if message["type"] == "http.response.body"])
    headers = [*held[0]["headers"], (b"content-length", str(len(body)).encode())]
    await send({**held[0], "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def refuse_early(
    options: AnswerOptions,
    scope: Scope,
    receive: Receive,
    send: Send,
    facts: RequestFacts,
    observers: Observers | None,
) -> Refusal | None:
    """Why no stream may be served here at all, or None. Raises UnsealedResponse, of which `observers` are told: it has
    an answer that others make."""
    if options.unsealed == "refuse":
        try:
            require_seal(scope, receive, send)
        except UnsealedResponse as exc:
            # The exception alone may never be seen: an older BaseHTTPMiddleware swallows what a mounted
            # application raises after it has answered with 500.
            logger.error("%s", exc)
            tell_refused(observers, _UNSEALED, facts, scope)
            raise
    return refuse_http10(options, facts)


_UNSEALED: Final = Refusal(500, [], code="unsealed")  # as whoever catches the exception answers


def refuse_http10(options: AnswerOptions, facts: RequestFacts) -> Refusal | None:
    """Why a request over HTTP/1.0 is not served, as far as it is not, or None; what is to be known of it is said."""
    if facts.http_version == "1.0":
        if options.http10 == "refuse" or (options.dialect.name == "text" and options.http10 != "buffer"):
            _warn_http10(refused=True)
            return http10_refusal()
        if options.http10 == "warn":
            _warn_http10(refused=False)
    return None


# Framing is the server's business; `Connection: close` makes Node's fetch take a cut body for a whole one.
# A `Streamguard` header that came along with an upstream's answer would name another stream than this one.
_SERVERS_OWN: Final = ("connection", "transfer-encoding", "content-length", "streamguard")


def request_facts(scope: Scope) -> RequestFacts:
    """The facts of an ASGI request."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text  # one field in several lines
    query = scope.get("query_string", b"").decode("latin-1")
    version = scope.get("http_version", "1.1")
    # "1" is granian's name for HTTP/1.0, which the specification of ASGI calls "1.0".
    version = "1.0" if version == "1" else version
    return RequestFacts(scope["method"], headers, query, version, str(scope.get("path", "")))


def merged_headers(own: Iterable[tuple[str, str]], theirs: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """The same as `merged`, as ASGI has them."""
    return encode_headers(merged(own, theirs))


def merged(own: Iterable[tuple[str, str]], theirs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """An answer's headers: ours, save those that the application gave a value of its own. Lists add up: a page of
    another origin that may read the application's fields needs ours to resume."""
    given = [(name.lower(), value) for name, value in theirs if name.lower() not in _SERVERS_OWN]
    replaced = {name for name, _ in given} - {"vary", "access-control-expose-headers"}
    return [(name, value) for name, value in own if name not in replaced] + given


def encode_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """Headers as ASGI has them."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]


async def send_refusal(refused: Refusal, scope: Scope, send: Send) -> None:
    """Send an answer that is no stream."""
    await send({"type": "http.response.start", "status": refused.status, "headers": encode_headers(refused.headers)})
    if refused.abort:
        await send({"type": "http.response.body", "body": refused.body, "more_body": True})
        mark_aborted(scope)
        return
    await send({"type": "http.response.body", "body": refused.body, "more_body": False})


async def refuse(refused: Refusal, scope: Scope, receive: Receive, send: Send, linger: float) -> None:
    """Send an answer that is no stream. Where an abort follows, its reader has `linger` seconds to part before that:
    Chromium drops what it has of a body when it learns of the abort close behind it, and asks again."""
    await send_refusal(refused, scope, send)
    if refused.abort:
        sink = AsgiSink(scope, receive, send, refused.status, ())
        with anyio.move_on_after(linger):
            await sink.gone()
        sink.kill(drop=False)  # daphne leaves an answer open that its application did not finish


@functools.cache
def _warn_http10(*, refused: bool) -> None:
    logger.warning(
        "a stream is %s over HTTP/1.0, whose framing cannot show a reader that it was cut: "
        "set `proxy_http_version 1.1` in nginx, or choose http10=%s",
        "refused with 426" if refused else "served",
        "'buffer'" if refused else "'buffer' or 'refuse'",
    )
