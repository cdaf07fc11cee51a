"""Client libraries as their users get them: what each says of an answer, and the text it has then.

Each reader is a function of an address and a dialect. It knows nothing of streamguard, checks nothing by
itself and keeps the library's defaults; what it reports is what the library raised (curl: its exit code).
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Iterable
from typing import Any

import aiohttp
import attrs
import httpx
import httpx_sse
import openai

__all__ = ["READERS", "Reading", "readers_for"]

BODY = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
_TIMEOUT = 30.0


@attrs.frozen
class Reading:
    """The text that a client has at the end, and the error it reported (None: it reports success)."""

    text: str
    error: str | None


class _Text:
    """The text of a body, read as applications do that take a `data:` line for one event."""

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self._body = b""
        self._events: list[tuple[str, str]] = []

    def feed(self, data: bytes) -> None:
        self._body += data

    def event(self, name: str, data: str) -> None:
        self._events.append((name, data))

    @property
    def text(self) -> str:
        return "".join([self._of(name, data) for name, data in [*self._events, *self._blocks()]])

    def _blocks(self) -> Iterable[tuple[str, str]]:
        for block in self._body.decode(errors="replace").split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
            if "data" in fields:
                yield fields.get("event", "message"), fields["data"]

    def _of(self, name: str, data: str) -> str:
        if name != "message" or data == "[DONE]":
            return ""
        value = json.loads(data)
        if self._dialect == "native":
            return str(value)
        return "".join([choice["delta"].get("content") or "" for choice in value.get("choices", [])])


def _address(url: str) -> str:
    return f"{url}/chat/completions"


def _reading(text: _Text | list[str], error: BaseException | str | None) -> Reading:
    if isinstance(error, BaseException):
        module = type(error).__module__.partition(".")[0]
        error = f"{module}.{type(error).__name__}"
    return Reading("".join(text) if isinstance(text, list) else text.text, error)


def read_httpx(url: str, dialect: str) -> Reading:
    text = _Text(dialect)
    try:
        with httpx.stream("POST", _address(url), json=BODY, timeout=_TIMEOUT) as response:
            response.raise_for_status()
            for data in response.iter_bytes():
                text.feed(data)
    except httpx.HTTPError as exc:
        return _reading(text, exc)
    return _reading(text, None)


def read_httpx_sse(url: str, dialect: str) -> Reading:
    text = _Text(dialect)
    try:
        with (
            httpx.Client(timeout=_TIMEOUT) as client,
            httpx_sse.connect_sse(client, "POST", _address(url), json=BODY) as source,
        ):
            source.response.raise_for_status()
            for event in source.iter_sse():
                text.event(event.event, event.data)
    except (httpx.HTTPError, httpx_sse.SSEError) as exc:
        return _reading(text, exc)
    return _reading(text, None)


def read_aiohttp(url: str, dialect: str) -> Reading:
    text = _Text(dialect)

    async def read() -> None:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(_address(url), json=BODY, raise_for_status=True) as response,
        ):
            async for data in response.content.iter_any():
                text.feed(data)

    try:
        asyncio.run(read())
    except aiohttp.ClientError as exc:
        return _reading(text, exc)
    return _reading(text, None)


def read_openai(url: str, dialect: str) -> Reading:
    text: list[str] = []
    try:
        with openai.OpenAI(api_key="k", base_url=url, max_retries=0, timeout=_TIMEOUT) as client:
            for chunk in client.chat.completions.create(**_body()):
                text += [choice.delta.content or "" for choice in chunk.choices]
    except (openai.OpenAIError, httpx.HTTPError) as exc:
        return _reading(text, exc)
    return _reading(text, None)


def read_openai_async(url: str, dialect: str) -> Reading:
    text: list[str] = []

    async def read() -> None:
        async with openai.AsyncOpenAI(api_key="k", base_url=url, max_retries=0, timeout=_TIMEOUT) as client:
            async for chunk in await client.chat.completions.create(**_body()):
                text.extend([choice.delta.content or "" for choice in chunk.choices])

    try:
        asyncio.run(read())
    except (openai.OpenAIError, httpx.HTTPError) as exc:
        return _reading(text, exc)
    return _reading(text, None)


def read_curl(url: str, dialect: str) -> Reading:
    text = _Text(dialect)
    command = ["curl", "-sSN", "--fail", "--max-time", str(_TIMEOUT), "--json", json.dumps(BODY), _address(url)]
    done = subprocess.run(command, capture_output=True, check=False)
    text.feed(done.stdout)
    return _reading(text, f"exit {done.returncode}" if done.returncode else None)


def _body() -> Any:
    return BODY


READERS: dict[str, Callable[[str, str], Reading]] = {
    "httpx": read_httpx,
    "httpx-sse": read_httpx_sse,
    "aiohttp": read_aiohttp,
    "openai": read_openai,
    "openai, async": read_openai_async,
    "curl": read_curl,
}


def readers_for(dialect: str) -> list[str]:
    """The readers that understand a dialect."""
    return [name for name in READERS if dialect == "openai" or not name.startswith("openai")]
