"""A stream whose reader left: what its policy does with the generation, and what is recorded of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
import attrs
import pytest

from streamguard.log.memory import MemoryLog
from streamguard.runtime.runs import Cancel, Detach, ReadOn
from streamguard.runtime.timing import Timing
from tests.adapters.asgi_apps import Ends, exchange
from tests.adapters.logged_apps import OURS, Site, cursors, reading, text_of, wait_until
from tests.adapters.servers import Gate, Server, serving
from tests.runtime.virtual import run
from tests.scenarios.stacks import chat_chunk


class Metered:
    """A provider's chunks, each with the usage so far. It waits after the third until `gone` is open; `more` come
    after it, or as many as it is let."""

    def __init__(self, more: int = 10**6, pause: float = 0.0) -> None:
        self.gone = Gate()
        self.more = more
        self.pause = pause
        self.made = 0
        self.closes = 0

    async def __call__(self) -> AsyncIterator[Any]:
        try:
            for number in range(3 + self.more):
                if number == 3:
                    await self.gone
                self.made += 1
                yield chat_chunk(f"t{number} ") | {"usage": {"completion_tokens": self.made}}
                await asyncio.sleep(self.pause)
            yield chat_chunk(finish="stop")
        finally:
            self.closes += 1


def left(policy: Any, source: Metered) -> tuple[Site, Ends]:
    ends = Ends()
    site = Site(dialect="openai", on_disconnect=policy, on_end=ends)
    site.source = source  # type: ignore[assignment]
    return site, ends


def read_three_and_leave(server: Server, site: Site, source: Metered) -> Any:
    with reading(server) as connection:
        connection.until(b"t2 ")
    wait_until(lambda: not len(site.guard.readers))
    source.gone.open()
    return cursors(connection.received)[-1]


@pytest.mark.parametrize(
    ("policy", "most"),
    [(Cancel(), 1), (Detach(0.0), 1), (ReadOn(items=20), 20), (ReadOn(seconds=0.1), 10**6)],
    ids=str,
)
def test_a_stream_that_was_left_stops_within_its_budget_and_its_usage_is_recorded(policy: Any, most: int) -> None:
    source = Metered(pause=0.001)
    site, ends = left(policy, source)
    with serving(site.app) as server:
        at = read_three_and_leave(server, site, source)
        outcome = ends.wait()
        rest = exchange(server.connect(), path="/streams", last_event_id=str(at), **OURS)
    assert (outcome.status, source.closes) == ("cancelled", 1)
    assert outcome.failure is not None
    assert outcome.failure.code == "gone"
    assert outcome.usage == {"completion_tokens": source.made}
    assert 0 <= source.made - 3 <= most
    assert cursors(rest.body)[-1].status == "cancelled"
    assert rest.body.count(b'"content"') == source.made - 3  # what was generated can be read


def test_a_stream_that_was_left_to_run_on_is_whole_for_who_comes_back_and_its_usage_is_recorded() -> None:
    source = Metered(more=5)
    site, ends = left(Detach(60.0), source)
    with serving(site.app) as server:
        at = read_three_and_leave(server, site, source)
        outcome = ends.wait()
        rest = exchange(server.connect(), path="/streams", last_event_id=str(at), **OURS)
    assert (outcome.status, source.closes) == ("complete", 1)
    assert outcome.usage == {"completion_tokens": 8}
    assert cursors(rest.body)[-1].status == "complete"
    assert rest.body.count(b'"content"') == 5


async def from_a_server_that_takes_everything_and_tells_nothing(site: Site, streamguard: str) -> bytes:
    """What was written to it in a minute, if the answer does not end before."""
    written: list[bytes] = []
    asked = anyio.Event()

    async def receive() -> Any:
        if asked.is_set():
            await anyio.sleep_forever()
        asked.set()
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        written.append(message.get("body", b""))

    headers = [(b"host", b"test"), (b"streamguard", streamguard.encode())]
    scope = {"type": "http", "http_version": "1.1", "method": "GET", "path": "/tokens", "raw_path": b"/tokens"}
    scope |= {"query_string": b"", "root_path": "", "headers": headers, "scheme": "http", "server": ("test", 80)}
    with anyio.move_on_after(60.0):
        await site.app({**scope, "asgi": {"version": "3.0"}}, receive, send)
        written.append(b"(ended)")
    return b"".join(written)


@attrs.define(eq=False)
class Endless:
    """Ten tokens a second. `closed` is when it was closed, in the loop's time."""

    made: int = 0
    closed: float | None = None

    async def __call__(self) -> AsyncIterator[str]:
        try:
            while True:
                self.made += 1
                yield "token "
                await anyio.sleep(0.1)
        finally:
            self.closed = anyio.current_time()


def endless(source: Endless, heartbeat: float | None) -> Site:
    """A site in the loop's own time."""
    limits = Timing(heartbeat=heartbeat, write=3.0, linger=0.0, clock=anyio.current_time)
    site = Site(log=MemoryLog(clock=anyio.current_time), timing=limits, on_disconnect=Cancel())
    site.source = source  # type: ignore[assignment]
    return site


@pytest.mark.parametrize("heartbeat", [1.0, None])
def test_where_a_server_takes_everything_and_tells_nothing_credit_ends_the_stream_and_its_source(
    heartbeat: float | None,
) -> None:
    source = Endless()

    async def test() -> bytes:
        site = endless(source, heartbeat)
        return await from_a_server_that_takes_everything_and_tells_nothing(site, "v=1, credit=(8 65536)")

    written = run("asyncio", test)
    assert text_of(written) == 8 * "token "
    assert written.endswith(b"(ended)")
    assert source.closed is not None
    assert source.closed < 10.0  # some tokens more, and the limit, here of 3 s


def test_without_credit_such_a_stream_goes_on() -> None:
    source = Endless()

    async def test() -> bytes:
        return await from_a_server_that_takes_everything_and_tells_nothing(endless(source, 1.0), "v=1")

    written = run("asyncio", test)
    assert len(text_of(written)) >= 500 * len("token ")
    assert not written.endswith(b"(ended)")
