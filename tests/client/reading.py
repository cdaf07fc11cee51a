"""One way to read an answer, for all modes of the client: sync, and async on asyncio and on trio."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread
import attrs
import httpx
import pytest

from streamguard.client import stream, stream_sync
from streamguard.core.receipt import AnswerFrame, Receipt
from streamguard.testing.proxy import FaultProxy, Plan

__all__ = ["MODES", "NO_TLS", "Read", "each_mode", "read", "read_through"]

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # the usual one reads every certificate there is, for each client
MODES = ["sync", "asyncio", "trio"]
each_mode = pytest.mark.parametrize("mode", MODES)


@attrs.define
class Read:
    """What a reader saw: the frames, and how it ended."""

    frames: list[AnswerFrame] = attrs.field(factory=list)
    error: Exception | None = None
    again: Exception | None = None
    receipt: Receipt | None = None
    received: str = ""

    @property
    def text(self) -> str:
        return "".join(frame.text for frame in self.frames)


def read(
    mode: str,
    url: str,
    method: str = "POST",
    on_frame: Callable[[AnswerFrame], object] = lambda frame: None,
    pool: int = 100,
    **options: Any,
) -> Read:
    """Read the answer to its end, and then once more: an answer that raised must raise again. The client may make
    `pool` connections."""
    seen = Read()
    limits = httpx.Limits(max_connections=pool)
    if mode == "sync":
        with httpx.Client(verify=NO_TLS, follow_redirects=True, limits=limits) as client:
            _read_sync(seen, url, method, on_frame, {"client": client, **options})
    else:
        anyio.run(_read, seen, url, method, on_frame, limits, options, backend=mode)
    return seen


def _read_sync(
    seen: Read, url: str, method: str, on_frame: Callable[[AnswerFrame], object], options: dict[str, Any]
) -> None:
    try:
        with stream_sync(method, url, **options) as answer:
            frames = answer.frames()
            try:
                for frame in frames:
                    seen.frames.append(frame)
                    on_frame(frame)
            finally:
                seen.receipt = answer.receipt
                seen.received = answer.received
                try:
                    assert list(frames) == []
                except Exception as exc:
                    seen.again = exc
    except Exception as exc:
        seen.error = exc


async def _read(
    seen: Read,
    url: str,
    method: str,
    on_frame: Callable[[AnswerFrame], object],
    limits: httpx.Limits,
    options: dict[str, Any],
) -> None:
    try:
        client = httpx.AsyncClient(verify=NO_TLS, follow_redirects=True, limits=limits)
        async with client, stream(method, url, client=client, **options) as answer:
            frames = answer.frames()
            try:
                async for frame in frames:
                    seen.frames.append(frame)
                    on_frame(frame)
            finally:
                seen.receipt = answer.receipt
                seen.received = answer.received
                try:
                    assert [frame async for frame in frames] == []
                except Exception as exc:
                    seen.again = exc
    except Exception as exc:
        seen.error = exc


def read_through(
    mode: str, port: int, path: str, plan: Callable[[int], Plan], method: str = "POST", **options: Any
) -> tuple[Read, FaultProxy]:
    """Read the answer at `path` behind a proxy that does to the n-th connection what `plan` says."""

    async def main() -> tuple[Read, FaultProxy]:
        async with FaultProxy("127.0.0.1", port, plan=plan) as proxy:
            seen = await anyio.to_thread.run_sync(lambda: read(mode, f"{proxy.url}{path}", method, **options))
        return seen, proxy

    return anyio.run(main)
