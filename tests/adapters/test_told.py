"""What the log says of a stream under a guard: one line where it failed, and none of an end where it lives on."""

from __future__ import annotations

import logging
from contextlib import suppress

import pytest

from streamguard.core.cursor import cursor_zero
from streamguard.runtime.timing import Timing
from tests.adapters.logged_apps import OURS, Site, reading, sid_of, wait_until
from tests.adapters.servers import Gate, serving


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [
        (record.levelno, record.getMessage())
        for record in caplog.records
        if record.name == "streamguard" and record.getMessage().startswith("stream ")
    ]


def test_a_reader_that_leaves_is_told_of_as_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "streamguard")
    gate = Gate()
    site = Site("t0 ", gate, "t1 ")
    with serving(site.app) as server:
        with reading(server, **OURS) as connection:
            connection.until(b't0 "')
        wait_until(lambda: not len(site.guard.readers))
        (told,) = lines(caplog)
        assert told[0] == logging.INFO
        assert "goes on: a reader is not served any more, after 1 items: gone: the reader left" in told[1]
        gate.open()
        site.idle()
    assert len(lines(caplog)) == 1


def test_of_the_last_reader_of_a_stream_that_nobody_can_come_back_to_it_is_said_that_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "streamguard")
    site = Site("t0 ", Gate())
    with serving(site.app) as server:
        with server.connect() as connection:
            connection.request("POST", "/tokens")
            connection.until(b"t0 ")
        site.idle()
    first, last = [line for _, line in lines(caplog)]
    assert "of POST /tokens ends now: a reader is not served any more, after 1 items: gone: the reader left" in first
    assert "of POST /tokens ended as cancelled after 1 items: gone: the reader left" in last


@pytest.mark.parametrize(
    ("timing", "why"),
    [
        (Timing(heartbeat=0.2, write=0.05, linger=0.05), "slow: the reader took nothing for too long"),
        (Timing(heartbeat=0.05, linger=0.05), "gone: the reader answered none of 3 signs of life"),
    ],
    ids=["slow", "gone"],
)
def test_a_reader_that_is_dropped_is_a_warning(timing: Timing, why: str, caplog: pytest.LogCaptureFixture) -> None:
    """It has credit for one frame, and neither grants more nor answers."""
    site = Site("t0 ", "t1 ", timing=timing)
    with serving(site.app) as server, reading(server, streamguard="v=1, credit=(1 65536)") as connection:
        with suppress(ConnectionResetError):  # which is how one that is gone is dropped
            connection.rest()
        wait_until(lambda: not len(site.guard.readers))
    (told,) = lines(caplog)
    assert told[0] == logging.WARNING
    assert f"is over: a reader is not served any more, after 1 items: {why}" in told[1]


def test_of_a_stream_that_is_not_generated_here_it_is_not_said_whether_it_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    site = Site("t0 ", "t1 ", timing=Timing(heartbeat=0.2, write=0.05, linger=0.05))
    with serving(site.app) as server:
        with reading(server, connection="close", **OURS) as whole:
            sid = sid_of(whole.rest())
        site.idle()
        at = str(cursor_zero(sid))
        with reading(server, last_event_id=at, streamguard="v=1, credit=(1 65536)") as connection:
            with suppress(ConnectionResetError):
                connection.rest()
            wait_until(lambda: not len(site.guard.readers))
    (told,) = lines(caplog)
    assert "lives in its log: a reader is not served any more, after 1 items: slow: the reader took" in told[1]


def test_a_source_that_fails_at_once_is_told_of_once_without_advice_that_does_not_hold(
    caplog: pytest.LogCaptureFixture,
) -> None:
    site = Site(ValueError("oh"))
    with serving(site.app) as server, reading(server, connection="close", **OURS) as connection:
        connection.rest()
        site.idle()
    (told,) = lines(caplog)
    assert told[0] == logging.ERROR
    assert "ended as failed after 0 items" in told[1]
    assert "peek" not in told[1]


def test_a_reader_that_a_newer_one_replaced_ends_no_stream(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "streamguard")
    gate = Gate()
    site = Site("t0 ", gate, "t1 ", max_readers=1, name="chat")
    with serving(site.app) as server, reading(server, connection="close", **OURS) as first:
        first.until(b't0 "')
        with reading(server, "/streams?name=chat", connection="close", **OURS) as second:
            second.until(b't0 "')
            first.rest()
            gate.open()
            second.rest()
        site.idle()
    assert [level for level, _ in lines(caplog)] == [logging.INFO]
    assert "replaced: a newer reader" in lines(caplog)[0][1]


def test_a_server_that_goes_away_ends_no_stream(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "streamguard")
    site = Site("t0 ", Gate())
    with serving(site.app) as server, reading(server, connection="close", **OURS) as connection:
        connection.until(b't0 "')
    assert {level for level, _ in lines(caplog)} == {logging.INFO}
    assert all("goes on: " in line for _, line in lines(caplog))
    last = lines(caplog)[-1][1]
    assert "goes on: this process lets go of it after 1 items: shutdown: the server is going away" in last
