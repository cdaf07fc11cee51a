"""Real engines as servers of their own processes, for the tests marked `heavy`: they load torch and a model.

    with started(command, folder) as server:
        ask(server.url, ...)

What is common to them stands here: how one is started and waited for, what is asked, and how its answer is read.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import openai
import pytest

from streamguard import client
from streamguard.testing.plan import Plan
from tests.clients.site import through
from tests.modules import ROOT
from tests.proxy.running import running

__all__ = [
    "ASKED", "FEW", "PROMPTS", "STALL", "UP", "Server", "begun", "body", "handed_out", "proxied", "refusal",
    "resumed_text", "sdk_of", "started", "streamed", "tail_of",
]  # fmt: skip

PROMPTS = ["Hello", "你好", "emoji", "lines", "sse", "long"]
FEW = ["Hello", "emoji", "sse"]  # where each is asked for twice: pieces of characters, and lines like those of a stream
ASKED = 3900  # tokens of an answer that nobody reads to its end
STALL = 10.0  # seconds of a server's silence, more than any token takes
UP = 600.0  # seconds in which a server must answer: it loads torch, and a busy machine takes its time


@attrs.frozen
class Server:
    """A server, and the process that it is."""

    url: str
    process: subprocess.Popen[bytes]

    @property
    def api(self) -> str:
        """The base address of its API."""
        return f"{self.url}/v1"

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@contextmanager
def started(command: list[str], *paths: Path) -> Iterator[Server]:
    """A server on a free port, once it answers. `paths` are where its own modules are."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*command, "--host", "127.0.0.1", "--port", str(port)]
    known = os.pathsep.join(map(str, (ROOT, *paths)))
    process = subprocess.Popen(command, env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": known})
    try:
        until = time.monotonic() + UP
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{port}/health", timeout=UP)
                break
            except httpx.TransportError:
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.2)
        yield Server(f"http://127.0.0.1:{port}", process)
    finally:
        process.terminate()
        process.wait(UP)


@contextmanager
def proxied(server: Server, *options: str) -> Iterator[Server]:
    """The same server, behind `streamguard proxy` with these options."""
    with running(server.url, *options) as proxy:
        yield Server(proxy.where, server.process)


def body(model: Path, prompt: str, **more: Any) -> dict[str, Any]:
    """A request of chat completions that is answered the same each time."""
    messages = [{"role": "user", "content": prompt}]
    return {"model": str(model), "messages": messages, "temperature": 0, "max_tokens": 700, **more}


def sdk_of(server: Server) -> openai.OpenAI:
    return openai.OpenAI(api_key="key", base_url=server.api, max_retries=0, timeout=UP)


def streamed(server: Server, asked: dict[str, Any], **more: Any) -> Any:
    """The stream that the SDK makes of a request."""
    return sdk_of(server).chat.completions.create(stream=True, extra_body=more, **asked)


_OWN = ("id", "item_id", "created", "created_at", "completed_at")  # of each answer its own


def _without_own(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_own(inner) for name, inner in value.items() if name not in _OWN}
    return [_without_own(inner) for inner in value] if isinstance(value, list) else value


def handed_out(server: Server, model: Path, prompt: str) -> dict[str, Any]:
    """What the SDK hands out for a prompt, streamed and not; without ids and times, and without where a text is split,
    which a server does as it finds the time."""
    sdk, asked = sdk_of(server), body(model, prompt)
    chunks = list(streamed(server, asked))
    choices = [choice for chunk in chunks for choice in chunk.choices]
    responses: list[Any] = list(sdk.responses.create(model=str(model), input=prompt, temperature=0, stream=True))
    return {
        "text": "".join([choice.delta.content or "" for choice in choices]),
        "reasons": [choice.finish_reason for choice in choices if choice.finish_reason],
        "role": choices[0].delta.role,
        "models": {chunk.model for chunk in chunks},
        "events": {event.type for event in responses},
        "response": _without_own(responses[-1].response.model_dump()),
        "whole": _without_own(sdk.chat.completions.create(**asked).model_dump()),
        "listed": sorted([one.id for one in sdk.models.list()]),
    }


def refusal(server: Server, asked: dict[str, Any], **more: Any) -> tuple[int, object]:
    """What the SDK raises for a request that is refused."""
    with pytest.raises(openai.APIStatusError) as refused:
        streamed(server, asked, **more)
    return refused.value.status_code, refused.value.body


@contextmanager
def begun(server: Server, asked: dict[str, Any]) -> Iterator[Iterator[bytes]]:
    """A streamed answer whose first piece has come; the pieces that follow."""
    url = f"{server.api}/chat/completions"
    with httpx.stream("POST", url, json={**asked, "stream": True}, timeout=UP) as response:
        pieces = response.iter_raw()
        next(pieces)
        yield pieces


def tail_of(pieces: Iterator[bytes]) -> bytes:
    """The last bytes of a body that breaks off; raises AssertionError for one that ends."""
    tail = b""
    try:
        for piece in pieces:
            tail = (tail + piece)[-2000:]
    except httpx.RemoteProtocolError:
        return tail
    raise AssertionError(f"the body ended as if it were whole: {tail!r}")


def resumed_text(server: Server, asked: dict[str, Any], cut_at: int) -> tuple[str, int]:
    """The text of an answer whose first connection is cut behind so many bytes, as our client reads it; and how often
    the client asked for the rest."""

    def read(url: str) -> tuple[str, int]:
        with client.stream_sync("POST", f"{url}/v1/chat/completions", json={**asked, "stream": True}) as answer:
            text = answer.read()
            assert answer.receipt is not None
            return text, answer.receipt.resumes

    (text, resumes), _ = through(server.port, lambda number: Plan() if number else Plan(cut_at=cut_at), read)
    return text, resumes
