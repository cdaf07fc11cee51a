"""Tests of a guarded endpoint, for pytest: `pytest test_my_endpoint.py`.

    pip install "streamguard-io[fastapi,httpx,testing]" uvicorn pytest

The application is `fastapi_app.py`, beside this file. Nothing here needs a plugin, a network or luck.
"""

from __future__ import annotations

import copy
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import anyio.lowlevel
import pytest
import uvicorn
from fastapi_app import BATCHED, app, generate

from streamguard import StreamVerifier, TruncatedStream, Verdict
from streamguard.adapters.fastapi import GuardedResponse
from streamguard.client import stream
from streamguard.testing import (
    HEAD,
    Conduct,
    FaultProxy,
    Plan,
    RecordingSource,
    ScriptedServer,
    check_flush_policy,
    check_source,
)


@contextmanager
def served() -> Iterator[int]:
    """The application on a real server; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


async def read_through(plan: Plan) -> str:
    """The answer's text, through a proxy that does what `plan` says."""
    with served() as port:
        async with FaultProxy("127.0.0.1", port, plan=plan) as proxy:
            async with stream("POST", f"{proxy.url}/chat", json={"text": "Tell me"}) as answer:
                return await answer.read()


def test_a_whole_answer_is_read() -> None:
    assert anyio.run(read_through, Plan()) == "anybody: Tell me "


@pytest.mark.parametrize("end", ["fin", "reset"])
def test_a_cut_answer_is_noticed(end: str) -> None:
    with pytest.raises(TruncatedStream):
        anyio.run(read_through, Plan(cut_at=400, after=HEAD, end=end))


async def left_after(size: int) -> tuple[RecordingSource, ScriptedServer]:
    """A response whose reader leaves after so many bytes: what its source and its server noted."""
    source = RecordingSource(*[anyio.lowlevel.checkpoint, "word "] * 100)  # a turn of the loop, and a word
    server = ScriptedServer(GuardedResponse(source), conduct=Conduct(at_bytes=size))
    with anyio.fail_after(10):
        await server.run()
    return source, server


@pytest.mark.parametrize("size", [250, 1000, 5000])
def test_a_reader_that_leaves_stops_the_model(size: int) -> None:
    source, server = anyio.run(left_after, size)
    assert source.closes == 1
    assert source.in_one_task
    assert source.steps < 100
    assert server.ended == "unfinished"
    reader = StreamVerifier()
    reader.feed(server.body)
    reader.end(clean=False)
    assert reader.verdict is Verdict.TRUNCATED


def test_the_flush_policy_keeps_its_contract() -> None:
    check_flush_policy(lambda: copy.deepcopy(BATCHED))


def test_the_model_keeps_its_contract() -> None:
    check_source(lambda: generate("Tell me a story"))
