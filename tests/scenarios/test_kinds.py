"""What is right for a stream is right for every kind of source: generators, iterators, threads, pushed, buffered.

Over a real server. A source that is silent waits at a gate that the test opens once it has seen what it waits for.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import httpx
import pytest
from fastapi import FastAPI, HTTPException
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from streamguard.adapters import fastapi as with_fastapi
from streamguard.adapters import starlette as with_starlette
from streamguard.adapters.asgi import GuardedAnswer
from streamguard.adapters.seal import Message, Receive, Scope, Send
from streamguard.core.errors import SourceFailed
from streamguard.core.flush import Within
from streamguard.core.items import Finish
from streamguard.core.receipt import Verdict
from streamguard.runtime.push import PushSource
from streamguard.runtime.source import TokenSource
from streamguard.runtime.timing import Timing
from tests.adapters.asgi_apps import Ends, exchange
from tests.adapters.kinds import ASYNC, KINDS, SYNC, Source, Told, join_threads
from tests.adapters.leaving import Leavers, settled
from tests.adapters.servers import Gate, serving

OFTEN = Timing(heartbeat=0.02, linger=0.05)
GET: Scope = {"type": "http", "method": "GET", "headers": [], "query_string": b"", "http_version": "1.1"}
NAIVE = pytest.mark.xfail(strict=True, raises=(AssertionError, httpx.TimeoutException))
EACH_KIND = pytest.mark.parametrize("kind", KINDS)


def answering(source: Source, **options: Any) -> Any:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await GuardedAnswer(source.make(), **source.options, **options)(scope, receive, send)

    return app


# ---- the reader leaves --------------------------------------------------------------------------


@EACH_KIND
def test_of_a_thousand_streams_only_the_ten_that_were_left_are_told(kind: str) -> None:
    """A stream that ends by itself is closed, and not told to stop: counted is what was cut short."""
    cut_short: list[str] = []
    statuses: list[str] = []

    async def one(leaves: bool) -> None:
        gate, gone = Gate(), anyio.Event()
        source = Source(kind, "a ", *([gate, *["b "] * 5000] if leaves else []), bound=16)

        async def receive() -> Message:
            await gone.wait()
            gate.open()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if b'"a "' in message.get("body", b"") and leaves:
                gone.set()
            await asyncio.sleep(0)

        answer = GuardedAnswer(source.make(), **source.options)
        await answer({**GET}, receive, send)
        assert answer.outcome is not None
        statuses.append(answer.outcome.status)
        if source.made < 5000 and leaves:
            cut_short.append(kind)
        assert len(source.closes) == (kind != "push" or leaves)  # what was finished needs no closing

    async def test() -> None:
        for number in range(1010):
            await one(leaves=number % 101 == 100)

    asyncio.run(test())
    join_threads()
    assert len(cut_short) == 10
    assert (statuses.count("complete"), statuses.count("gone")) == (1000, 10)


@EACH_KIND
def test_one_reader_that_leaves_stops_its_own_source_and_no_other(kind: str) -> None:
    gates = [Gate(), Gate()]
    sources = [Source(kind, "a ", gate, "b ") for gate in gates]
    ends = Ends()
    waiting = iter(sources)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        source = next(waiting)
        await GuardedAnswer(source.make(), on_end=ends, **source.options)(scope, receive, send)

    with serving(Told(app, gates[1])) as server, server.connect() as stays:
        stays.get()
        stays.until(b"a ")
        with server.connect() as leaves:
            leaves.get()
            leaves.until(b"a ")
        assert ends.wait(1).status == "gone"
        assert sources[0].closes == []
        gates[0].open()
        stays.until(b"event: end")
        assert b"b " in stays.received
        assert ends.wait(2).status == "complete"
    join_threads()
    assert len(sources[1].closes) == 1


@EACH_KIND
def test_a_stream_that_begins_as_another_of_its_session_is_left_gets_its_own_tokens(kind: str) -> None:
    turns: list[Source] = []
    gates: list[Gate] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        turn = len(turns)
        gate = Gate()
        gates.append(gate)
        source = Source(kind, f"turn{turn}-a ", *([gate] if turn % 2 == 0 else []), f"turn{turn}-b ")
        turns.append(source)
        await GuardedAnswer(source.make(), **source.options)(scope, receive, send)

    with serving(app) as server:
        for turn in range(0, 20, 2):
            left = server.connect()
            left.get()
            left.until(f"turn{turn}-a".encode())
            left.close()
            answer = exchange(server.connect())
            gates[turn].open()
            assert answer.verdict is Verdict.COMPLETE
            assert f"turn{turn}-".encode() not in answer.body
            assert f"turn{turn + 1}-b ".encode() in answer.body
    join_threads()


@EACH_KIND
def test_leaving_in_mid_stream_leaves_no_complaint_behind(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    leavers = Leavers()
    with serving(leavers.app) as server:
        for mode in ("producing", "flat out", "idle"):
            leavers.leave(server, mode, kind)
        leavers.ends.wait(3)
        server.call(settled, 2)
    join_threads()
    words = ("exception was never retrieved", "was destroyed", "already executing", "closing its source raised")
    assert [word for word in words if word in caplog.text] == []


# ---- cancellation -------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["source", "send", "flush"])
@EACH_KIND
def test_a_cancelled_server_task_ends_as_cancelled_with_its_source_closed_once(kind: str, where: str) -> None:
    """As a server does at shutdown, while the stream waits for its source, for its transport, for a flush window."""

    async def test() -> None:
        gate, reached, never = Gate(), asyncio.Event(), asyncio.Event()
        source = Source(kind, "a ", "b ", gate, *["c "] * 100)

        async def receive() -> Message:
            await never.wait()
            raise AssertionError

        async def send(message: Message) -> None:
            if b'"' in message.get("body", b"") and b"event: open" not in message["body"]:
                reached.set()
                if where == "send" and not gate.opened:
                    if kind != "push":  # whose engine could finish before the cancellation: then it is not told
                        gate.open()
                    await never.wait()

        options: dict[str, Any] = {"flush": Within(30.0)} if where == "flush" else {}
        answer = GuardedAnswer(source.make(), on_end=ends, **source.options, **options)
        task = asyncio.ensure_future(answer({**GET}, receive, send))
        await asyncio.wait_for(reached.wait(), 10)
        task.cancel()
        if kind in SYNC:
            asyncio.get_running_loop().call_later(0.05, gate.open)
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open()
        assert ends.wait().status == "shutdown"
        assert len(source.closes) == 1

    ends = Ends()
    asyncio.run(test())
    join_threads()


# ---- silence ------------------------------------------------------------------------------------


@EACH_KIND
def test_headers_opening_and_heartbeats_do_not_wait_for_the_first_token(kind: str) -> None:
    gate = Gate()
    with serving(answering(Source(kind, gate, "late "), timing=OFTEN)) as server, server.connect() as connection:
        connection.get()
        connection.until(b": streamguard 1 ")
        connection.until(b": hb ", 3)
        assert b"late" not in connection.received
        gate.open()
        connection.until(b"event: end")
        assert b"late " in connection.received
    join_threads()


@EACH_KIND
def test_heartbeats_in_a_pause_of_any_source_lose_nothing(kind: str) -> None:
    gate = Gate()
    source = Source(kind, "a ", gate, "b ", "c ")
    with serving(answering(source, timing=OFTEN)) as server:
        with server.connect() as connection:
            connection.get()
            connection.until(b"a ")
            connection.until(b": hb ", 3)
            gate.open()
            connection.until(b"event: end")
            texts = connection.received.partition(b"a ")[2].partition(b"event: end")[0]
        assert b"b " in texts
        assert b"c " in texts
    join_threads()
    assert source.made == 3


@EACH_KIND
def test_an_early_failure_of_any_source_keeps_its_status_in_peek(kind: str) -> None:
    app = FastAPI()
    source = Source(kind, HTTPException(403, "not for you"))

    @app.get("/http", response_model=None)
    async def http() -> Any:
        return with_fastapi.GuardedResponse(source.make(), timing=Timing(peek=60.0), **source.options)

    @app.get("/own", response_model=None)
    async def own() -> Any:
        failing = Source(kind, SourceFailed("overloaded", "later", retryable=True))
        return with_fastapi.GuardedResponse(failing.make(), timing=Timing(peek=60.0), **failing.options)

    with serving(app) as server:
        assert exchange(server.connect(), path="/http").status == 403
        assert exchange(server.connect(), path="/own").status == 503
    join_threads()


@EACH_KIND
def test_headers_leave_when_the_peek_is_over_though_the_source_is_silent(kind: str) -> None:
    gate = Gate()
    app = answering(Source(kind, gate, "late "), timing=Timing(peek=0.05, heartbeat=0.02))
    with serving(app) as server, server.connect() as connection:
        connection.get()
        connection.until(b": hb ", 2)
        gate.open()
        connection.until(b"event: end")
    join_threads()


@EACH_KIND
def test_a_layer_that_withholds_headers_lets_them_go_while_the_source_is_silent(kind: str) -> None:
    gate = Gate()
    inner = answering(Source(kind, gate, "late "))

    async def withholding(scope: Scope, receive: Receive, send: Send) -> None:
        held: list[Message] = []

        async def late(message: Message) -> None:
            if message["type"] == "http.response.start":
                held.append(message)
                return
            while held:
                await send(held.pop())
            await send(message)

        await inner(scope, receive, late)

    with serving(withholding) as server, server.connect() as connection:
        connection.get()
        connection.until(b": streamguard 1 ")
        gate.open()
        connection.until(b"event: end")
    join_threads()


# ---- blocking -----------------------------------------------------------------------------------


def guarded_blocking(source: Callable[[], Iterator[str]]) -> Any:
    return with_fastapi.guarded(source)


def naive_blocking(source: Callable[[], Iterator[str]]) -> Any:
    """A sync client iterated in an async generator, as it is often written: the loop waits with it."""

    async def endpoint() -> AsyncIterator[str]:
        for token in source():
            yield token

    return with_fastapi.guarded(endpoint)


@pytest.mark.parametrize(
    "serve", [pytest.param(guarded_blocking, id="ours"), pytest.param(naive_blocking, id="naive", marks=NAIVE)]
)
@pytest.mark.parametrize("tokens", [0, 3], ids=["before its first token", "in mid stream"])
def test_a_source_that_blocks_keeps_nobody_waiting_and_can_be_left(serve: Callable[..., Any], tokens: int) -> None:
    stepping, release, over = Gate(), threading.Event(), Gate()

    def source() -> Iterator[str]:
        try:
            for _ in range(tokens):
                yield "a "
            stepping.open()
            release.wait(5)
            while True:
                yield "b "
        finally:
            over.open()

    app = FastAPI()
    app.get("/")(serve(source))

    @app.get("/probe")
    async def probe() -> str:
        return "here"

    with serving(app) as server:
        with server.connect() as connection:
            connection.get()
            stepping.wait()
            try:
                for _ in range(20):
                    assert httpx.get(f"{server.url}/probe", timeout=2).json() == "here"
                assert not over.opened
            finally:
                release.set()
            connection.until(b"b ")
        over.wait()
    join_threads()


def test_a_source_of_slow_steps_is_delivered_while_others_are_answered() -> None:
    def slow() -> Iterator[str]:
        for number in range(5):
            time.sleep(0.05)
            yield f"{number} "

    app = FastAPI()
    app.get("/")(with_fastapi.guarded(slow))
    probes = []

    @app.get("/probe")
    async def probe() -> str:
        return "here"

    with serving(app) as server, server.connect() as connection:
        connection.get()
        for number in range(5):
            connection.until(f"{number} ".encode())
            probes.append(httpx.get(f"{server.url}/probe", timeout=10).json())
        connection.until(b"event: end")
    join_threads()
    assert probes == ["here"] * 5


# ---- HEAD ---------------------------------------------------------------------------------------


def asgi_app(source: Source) -> Any:
    return answering(source)


def starlette_app(source: Source) -> Any:
    async def endpoint(request: Request) -> Any:
        return with_starlette.GuardedResponse(source.make(), **source.options)

    return Starlette(routes=[Route("/", endpoint, methods=["GET", "HEAD"])])


def fastapi_app(source: Source) -> Any:
    app = FastAPI()

    async def endpoint() -> Any:
        return with_fastapi.GuardedResponse(source.make(), **source.options)

    app.api_route("/", methods=["GET", "HEAD"], response_model=None)(endpoint)
    return app


@pytest.mark.parametrize("adapter", [asgi_app, starlette_app, fastapi_app])
@pytest.mark.parametrize("kind", [*ASYNC, *SYNC])
def test_head_on_each_adapter_starts_no_source_of_any_kind(kind: str, adapter: Callable[[Source], Any]) -> None:
    """What pushes by itself has started before there is a response, so it is not among them."""
    never = Gate()
    source = Source(kind, never)
    with serving(adapter(source)) as server:
        head = exchange(server.connect(), "HEAD")
        assert (head.status, head.body, source.started) == (200, b"", 0)
        never.open()
        get = exchange(server.connect())
    join_threads()
    assert get.header("streamguard") is not None
    names = {name for name, _ in get.headers} - {"streamguard", "transfer-encoding", "date", "content-length"}
    assert {name: head.header(name) for name in names} == {name: get.header(name) for name in names}


def test_head_tells_a_push_source_that_nobody_reads() -> None:
    told = Gate()
    source = Source("push", Gate())
    source.close = told.open  # type: ignore[method-assign]
    with serving(answering(source)) as server:
        assert exchange(server.connect(), "HEAD").status == 200
        told.wait()
    for act in source.script:
        act.open()
    join_threads()


# ---- one ordered path ---------------------------------------------------------------------------


def test_what_a_thread_pushed_stands_before_the_end_that_the_loop_says() -> None:
    """The thread returns, then code on the loop finishes: a thousand times, no item is overtaken."""

    async def one(pool: ThreadPoolExecutor) -> list[Any]:
        source = PushSource()

        async def produce() -> None:
            await asyncio.get_running_loop().run_in_executor(pool, list, map(source.put, "abcde"))
            source.finish("stop")

        async with TokenSource(source) as items:
            producing = asyncio.ensure_future(produce())
            got = [item async for item in items]
            await producing
        return got

    async def test() -> None:
        with ThreadPoolExecutor(2) as pool:
            for _ in range(1000):
                *texts, end = await one(pool)
                assert "".join(texts) == "abcde"
                assert end == Finish("stop")

    asyncio.run(test())
