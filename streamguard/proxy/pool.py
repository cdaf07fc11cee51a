"""The upstream, over httpcore: httpx's connections, without what a client does for its user.

httpx would follow cookies, redirects and the environment, tidy addresses up, and take bodies apart. Here a request
leaves as it was given, and an answer's bytes are those of its body, its transfer coding undone and nothing else.
Whom it is sent to is decided once, when the pool is made: nothing of a request has a part in that.

Which connection a request gets is decided here. httpcore's own pool looks at every connection whenever a request
begins or ends, and at each of them once more for each that is idle: with five hundred streams that end together, the
event loop stands for seconds.
"""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Final

import anyio
import httpcore

from streamguard.proxy.headers import Fields
from streamguard.proxy.network import AsyncioBackend
from streamguard.proxy.upstream import Answer, Upstream, UpstreamFailed

__all__ = ["Pool", "told"]

_IDLE: Final = 1.0
"""Seconds that a connection waits for its next request. uvicorn, and so vLLM, closes one after five, gunicorn after
two: a request that is on its way just then fails, and must not be sent a second time."""

_MOST_IDLE: Final = 100
_SAFE: Final = frozenset([b"GET", b"HEAD", b"OPTIONS"])


class Pool:
    """Connections to one upstream. `connect` and `silence` are seconds: to be reached, and to say anything; `cacert` a
    file of the authorities that are believed. Raises OSError for one that cannot be read."""

    def __init__(
        self, upstream: Upstream, *, connect: float = 10.0, silence: float | None = 600.0, cacert: str | None = None
    ) -> None:
        self.upstream = upstream
        self._origin = httpcore.Origin(
            upstream.scheme, upstream.host, upstream.port or {b"http": 80, b"https": 443}[upstream.scheme]
        )
        self._timeouts = {"connect": connect, "read": silence, "write": silence}
        self._ssl = None if upstream.scheme == b"http" else _believing(cacert)
        self._idle: deque[httpcore.AsyncHTTPConnection] = deque()  # the one that was used last is the last

    async def ask(
        self, method: bytes, target: bytes, fields: Fields, content: AsyncIterator[bytes] | None = None
    ) -> Answer:
        """Send a request; its answer, up to the head. Raises UpstreamFailed, and whatever `content` raises."""
        origin = self._origin
        url = httpcore.URL(scheme=origin.scheme, host=origin.host, port=origin.port, target=target)
        timeouts = dict(self._timeouts)
        request = httpcore.Request(method, url, headers=fields, content=content, extensions={"timeout": timeouts})
        with told():
            response = None
            connection = await self._free()
            if connection is not None:
                try:
                    response = await _sent(connection, request)
                except httpcore.ConnectError:
                    pass  # it was closed before anything was sent
                except (httpcore.RemoteProtocolError, httpcore.ReadError):
                    # The upstream closed it, while idle, as the request was on its way. Where nothing can be done
                    # twice it is asked twice.
                    if content is not None or method not in _SAFE:
                        raise
            if connection is None or response is None:
                connection = self._new()
                response = await _sent(connection, request)
        answer = self._answer(connection, response, timeouts)
        if answer.status == 101:
            await answer.aclose()
            raise UpstreamFailed("upstream_broke", "the upstream changed protocols, which nobody asked for", 502)
        if answer.status > 599:  # no class of HTTP's; servers have no word for one, and uvicorn would answer nothing
            await answer.aclose()
            raise UpstreamFailed("upstream_broke", "the upstream's status is none of HTTP's", 502)
        return answer

    def _answer(
        self, connection: httpcore.AsyncHTTPConnection, response: httpcore.Response, timeouts: dict[str, float | None]
    ) -> Answer:
        stream: Any = response.stream

        async def close() -> None:
            await stream.aclose()
            if connection.is_idle() and not _holds_more(connection) and len(self._idle) < _MOST_IDLE:
                self._idle.append(connection)
            else:
                await connection.aclose()

        framed = any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in response.headers)
        return Answer(response.status, response.headers, stream, told, close, framed, timeouts)

    def _new(self) -> httpcore.AsyncHTTPConnection:
        return httpcore.AsyncHTTPConnection(
            self._origin, ssl_context=self._ssl, keepalive_expiry=_IDLE, network_backend=AsyncioBackend()
        )

    async def _free(self) -> httpcore.AsyncHTTPConnection | None:
        """A connection that can be used again, the one that was used last: the others may be closed by then."""
        while self._idle and self._idle[0].has_expired():
            await self._idle.popleft().aclose()
        while self._idle:
            connection = self._idle.pop()
            if not connection.has_expired():
                return connection
            await connection.aclose()
        return None

    async def aclose(self) -> None:
        """Close what is idle; what is in use is its request's to close."""
        while self._idle:
            await self._idle.pop().aclose()


def _holds_more(connection: httpcore.AsyncHTTPConnection) -> bool:
    """Whether the upstream said more than its answer: a body behind a HEAD, a second answer. httpcore keeps it, and
    gives it to whoever asks next, as the answer to another request."""
    inner: Any = connection._connection
    return bool(inner._h11_state.trailing_data[0])


async def _sent(connection: httpcore.AsyncHTTPConnection, request: httpcore.Request) -> httpcore.Response:
    try:
        return await connection.handle_async_request(request)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await connection.aclose()
        raise


@contextmanager
def told() -> Iterator[None]:
    """What the library raises, as an UpstreamFailed."""
    try:
        yield
    except httpcore.LocalProtocolError as exc:  # what was to be sent is no HTTP
        raise UpstreamFailed("bad_request", "the request cannot be passed on", 400) from exc
    except (httpcore.ConnectError, httpcore.ConnectTimeout) as exc:
        raise UpstreamFailed("upstream_unreachable", "the upstream cannot be reached", 502) from exc
    except httpcore.TimeoutException as exc:
        raise UpstreamFailed("upstream_silent", "the upstream said nothing for too long", 504) from exc
    except (httpcore.NetworkError, httpcore.ProtocolError) as exc:
        raise UpstreamFailed("upstream_broke", "the upstream broke off", 502) from exc


def _believing(cacert: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=cacert)
    except OSError as exc:  # which does not name the file
        raise OSError(f"the authorities in {cacert} cannot be read: {exc.strerror or exc}") from exc
