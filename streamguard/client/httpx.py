"""`stream` and `stream_sync`: drivers of `AnswerState` over httpx, async and sync.

httpx takes its timeouts from a request's extensions each time it begins to read: for the head of the
response, then for its body. So one dictionary, changed in between, gives the first byte and the
liveness of the stream limits of their own.

All that both drivers share stands in front; the drivers are the same few steps twice, with and
without `await`. Whatever happens, the response is closed when the context ends, and with it the
connection, unless the answer was read to its end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from time import monotonic
from typing import Any, Final, Generic, TypedDict, TypeVar, Union, cast

import anyio
import httpx
from typing_extensions import Unpack

from streamguard.client.answer import (
    LIMITS,
    LINGER,
    MAX_RECEIVED,
    REQUEST_HEADERS,
    AnswerState,
    ReaderLimits,
    block_in,
    frame_itself,
    text_in,
)
from streamguard.core.dialect import Dialect
from streamguard.core.errors import StreamGuardError
from streamguard.core.items import Block
from streamguard.core.receipt import AnswerFrame, Receipt
from streamguard.core.wire import MAX_FRAME

__all__ = ["Answer", "RequestOptions", "SyncAnswer", "stream", "stream_sync"]

T = TypeVar("T")

# What a cut connection looks like in httpx; others of its errors (no such host, a certificate that
# does not fit) are no statement about a stream and pass as they are.
_CUT: Final = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.DecodingError)


class RequestOptions(TypedDict, total=False):
    """What httpx builds the request from, under its own names."""

    content: Any
    data: Any
    files: Any
    json: Any
    params: Any
    headers: Any
    cookies: Any
    extensions: Any
    auth: Any


class _Exchange:
    """One request as far as both drivers share it: its parts, its timeouts, what its errors mean."""

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
        self.state = state
        limits = state.limits
        self.timeouts = {
            "connect": limits.connect,
            "pool": limits.connect,
            "write": limits.first_byte,
            "read": limits.first_byte,
        }
        headers = httpx.Headers(fields.pop("headers", None))
        for name, value in REQUEST_HEADERS:
            # httpx's own default for Accept, `*/*`, asks for nothing.
            if name not in headers and client.headers.get(name, "*/*") == "*/*":
                headers[name] = value
        self.request = client.build_request(method, url, headers=headers, **fields)
        self._limited()

    def _limited(self) -> None:
        self.request.extensions = {**self.request.extensions, "timeout": self.timeouts}

    def opened(self, response: httpx.Response) -> str | None:
        """Take the head of the response in: None, or why it is no stream."""
        version = response.http_version if "http_version" in response.extensions else None
        why = self.state.open(response.status_code, response.headers, version)
        if why is None:
            self.timeouts["read"] = self.state.limits.silence
        return why

    def redirected(self, response: httpx.Response) -> bool:
        """Whether there is one more request to send; then it is `request`."""
        following = response.next_request
        if following is None or not self.state.follow(response.status_code, response.headers.get("location")):
            return False
        self.request = following
        self._limited()
        # What the redirect's target may see of the credentials is in the request's headers already.
        self.auth = None
        return True

    def fault(self, exc: httpx.HTTPError) -> Exception:
        """What an error before the response's head means."""
        if isinstance(exc, (httpx.ConnectTimeout, httpx.PoolTimeout)):
            return self.state.unconnected()
        if isinstance(exc, httpx.TimeoutException):
            return self.state.unanswered()
        if isinstance(exc, _CUT) and not isinstance(exc, httpx.ConnectError):
            return self.state.dropped()
        return exc

    def refused(self, response: httpx.Response, body: bytes, why: str) -> StreamGuardError:
        return self.state.refused(response.status_code, response.headers, body, why)


class _AnswerBase:
    """What is known of an answer, the same for both drivers."""

    def __init__(self, state: AnswerState, response: httpx.Response) -> None:
        self._state = state
        self.response = response

    @property
    def receipt(self) -> Receipt:
        """What is known so far; final once the answer was read to its end."""
        return self._state.receipt

    @property
    def received(self) -> str:
        """The text handed out so far."""
        return self._state.received

    @property
    def _lingers(self) -> bool:
        # HTTP/2 keeps the connection whatever becomes of a stream; a timeout there would break it for all.
        return self.response.http_version != "HTTP/2"

    def _ended(self) -> None:
        """After the terminal: whatever else the connection does, the answer is known."""
        if self._state.needs == "end":
            now = monotonic()
            self._state.end(now, now, clean=False)

    def _concluded(self) -> None:
        if (error := self._state.error) is not None:
            raise error


# ---- async ------------------------------------------------------------------------------------


@asynccontextmanager
async def stream(
    method: str,
    url: httpx.URL | str,
    *,
    client: httpx.AsyncClient | None = None,
    dialect: Union[str, Dialect, None] = None,
    lenient: bool = False,
    limits: ReaderLimits = LIMITS,
    max_frame: int = MAX_FRAME,
    max_received: int = MAX_RECEIVED,
    **options: Unpack[RequestOptions],
) -> AsyncIterator[Answer]:
    """Send a request and read the stream that answers it, verified.

    `client` is yours to close; without one, each call makes its own, which costs tens of milliseconds.
    `dialect` says what the events are where the server does not (`Raw(profile=…)` for a provider's
    departures); `lenient` accepts a terminal whose own checks hold though its line end is missing.
    `max_frame` is bytes of one frame, `max_received` characters kept for `received` and `read`.
    Other options are httpx's.

    Raises UnexpectedResponse, ConnectLimitExceeded, FirstByteLimitExceeded; TruncatedStream for a
    connection that ends before its response; httpx's own errors where there is no connection.
    """
    state = AnswerState(
        monotonic(), dialect=dialect, lenient=lenient, limits=limits, max_frame=max_frame, max_received=max_received
    )
    async with AsyncExitStack() as stack:
        if client is None:
            client = await stack.enter_async_context(httpx.AsyncClient())
        answer = await _open(client, _Exchange(client, state, method, url, options))
        try:
            yield answer
        finally:
            await answer.aclose()


async def _open(client: httpx.AsyncClient, exchange: _Exchange) -> Answer:
    while True:
        try:
            response = await client.send(exchange.request, stream=True, auth=exchange.auth, follow_redirects=False)
        except httpx.HTTPError as exc:
            if (error := exchange.fault(exc)) is exc:
                raise
            raise error from exc
        answer = Answer(exchange.state, response)
        try:
            if exchange.redirected(response):
                await answer.aclose()
                continue
            why = exchange.opened(response)
            if why is not None:
                raise exchange.refused(response, await answer._refusal(), why)
        except BaseException:
            await answer.aclose()
            raise
        return answer


class Answer(_AnswerBase):
    """An answer as it comes. Each iteration hands out all that is good, then ends or raises.

    It ends only if the answer is COMPLETE, or UNVERIFIED with a proven end; otherwise it raises
    TruncatedStream, CorruptStream, StreamGap or FailedStream, whose `received` is the text so far and
    whose `cursor` is the last good one; or LivenessLimitExceeded, StallLimitExceeded, FrameTooLarge;
    or StreamClosed once the context has ended. `response` is httpx's.
    """

    def __init__(self, state: AnswerState, response: httpx.Response) -> None:
        super().__init__(state, response)
        self._chunks = response.aiter_bytes()

    def text(self) -> AsyncIterator[str]:
        """The text of choice 0, piece by piece."""
        return _Iteration(self._next, text_in)

    def frames(self) -> AsyncIterator[AnswerFrame]:
        """Every frame but the terminal."""
        return _Iteration(self._next, frame_itself)

    def blocks(self) -> AsyncIterator[Block]:
        """The blocks between the text; the text goes to `received`."""
        return _Iteration(self._next, block_in)

    async def read(self) -> str:
        """The whole text, what was iterated before included. Raises as iteration does."""
        while await self._next() is not None:
            pass
        return self._state.whole()

    async def aclose(self) -> None:
        """Close the response; the context does."""
        self._state.close()
        await self.response.aclose()

    async def _next(self) -> AnswerFrame | None:
        state = self._state
        while (frame := state.take()) is None:
            needs = state.needs
            if needs == "bytes":
                await self._read()
            elif needs == "end":
                await self._read_to_end()
            else:
                await self.response.aclose()
                self._concluded()
                return None
        return frame

    async def _read(self) -> None:
        state = self._state
        began = monotonic()
        try:
            data = await self._chunks.__anext__()
        except StopAsyncIteration:
            state.end(began, monotonic(), clean=True)
        except httpx.TimeoutException as exc:
            state.silent(began, monotonic(), exc)
        except _CUT as exc:
            state.end(began, monotonic(), clean=False, cause=exc)
        except BaseException:
            # A cancelled read leaves httpx's generator finished: asked again, it would end as if in order.
            state.close()
            raise
        else:
            state.feed(data, began, monotonic())

    async def _read_to_end(self) -> None:
        with anyio.move_on_after(LINGER):
            while self._state.needs == "end" and self._lingers:
                await self._read()
        self._ended()

    async def _refusal(self) -> bytes:
        body = b""
        began = monotonic()
        try:
            async for data in self._chunks:
                body += data
                if self._state.refusal_read(len(body), monotonic() - began):
                    break
        except httpx.RequestError:
            pass  # what came of it is enough to tell
        return body


class _Iteration(Generic[T]):
    """An iteration that may be left at any point: there is no generator to be closed."""

    def __init__(self, following: Callable[[], Any], pick: Callable[[AnswerFrame], T | None]) -> None:
        self._following = following
        self._pick = pick

    def __aiter__(self) -> _Iteration[T]:
        return self

    async def __anext__(self) -> T:
        while (frame := await self._following()) is not None:
            if picked := self._pick(frame):
                return picked
        raise StopAsyncIteration


# ---- sync -------------------------------------------------------------------------------------


@contextmanager
def stream_sync(
    method: str,
    url: httpx.URL | str,
    *,
    client: httpx.Client | None = None,
    dialect: Union[str, Dialect, None] = None,
    lenient: bool = False,
    limits: ReaderLimits = LIMITS,
    max_frame: int = MAX_FRAME,
    max_received: int = MAX_RECEIVED,
    **options: Unpack[RequestOptions],
) -> Iterator[SyncAnswer]:
    """`stream` for code without an event loop."""
    state = AnswerState(
        monotonic(), dialect=dialect, lenient=lenient, limits=limits, max_frame=max_frame, max_received=max_received
    )
    with ExitStack() as stack:
        if client is None:
            client = stack.enter_context(httpx.Client())
        answer = _open_sync(client, _Exchange(client, state, method, url, options))
        try:
            yield answer
        finally:
            answer.close()


def _open_sync(client: httpx.Client, exchange: _Exchange) -> SyncAnswer:
    while True:
        try:
            response = client.send(exchange.request, stream=True, auth=exchange.auth, follow_redirects=False)
        except httpx.HTTPError as exc:
            if (error := exchange.fault(exc)) is exc:
                raise
            raise error from exc
        answer = SyncAnswer(exchange.state, response, exchange.timeouts)
        try:
            if exchange.redirected(response):
                answer.close()
                continue
            why = exchange.opened(response)
            if why is not None:
                raise exchange.refused(response, answer._refusal(), why)
        except BaseException:
            answer.close()
            raise
        return answer


class SyncAnswer(_AnswerBase):
    """`Answer` without `await`."""

    def __init__(self, state: AnswerState, response: httpx.Response, timeouts: dict[str, float | None]) -> None:
        super().__init__(state, response)
        self._timeouts = timeouts
        self._chunks: Iterator[bytes] = response.iter_bytes()

    def text(self) -> Iterator[str]:
        """The text of choice 0, piece by piece."""
        return _SyncIteration(self._next, text_in)

    def frames(self) -> Iterator[AnswerFrame]:
        """Every frame but the terminal."""
        return _SyncIteration(self._next, frame_itself)

    def blocks(self) -> Iterator[Block]:
        """The blocks between the text; the text goes to `received`."""
        return _SyncIteration(self._next, block_in)

    def read(self) -> str:
        """The whole text, what was iterated before included. Raises as iteration does."""
        while self._next() is not None:
            pass
        return self._state.whole()

    def close(self) -> None:
        """Close the response; the context does."""
        self._state.close()
        self.response.close()

    def _next(self) -> AnswerFrame | None:
        state = self._state
        while (frame := state.take()) is None:
            needs = state.needs
            if needs == "bytes":
                self._read()
            elif needs == "end":
                self._read_to_end()
            else:
                self.response.close()
                self._concluded()
                return None
        return frame

    def _read(self) -> None:
        state = self._state
        began = monotonic()
        try:
            data = next(self._chunks)
        except StopIteration:
            state.end(began, monotonic(), clean=True)
        except httpx.TimeoutException as exc:
            state.silent(began, monotonic(), exc)
        except _CUT as exc:
            state.end(began, monotonic(), clean=False, cause=exc)
        except BaseException:
            state.close()  # as in Answer
            raise
        else:
            state.feed(data, began, monotonic())

    def _read_to_end(self) -> None:
        until = monotonic() + LINGER
        waiting = self._chunks
        if "network_stream" in self.response.extensions:
            # Nothing can interrupt a read, and a generator of httpx's keeps the timeout that it began
            # with: a second one takes the short one. What is compressed it does not decode: skipped.
            self._timeouts["read"] = LINGER
            rest = iter(cast("httpx.SyncByteStream", self.response.stream))
            self._chunks = (b"" for _ in rest) if "content-encoding" in self.response.headers else rest
        while self._state.needs == "end" and self._lingers and monotonic() < until:
            self._read()
        self._ended()
        self.response.close()
        del waiting  # not before: closing it would close the connection

    def _refusal(self) -> bytes:
        body = b""
        began = monotonic()
        try:
            for data in self._chunks:
                body += data
                if self._state.refusal_read(len(body), monotonic() - began):
                    break
        except httpx.RequestError:
            pass  # what came of it is enough to tell
        return body


class _SyncIteration(Generic[T]):
    """`_Iteration` without `await`."""

    def __init__(
        self, following: Callable[[], AnswerFrame | None], pick: Callable[[AnswerFrame], T | None]
    ) -> None:
        self._following = following
        self._pick = pick

    def __iter__(self) -> _SyncIteration[T]:
        return self

    def __next__(self) -> T:
        while (frame := self._following()) is not None:
            if picked := self._pick(frame):
                return picked
        raise StopIteration
