"""Resources that a source needs while it runs, whatever the framework does with its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest
from fastapi import Depends, FastAPI

from streamguard.adapters.fastapi import guarded
from streamguard.core.dialect import Native
from streamguard.core.errors import StreamAborted
from streamguard.core.flush import Immediate
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.wire import Sse
from streamguard.runtime.source import TokenSource
from streamguard.runtime.stages import GuardedStream
from streamguard.runtime.timing import Timing
from tests.runtime.virtual import BACKENDS, run
from tests.scenarios.stacks import read


class Session:
    """Something that can be used only between its opening and its close."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Session]:
        self.opened += 1
        try:
            yield self
        finally:
            self.closed += 1

    def word(self, text: str) -> str:
        assert self.opened > self.closed, "used after its close"
        return text


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("exit", ["returns", "raises", "is left", "stalls", "is cancelled"])
def test_a_resource_of_the_source_is_open_from_its_first_step_to_its_end(backend: str, exit: str) -> None:
    session = Session()

    async def source() -> AsyncIterator[str]:
        async with session.open():
            yield session.word("one ")
            if exit == "raises":
                raise ValueError
            if exit in ("stalls", "is cancelled"):
                await anyio.sleep_forever()
            yield session.word("two")

    async def test() -> None:
        encoder, guard = FramedEncoder(Native()), CompletionGuard(Sse())
        timing = Timing(stall=5.0, clock=anyio.current_time)
        async with GuardedStream(TokenSource(source), Immediate(), encoder, guard, timing=timing) as stream:
            assert session.opened == 0
            async for chunk in stream:
                if b"one" in chunk:
                    assert session.opened > session.closed
                    if exit == "is left":
                        break
                    if exit == "is cancelled":
                        stream.cancel()

    if exit in ("returns", "is left"):
        run(backend, test)
    else:
        with pytest.raises(StreamAborted):
            run(backend, test)
    assert (session.opened, session.closed) == (1, 1)


def test_a_source_outlives_the_dependencies_of_its_endpoint() -> None:
    """FastAPI closes dependencies before the body in some versions and after it in others. A source with a session
    of its own works with both."""
    own, theirs, order = Session(), Session(), list[str]()
    app = FastAPI()

    async def session() -> AsyncIterator[Session]:
        async with theirs.open() as opened:
            yield opened
        order.append("dependency closed")

    @app.get("/", dependencies=[Depends(session)])
    @guarded
    async def endpoint() -> AsyncIterator[str]:
        async with own.open() as opened:
            yield opened.word("one ")
            yield opened.word("two")
        order.append("body ended")

    async def test() -> list[bytes]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            response = await client.get("/", headers={"accept": "text/event-stream"})
        return [response.content]

    reading = read(anyio.run(test))
    assert reading.text == "one two"
    assert reading.complete
    assert (own.opened, own.closed) == (theirs.opened, theirs.closed) == (1, 1)
    assert sorted(order) == ["body ended", "dependency closed"]


@pytest.mark.parametrize("early", [True, False], ids=["closed before the body", "closed after the body"])
def test_both_orders_of_dependency_exit_deliver_the_whole_answer(early: bool) -> None:
    """The two orders, made by hand: what the endpoint was given is closed before or after the stream runs."""
    own, theirs = Session(), Session()

    async def source() -> AsyncIterator[str]:
        async with own.open() as opened:
            yield opened.word("one ")
            yield opened.word("two")

    async def test() -> list[bytes]:
        stream = GuardedStream(TokenSource(source), Immediate(), FramedEncoder(Native()), CompletionGuard(Sse()))
        async with theirs.open():
            if not early:
                async with stream:
                    return [chunk async for chunk in stream]
        async with stream:
            return [chunk async for chunk in stream]

    assert read(run("asyncio", test)).complete
    assert (own.opened, own.closed) == (theirs.opened, theirs.closed) == (1, 1)
