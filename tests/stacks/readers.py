"""Client libraries as in `tests.adapters.readers`, over HTTP/1.1 or HTTP/2, with a time limit; and our own client.

Some servers leave a failed answer open. Then a client reports only that it waited too long, and how long that is
was set by its user: `Reading.error` is one of `TIMEOUTS`, and whoever counts marks it.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from collections.abc import Callable
from typing import Any, Final

import aiohttp
import attrs
import httpx
import httpx_sse
import openai

from streamguard import client as verifying
from streamguard.core.errors import RemoteProtocolError
from tests.adapters.readers import BODY, Reading, _reading, _Text

__all__ = ["H2_READERS", "READERS", "TIMEOUTS", "Asked", "only_timed_out", "readers_of"]

# What the libraries call it: httpx, aiohttp, openai, curl.
TIMEOUTS: Final = ("httpx.ReadTimeout", "builtins.TimeoutError", "openai.APITimeoutError", "exit 28")
_TLS: Final = ssl.create_default_context()  # not used, and made once: each client would load the certificates
_CONNECT: Final = 10.0  # seconds until a busy server takes a connection, which is not what is asked about


@attrs.frozen
class Asked:
    """One request: of which address, in which dialect, over which protocol, and how long a client waits."""

    url: str
    dialect: str
    http2: bool = False
    patience: float = 10.0

    @property
    def address(self) -> str:
        return f"{self.url}/chat/completions"

    @property
    def options(self) -> dict[str, Any]:
        """For httpx and what is built on it. HTTP/2 in cleartext needs to be all that a client knows."""
        timeout = httpx.Timeout(_CONNECT, read=self.patience)
        return {"http1": not self.http2, "http2": self.http2, "timeout": timeout, "verify": _TLS}


def only_timed_out(reading: Reading) -> bool:
    """Whether a client reports no more than that nothing came."""
    return reading.error in TIMEOUTS


def _httpx(asked: Asked) -> Reading:
    text = _Text(asked.dialect)
    try:
        with httpx.Client(**asked.options) as client, client.stream("POST", asked.address, json=BODY) as response:
            response.raise_for_status()
            for data in response.iter_bytes():
                text.feed(data)
    except httpx.HTTPError as exc:
        return _reading(text, exc)
    return _reading(text, None)


def _httpx_sse(asked: Asked) -> Reading:
    text = _Text(asked.dialect)
    try:
        with (
            httpx.Client(**asked.options) as client,
            httpx_sse.connect_sse(client, "POST", asked.address, json=BODY) as source,
        ):
            source.response.raise_for_status()
            for event in source.iter_sse():
                text.event(event.event, event.data)
    except (httpx.HTTPError, httpx_sse.SSEError) as exc:
        return _reading(text, exc)
    return _reading(text, None)


def _aiohttp(asked: Asked) -> Reading:
    text = _Text(asked.dialect)

    async def read() -> None:
        timeout = aiohttp.ClientTimeout(total=None, connect=_CONNECT, sock_read=asked.patience)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(asked.address, json=BODY, raise_for_status=True) as response,
        ):
            async for data in response.content.iter_any():
                text.feed(data)

    try:
        asyncio.run(read())
    except asyncio.TimeoutError:  # aiohttp's is both
        return _reading(text, "builtins.TimeoutError")
    except aiohttp.ClientError as exc:
        return _reading(text, exc)
    return _reading(text, None)


def _sdk(asked: Asked, client: type[httpx.Client] | type[httpx.AsyncClient]) -> dict[str, Any]:
    """The options of an SDK. Its own HTTP client speaks HTTP/1.1; it closes the one that it is given."""
    http2 = {"http_client": client(**asked.options)} if asked.http2 else {}
    return {"api_key": "k", "base_url": asked.url, "max_retries": 0, "timeout": asked.patience, **http2}


def _openai(asked: Asked) -> Reading:
    text: list[str] = []
    body: Any = BODY
    try:
        with openai.OpenAI(**_sdk(asked, httpx.Client)) as client:
            for chunk in client.chat.completions.create(**body):
                text += [choice.delta.content or "" for choice in chunk.choices]
    except (openai.OpenAIError, httpx.HTTPError) as exc:
        return _reading(text, exc)
    return _reading(text, None)


def _openai_async(asked: Asked) -> Reading:
    text: list[str] = []
    body: Any = BODY

    async def read() -> None:
        async with openai.AsyncOpenAI(**_sdk(asked, httpx.AsyncClient)) as client:
            async for chunk in await client.chat.completions.create(**body):
                text.extend([choice.delta.content or "" for choice in chunk.choices])

    try:
        asyncio.run(read())
    except (openai.OpenAIError, httpx.HTTPError) as exc:
        return _reading(text, exc)
    return _reading(text, None)


def _curl(asked: Asked) -> Reading:
    text = _Text(asked.dialect)
    protocol = ["--http2-prior-knowledge"] if asked.http2 else []
    command = ["curl", "-sSN", "--fail", "--max-time", str(asked.patience), *protocol]
    command += ["--json", json.dumps(BODY), asked.address]
    done = subprocess.run(command, capture_output=True, check=False)
    text.feed(done.stdout)
    return _reading(text, f"exit {done.returncode}" if done.returncode else None)


def _verifying(asked: Asked) -> Reading:
    try:
        with (
            httpx.Client(**asked.options) as http,
            verifying.stream_sync("POST", asked.address, client=http, json=BODY) as answer,
        ):
            text = answer.read()
    except RemoteProtocolError as exc:
        return _reading([getattr(exc, "received", "")], exc)
    assert answer.receipt is not None
    return _reading([text], None)


READERS: Final[dict[str, Callable[[Asked], Reading]]] = {
    "httpx": _httpx,
    "httpx-sse": _httpx_sse,
    "aiohttp": _aiohttp,
    "openai": _openai,
    "openai, async": _openai_async,
    "curl": _curl,
    "streamguard": _verifying,
}
H2_READERS: Final = [name for name in READERS if name != "aiohttp"]  # which speaks HTTP/1.1 only


def readers_of(dialect: str, http2: bool) -> list[str]:
    """The readers that understand a dialect and speak the protocol."""
    names = H2_READERS if http2 else list(READERS)
    return [name for name in names if dialect == "openai" or not name.startswith("openai")]
