"""A guarded answer as Django's StreamingHttpResponse, what it needs of a request, and what is put round its source."""

from __future__ import annotations

import inspect
import io
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any

import anyio
from asgiref.sync import AsyncToSync, ThreadSensitiveContext, sync_to_async
from django.db import connections
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.request import RawPostDataException
from django.http.response import HttpResponseBase
from typing_extensions import Unpack

from streamguard.adapters.asgi import GuardedAnswer, refuse_early, request_facts, stream_headers
from streamguard.adapters.blocking import BlockingAnswer, Head
from streamguard.adapters.loop_bridge import LoopBody, LoopBridge, LoopHead
from streamguard.adapters.options import AnswerOptions, Options
from streamguard.adapters.reading import ROOT
from streamguard.adapters.seal import Scope, is_aborted, mark_aborted, mark_guarded
from streamguard.adapters.shutdown import GOING_AWAY, drain_of
from streamguard.adapters.threaded import REQUEST
from streamguard.adapters.watching import tell_refused
from streamguard.core.arguments import shown
from streamguard.core.cursor import cursor_zero, new_sid
from streamguard.core.errors import Failure
from streamguard.core.exchange import Refusal, come_back, refusal, terms
from streamguard.observe.hooks import Outcome
from streamguard.runtime.blocking import BodyAborted
from streamguard.runtime.closing import close, close_sync
from streamguard.runtime.source import Producer, TokenSource

__all__ = [
    "GuardedResponse",
    "HeadResponse",
    "body_of",
    "environ_of",
    "on_loop",
    "on_thread",
    "response_of",
    "scope_of",
    "thread_dress",
]


class HeadResponse(StreamingHttpResponse):  # type: ignore[misc]  # Django has no types
    """A streaming response whose head and body are settled."""

    def __init__(self, head: Head | LoopHead) -> None:
        super().__init__(head.body, status=head.status, headers=_fields(head.headers))
        self._guarded = head.body

    def __aiter__(self) -> Any:
        body = self._guarded
        # Where no middleware has put another iterator round it; it is bytes already, and Django would look at each.
        if isinstance(body, LoopBody) and self._iterator is body.__aiter__():
            return body.straight()
        return super().__aiter__()


def _fields(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Headers as Django has them, of a body that nobody is to compress."""
    fields: dict[str, str] = {}
    for name, value in headers:
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    # Else GZipMiddleware compresses it, and holds tokens back until they fill a block.
    fields.setdefault("content-encoding", "identity")
    return fields


def response_of(head: Head | LoopHead) -> HttpResponseBase:
    if isinstance(head.body, list):  # an answer that is no stream
        return HttpResponse(b"".join(head.body), status=head.status, headers=dict(head.headers))
    return HeadResponse(head)


class GuardedResponse(HeadResponse):
    """A response that streams a source, guarded, to one request; from any view, under ASGI and WSGI.

        return GuardedResponse(request, generate(prompt), dialect="openai", flush=EveryTokens(8))

    Options are those of AnswerOptions; the response can be cancelled, and has its `outcome` at the end. Under ASGI its
    head is settled when it is made, so that nothing can be waited for before: there `limits`, `Timing(peek=…)` and
    `http10="buffer"` need `@guarded`. Raises ValueError for those, TypeError and ValueError for a source that is none,
    or is spent, as TokenSource does.
    """

    def __init__(
        self,
        request: HttpRequest,
        source: Producer,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        *,
        options: AnswerOptions | None = None,
        **named: Unpack[Options],
    ) -> None:
        if not isinstance(request, HttpRequest):
            raise TypeError(f"GuardedResponse(request, source): the request comes first; not {shown(request)}")
        fields = list((headers or {}).items())
        given: Any = {"status": status, "headers": fields, "options": AnswerOptions.of(options, named)}
        self.answer: BlockingAnswer | GuardedAnswer
        if hasattr(request, "scope"):
            self.answer = GuardedAnswer(on_loop(source), **given)
            head: Head | LoopHead = _settled(self.answer, request)
        else:
            dress = thread_dress(given["options"])
            self.answer = BlockingAnswer(dress(source), **given)
            self.answer.request = request
            head = self.answer.begin(environ_of(request))
        super().__init__(head)

    @property
    def outcome(self) -> Outcome | None:
        """How the stream ended; None before."""
        return self.answer.outcome

    def cancel(self, failure: Failure | None = None) -> None:
        """End the stream as `cancelled`; under ASGI, from the event loop that serves it."""
        self.answer.cancel(failure)


def _settled(answer: GuardedAnswer, request: Any) -> LoopHead:
    """The head of an answer that is served when its body is asked for."""
    options, scope = answer.options, scope_of(request)
    if options.limits is not None or options.timing.peek or options.http10 == "buffer":
        raise ValueError("under ASGI limits, Timing(peek=…) and http10='buffer' need a view under @guarded")
    facts = request_facts(scope)
    refused = refuse_early(options, scope, _unasked, _unasked, facts, options.observe) or refusal(facts)
    if refused is None and facts.method != "HEAD" and not drain_of(scope).ready:
        refused = come_back(facts, *GOING_AWAY)
    if refused is not None:
        tell_refused(options.observe, refused, facts, scope)
        return LoopHead(refused.status, list(refused.headers), LoopBody(_refused(refused, answer, scope)))
    zero = None
    if facts.method != "HEAD":
        answer.sid = new_sid()
        zero = cursor_zero(answer.sid)
    keys = options.granted(facts, answer.headers)
    headers = stream_headers(options, answer.headers, zero, options.carrier(terms(facts)), keys)
    return LoopHead(answer.status, headers, LoopBridge(answer, scope, body_of(request)).body())


async def _unasked(*args: Any) -> Any:
    raise AssertionError("an answer's head was settled without the server")


async def _refused(refused: Refusal, answer: GuardedAnswer, scope: Scope) -> AsyncIterator[bytes]:
    await answer.source.aclose()
    if refused.body:
        yield refused.body
    if refused.abort:
        await anyio.sleep(answer.options.timing.linger)  # Chromium drops what it has where the abort is close behind it
        mark_aborted(scope)
        if not is_aborted(scope):
            raise BodyAborted


# ---- requests -------------------------------------------------------------------------------------


def body_of(request: Any) -> bytes:
    try:
        body: bytes = request.body
        return body
    except RawPostDataException:  # the view has read it, as a form or a stream
        return b""


def environ_of(request: Any) -> dict[str, Any]:
    """A request's environ, whose body can be read once more: read from the server's stream, it would be waited for."""
    request.environ["wsgi.input"] = io.BytesIO(body_of(request))
    environ: dict[str, Any] = request.environ
    return environ


def scope_of(request: Any) -> Scope:
    scope: Scope = request.scope
    # Django's own test client has some of these as text.
    if isinstance(scope.get("query_string"), str) or any(isinstance(name, str) for name, _ in scope["headers"]):
        scope["headers"] = [tuple(map(_bytes, pair)) for pair in scope["headers"]]
        scope["query_string"] = _bytes(scope.get("query_string", b""))
    mark_guarded(scope)
    scope.setdefault(ROOT, scope.get("root_path", ""))
    scope[REQUEST] = request
    return scope


def _bytes(text: str | bytes) -> bytes:
    return text.encode("latin-1") if isinstance(text, str) else text


# ---- sources --------------------------------------------------------------------------------------


def thread_dress(options: AnswerOptions) -> Callable[[Any], Any]:
    """What is put round a source for a request of a thread."""
    return on_thread if options.own_thread else _on_request_thread


def _on_request_thread(source: Any) -> Any:
    """A source that is stepped on the request's thread, whose connections are closed behind the request, by Django."""
    return on_thread(source) if isinstance(source, AsyncIterable) else source


def on_thread(source: Any) -> Any:
    """A source for a request of a thread: its database connections are closed with it."""
    TokenSource(source)  # refuses what is no source, or is spent, which could not be seen through what follows
    return _AsyncClosing(source) if isinstance(source, AsyncIterable) else on_loop(source)


def on_loop(source: Any) -> Any:
    """The same for a request of an event loop, which closes those of async sources itself."""
    if isinstance(source, AsyncIterable) or inspect.isawaitable(source) or not isinstance(source, Iterable):
        return source
    TokenSource(source)
    return _Closing(source)


class _Closing:
    """A sync source, behind which the connections of its thread are closed: nobody else knows of them."""

    def __init__(self, source: Iterable[Any]) -> None:
        self._source = source

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._source
        finally:
            try:
                close_sync(self._source)
            finally:
                connections.close_all()

    def close(self) -> None:
        close_sync(self._source)  # where it was never begun


class _AsyncClosing:
    """An async source, with a thread of its own for what is called by `sync_to_async`, as a request has under ASGI."""

    def __init__(self, source: AsyncIterable[Any]) -> None:
        self._source = source

    async def __aiter__(self) -> AsyncIterator[Any]:
        # An async view is called by `async_to_sync` under WSGI, and leaves to the context that the source has from it
        # an executor that nobody works off once the view has returned: `sync_to_async` would raise there. asgiref has
        # no public name for it; `ThreadSensitiveContext` hides it only where it is given an executor,
        # which the oldest asgiref that Django 4.2 takes does not know.
        AsyncToSync.executors.current = None
        async with ThreadSensitiveContext():
            try:
                async for item in self._source:
                    yield item
            finally:
                try:
                    await close(self._source)
                finally:
                    await sync_to_async(connections.close_all)()

    async def aclose(self) -> None:
        await close(self._source)
