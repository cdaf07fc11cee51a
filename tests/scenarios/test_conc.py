"""Several readers of one stream, and several streams of one reader."""

from __future__ import annotations

import logging
import re
from contextlib import ExitStack, suppress

import httpx
import pytest

from streamguard.client import ReaderLimits, Verdict, stream_sync
from streamguard.core.cursor import cursor_zero
from streamguard.core.errors import ConnectLimitExceeded
from streamguard.runtime.timing import Timing
from tests.adapters.asgi_apps import exchange
from tests.adapters.logged_apps import OURS, Site, cursors, reading, sid_of, text_of, wait_until
from tests.adapters.servers import Gate, serving
from tests.client.reading import NO_TLS


@pytest.mark.parametrize("readers", [2, 3])
def test_each_of_several_readers_gets_all_frames(readers: int) -> None:
    gate = Gate()
    site = Site("t0 ", "t1 ", gate, "t2 ")
    with serving(site.app) as server, ExitStack() as stack:
        first = stack.enter_context(reading(server, connection="close", **OURS))
        sid = sid_of(first.until(b't1 "'))
        others = [
            stack.enter_context(reading(server, "/streams", streamguard_stream=sid, connection="close", **OURS))
            for _ in range(readers - 1)
        ]
        for other in others:
            other.until(b't1 "')
        gate.open()
        bodies = [one.rest() for one in (first, *others)]
    assert [text_of(body) for body in bodies] == ["t0 t1 t2 "] * readers
    assert [[cursor.seq for cursor in cursors(body)] for body in bodies] == [[1, 2, 3, 4]] * readers
    assert site.source.starts == 1


@pytest.mark.parametrize("begins", ["first", "last"])
def test_a_reader_that_stalls_ends_as_slow_and_the_others_are_whole(
    begins: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Who begins first waits for each frame; who begins last is written all of them at once, the end included."""
    caplog.set_level(logging.INFO, "streamguard")
    count, text = 400, "x" * 20_000  # far more than sockets and transports hold
    site = Site(*[text] * count, timing=Timing(write=1.0, linger=0.05))
    with serving(site.app) as server, server.connect(receive_buffer=4096) as stalled:
        if begins == "first":
            stalled.request("GET", "/tokens", **OURS)
            sid = sid_of(stalled.until(b"\r\n\r\n"))
        else:
            with reading(server, connection="close", **OURS) as first:
                sid = sid_of(first.rest())
            stalled.request("GET", "/tokens", last_event_id=str(cursor_zero(sid)), **OURS)
            stalled.until(b"\r\n\r\n")
        for _ in range(2):
            with reading(server, "/streams", streamguard_stream=sid, connection="close", **OURS) as quick:
                body = quick.rest()
            assert (len(text_of(body)), cursors(body)[-1].status) == (count * len(text), "complete")
        site.idle()  # all while it takes nothing
        with suppress(ConnectionResetError):  # which overtakes what was sent, or does not
            stalled.rest()
        assert b".complete" not in stalled.received
        found = exchange(server.connect(), path="/streams", streamguard_stream=sid, **OURS)
    assert found.verdict is Verdict.COMPLETE  # the stream is none the worse for it
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert re.search(f"(is over{'' if begins == 'last' else '|goes on'}): a reader is not served any more", line)
    assert "slow: the reader took nothing for too long" in line
    assert site.source.starts == 1


def test_a_seventh_stream_of_a_pool_of_six_is_told_why_it_waits_in_vain() -> None:
    gate = Gate()
    site = Site("t0 ", gate, "t1 ")
    with (
        serving(site.app) as server,
        httpx.Client(verify=NO_TLS, limits=httpx.Limits(max_connections=6), timeout=0.05) as client,
        ExitStack() as stack,
    ):
        url = f"{server.url}/tokens"
        answers = [stack.enter_context(stream_sync("GET", url, client=client)) for _ in range(6)]
        limits = ReaderLimits(connect=0.05)
        with pytest.raises(ConnectLimitExceeded) as caught, stream_sync("GET", url, client=client, limits=limits):
            pass
        with pytest.raises(httpx.PoolTimeout):
            client.get(url)
        gate.open()
        assert [answer.read() for answer in answers] == ["t0 t1 "] * 6
        with stream_sync("GET", url, client=client) as seventh:
            assert seventh.read() == "t0 t1 "
        wait_until(lambda: not len(site.guard.readers))
    assert "the client's pool" in str(caught.value)
    assert "each open stream keeps one" in str(caught.value)
