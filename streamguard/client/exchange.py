"""One request over httpx, and those that go on with its answer: their parts, redirects, and what errors mean.

httpx takes its timeouts from a request's extensions each time it begins to read: for the head of the
response, then for its body. So one dictionary, changed in between, gives the head (`request`) and the
liveness of the stream limits of their own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache, partial
from threading import Event, Thread
from typing import Any, Final
from zlib import error as Damaged

import anyio
import anyio.abc
import httpx

from streamguard.client.acks import Acks, Outcome, credit_of, outcome_of, tell, tell_sync
from streamguard.client.answer import REQUEST_HEADERS, AnswerState
from streamguard.client.head import MAX_REFUSAL
from streamguard.client.request import (
    HeadLimit,
    RequestOptions,
    is_safe_header,
    same_origin,
    stays_in_resume,
    vet_place,
    why_not_follow,
)
from streamguard.client.resume import Attempt
from streamguard.client.traceparent import trace_headers
from streamguard.core.compress import accepts_gzip
from streamguard.core.errors import ConnectLimitExceeded, LocalProtocolError, RemoteProtocolError
from streamguard.core.negotiate import parse_answer

__all__ = ["CUT", "MISSED", "Exchange"]

# What a cut connection looks like in httpx; others of its errors (no such host, a certificate that
# does not fit) are no statement about a stream and pass as they are.
CUT: Final = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.DecodingError, Damaged)


# What an attempt to resume may meet before there is an answer to it.
MISSED: Final = (httpx.TransportError, RemoteProtocolError)

_TOLD: Final = 10.0  # seconds that each part of telling the server something may take
# The steps of a request before which it has not left yet, as httpcore's `trace` names them.
_LEAVES: Final = (".connect_tcp.started", ".send_request_headers.started")


class _NoPlace(ConnectLimitExceeded):
    """All connections that the caller's client may make are in use."""

    what = "no free connection in the client's pool, where each open stream keeps one,"


class _NoWay(ConnectLimitExceeded):
    """The server waits for more credit, and all connections that the caller's client may make are in use."""

    what = (
        "no free connection in the client's pool to grant the server more credit by, for which it waits "
        "(give httpx.Limits(max_connections=…) one more than streams are open at once, or a larger `credit`),"
    )


class _Over(Exception):
    """What was to be told is of an answer that is over."""


class _Body(httpx.AsyncByteStream):
    """A request's body. httpx makes a generator of one, which a cancellation amid its sending would leave unfinished,
    for the garbage collector to warn of on trio."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._left = [self._data]
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop()


@cache
def _defaults() -> httpx.Headers:
    """What httpx sends if nobody chose otherwise, which asks for nothing."""
    with httpx.Client(transport=httpx.BaseTransport(), trust_env=False) as client:
        return client.headers


class Exchange:
    """The next request, as far as both drivers share it."""

    def __init__(
        self,
        client: httpx.Client | httpx.AsyncClient,
        state: AnswerState,
        method: str,
        url: httpx.URL | str,
        options: RequestOptions,
        credit: bool | tuple[int, int] = False,
    ) -> None:
        self._credit = credit_of(credit)
        fields: dict[str, Any] = dict(options)
        self.auth: Any = fields.pop("auth", httpx.USE_CLIENT_DEFAULT)
        self.follows: bool = fields.pop("follow_redirects", client.follow_redirects)
        self.state = state
        self._client = client
        self._cookies = fields.get("cookies")
        headers = httpx.Headers(fields.pop("headers", None))
        # A cookie that stands in a header is the caller's, and no jar's.
        self._own_cookie = "cookie" in headers or "cookie" in client.headers
        ours = "streamguard" not in headers
        for name, value in REQUEST_HEADERS:
            if name not in headers and client.headers.get(name) in (None, _defaults().get(name)):
                headers[name] = value
        if ours and "streamguard" in headers:
            headers["Streamguard"] += self._keys(_asked(client, headers))
        if "traceparent" not in headers and "traceparent" not in client.headers:
            headers.update(trace_headers())
        self.request = client.build_request(method, url, headers=headers, **fields)
        vet_place(self.request.headers.get("last-event-id", ""), self.request.url.params.get_list("after"))
        self._answered = self.request  # the one whose answer is the stream
        self._first = self.request.url
        self._acks: Acks | None = None  # of a connection that credit was granted on
        self._home: httpx.URL | None = None  # where the stream is told of, if its answer named an address of its origin
        self._tasks: anyio.abc.TaskGroup | None = None  # where a task of an event loop tells them
        self._telling: anyio.CancelScope | None = None  # of that task
        self._extensions = self.request.extensions
        self._limit()

    def opened(self, response: httpx.Response) -> bool:
        """Take the head of the response in: whether it is a stream's."""
        self._answered = request = response.request
        version, accept = _of(response)
        is_stream = self.state.open(
            response.status_code, response.headers, version, accept, method=request.method, url=request.url
        )
        self.head.came(self.state.limits.silence if is_stream else self.state.limits.first_byte)
        if is_stream:
            self._found(response)
        return is_stream

    def redirected(self, response: httpx.Response) -> bool:
        """Whether there is one more request to send; then it is `request`."""
        following = response.next_request
        if following is None:
            return False
        away = not same_origin(self._first, following.url)
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

    def come_back(self, attempt: Attempt) -> None:
        """Make the request that an attempt to resume sends."""
        headers, cookies = self._again()
        headers.update(attempt.headers)
        url = httpx.URL(str(attempt.url))
        self.request = httpx.Request("GET", url, headers=headers, cookies=cookies, extensions=self._extensions)
        self._limit()

    def _again(self) -> tuple[httpx.Headers, httpx.Cookies]:
        """For another request about the stream: the headers of the one that was answered, to its origin, and the
        cookies that its answers have set since."""
        headers = httpx.Headers(
            [(name, value) for name, value in self._answered.headers.multi_items() if stays_in_resume(name)]
        )
        cookies = httpx.Cookies()
        if self._own_cookie and "cookie" in self._answered.headers:
            headers["Cookie"] = self._answered.headers["cookie"]
        elif same_origin(self._first, self._answered.url):
            cookies = httpx.Cookies(self._client.cookies)
            cookies.update(self._cookies)
        return headers, cookies

    def came_back(self, response: httpx.Response, now: float) -> None:
        """Take in the head of the response to an attempt."""
        version, accept = _of(response)
        goes_on = self.state.reopen(response.status_code, response.headers, version, accept, now)
        self.head.came(self.state.limits.silence if goes_on else self.state.limits.first_byte)
        if goes_on:
            self._found(response)

    def _keys(self, asked: str) -> str:
        """What a request asks for beside the version; `asked` is its Accept-Encoding."""
        keys = ", compress=gzip" if accepts_gzip(asked) else ""  # which is asked for twice by who wants it by name
        return keys if self._credit is None else keys + ", credit=({} {})".format(*self._credit)

    # ---- credit -------------------------------------------------------------------------------

    def _found(self, response: httpx.Response) -> None:
        """Note where to cancel the stream, and whom to tell how far this connection has come: nobody, where the server
        grants no credit on it."""
        self.told_all()
        promise, at = parse_answer(response.headers.get("streamguard")), self.state.cursor
        if promise is None or promise.resume is None:
            return
        try:
            address = response.request.url.join(promise.resume)
        except (httpx.InvalidURL, ValueError):
            return
        if not same_origin(response.request.url, address):
            return
        self._home = address
        if self._credit is not None and promise.credit and promise.reader is not None and at is not None:
            self._acks = Acks(promise.reader, promise.credit, at)

    @asynccontextmanager
    async def beside(self) -> AsyncIterator[None]:
        """While the block runs, a task beside it may tell; what the block raises is raised as it is, in no group."""
        if self._credit is None:
            yield
            return
        raised: BaseException | None = None
        async with anyio.create_task_group() as self._tasks:
            try:
                yield
            except BaseException as exc:
                raised = exc
            self._tasks.cancel_scope.cancel()
        if raised is not None:
            raise raised

    def tell(self) -> bool:
        """All that came was taken: whether to read on. Called before each read, so that what there is to be told is
        told beside it."""
        acks = self._acks
        if acks is None:
            return True
        begin = acks.note(self.state.cursor, self.state.beats)
        if acks.stuck:
            self.state.close(error=_NoWay(self._patience, self.state.cursor))
            return False
        if begin and self._tasks is not None:
            self._telling = anyio.CancelScope()
            self._tasks.start_soon(self._tell, acks, self._telling)
        elif begin:
            work = partial(tell_sync, acks, partial(self._post_sync, acks.over))
            Thread(target=work, name="streamguard acks", daemon=True).start()
        return True

    async def _tell(self, acks: Acks, scope: anyio.CancelScope) -> None:
        with scope:
            await tell(acks, self._post)

    def told_all(self) -> None:
        """There is nothing to be told of the last connection any more: what still waits for one does not leave."""
        if self._acks is not None:
            self._acks.over.set()
            self._acks = None
        if self._telling is not None:
            self._telling.cancel()

    @property
    def _patience(self) -> float:
        """Seconds that telling may wait for a connection."""
        return min(_TOLD, self.state.limits.connect or _TOLD)

    def cancelling(self) -> httpx.Request:
        """The request that has the server end the stream. Raises LocalProtocolError where nothing says whom to ask."""
        if self._home is None or self.state.cursor is None:
            raise LocalProtocolError(
                "the answer names no address to cancel it at: leave its `with` block, which ends its connection"
            )
        return self._beside("DELETE", None, self._extensions.get("trace"))

    def _beside(self, method: str, body: bytes | None, trace: Any) -> httpx.Request:
        """A request about the stream, of another connection."""
        at = self.state.cursor
        headers, cookies = self._again()
        headers["Streamguard-Stream"] = at.sid if at is not None else ""
        if body is not None:
            headers["Content-Type"] = "application/json"
        headers["Accept-Encoding"] = "identity"  # a refusal's code is read without decompressing
        patience = self._patience
        timeout = {"connect": patience, "pool": patience, "write": _TOLD, "read": _TOLD}
        extensions = {**self._extensions, "timeout": timeout, "trace": trace}
        url = self._first if self._home is None else self._home
        return httpx.Request(method, url, headers=headers, cookies=cookies, content=body, extensions=extensions)

    async def ask(self, request: httpx.Request) -> tuple[httpx.Response, bytes]:
        """The answer to a request about the stream, and its body, to its end, so that its connection can be used again;
        of a long one the beginning."""
        client, said = self._client, b""
        assert isinstance(client, httpx.AsyncClient)
        request.stream = _Body(request.content)
        response = await client.send(request, stream=True, auth=self.auth, follow_redirects=False)
        try:
            async for piece in response.aiter_raw():
                said += piece
                if len(said) > MAX_REFUSAL:
                    break
        finally:
            await response.aclose()
        return response, said

    def ask_sync(self, request: httpx.Request) -> tuple[httpx.Response, bytes]:
        """The same without `await`."""
        client, said = self._client, b""
        assert isinstance(client, httpx.Client)
        response = client.send(request, stream=True, auth=self.auth, follow_redirects=False)
        try:
            for piece in response.iter_raw():
                said += piece
                if len(said) > MAX_REFUSAL:
                    break
        finally:
            response.close()
        return response, said

    async def _post(self, body: bytes) -> Outcome:
        try:
            response, said = await self.ask(self._beside("POST", body, self._extensions.get("trace")))
        except httpx.PoolTimeout:
            return "no place"
        except Exception:  # whatever it is, the answer itself is not harmed
            return "later"
        return outcome_of(response.status_code, said)

    def _post_sync(self, over: Event, body: bytes) -> Outcome:
        try:
            response, said = self.ask_sync(self._beside("POST", body, _until(over, self._extensions.get("trace"))))
        except httpx.PoolTimeout:
            return "no place"
        except Exception:
            return "later"
        return outcome_of(response.status_code, said)

    # ---- small parts --------------------------------------------------------------------------

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Say what an error before the response's head means."""
        try:
            yield
        except httpx.ConnectError:
            raise
        except httpx.PoolTimeout as exc:
            raise _NoPlace(self.state.limits.connect or 0.0) from exc
        except httpx.ConnectTimeout as exc:
            raise self.state.unconnected() from exc
        except httpx.TimeoutException as exc:
            raise self.state.unanswered() from exc
        except CUT as exc:
            raise self.state.dropped() from exc

    def _limit(self) -> None:
        """Limits of their own for the request that is sent next, and its redirects."""
        self.head = HeadLimit(self.state.limits, self._extensions.get("trace"))
        trace = self.head.atrace if isinstance(self._client, httpx.AsyncClient) else self.head.trace
        self.request.extensions = {**self._extensions, "timeout": self.head.timeouts, "trace": trace}


def _asked(client: httpx.Client | httpx.AsyncClient, headers: httpx.Headers) -> str:
    """The codings that a request asks for: by its own headers, else by its client's."""
    asked: str = headers.get("accept-encoding") or client.headers.get("accept-encoding", "")
    return asked


def _of(response: httpx.Response) -> tuple[str | None, str]:
    """The HTTP version, None where no connection carries the body, and the codings that were asked for."""
    version = response.http_version if "http_version" in response.extensions else None
    return version, response.request.headers.get("accept-encoding", "")


def _until(over: Event, theirs: Callable[[str, Any], object] | None) -> Callable[[str, Any], None]:
    """A trace that lets no request leave once it is `over`. Nothing can interrupt a thread that waits for a connection,
    and what it waits for is often the answer's own."""

    def trace(name: str, info: Any) -> None:
        if over.is_set() and name.endswith(_LEAVES):
            raise _Over
        if theirs is not None:
            theirs(name, info)

    return trace
