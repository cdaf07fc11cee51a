"""A guarded answer for servers that call an application on a thread: WSGI, and what stands on it.

    head = BlockingAnswer(source, dialect="openai").begin(environ)

It decides before the first byte, as a GuardedAnswer does: HEAD, a cursor in the request, HTTP/1.0, a slot. What it
answers is a Head, which each framework sends in its own idiom. The body of a stream that did not complete raises where
others end, at which servers cut the connection.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import anyio
import attrs
from typing_extensions import Unpack

from streamguard.adapters.admitting import Place, admitted_request
from streamguard.adapters.asgi import MAX_BUFFERED, compressed, refuse_http10, stream_headers
from streamguard.adapters.environ import (
    Environ,
    aborted_by,
    cut_off,
    facts_of,
    gone_by,
    keep_body,
    limit_writes,
    warn_of_lone,
)
from streamguard.adapters.first import look_at_first
from streamguard.adapters.options import AnswerOptions, Options
from streamguard.adapters.pacing import make_pacer
from streamguard.adapters.shutdown import DRAIN, GOING_AWAY, process_drain
from streamguard.adapters.watching import asked_of, tell_refused
from streamguard.core.arguments import one_line
from streamguard.core.errors import Failure, SourceFailed, failure_from
from streamguard.core.exchange import (
    NO_STORE,
    Refusal,
    RequestFacts,
    come_back,
    early_failure,
    problem,
    refusal,
    terms,
)
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.pipeline import Pipeline
from streamguard.observe.hooks import Outcome
from streamguard.runtime.blocking import BlockingDriver, BodyAborted
from streamguard.runtime.blocking_source import BlockingSource
from streamguard.runtime.drain import Drain
from streamguard.runtime.loopthread import loop_thread
from streamguard.runtime.seen import labels_of, seen_by
from streamguard.runtime.source import Producer, TokenSource

__all__ = ["BlockingAnswer", "Body", "Head", "let_go", "refused_head", "wait_for_place"]

logger = logging.getLogger("streamguard")


class Body:
    """A body's parts, and what is to be done when the server is done with it; the server calls `close`, always."""

    def __init__(self, parts: Iterable[bytes], close: Callable[[], object]) -> None:
        self._parts = iter(parts)
        self._close = close

    def __iter__(self) -> Iterator[bytes]:
        return self._parts

    def close(self) -> None:
        self._close()


@attrs.frozen
class Head:
    """What an answer begins with, and its body."""

    status: int
    headers: list[tuple[str, str]]
    body: Iterable[bytes]


def refused_head(refused: Refusal, environ: Environ) -> Head:
    """An answer that is no stream."""
    body: Iterable[bytes] = [refused.body] if refused.body and environ["REQUEST_METHOD"] != "HEAD" else []
    return Head(refused.status, list(refused.headers), _cut(body, environ) if refused.abort else body)


def _cut(body: Iterable[bytes], environ: Environ) -> Iterator[bytes]:
    yield from body
    raise aborted_by(environ)()


class BlockingAnswer:
    """One guarded answer, for one request. `source` is what a TokenSource takes, or comes later, by `give`, once `look`
    has said that the request starts a stream. Options as in AnswerOptions.

    `request` is what the functions of its Limits are given (the environ, by default), `place` what the request got
    already, `drain` that of its guard. When the body is closed `outcome` says how the stream ended.
    """

    def __init__(
        self,
        source: Producer | None = None,
        *,
        status: int = 200,
        headers: Iterable[tuple[str, str]] = (),
        options: AnswerOptions | None = None,
        **named: Unpack[Options],
    ) -> None:
        self.options = AnswerOptions.of_one(options, named)
        self.status = status
        self.headers = list(headers)
        self.request: Any = None
        self.place: Place | None = None
        self.drain: Drain | None = None
        self.refused: Refusal | None = None  # what its body says against it, where an adapter has looked
        self.outcome: Outcome | None = None
        self.trailer: Callable[[], bytes] = bytes
        self._items: BlockingSource | None = None
        self._driver: BlockingDriver | None = None
        self._served = self._looked = False
        self._cancelled: list[Failure | None] = []
        if source is not None:
            self.give(source)

    def give(self, source: Producer) -> None:
        """The source. Raises as TokenSource does."""
        options = self.options
        self._items = BlockingSource(TokenSource(source), options.buffer, inline=not options.own_thread)

    def cancel(self, failure: Failure | None = None) -> None:
        """End the stream as `cancelled`; harmless once it has ended. From any thread."""
        if self._driver is not None:
            self._driver.cancel(failure)
        else:
            self._cancelled.append(failure)

    def begin(self, environ: Environ) -> Head:
        """The answer to a request. Raises what the source raised before the headers, where they waited for it."""
        if self._served:  # two readers of one source would each get every other item
            logger.error("a guarded response serves one request, and was given a second: make one for each request")
            return refused_head(Refusal(500, [NO_STORE, ("content-length", "0")]), environ)
        self._served = True
        try:
            return self.look(environ) or self._unasked(environ) or self._begun(facts_of(environ), environ)
        except SourceFailed as exc:  # before the headers: the source chose what is told
            refused = early_failure(failure_from(exc))
            asked, why = one_line(asked_of(facts_of(environ), {})), one_line(str(exc))
            logger.warning("a stream of %s failed before its first item: HTTP %d: %s", asked, refused.status, why)
            return self._end_early(refused_head(refused, environ))
        except BaseException:
            self.finish()
            raise

    def look(self, environ: Environ) -> Head | None:
        """The answer to a request that starts no stream. None: it is to start one, and has its slot, which is this
        answer's to release: by the end of what `begin` returns, or by `finish`."""
        if self._looked:
            return None
        self._looked = True
        facts = facts_of(environ)
        refused = self._refused(facts, environ)
        if refused is not None:
            tell_refused(self.options.observe, refused, facts, {})
            return self._end_early(refused_head(refused, environ))
        if facts.method == "HEAD":
            wire, keys = self.options.carrier(terms(facts)), self.options.granted(facts, self.headers)
            return self._end_early(Head(self.status, self._headers(None, wire, keys), iter(())))
        return None

    def _unasked(self, environ: Environ) -> Head | None:
        """The answer to a request whose body was looked at meanwhile, and asks for no stream."""
        if self.refused is None:
            return None
        tell_refused(self.options.observe, self.refused, facts_of(environ), {})
        return self._end_early(refused_head(self.refused, environ))

    def _refused(self, facts: RequestFacts, environ: Environ) -> Refusal | None:
        """Why there is no stream; else it has a slot, where it needs one."""
        drain = self.drain = self.drain or environ.get(DRAIN) or process_drain()
        refused = refuse_http10(self.options, facts) or refusal(facts)
        if refused is None and facts.method != "HEAD" and not drain.ready:
            return come_back(facts, *GOING_AWAY)
        if refused is not None or facts.method == "HEAD":
            return refused
        if self.place is None and self.options.limits is not None:
            request = environ if self.request is None else self.request
            self.place = wait_for_place(self.options, facts, request, environ, drain)
        return None if self.place is None else self.place.refused

    def _begun(self, facts: RequestFacts, environ: Environ) -> Head:
        options, agreed = self.options, terms(facts)
        keys, wire = options.granted(facts, self.headers), options.carrier(agreed)
        encoder = FramedEncoder(options.dialect, negotiated=agreed.negotiated)
        pipeline = Pipeline(options.policy(keys), encoder, CompletionGuard(wire))
        warn_of_lone(environ)
        limit_writes(environ, options.timing.write)
        make_pacer(None, options.window)  # says, once, that there is none here
        keep_body(environ)
        assert self._items is not None
        stage = compressed(pipeline, self, options, keys)
        hop = "http10" if facts.http_version == "1.0" and options.http10 != "buffer" else None
        if options.observe is not None:
            options.observe.attach(self.drain)
        seen = seen_by(options.observe, stage, options.timing.clock, labels_of(facts.headers), hop)
        driver = self._driver = BlockingDriver(
            self._items,
            stage,
            options.timing,
            abort=options.abort == "always" or not agreed.negotiated,
            aborted=aborted_by(environ),
            drain=self.drain,
            gone=gone_by(environ),
            cut=functools.partial(cut_off, environ),
            trailer=self.trailer,
            on_end=options.on_end,
            on_first=None if options.dialect.name == "raw" else look_at_first,
            request_id=facts.headers.get("x-request-id"),
            asked=asked_of(facts, {}),
            seen=seen,
        )
        self._items.begins(seen)
        self._items.watch = driver.overdue
        for failure in self._cancelled:
            driver.cancel(failure)
        driver.peek()
        headers = self._headers(encoder.zero, wire, keys)
        body = Body(driver, self.finish)
        if facts.http_version == "1.0" and options.http10 == "buffer":
            return self._whole(body, headers, environ)
        return Head(self.status, headers, body)

    def _headers(self, zero: Any, wire: Any, keys: Any) -> list[tuple[str, str]]:
        return stream_headers(self.options, self.headers, zero, wire, keys)

    def _whole(self, body: Body, headers: list[tuple[str, str]], environ: Environ) -> Head:
        """The whole answer with its length, or a 502 that says why there is none."""
        parts: list[bytes] = []
        size = 0
        try:
            for part in body:
                parts.append(part)
                size += len(part)
                if size > MAX_BUFFERED:
                    break
        except BodyAborted:
            pass
        finally:
            body.close()
        assert self.outcome is not None
        if size <= MAX_BUFFERED and self.outcome.status == "complete":
            return Head(self.status, [*headers, ("content-length", str(size))], parts)
        failure = self.outcome.failure or Failure(self.outcome.status, f"the stream ended as {self.outcome.status}")
        if size > MAX_BUFFERED:
            failure = Failure("too_large", f"the answer is above the {MAX_BUFFERED} bytes that are held for HTTP/1.0")
        return refused_head(problem(502, failure.code, failure.message, retry=failure.retryable), environ)

    def _end_early(self, head: Head) -> Head:
        self.finish()
        return head

    def finish(self) -> None:
        """Close what there is of the stream, and release the slot."""
        try:
            if self._driver is not None:
                self._driver.close()
                self.outcome = self._driver.outcome
            elif self._items is not None:  # nothing started, and nothing may leak
                self._items.close(self.options.timing.close)
        finally:
            if self.place is not None:
                let_go(self.place)


def wait_for_place(
    options: AnswerOptions, facts: RequestFacts, request: Any, environ: Environ, drain: Drain
) -> Place:
    """A slot for a new stream, at once or after a wait on this thread, or why there is none."""
    assert options.limits is not None
    loop, gone = loop_thread(), gone_by(environ)
    return loop.wait(functools.partial(_place, options, facts, request, gone, drain))


async def _place(
    options: AnswerOptions, facts: RequestFacts, request: Any, gone: Callable[[], bool] | None, drain: Drain
) -> Place:
    async def receive() -> dict[str, Any]:
        while gone is None or not gone():  # noqa: ASYNC110  # a socket that is the server's can only be looked at
            await anyio.sleep(0.25)
        return {"type": "http.disconnect"}

    assert options.limits is not None
    return await admitted_request(options.limits, facts, request, receive, drain=drain)


def let_go(place: Place) -> None:
    """Release its slot, where it has one."""
    if place.slot is not None:
        loop_thread().call(place.slot.release)
