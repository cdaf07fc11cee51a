"""`stream` and `stream_sync`: drivers of `AnswerState` over httpx, async and sync.

httpx takes its timeouts from a request's extensions each time it begins to read: for the head of the
response, then for its body. So one dictionary, changed in between, gives the head (`request`) and the
liveness of the stream limits of their own. Bytes are taken raw and decompressed in `body`.

All that both drivers share stands in front; the drivers are the same few steps twice, with and
without `await`. Whatever happens, the response is closed when the context ends, and with it the
connection, unless the answer was read to its end.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from functools import cache
from time import monotonic
from typing import Any, Final, cast
from zlib import error as Damaged

import anyio
import anyio.lowlevel
import httpx
from typing_extensions import Unpack

from streamguard.client.answer import LINGER, REQUEST_HEADERS, AnswerState
from streamguard.client.body import Body, coding_of, may_be_read
from streamguard.client.iteration import Iterations, SyncIterations, async_only, sync_only
from streamguard.client.limits import LIMITS, ReaderLimits
from streamguard.client.request import HeadLimit, RequestOptions, is_safe_header, same_origin, vet_call, why_not_follow
from streamguard.core.dialect import Dialect
from streamguard.core.receipt import AnswerFrame, Receipt
from streamguard.core.wire import MAX_FRAME

__all__ = ["Answer", "RequestOptions", "SyncAnswer", "stream", "stream_sync"]

# What a cut connection looks like in httpx; others of its errors (no such host, a certificate that
# does not fit) are no statement about a stream and pass as they are.
_CUT: Final = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.DecodingError, Damaged)


@cache
def _defaults() -> httpx.Headers:
    """What httpx sends if nobody chose otherwise, which asks for nothing."""
    with httpx.Client(transport=httpx.BaseTransport(), trust_env=False) as client:
        return client.headers


class _Exchange:
    """One request as far as both drivers share it: its parts, its redirects, what its errors mean."""

    def __init__(
        self,
        client: httpx.Client | httpx.AsyncClient,
        state: AnswerState,
        method: str,
        url: httpx.URL | str,
        options: RequestOptions,
    ) -> None:
        fields: dict[str, Any] = dict(options)
        self.auth: Any = fields.pop("auth", httpx.USE_CLIENT_DEFAULT)
        self.follows: bool = fields.pop("follow_redirects", client.follow_redirects)
        self.state = state
        headers = httpx.Headers(fields.pop("headers", None))
        for name, value in REQUEST_HEADERS:
            if name not in headers and client.headers.get(name) in (None, _defaults().get(name)):
                headers[name] = value
        self.request = client.build_request(method, url, headers=headers, **fields)
        self.first = self.request.url
        extensions = self.request.extensions
        self.head = HeadLimit(state.limits, extensions.get("trace"))
        trace = self.head.atrace if isinstance(client, httpx.AsyncClient) else self.head.trace
        self.request.extensions = {**extensions, "timeout": self.head.timeouts, "trace": trace}

    def opened(self, response: httpx.Response) -> bool:
        """Take the head of the response in: whether it is a stream's."""
        version = response.http_version if "http_version" in response.extensions else None
        accept = response.request.headers.get("accept-encoding", "")
        is_stream = self.state.open(response.status_code, response.headers, version, accept)
        self.head.came(self.state.limits.silence if is_stream else self.state.limits.first_byte)
        return is_stream

    def redirected(self, response: httpx.Response) -> bool:
        """Whether there is one more request to send; then it is `request`."""
        following = response.next_request
        if following is None:
            return False
        away = not same_origin(self.first, following.url)
        why = why_not_follow(self.follows, away, following.headers)
        if not self.state.follow(response.status_code, response.headers.get("location"), why):
            return False
        if away:
            kept = [(name, value) for name, value in following.headers.multi_items() if is_safe_header(name)]
            following.headers = httpx.Headers(kept)
        self.request = following
        # What the redirect's target may see of the credentials is in the request's headers already.
        self.auth = None
        return True

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Say what an error before the response's head means."""
        try:
            yield
        except httpx.ConnectError:
            raise
        except (httpx.ConnectTimeout, httpx.PoolTimeout) as exc:
            raise self.state.unconnected() from exc
        except httpx.TimeoutException as exc:
            raise self.state.unanswered() from exc
        except _CUT as exc:
            raise self.state.dropped() from exc


class _AnswerBase:
    """What is known of an answer, the same for both drivers."""

    def __init__(self, exchange: _Exchange, response: httpx.Response) -> None:
        self._state = exchange.state
        self._head = exchange.head
        self.response = response
        coding = coding_of(response.headers.get("content-encoding", ""))
        # A body that was read before is in memory, decompressed; only httpx can give it again.
        self._body = Body("identity" if response.is_stream_consumed else coding)
        asked = may_be_read(coding, response.request.headers.get("accept-encoding", ""))
        self._raw = not response.is_stream_consumed and (self._body.own or not asked)

    @property
    def receipt(self) -> Receipt:
        """What is known so far; final once the answer was read to its end."""
        return self._state.receipt

    @property
    def received(self) -> str:
        """The text handed out so far."""
        return self._state.received

    @property
    def _own_connection(self) -> bool:
        """Whether a connection carries this answer and no other: not in memory, and not HTTP/2, which
        keeps its connection whatever becomes of a stream, and loses all of them by one's timeout."""
        return "network_stream" in self.response.extensions and self.response.http_version.startswith("HTTP/1")

    def _broken(self, exc: BaseException, began: float) -> None:
        """What an error of a read means. Raises what is none of the connection's."""
        if isinstance(exc, httpx.TimeoutException):
            self._state.silent(began, monotonic(), exc)
        elif isinstance(exc, _CUT):
            self._state.end(began, monotonic(), clean=False, cause=exc)
        else:
            # A cancelled read leaves httpx's generator finished: asked again, it would end as if in order.
            self._state.close()
            raise exc


# ---- async ------------------------------------------------------------------------------------


@async_only
@asynccontextmanager
async def stream(
    method: str,
    url: httpx.URL | str,
    *,
    client: httpx.AsyncClient | None = None,
    dialect: str | Dialect | None = None,
    lenient: bool = False,
    limits: ReaderLimits = LIMITS,
    max_frame: int = MAX_FRAME,
    **options: Unpack[RequestOptions],
) -> AsyncIterator[Answer]:
    """Send a request and read the stream that answers it, verified.

    `client` is yours to close; without one, each call makes its own, which costs tens of milliseconds.
    `dialect` says what the events are where the server does not (`Raw(profile=…)` for a provider's
    departures); `lenient` accepts a terminal whose own checks hold though its line end is missing.
    `max_frame` is bytes of one frame's data. Other options are httpx's. Redirects are followed if
    `client` does; none carries a body, or headers that may be secret, to another origin.

    Raises UnexpectedResponse, ConnectLimitExceeded, FirstByteLimitExceeded; TruncatedStream for a
    connection that ends before its response; httpx's own errors where there is no connection.
    """
    vet_call("stream", client, httpx.AsyncClient, options)
    state = AnswerState(monotonic(), dialect=dialect, lenient=lenient, limits=limits, max_frame=max_frame)
    async with AsyncExitStack() as stack:
        if client is None:
            client = await stack.enter_async_context(httpx.AsyncClient(follow_redirects=True))
        answer = await _open(client, _Exchange(client, state, method, url, options))
        try:
            yield answer
        finally:
            await answer.aclose()


async def _open(client: httpx.AsyncClient, exchange: _Exchange) -> Answer:
    while True:
        response: httpx.Response | None = None
        with exchange.faults(), exchange.head.scope():
            response = await client.send(exchange.request, stream=True, auth=exchange.auth, follow_redirects=False)
        if response is None:
            raise exchange.state.unanswered()
        if exchange.redirected(response):
            await response.aclose()
            continue
        answer = Answer(exchange, response)
        try:
            if not exchange.opened(response):
                await answer.read()  # some of it, and raises
        except BaseException:
            await answer.aclose()
            raise
        return answer


class Answer(_AnswerBase, Iterations):
    """An answer as it comes. Each iteration hands out all that is good, then ends or raises.

    It ends only if the answer is COMPLETE, or UNVERIFIED with a proven end; otherwise it raises
    TruncatedStream, CorruptStream, StreamGap or FailedStream, whose `received` is the text so far and
    whose `cursor` is the last good one; or LivenessLimitExceeded, StallLimitExceeded, FrameTooLarge;
    or StreamClosed once the context has ended, and for an iteration that lacks what another was handed (an
    answer is iterated once; `read` gives the whole at any time). `response` is httpx's.
    """

    def __init__(self, exchange: _Exchange, response: httpx.Response) -> None:
        super().__init__(exchange, response)
        chunks = response.aiter_raw() if self._raw else response.aiter_bytes()
        self._chunks = cast("AsyncGenerator[bytes, None]", chunks)

    async def read(self) -> str:
        """The whole text, what was iterated before included. Raises as iteration does."""
        while await self._next() is not None:
            pass
        return self._state.whole()

    async def aclose(self) -> None:
        """Close the response; the context does."""
        self._state.close("async with")
        try:
            await self.response.aclose()
        finally:
            await self._unwind()

    async def _unwind(self) -> None:
        """Finish httpx's generators, which wait one inside the other where they were left.

        Left to the garbage collector they end in another task, and trio warns of each. Resumed on their
        closed connection they end by its error, here. Only where that connection is this answer's own.
        """
        if self._own_connection:
            try:
                async for _ in self._chunks:
                    pass  # what had come and was not read
            except Exception:
                pass  # the closed connection's error: it has done its work
        else:
            await self._chunks.aclose()

    async def _next(self, had: int | None = None) -> AnswerFrame | None:
        state = self._state
        while (frame := state.take(had)) is None:
            if state.needs == "bytes":
                await self._read()
            elif state.needs == "end":
                await self._read_to_end()
            else:
                await self.aclose()
                state.conclude()
                return None
        return frame

    async def _read(self) -> None:
        began = monotonic()
        try:
            if (data := self._body.take()) is not None:
                await anyio.lowlevel.checkpoint()  # a read may have brought many pieces: others run in between
                began = monotonic()
            else:
                self._body.put(await self._chunks.__anext__())
                data = self._body.take()
        except StopAsyncIteration:
            self._state.end(began, monotonic(), clean=self._body.whole)
        except BaseException as exc:
            self._broken(exc, began)
        else:
            self._state.feed(data or b"", began, monotonic())

    async def _read_to_end(self) -> None:
        with anyio.move_on_after(LINGER):
            while self._state.needs == "end" and self._own_connection:
                await self._read()
        self._state.settle(monotonic())


# ---- sync -------------------------------------------------------------------------------------


@sync_only
@contextmanager
def stream_sync(
    method: str,
    url: httpx.URL | str,
    *,
    client: httpx.Client | None = None,
    dialect: str | Dialect | None = None,
    lenient: bool = False,
    limits: ReaderLimits = LIMITS,
    max_frame: int = MAX_FRAME,
    **options: Unpack[RequestOptions],
) -> Iterator[SyncAnswer]:
    """`stream` for code without an event loop."""
    vet_call("stream_sync", client, httpx.Client, options)
    state = AnswerState(monotonic(), dialect=dialect, lenient=lenient, limits=limits, max_frame=max_frame)
    with ExitStack() as stack:
        if client is None:
            client = stack.enter_context(httpx.Client(follow_redirects=True))
        answer = _open_sync(client, _Exchange(client, state, method, url, options))
        try:
            yield answer
        finally:
            answer.close()


def _open_sync(client: httpx.Client, exchange: _Exchange) -> SyncAnswer:
    while True:
        with exchange.faults():
            response = client.send(exchange.request, stream=True, auth=exchange.auth, follow_redirects=False)
        if exchange.redirected(response):
            response.close()
            continue
        answer = SyncAnswer(exchange, response)
        try:
            if not exchange.opened(response):
                answer.read()  # some of it, and raises
        except BaseException:
            answer.close()
            raise
        return answer


class SyncAnswer(_AnswerBase, SyncIterations):
    """`Answer` without `await`."""

    def __init__(self, exchange: _Exchange, response: httpx.Response) -> None:
        super().__init__(exchange, response)
        self._chunks: Iterator[bytes] = response.iter_raw() if self._raw else response.iter_bytes()

    def read(self) -> str:
        """The whole text, what was iterated before included. Raises as iteration does."""
        while self._next() is not None:
            pass
        return self._state.whole()

    def close(self) -> None:
        """Close the response; the context does."""
        self._state.close("with")
        self.response.close()

    def _next(self, had: int | None = None) -> AnswerFrame | None:
        state = self._state
        while (frame := state.take(had)) is None:
            if state.needs == "bytes":
                self._read()
            elif state.needs == "end":
                self._read_to_end()
            else:
                self.close()
                state.conclude()
                return None
        return frame

    def _read(self) -> None:
        began = monotonic()
        try:
            if (data := self._body.take()) is None:
                self._body.put(next(self._chunks))
                data = self._body.take()
        except StopIteration:
            self._state.end(began, monotonic(), clean=self._body.whole)
        except BaseException as exc:
            self._broken(exc, began)
        else:
            self._state.feed(data or b"", began, monotonic())

    def _read_to_end(self) -> None:
        if self._own_connection:
            # Nothing can interrupt a read, and a generator of httpx's keeps the timeout that it began
            # with: a second one takes the short one. What httpx would have decompressed is skipped.
            self._head.came(LINGER)
            until = monotonic() + LINGER
            first, rest = self._chunks, iter(cast("httpx.SyncByteStream", self.response.stream))
            self._chunks = rest if self._raw else (b"" for _ in rest)
            while self._state.needs == "end" and monotonic() < until:
                self._read()
            self.response.close()
            del first  # not before: its end would close the connection
        self._state.settle(monotonic())
