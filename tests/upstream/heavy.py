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

from streamguard import client
from streamguard.testing.plan import Plan
from tests.clients.site import through
from tests.modules import ROOT

__all__ = [
    "ASKED", "FEW", "PROMPTS", "UP", "Server", "body", "resumed_text", "sdk_of", "started", "streamed", "tail_of",
]  # fmt: skip

PROMPTS = ["Hello", "你好", "emoji", "lines", "sse", "long"]
FEW = ["Hello", "emoji", "sse"]  # where each is asked for twice: pieces of characters, and lines like those of a stream
ASKED = 3900  # tokens of an answer that nobody reads to its end
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


def body(model: Path, prompt: str, **more: Any) -> dict[str, Any]:
    """A request of chat completions that is answered the same each time."""
    messages = [{"role": "user", "content": prompt}]
    return {"model": str(model), "messages": messages, "temperature": 0, "max_tokens": 700, **more}


def sdk_of(server: Server) -> openai.OpenAI:
    return openai.OpenAI(api_key="key", base_url=server.api, max_retries=0, timeout=UP)


def streamed(server: Server, asked: dict[str, Any], **more: Any) -> Any:
    """The stream that the SDK makes of a request."""
    return sdk_of(server).chat.completions.create(stream=True, extra_body=more, **asked)


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
