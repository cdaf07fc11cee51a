"""Sync streams over a real server: they take nobody else's threads, and leave none behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from fastapi import FastAPI

from streamguard.adapters.asgi import GuardedAnswer
from streamguard.adapters.fastapi import guarded
from streamguard.adapters.seal import Receive, Scope, Send
from streamguard.core.receipt import Verdict
from streamguard.runtime.buffer import Buffer
from tests.adapters.asgi_apps import Ends, exchange
from tests.adapters.servers import DEADLINE, serving, stack_params


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "streamguard-source"]


def join() -> None:
    for thread in threads():
        thread.join(DEADLINE)
    assert threads() == []


def test_a_hundred_blocked_sync_streams_leave_everybody_else_answering() -> None:
    released = threading.Event()
    ends = Ends()
    app = FastAPI()

    @app.get("/blocked")
    @guarded(on_end=ends)
    def blocked() -> Iterator[str]:
        yield "t0 "
        released.wait(60)
        yield "t1 "

    @app.get("/plain")
    def plain() -> str:
        return "plain"

    @app.get("/async")
    async def awaited() -> str:
        return "async"

    @app.get("/guarded")
    @guarded
    async def stream() -> AsyncIterator[str]:
        for index in range(3):
            await asyncio.sleep(0)
            yield f"t{index} "

    with serving(app) as server:
        connections = [server.connect() for _ in range(100)]
        for connection in connections:
            connection.get("/blocked")
        for connection in connections:
            connection.until(b"t0 ")
        assert len(threads()) == 100
        assert httpx.get(f"{server.url}/plain", timeout=DEADLINE).json() == "plain"
        assert httpx.get(f"{server.url}/async", timeout=DEADLINE).json() == "async"
        with ThreadPoolExecutor(10) as pool:
            answers = list(pool.map(lambda _: exchange(server.connect(), path="/guarded"), range(10)))
        assert [answer.verdict for answer in answers] == [Verdict.COMPLETE] * 10
        assert not released.is_set()
        released.set()
        for connection in connections:
            assert b"t1 " in connection.until(b"event: end")
            connection.close()
        ends.wait(100)
    assert {outcome.status for outcome in ends.outcomes} == {"complete"}
    join()


@pytest.mark.parametrize("stack", stack_params())
def test_a_reader_that_leaves_ends_the_thread_within_one_step(stack: tuple[str, str]) -> None:
    made: list[int] = []
    at_disconnect: list[int] = []
    told, stepping = threading.Event(), threading.Event()
    closed_on: list[int] = []
    ends = Ends()

    def source() -> Iterator[str]:
        try:
            for index in range(10_000):
                if index == 20:
                    stepping.set()
                    told.wait(DEADLINE)  # the step in which the reader leaves
                made.append(threading.get_ident())
                yield f"t{index} "
        finally:
            closed_on.append(threading.get_ident())

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def noting() -> object:
            message = await receive()
            if message["type"] == "http.disconnect":
                at_disconnect.append(len(made))
                # The driver hears of it when this returns; the step goes on only after that.
                asyncio.get_running_loop().call_later(0.3, told.set)
            return message

        await GuardedAnswer(source(), on_end=ends)(scope, noting, send)  # type: ignore[arg-type]

    with serving(app, http=stack[0], loop=stack[1]) as server:
        with server.connect() as connection:
            connection.get()
            connection.until(b"t19 ")
            assert stepping.wait(DEADLINE)
        outcome = ends.wait()
    assert (outcome.status, outcome.abandoned) == ("gone", False)
    assert len(made) - at_disconnect[0] <= 1
    assert len(set(made)) == 1
    assert closed_on == made[:1]
    join()


def test_two_hundred_leavers_leave_no_thread_behind() -> None:
    closed: list[int] = []
    ends = Ends()

    def source() -> Iterator[str]:
        try:
            while True:
                yield "t0 "
        finally:
            closed.append(1)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await GuardedAnswer(source(), buffer=Buffer(max_items=4), on_end=ends)(scope, receive, send)

    with serving(app) as server:
        before = threading.active_count()

        def leave(_: int) -> None:
            with server.connect() as connection:
                connection.get()
                connection.until(b"t0 ")

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(leave, range(200)))
        ends.wait(200)
        join()
        assert threading.active_count() <= before
    assert len(closed) == 200
    assert {(outcome.status, outcome.abandoned) for outcome in ends.outcomes} == {("gone", False)}


def test_a_plain_def_that_raises_fails_its_stream_alone() -> None:
    app = FastAPI()

    @app.get("/")
    @guarded
    def failing() -> Iterator[str]:
        yield "t0 "
        raise SystemExit(1)

    with serving(app) as server:
        for _ in range(2):
            assert exchange(server.connect()).verified().status == "failed"
    join()
