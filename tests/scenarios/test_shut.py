"""A server that goes away while streams that outlive their connections are generated and read."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from starlette.routing import Route

from streamguard.adapters.starlette import guarded
from streamguard.log.memory import MemoryLog
from streamguard.observe.hooks import Outcome
from streamguard.runtime import report
from streamguard.runtime.runs import Cancel, Detach
from streamguard.runtime.takeover import Continue, Orphan
from streamguard.runtime.timing import Timing
from tests.adapters.asgi_apps import Response, exchange
from tests.adapters.logged_apps import OURS, SSE, Counted, Site, cursors, reading, sid_of, text_of, wait_until
from tests.adapters.servers import DEADLINE, Gate, Server, serving


@contextmanager
def stopping(stack: ExitStack, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Stop the server that `stack` holds; the block runs once that has begun, and the server is gone after it."""
    caplog.set_level(logging.INFO, "uvicorn.error")
    thread = threading.Thread(target=stack.close)
    thread.start()
    wait_until(lambda: "Shutting down" in caplog.messages)
    yield
    thread.join(DEADLINE)
    assert not thread.is_alive()


def test_a_stream_that_ends_within_the_grace_of_its_server_is_whole(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    site = Site("t0 ", gate, "t1 ")
    with ExitStack() as stack, ExitStack() as after:
        server = stack.enter_context(serving(site.app, timeout_graceful_shutdown=int(DEADLINE // 2)))
        connection = after.enter_context(reading(server, connection="close", **OURS))
        connection.until(b't0 "')
        with stopping(stack, caplog):
            gate.open()
            body = connection.rest()
    assert text_of(body) == "t0 t1 "
    assert cursors(body)[-1].status == "complete"
    assert body.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("read", [True, False], ids=["read", "detached"])
def test_a_stream_that_is_silent_holds_no_server(read: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Nor does one whose reader is gone: its lease is let go, and somebody else may go on with it."""
    site = Site("t0 ", Gate(), on_disconnect=Detach(3600.0))
    with ExitStack() as stack, ExitStack() as after:
        server = stack.enter_context(serving(site.app))
        connection = after.enter_context(reading(server, connection="close", **OURS))
        sid = sid_of(connection.until(b't0 "'))
        if not read:
            connection.close()
            wait_until(lambda: not len(site.guard.readers))
        with stopping(stack, caplog):
            pass
        if read:
            assert b'"reason":"shutdown"' in connection.rest()
    state = asyncio.run(site.state(sid))
    assert (state.sealed, state.held) == (False, False)
    assert site.source.closes == 1


def test_a_stream_longer_than_the_grace_is_told_before_its_connection_ends_and_goes_on_elsewhere() -> None:
    site = Site("t0 ", Gate())
    with ExitStack() as after:
        with serving(site.app) as server:
            connection = after.enter_context(reading(server, connection="close", **OURS))
            connection.until(b't0 "')
        body = connection.rest()
    assert re.search(rb'event: bye\nretry: \d+\ndata: {"cursor":"', body)
    assert b'"reason":"shutdown"' in body
    assert not body.endswith(b"0\r\n\r\n")
    at = cursors(body)[-1]
    with serving(Site(log=site.log).app) as server, reading(server, "/streams", last_event_id=str(at), **OURS) as again:
        again.until(b"producer_lost")  # nobody can go on with it here, and it is given its end
        assert cursors(again.received)[-1].status == "failed"


def test_a_hook_that_hangs_holds_no_server(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(report, "HOOK_LIMIT", 0.1)
    entered: list[Outcome] = []

    async def hangs(outcome: Outcome) -> None:
        entered.append(outcome)
        await asyncio.Event().wait()

    site = Site("t0 ", Gate(), on_end=hangs)
    with ExitStack() as after:
        with serving(site.app) as server:
            connection = after.enter_context(reading(server, connection="close", **OURS))
            connection.until(b't0 "')
        rest: Any = connection.rest()
    assert b'"reason":"shutdown"' in rest
    assert len(entered) == 1
    assert "on_end took longer than 0.1 s" in caplog.text

# ---- a drain ------------------------------------------------------------------------------------------


def answer_of(server: Server, path: str, method: str = "GET", **headers: Any) -> Response:
    return exchange(server.connect(), method, path, **headers)


def test_a_drain_on_a_background_thread_lets_streams_finish_refuses_new_ones_and_ends_the_rest() -> None:
    gate, other = Gate(), Gate()
    site = Site("t0 ", gate, "t1 ")
    endless = Counted("t0 ", other)

    @guarded(timing=Timing(linger=0.05))
    async def direct(request: Any) -> AsyncIterator[str]:
        async for item in endless():
            yield item

    site.app.router.routes.append(Route("/direct", direct, methods=["GET", "POST"]))
    with ExitStack() as stack:
        server = stack.enter_context(serving(site.app))
        short, long = [stack.enter_context(reading(server, path)) for path in ("/tokens", "/direct")]
        short.until(b't0 "')
        long.until(b't0 "')
        ready = [site.guard.ready]
        site.guard.drain(grace=60)
        assert [*ready, site.guard.ready] == [True, False]
        for path in ("/tokens", "/direct"):
            for method, headers in (("POST", {}), ("GET", OURS)):
                answer = answer_of(server, path, method, **headers)
                told = (answer.status, answer.header("retry-after"), answer.header("x-should-retry"))
                assert told == (503, "1", "true")
                assert b'"code":"shutdown"' in answer.body
            assert answer_of(server, path, "HEAD").status == 200
        gate.open()
        assert text_of(short.until(b'"complete"')) == "t0 t1 "
        site.guard.drain(grace=0)
        body = long.rest()
    assert re.search(rb'id: \S+\.shutdown\ndata: .*"retryable":true', body)
    assert (site.source.closes, endless.starts, endless.closes) == (1, 1, 1)


def test_an_event_source_that_comes_while_a_server_drains_is_sent_elsewhere() -> None:
    site = Site("t0 ")
    with serving(site.app) as server:
        site.guard.drain()
        answer = answer_of(server, "/tokens", **SSE)
    assert (answer.status, answer.clean, site.source.starts) == (200, False, 0)
    assert re.fullmatch(rb": shutdown\nretry: \d{4}\n\n", answer.body)


def test_what_a_drain_ends_is_gone_on_with_by_another_process() -> None:
    """Nobody waits for the end of a lease. The process that drains does not take the stream up again itself."""
    log, resumed = MemoryLog(), list[str]()

    def site(name: str) -> Site:
        def goes_on(orphan: Orphan) -> Continue:
            resumed.append(name)
            return Continue(iter(["t1 "]))

        return Site("t0 ", Gate(), log=log, resumer=goes_on, resumer_name="tokens", on_disconnect=Cancel())

    old, new = site("old"), site("new")
    with serving(old.app) as server, serving(new.app) as other:
        with reading(server) as connection, reading(server) as second:
            sid = sid_of(connection.until(b't0 "'))
            second.until(b't0 "')
            old.guard.drain(grace=0)
            body = connection.rest()
            second.rest()
        wait_until(lambda: not len(old.guard.runs))  # nothing waits on a log of one loop when another one asks it
        assert b'"reason":"shutdown"' in body
        at = str(cursors(body)[-1])
        assert answer_of(server, "/streams", last_event_id=at, **OURS).status == 503
        answer = answer_of(other, "/streams", last_event_id=at, **OURS)
    assert (text_of(body) + text_of(answer.body), resumed) == ("t0 t1 ", ["new"])
    assert asyncio.run(log.state(sid)).sealed


def test_a_stream_of_a_process_that_died_is_left_to_others_by_one_that_drains() -> None:
    log = MemoryLog()
    old = Site("t0 ", Gate(), log=log)
    with serving(old.app) as server, reading(server) as connection:
        at = str(cursors(connection.until(b't0 "'))[-1])
    draining = Site(log=log)
    with serving(draining.app) as server:
        draining.guard.drain(grace=60)
        with reading(server, "/streams", last_event_id=at, **OURS) as connection:
            assert b'"reason":"shutdown"' in connection.rest()
        assert not asyncio.run(log.state(at.split(".")[0])).sealed


@pytest.mark.parametrize("kind", ["direct", "logged"])
def test_a_stream_that_still_waits_for_its_first_item_is_refused_as_if_it_came_now(kind: str) -> None:
    """Its headers have not left: a status says more than a stream that ends at once."""
    gate = Gate()
    peeking = Timing(linger=0.05, peek=60.0)
    site = Site(gate, "t0 ", timing=peeking)

    @guarded(timing=peeking)
    async def direct(request: Any) -> AsyncIterator[str]:
        async for item in site.source():
            yield item

    site.app.router.routes.append(Route("/direct", direct))
    with serving(site.app) as server, reading(server, "/direct" if kind == "direct" else "/tokens") as connection:
        wait_until(lambda: site.source.starts == 1)
        site.guard.drain(grace=0)
        head = connection.until(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1" in head.lower()
    assert site.source.closes == 1


def test_a_cancel_reaches_a_process_that_drains() -> None:
    site = Site("t0 ", Gate())
    with serving(site.app) as server, reading(server) as connection:
        sid = sid_of(connection.until(b't0 "'))
        site.guard.drain(grace=60)
        assert answer_of(server, "/streams", "DELETE", streamguard_stream=sid).status == 204
        assert b'"cancelled"' in connection.until(b"event: end")


def test_an_application_that_is_started_again_takes_streams_again() -> None:
    site = Site("t0 ")
    with serving(site.app, lifespan="on") as server:
        site.guard.drain()
        assert answer_of(server, "/tokens", **OURS).status == 503
    with serving(site.app, lifespan="on") as server:
        assert site.guard.ready
        assert text_of(answer_of(server, "/tokens", **OURS).body) == "t0 "
