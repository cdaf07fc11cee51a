"""Time limits of what stands in between: a silent source outlasts them by its heartbeats, and not without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import anyio
import httpx
import pytest

from streamguard import client
from streamguard.core.errors import TruncatedStream
from streamguard.core.receipt import Verdict
from streamguard.runtime.timing import Timing
from streamguard.testing.plan import Plan
from streamguard.testing.proxy import FaultProxy
from tests.adapters.asgi_apps import answering
from tests.adapters.servers import serving

LIMIT = 1.0  # seconds after which the stricter proxy cuts an idle connection


async def late() -> AsyncIterator[str]:
    """The first token comes after three times the limit."""
    await asyncio.sleep(3 * LIMIT)
    yield "late "
    yield "later "


async def read(port: int, limits: list[float]) -> tuple[str, Verdict]:
    """What our client has of the answer through proxies with these limits, one behind the other."""
    async with AsyncExitStack() as stack:
        for limit in limits:
            proxy = await stack.enter_async_context(FaultProxy("127.0.0.1", port, plan=Plan(idle=limit)))
            port = proxy.port
        async with client.stream("GET", f"http://127.0.0.1:{port}/") as answer:
            text = await answer.read()
        return text, answer.receipt.verdict


@pytest.mark.parametrize("limits", [[LIMIT], [LIMIT, 1.5 * LIMIT]], ids=["one", "two"])
def test_one_interval_under_the_smallest_limit_keeps_every_hop_open(limits: list[float]) -> None:
    with serving(answering(late, timing=Timing(heartbeat=LIMIT / 10))) as server:
        assert anyio.run(read, server.port, limits) == ("late later ", Verdict.COMPLETE)


def test_without_heartbeats_the_same_stream_is_cut_and_the_reader_is_told() -> None:
    with serving(answering(late, timing=Timing(heartbeat=None))) as server:
        with pytest.raises((TruncatedStream, httpx.RemoteProtocolError)):
            anyio.run(read, server.port, [LIMIT, 1.5 * LIMIT])
