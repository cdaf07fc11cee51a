"""Slow readers and memory: what waits for whom. A run that nobody reads waits for nobody, and no reader for another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from streamguard.adapters.starlette import StreamGuard
from streamguard.app import anyone_with_the_id
from streamguard.core.credit import Credit, Grant
from streamguard.core.cursor import cursor_zero
from streamguard.core.flush import Immediate
from streamguard.log.memory import MemoryLog
from streamguard.runtime.buffer import Buffer
from streamguard.runtime.direct import DirectDriver
from streamguard.runtime.flow import Flow
from streamguard.runtime.reader import stored
from streamguard.runtime.runs import Detach
from streamguard.runtime.source import TokenSource
from streamguard.runtime.timing import Timing
from tests.adapters.asgi_apps import exchange
from tests.adapters.logged_apps import OURS, Site, cursors, reading, sid_of, text_of, wait_until
from tests.adapters.servers import DEADLINE, serving
from tests.runtime.fakes import SID, Wire, native, timing
from tests.runtime.logs import Store
from tests.runtime.test_reader import Writer, nobody
from tests.runtime.virtual import BACKENDS, run

WORDS = [f"t{number} " for number in range(1000)]


def made(kind: str, gone: threading.Event) -> Any:
    """An endpoint that yields all words, three of them before its reader is gone."""

    async def suspending(request: Request) -> AsyncIterator[str]:
        for number, word in enumerate(WORDS):
            if number == 3:
                await asyncio.to_thread(gone.wait, DEADLINE)
            yield word

    def blocking(request: Request) -> Iterator[str]:
        for number, word in enumerate(WORDS):
            if number == 3:
                assert gone.wait(DEADLINE)
            yield word

    return suspending if kind == "async" else blocking


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_detached_run_behind_a_small_buffer_goes_to_its_end(kind: str) -> None:
    gone = threading.Event()
    guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id)
    options: dict[str, Any] = {"on_disconnect": Detach(60.0), "buffer": Buffer(max_items=8)}
    app = Starlette(routes=[Route("/tokens", guard.stream(**options)(made(kind, gone)))])
    guard.install(app, "/streams")
    with serving(app) as server:
        with reading(server) as connection:
            connection.until(b't2 "')
        wait_until(lambda: not len(guard.readers))
        gone.set()
        wait_until(lambda: not len(guard.runs))
        at = cursors(connection.received)[-1]
        rest = exchange(server.connect(), path="/streams", last_event_id=str(at), **OURS)
    assert cursors(rest.body)[-1].status == "complete"
    assert text_of(rest.body) == "".join(WORDS[3:])


def test_a_reader_that_stalls_gets_no_more_than_its_credit_then_an_end_that_it_can_resume_and_then_the_whole() -> None:
    site = Site(*WORDS[:40], timing=Timing(heartbeat=0.5, write=0.2, linger=0.05))
    credit: dict[str, Any] = {"streamguard": "v=1, credit=(8 65536)"}
    with serving(site.app) as server:
        with reading(server, **credit) as connection:
            text = connection.rest()
        at, sid = cursors(text)[-1], sid_of(text)
        rest = exchange(server.connect(), path="/streams", last_event_id=str(at), **OURS)
    assert (len(cursors(text)), text_of(text)) == (8, "".join(WORDS[:8]))
    assert b'"reason":"slow"' in text
    assert (sid_of(rest), text_of(rest.body)) == (sid, "".join(WORDS[8:40]))


def test_behind_a_middleware_that_holds_everything_back_a_reader_has_its_credit_on_its_way_and_no_more() -> None:
    site = Site(*WORDS)
    held: list[bytes] = []

    async def hoarding(scope: Any, receive: Any, send: Any) -> None:
        async def hold(message: Any) -> None:
            if message["type"] == "http.response.start":
                await send(message)
            held.append(message.get("body", b""))

        await site.app(scope, receive, hold if scope["path"] == "/tokens" else send)

    credit: dict[str, Any] = {"streamguard": "v=1, credit=(100 500)"}
    with serving(hoarding) as server, reading(server, **credit):
        wait_until(lambda: any(reader.flow is not None and reader.flow.blocked for reader in site.guard.readers))
        wait_until(lambda: not len(site.guard.runs))  # which is generated to its end all the same
        last = cursors(b"".join(held))[-1]
    assert last.seq <= 100
    assert 500 <= last.offset < 500 + len('"t999 "')


QUICK, SLOW = 10e6, 10e3  # bytes a second that a source makes, and that its reader takes
PIECE = 10_000


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_source_of_ten_megabytes_a_second_is_asked_for_what_its_slow_reader_took_and_its_buffer_holds(
    backend: str,
) -> None:
    bound = 8 * PIECE
    made = [0]

    async def pieces() -> AsyncIterator[str]:
        while True:
            made[0] += PIECE
            yield "x" * PIECE
            await anyio.sleep(PIECE / QUICK)

    async def test() -> int:
        wire = Wire(slow=lambda number, data: len(data) / SLOW)
        source = TokenSource(pieces(), buffer=Buffer(max_bytes=bound))
        driver = DirectDriver[bytes](source, native(Immediate()), wire, timing(write=None))
        with anyio.move_on_after(60.0):
            await driver.run()
        return len(wire.body)

    taken = run(backend, test)
    assert 0.5 * 60 * SLOW < taken <= 60 * SLOW + PIECE
    # In the buffer at most its bound and one piece; and as much again, joined, in the write that waits.
    assert made[0] <= taken + 2 * (bound + PIECE)


@pytest.mark.parametrize("backend", BACKENDS)
def test_however_quick_a_stream_grows_its_slow_reader_has_its_credit_on_its_way_and_no_more(backend: str) -> None:
    window = 4 * PIECE
    ahead: list[int] = []

    async def test() -> tuple[int, int]:
        log = Store()
        writer = Writer(log)
        await writer.begin(0)
        zero = cursor_zero(SID)
        flow = Flow(Credit(10**6, window, zero), zero, limit=None)
        sent = taken = 0

        async def reading() -> None:
            pass

        async def sending() -> None:
            nonlocal sent
            async for page in stored(log, zero, nobody, reading=reading, always=False, flow=flow):
                sent = page[-1].offset
                ahead.append(sent - taken)

        async def taking() -> None:
            nonlocal taken
            while True:
                await anyio.sleep(PIECE / SLOW)
                taken = min(sent, taken + PIECE)
                flow.give(Grant(10**6, taken + window))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sending)
            tasks.start_soon(taking)
            for _ in range(500):
                await writer.text("x" * PIECE)
                await anyio.sleep(PIECE / QUICK)
            await anyio.sleep(20.0)
            tasks.cancel_scope.cancel()
        return sent, writer.encoder.cursor.offset

    sent, appended = run(backend, test)
    assert appended >= 500 * PIECE  # the run waits for nobody
    assert window <= sent <= 20.5 * SLOW + window + PIECE
    assert max(ahead) <= window + PIECE + 2  # a frame starts below the limit


@pytest.mark.parametrize("backend", BACKENDS)
def test_beside_a_reader_that_stalls_fifty_others_get_each_token_in_the_moment_it_is_appended(backend: str) -> None:
    taken: list[list[float]] = [[] for _ in range(50)]

    async def test() -> list[float]:
        log = Store()
        writer = Writer(log)
        await writer.begin(0)
        zero = cursor_zero(SID)
        stalled, appended = list[int](), list[float]()
        flow = Flow(Credit(1, 1, zero), zero, limit=None)

        async def reading() -> None:
            pass

        async def stall() -> None:
            async for page in stored(log, zero, nobody, reading=reading, always=False, flow=flow):
                stalled.append(len(page))

        async def good(times: list[float]) -> None:
            async for page in stored(log, zero, nobody):
                times += [anyio.current_time()] * len(page)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stall)
            for times in taken:
                tasks.start_soon(good, times)
            for _ in range(20):
                await anyio.sleep(0.02)
                await writer.text()
                appended.append(anyio.current_time())
            await anyio.sleep(0.02)
            tasks.cancel_scope.cancel()
        assert (stalled, flow.blocked) == ([1], False)
        return appended

    appended = run(backend, test)
    assert all(times == appended for times in taken)
