"""A server that goes away while streams that outlive their connections are generated and read."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from streamguard.observe.hooks import Outcome
from streamguard.runtime import report
from streamguard.runtime.runs import Detach
from tests.adapters.logged_apps import OURS, Site, cursors, reading, sid_of, text_of, wait_until
from tests.adapters.servers import DEADLINE, Gate, serving


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
