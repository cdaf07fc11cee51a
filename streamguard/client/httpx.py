"""`stream` and `stream_sync`: drivers of `AnswerState` over httpx, async and sync.

All that both drivers share stands in `known` and in `exchange`; the drivers are the same few steps twice,
with and without `await`. Bytes are taken raw and decompressed in `body`. Whatever happens, the response is
closed when the context ends, and with it the connection, unless the answer was read to its end; a resume
closes the response before it first.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from time import monotonic, sleep
from typing import cast

import anyio
import anyio.lowlevel
import httpx
from typing_extensions import Unpack

from streamguard.client.answer import LINGER, AnswerState
from streamguard.client.exchange import MISSED, Exchange
from streamguard.client.iteration import Iterations, SyncIterations, async_only, sync_only
from streamguard.client.known import AnswerBase, was_cancelled
from streamguard.client.limits import LIMITS, ReaderLimits
from streamguard.client.request import RequestOptions, vet_call
from streamguard.client.resume import Attempt, ResumePolicy
from streamguard.core.dialect import Dialect
from streamguard.core.receipt import AnswerFrame
from streamguard.core.wire import MAX_FRAME

__all__ = ["Answer", "RequestOptions", "SyncAnswer", "stream", "stream_sync"]


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
    resume: bool | ResumePolicy | None = None,
    credit: bool | tuple[int, int] = False,
    **options: Unpack[RequestOptions],
) -> AsyncIterator[Answer]:
    """Send a request and read the stream that answers it, verified.

        async with stream("POST", url, json=body) as answer:
            async for text in answer.text(): ...

    `client` is yours to close; without one, each call makes its own, which costs tens of milliseconds.
    `dialect` says what the events are where the server does not (`Raw(profile=…)` for a provider's
    departures); `lenient` accepts a terminal whose own checks hold though its line end is missing.
    `max_frame` is bytes of one frame's data. `resume`: after a cut go on behind the last good frame, where the
    server names an address for that (None), or in any case that can be (True, ResumePolicy): see `resume`.
    `credit`: frames and bytes that the server may be ahead of the caller, granted anew by POST; True: (8192, 1 MiB).
    Other options are httpx's. Redirects are followed if `client` does; none carries a body, or headers that may
    be secret, to another origin.

    Raises UnexpectedResponse, ConnectLimitExceeded, FirstByteLimitExceeded; TruncatedStream for a
    connection that ends before its response; httpx's own errors where there is no connection; LocalProtocolError
    for a request that bears a cursor (`Last-Event-ID`, `?after=`): a stream is verified from its start.
    """
    vet_call("stream", client, httpx.AsyncClient, options)
    state = AnswerState(
        monotonic(), dialect=dialect, lenient=lenient, limits=limits, max_frame=max_frame, resume=resume
    )
    async with AsyncExitStack() as stack:
        if client is None:
            client = await stack.enter_async_context(httpx.AsyncClient(follow_redirects=True))
        exchange = Exchange(client, state, method, url, options, credit)
        await stack.enter_async_context(exchange.beside())
        answer = await _open(client, exchange)
        try:
            yield answer
        finally:
            await answer.aclose()


async def _send(client: httpx.AsyncClient, exchange: Exchange) -> httpx.Response:
    response: httpx.Response | None = None
    with exchange.faults(), exchange.head.scope():
        response = await client.send(exchange.request, stream=True, auth=exchange.auth, follow_redirects=False)
    if response is None:
        raise exchange.state.unanswered()
    return response


async def _open(client: httpx.AsyncClient, exchange: Exchange) -> Answer:
    while True:
        response = await _send(client, exchange)
        if exchange.redirected(response):
            await response.aclose()
            continue
        answer = Answer(client, exchange, response)
        try:
            if not exchange.opened(response):
                await answer.read()  # some of it, and raises
        except BaseException:
            await answer.aclose()
            raise
        return answer


class Answer(AnswerBase, Iterations):
    """An answer as it comes. Each iteration hands out all that is good, then ends or raises.

    It ends only if the answer is COMPLETE, or UNVERIFIED with a proven end; otherwise it raises
    TruncatedStream, CorruptStream, StreamGap or FailedStream, whose `received` is the text so far and
    whose `cursor` is the last good one; or LivenessLimitExceeded, StallLimitExceeded, FrameTooLarge;
    or StreamClosed once the context has ended, and for an iteration that lacks what another was handed (an
    answer is iterated once; `read` gives the whole at any time). `response` is httpx's, of the request itself.
    """

    def __init__(self, client: httpx.AsyncClient, exchange: Exchange, response: httpx.Response) -> None:
        super().__init__(exchange, response)
        self._client = client

    def _take(self, response: httpx.Response) -> None:
        super()._take(response)
        chunks = response.aiter_raw() if self._raw else response.aiter_bytes()
        self._chunks = cast("AsyncGenerator[bytes, None]", chunks)

    async def read(self) -> str:
        """The whole text, what was iterated before included. Raises as iteration does."""
        while await self._next() is not None:
            pass
        return self._state.whole()

    async def cancel(self) -> bool:
        """Have the server end the stream, over a connection beside this one; whether it did: False where it ended
        otherwise before, or nobody there has it. What it had sent still comes, then FailedStream, `cancelled`.

        Raises LocalProtocolError where the answer names no address for that (of its own origin): to leave its context
        ends its connection. UnexpectedResponse where the server refuses; httpx's own errors where it is not reached.
        """
        return was_cancelled(*await self._exchange.ask(self._exchange.cancelling()))

    async def aclose(self) -> None:
        """Close the response; the context does."""
        self._state.close("async with")
        await self._let_go()

    async def _let_go(self) -> None:
        self._exchange.told_all()  # first: what waits for a connection is not to get this one
        try:
            await self._live.aclose()
        finally:
            await self._unwind()

    async def _unwind(self) -> None:
        """Finish httpx's generators, which wait one inside the other where they were left.

        Left to the garbage collector they end in another task, and trio warns of each. Resumed on their
        closed connection they end by its error, here. Only where that connection is this answer's own.
        """
        if self._own_connection:
            with suppress(Exception):  # the closed connection's error: it has done its work
                async for _ in self._chunks:
                    pass  # what had come and was not read
        else:
            await self._chunks.aclose()

    async def _next(self, had: int | None = None) -> AnswerFrame | None:
        state = self._state
        while (frame := state.take(had)) is None:
            if state.needs == "bytes" and self._exchange.tell():
                await self._read()
            elif state.needs == "end":
                await self._read_to_end()
            elif (attempt := state.attempt) is not None:
                await self._resume(attempt)
            else:
                await self.aclose()
                state.conclude()
                return None
        return frame

    async def _resume(self, attempt: Attempt) -> None:
        await self._let_go()
        await anyio.sleep(attempt.wait)
        if self._state.attempt is not attempt:
            return  # closed meanwhile
        self._exchange.come_back(attempt)
        try:
            response = await _send(self._client, self._exchange)
        except MISSED as exc:
            self._state.missed(exc, monotonic())
        else:
            self._take(response)
            self._exchange.came_back(response, monotonic())

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
    resume: bool | ResumePolicy | None = None,
    credit: bool | tuple[int, int] = False,
    **options: Unpack[RequestOptions],
) -> Iterator[SyncAnswer]:
    """`stream` for code without an event loop: the same arguments and errors, and `client` is an httpx.Client.

        with stream_sync("POST", url, json=body) as answer:
            for text in answer.text(): ...

    The answer is a SyncAnswer: `text`, `frames`, `read`, `receipt`. `limits.first_byte` is rounded up to whole seconds.
    """
    vet_call("stream_sync", client, httpx.Client, options)
    state = AnswerState(
        monotonic(), dialect=dialect, lenient=lenient, limits=limits, max_frame=max_frame, resume=resume
    )
    with ExitStack() as stack:
        if client is None:
            client = stack.enter_context(httpx.Client(follow_redirects=True))
        answer = _open_sync(client, Exchange(client, state, method, url, options, credit))
        try:
            yield answer
        finally:
            answer.close()


def _send_sync(client: httpx.Client, exchange: Exchange) -> httpx.Response:
    with exchange.faults():
        return client.send(exchange.request, stream=True, auth=exchange.auth, follow_redirects=False)


def _open_sync(client: httpx.Client, exchange: Exchange) -> SyncAnswer:
    while True:
        response = _send_sync(client, exchange)
        if exchange.redirected(response):
            response.close()
            continue
        answer = SyncAnswer(client, exchange, response)
        try:
            if not exchange.opened(response):
                answer.read()  # some of it, and raises
        except BaseException:
            answer.close()
            raise
        return answer


class SyncAnswer(AnswerBase, SyncIterations):
    """`Answer` without `await`."""

    def __init__(self, client: httpx.Client, exchange: Exchange, response: httpx.Response) -> None:
        super().__init__(exchange, response)
        self._client = client

    def _take(self, response: httpx.Response) -> None:
        super()._take(response)
        self._chunks: Iterator[bytes] = response.iter_raw() if self._raw else response.iter_bytes()

    def read(self) -> str:
        """The whole text, what was iterated before included. Raises as iteration does."""
        while self._next() is not None:
            pass
        return self._state.whole()

    def cancel(self) -> bool:
        """Have the server end the stream, as `Answer.cancel` does. From any thread."""
        return was_cancelled(*self._exchange.ask_sync(self._exchange.cancelling()))

    def close(self) -> None:
        """Close the response; the context does."""
        self._state.close("with")
        self._let_go()

    def _let_go(self) -> None:
        self._exchange.told_all()
        self._live.close()

    def _next(self, had: int | None = None) -> AnswerFrame | None:
        state = self._state
        while (frame := state.take(had)) is None:
            if state.needs == "bytes" and self._exchange.tell():
                self._read()
            elif state.needs == "end":
                self._read_to_end()
            elif (attempt := state.attempt) is not None:
                self._resume(attempt)
            else:
                self.close()
                state.conclude()
                return None
        return frame

    def _resume(self, attempt: Attempt) -> None:
        self._let_go()
        sleep(attempt.wait)
        if self._state.attempt is not attempt:
            return  # closed meanwhile
        self._exchange.come_back(attempt)
        try:
            response = _send_sync(self._client, self._exchange)
        except MISSED as exc:
            self._state.missed(exc, monotonic())
        else:
            self._take(response)
            self._exchange.came_back(response, monotonic())

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
            self._exchange.head.came(LINGER)
            until = monotonic() + LINGER
            first, rest = self._chunks, iter(cast("httpx.SyncByteStream", self._live.stream))
            self._chunks = rest if self._raw else (b"" for _ in rest)
            while self._state.needs == "end" and monotonic() < until:
                self._read()
            self._live.close()
            del first  # not before: its end would close the connection
        self._state.settle(monotonic())
