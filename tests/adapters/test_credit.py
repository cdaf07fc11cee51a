"""Credit over sockets: asked for in the header, granted by POST, and what it keeps from being sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamguard.core.credit import Sent
from streamguard.core.negotiate import parse_answer
from streamguard.log.base import Retention
from streamguard.log.memory import MemoryLog
from streamguard.runtime.timing import Timing
from tests.adapters.asgi_apps import Response, exchange
from tests.adapters.logged_apps import OURS, SSE, Site, cursors, reading, sid_of, wait_until
from tests.adapters.servers import Connection, Gate, Server, serving
from tests.adapters.test_endpoints import problem

TOKENS = [f"t{number} " for number in range(30)]
CREDIT: dict[str, Any] = {"streamguard": "v=1, credit=(4 65536)"}


def tell(server: Server, connection: Connection, **body: Any) -> Response:
    """A POST of the reader of a connection."""
    told = {"reader": name_of(connection), **body}
    own = {"streamguard_stream": sid_of(connection.received), "content_type": "application/json"}
    return exchange(server.connect(), "POST", "/streams", body=json.dumps(told).encode(), **own)


def name_of(connection: Connection) -> str:
    return connection.received.partition(b'reader="')[2][:11].decode()


def frames(connection: Connection) -> int:
    return len(cursors(connection.received))


def test_credit_that_is_asked_for_is_echoed_and_a_grant_lets_more_go() -> None:
    site = Site(*TOKENS)
    with serving(site.app) as server, reading(server, **CREDIT) as connection:
        connection.until(b'data: "t')
        head = connection.received.partition(b"streamguard: ")[2].partition(b"\r\n")[0]
        answer = parse_answer(head.decode())
        assert answer is not None
        assert answer.credit == (4, 65536)
        connection.until(b't3 "')
        (reader,) = site.guard.readers
        assert reader.flow is not None
        wait_until(lambda: reader.flow.blocked)  # type: ignore[union-attr]
        assert frames(connection) == 4
        assert tell(server, connection, credit=[10, 65536]).status == 204
        connection.until(b't9 "')
        wait_until(lambda: reader.flow.blocked)  # type: ignore[union-attr]
        assert frames(connection) == 10
        told = tell(server, connection, ack=str(cursors(connection.received)[9]), credit=[99, 65536])
        assert (told.status, told.header("streamguard")) == (204, None)
        connection.until(b"event: end")
        assert b't29 "' in connection.received
        assert reader.acked is not None
        assert reader.acked.seq == 10


@pytest.mark.parametrize("asked", ["v=1", "v=1, credit=(0 5)", "v=1, credit=?1", None])
def test_without_credit_that_can_be_given_all_is_sent(asked: str | None) -> None:
    site = Site(*TOKENS)
    headers: dict[str, Any] = SSE if asked is None else {"streamguard": asked}
    with serving(site.app) as server, reading(server, **headers) as connection:
        connection.until(b"event: end")
        assert b"credit=(" not in connection.received


def test_an_answer_over_http_1_0_that_is_served_whole_waits_for_no_grant() -> None:
    with serving(Site(*TOKENS, http10="buffer").app) as server, server.connect() as connection:
        connection.request("GET", "/tokens", "1.0", **CREDIT)
        assert b"event: end" in connection.rest()
        assert b"credit=(" not in connection.received


def test_without_endpoints_to_grant_at_there_is_no_credit() -> None:
    with serving(Site(*TOKENS, installed=False).app) as server, reading(server, **CREDIT) as connection:
        connection.until(b"event: end")
        assert b"credit=(" not in connection.received


def test_credit_goes_on_from_where_a_connection_begins() -> None:
    site = Site(*TOKENS)
    with serving(site.app) as server:
        with reading(server, **CREDIT) as connection:
            connection.until(b't3 "')
            last = cursors(connection.received)[3]
        with reading(server, path="/streams", last_event_id=str(last), **CREDIT) as connection:
            connection.until(b't7 "')
            (reader,) = [one for one in site.guard.readers if one.start.seq == 4]
            wait_until(lambda: reader.flow is not None and reader.flow.blocked)
            assert [cursor.seq for cursor in cursors(connection.received)] == [5, 6, 7, 8]


def test_a_reader_that_answers_no_beat_is_dropped_though_it_reads_on() -> None:
    site = Site("t0 ", Gate(), timing=Timing(heartbeat=0.05, linger=0.05))
    with serving(site.app) as server, reading(server, **CREDIT) as connection:
        with pytest.raises(ConnectionResetError):
            connection.rest()
        assert connection.received.count(b": hb ") == 3
        wait_until(lambda: not len(site.guard.readers))


def test_what_is_told_of_a_frame_that_the_log_has_trimmed_counts() -> None:
    gate = Gate()
    site = Site(*TOKENS[:6], gate, *["x" * 1000] * 30, retention=Retention(max_bytes=8000))
    with serving(site.app) as server, reading(server, **CREDIT) as connection:
        connection.until(b't3 "')
        (reader,) = site.guard.readers
        wait_until(lambda: reader.flow.blocked)  # type: ignore[union-attr]
        gate.open()
        wait_until(lambda: not len(site.guard.runs))
        reader.flow._sent = Sent("")  # type: ignore[union-attr]  # of many frames only some are remembered
        assert tell(server, connection, ack=str(cursors(connection.received)[1]), credit=[99, 65536]).status == 204


class Shared(MemoryLog):
    """Two guards of one process over it are like two processes: each has its own readers."""

    shared = True


def test_what_is_told_to_another_process_reaches_the_connection() -> None:
    log = Shared()
    here, there = Site(*TOKENS, log=log), Site("other", log=log)
    with serving(here.app) as server, reading(server, **CREDIT) as connection:
        connection.until(b't3 "')
        (reader,) = here.guard.readers
        sid = sid_of(connection.received)
        for cursor, credit in ((cursors(connection.received)[0]._replace(crc=1), None), (None, [10, 65536])):
            told = {"reader": name_of(connection), "ack": cursor and str(cursor), "credit": credit}
            request = passed_on(server, there, sid, told)
            assert request == 202
        connection.until(b't9 "')
        assert reader.acked is None
        last = cursors(connection.received)[9]
        assert passed_on(server, there, sid, {"reader": reader.name, "ack": str(last), "credit": [40, 9999]}) == 202
        connection.until(b"event: end")
        assert reader.acked == last


def passed_on(server: Server, site: Site, sid: str, told: dict[str, Any]) -> int:
    """The status of a POST at the other guard, in the loop of the log's."""
    statuses: list[int] = []

    async def post() -> None:
        body = json.dumps(told).encode()
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        headers = [(b"content-type", b"application/json"), (b"streamguard-stream", sid.encode())]
        scope = {"type": "http", "method": "POST", "path": "/streams", "query_string": b"", "headers": headers}

        async def receive() -> Any:
            return messages.pop()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        await site.app({**scope, "http_version": "1.1", "root_path": ""}, receive, send)

    server.call(post)  # type: ignore[arg-type]
    return statuses[0]


def test_a_reader_that_left_leaves_nobody_that_listens() -> None:
    site = Site("t0 ", "t1 ", log=Shared())
    with serving(site.app) as server:
        with reading(server, **CREDIT) as connection:
            connection.until(b"event: end")
        site.idle()
        wait_until(lambda: not len(site.guard.runs.background))


def test_without_a_log_that_is_shared_a_reader_of_another_process_is_not_here() -> None:
    site = Site("t0 ", Gate())
    with serving(site.app) as server, reading(server, **OURS) as connection:
        connection.until(b't0 "')
        own = {"streamguard_stream": sid_of(connection.received), "content_type": "application/json"}
        answer = exchange(server.connect(), "POST", "/streams", body=b'{"reader": "AAAAAAAAAAA"}', **own)
        assert problem(answer) == (409, "not_here")
