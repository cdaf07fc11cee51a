"""Requests over httpx: a head, then the body's bytes as they come, never decompressed.

Each request has a client, and so a connection, of its own: what one leaves open the next does not meet.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Final

import attrs
import httpx

from streamguard.check.request import Request

__all__ = ["Broken", "Incoming", "Silent", "Transport", "Unreachable"]

_CONNECT: Final = 10.0  # seconds


class Unreachable(Exception):
    """No connection, in words."""


class Broken(Exception):
    """The connection ended otherwise than its framing says, in words."""


class Silent(Exception):
    """Nothing came for as long as was waited."""


@attrs.define
class Incoming:
    """The head of an answer; `pieces` is its body, as it comes. Raises Broken, Silent."""

    status: int
    version: str
    headers: dict[str, str]
    _response: httpx.Response = attrs.field(alias="response", repr=False)

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        try:
            async for piece in self._response.aiter_raw():
                yield piece
        except httpx.ReadTimeout as exc:
            raise Silent from exc
        except httpx.TransportError as exc:
            raise Broken(_said(exc)) from exc


@attrs.frozen
class Transport:
    """How requests are made. `http` is "1.1", "2" (without asking first) or "any"; `authority` is a file of the
    authorities to believe, `insecure` believes any; `silence`: after how many seconds nothing more is waited for."""

    http: str = "any"
    authority: str | None = None
    insecure: bool = False
    follow: bool = False
    silence: float = 130.0
    _context: ssl.SSLContext = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        context = ssl.create_default_context(cafile=self.authority)
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        object.__setattr__(self, "_context", context)

    @property
    def http2(self) -> bool:
        """Whether HTTP/2 is offered, or nobody wants it."""
        return self.http == "1.1" or find_spec("h2") is not None

    @asynccontextmanager
    async def ask(self, request: Request, leaving: Callable[[], object] = bool) -> AsyncIterator[Incoming]:
        """Send `request`; its connection is closed when the block ends. `leaving` is called as it is made.

        Raises Unreachable, Broken, Silent.
        """
        async with self._client() as client:
            async def trace(step: str, info: object) -> None:
                if step == "connection.connect_tcp.started":  # before it httpx loads what it needs, the first time
                    leaving()

            try:
                sent = _made(client, request)
                sent.extensions["trace"] = trace
                response = await client.send(sent, stream=True, follow_redirects=self.follow)
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.InvalidURL) as exc:
                raise Unreachable(f"no connection to {request.url} ({_said(exc)})") from exc
            except httpx.ReadTimeout as exc:
                raise Silent from exc
            except httpx.RequestError as exc:
                raise Broken(_said(exc)) from exc
            try:
                named = {name.lower(): value for name, value in response.headers.items()}
                yield Incoming(response.status_code, response.http_version, named, response)
            finally:
                await response.aclose()

    def _client(self) -> httpx.AsyncClient:
        timeout = httpx.Timeout(self.silence, connect=min(_CONNECT, self.silence))
        once = httpx.Limits(max_keepalive_connections=0)  # kept, it may close under the request after a redirect
        return httpx.AsyncClient(
            verify=self._context, http1=self.http != "2", http2=self.http == "2" or (self.http == "any" and self.http2),
            timeout=timeout, limits=once,
        )  # fmt: skip


def _made(client: httpx.AsyncClient, request: Request) -> httpx.Request:
    """The request with its own headers and none of the library's, but what its connection and its body need."""
    headers = [(name.encode(), value.encode()) for name, value in request.headers]
    made = client.build_request(request.method, request.url, headers=headers, content=request.content)
    for name in ("accept", "accept-encoding", "user-agent"):
        if request.header(name) is None:
            made.headers.pop(name, None)
    return made


def _said(exc: Exception) -> str:
    return str(exc) or type(exc).__name__
