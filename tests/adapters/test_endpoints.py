"""The endpoints of all streams, over sockets: every row of the refusals table, who may do what, and each verb."""

from __future__ import annotations

import json
import logging
import re
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from streamguard import anyone_with_the_id
from streamguard.adapters.endpoints import CORS_EXPOSED, CORS_HEADERS, Endpoints
from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.errors import FieldRefused
from streamguard.core.frame import Frame
from streamguard.core.negotiate import parse_answer
from streamguard.core.receipt import Verdict
from streamguard.log.base import Lease, Retention, SignalKind, StreamInfo, StreamState
from streamguard.log.memory import MemoryLog
from streamguard.runtime.runs import Detach, Run
from tests.adapters.asgi_apps import Response, exchange
from tests.adapters.logged_apps import (
    ASKING,
    OURS,
    SSE,
    Site,
    TroubledLog,
    cursors,
    reading,
    sid_of,
    text_of,
    wait_until,
)
from tests.adapters.servers import Gate, Server, serving

UNKNOWN = "AAAAAAAAAAAAAAAAAAAAAA.3.21.0badcafe"
TOKENS = [f"t{number} " for number in range(30)]


def whole(server: Server, **headers: str) -> list[Cursor]:
    """The cursors of a stream that was read to its end."""
    response = exchange(server.connect(), path="/tokens", **(headers or OURS))
    assert response.verdict is Verdict.COMPLETE
    return cursors(response.body)


def resume(server: Server, cursor: Cursor | str, asking: str = "ours", **headers: str) -> Response:
    """A request that bears a cursor: a GET at the endpoints, or an SDK's POST at the stream's own address."""
    method, own = ASKING[asking]
    path = "/streams" if method == "GET" else "/tokens"
    return exchange(server.connect(), method, path, last_event_id=str(cursor), **{**own, **headers})


def problem(response: Response) -> tuple[int, str]:
    body = json.loads(response.body)
    assert response.header("content-type") == "application/problem+json"
    assert response.header("cache-control") == "no-store, no-transform"
    assert response.clean
    assert body["status"] == response.status
    return response.status, body["code"]


def is_lost(response: Response, cursor: Cursor) -> bool:
    """Whether it is the one block that an EventSource comes back from once."""
    last = response.body.split(b"\n")
    return (response.status, response.clean, last[0], last[1].decode()) == (
        200,
        False,
        b"event: end",
        f"id: {cursor._replace(status='lost')}",
    )


# ---- the table of refusals ----------------------------------------------------------------------


@pytest.mark.parametrize("status", [True, False], ids=["final status", "sealed tail"])
class TestFinished:
    @pytest.mark.parametrize("asking", ["ours", "EventSource"])
    def test_a_reader_that_has_it_all_is_told_to_stop(self, asking: str, status: bool) -> None:
        with serving(Site(*TOKENS[:3]).app) as server:
            last = whole(server)[-1]
            response = resume(server, last if status else last._replace(status=None), asking)
        assert (response.status, response.body, response.header("cache-control")) == (
            204,
            b"",
            "no-store, no-transform",
        )

    @pytest.mark.parametrize(("ending", "clean"), [("complete", True), ("failed", False)])
    def test_a_post_of_an_sdk_gets_the_last_block_again(self, ending: str, clean: bool, status: bool) -> None:
        script = [*TOKENS[:3], *([] if clean else [RuntimeError("broke")])]
        with serving(Site(*script, dialect="openai").app) as server:
            first = exchange(server.connect(), "POST", "/tokens", **OURS)
            last = cursors(first.body)[-1]
            assert last.status == ending
            again = resume(server, last if status else last._replace(status=None), "SDK")
        assert (again.status, again.clean) == (200, clean)
        assert cursors(again.body) == [last]
        block = b"data: [DONE]" if clean else b'data: {"error"'
        assert again.body.count(b"\ndata: ") == 1
        assert block in again.body


class PurgedAt(MemoryLog):
    """A log of which somebody purges a stream in the middle of a request: before, or right after, the call `at`."""

    at = ""

    async def state(self, sid: str) -> StreamState:
        found = await super().state(sid)
        await self._purged("after state", sid)
        return found

    async def signal(self, sid: str, kind: SignalKind, payload: bytes = b"") -> None:
        await self._purged("before signal", sid)
        await super().signal(sid, kind, payload)
        await self._purged("after signal", sid)

    async def _purged(self, now: str, sid: str) -> None:
        if now == self.at:
            await self.purge(sid=sid)


@pytest.mark.parametrize(("status", "answer"), [(True, 204), (False, 409)])
def test_a_post_of_an_sdk_whose_stream_is_purged_meanwhile_is_answered_as_if_it_were_gone(
    status: bool, answer: int
) -> None:
    log = PurgedAt()
    with serving(Site(*TOKENS[:3], dialect="openai", log=log).app) as server:
        last = cursors(exchange(server.connect(), "POST", "/tokens", **OURS).body)[-1]
        log.at = "after state"
        assert resume(server, last if status else last._replace(status=None), "SDK").status == answer


def test_a_final_status_stops_a_reader_of_a_stream_that_is_gone() -> None:
    with serving(Site("t0 ").app) as server:
        for asking in ASKING:
            assert resume(server, f"{UNKNOWN}.complete", asking).status == 204


GONE = {
    "unknown": (404, "unknown_stream"),
    "purged": (404, "unknown_stream"),
    "another's": (404, "unknown_stream"),
    "trimmed": (410, "trimmed"),
    "misfit": (409, "misfit"),
    "ahead": (410, "log_lost"),
}


@pytest.mark.parametrize("asking", list(ASKING))
@pytest.mark.parametrize("case", list(GONE))
def test_a_cursor_that_finds_nothing_is_refused_in_its_readers_way(case: str, asking: str) -> None:
    gate = Gate()
    site = Site(*TOKENS[:4], gate, *TOKENS[4:], retention=Retention(max_bytes=3000 if case == "trimmed" else 1_000_000))
    with serving(site.app) as server:
        with reading(server) as cut:
            cut.until(b't3 "')
        gate.open()
        site.idle()
        cursor = cursors(cut.received)[2]
        headers = {}
        if case == "unknown":
            cursor = Cursor.parse(UNKNOWN)
        elif case == "purged":
            assert server.call(site.purge, cursor.sid) == 1
        elif case == "another's":
            headers = {"user": "bob"}
        elif case == "misfit":
            cursor = cursor._replace(crc=cursor.crc ^ 1)
        elif case == "ahead":
            cursor = cursor._replace(seq=99)
        response = resume(server, cursor, asking, **headers)
        if asking == "EventSource":
            assert is_lost(response, cursor)
            assert resume(server, cursor._replace(status="lost"), asking, **headers).status == 204
            return
        status, code = GONE[case]
        assert problem(response) == ((409 if asking == "SDK" else status), code)
        assert response.header("x-should-retry") == "false"
    assert site.source.starts == 1


@pytest.mark.parametrize("cursor", [True, False], ids=["resume", "start"])
@pytest.mark.parametrize("asking", list(ASKING))
def test_a_log_in_trouble_is_told_with_the_time_to_wait(
    asking: str, cursor: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log = TroubledLog()
    site = Site(*TOKENS[:3], log=log)
    with serving(site.app) as server:
        at = whole(server)[1]
        log.trouble = True
        method, own = ASKING[asking]
        response = resume(server, at, asking) if cursor else exchange(server.connect(), method, "/tokens", **own)
        if asking == "EventSource":
            assert (response.status, response.clean) == (200, False)
            assert re.fullmatch(rb": log_unavailable\nretry: [12]\d{3}\n\n", response.body)
        else:
            assert problem(response) == (503, "log_unavailable")
            assert response.header("retry-after") == "1"
            assert response.header("x-should-retry") == str(not cursor).lower()
        assert len([line for line in caplog.messages if line.endswith(": it is away")]) == 1
        log.trouble = False
        if cursor and asking != "SDK":
            assert text_of(resume(server, at, asking).body) == "t2 "
    assert site.source.starts == site.source.closes == 1


def test_another_principals_stream_and_none_are_the_same_answer_to_the_byte() -> None:
    with serving(Site("t0 ").app) as server:
        cursor = whole(server)[0]
        unknown = Cursor.parse(UNKNOWN)
        for method, path in (("GET", ""), ("HEAD", ""), ("DELETE", ""), ("GET", "/status"), ("GET", "?name=x")):
            for own in ({**OURS, "last_event_id": "{}"}, {"streamguard_stream": "{.sid}"}):
                answers = [
                    exchange(
                        server.connect(),
                        method,
                        f"/streams{path}",
                        user="bob",
                        **{name: value.format(at) for name, value in own.items()},
                    )
                    for at in (cursor, unknown)
                ]
                heads = [[field for field in answer.headers if field[0] != "date"] for answer in answers]
                assert answers[0].status == 404
                assert (heads[0], answers[0].body) == (heads[1], answers[1].body)


# ---- resume ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["Last-Event-ID", "?after=", "own address", "Streamguard-Stream", "in the path"])
def test_a_stream_is_read_on_from_a_cursor_and_without_one_from_the_start(how: str) -> None:
    gate = Gate()
    site = Site(*TOKENS[:3], gate, *TOKENS[3:6])
    with serving(site.app) as server:
        with reading(server) as cut:
            cut.until(b't2 "')
            at = cursors(cut.received)[1]
        asked: dict[str, tuple[str, dict[str, Any]]] = {
            "Last-Event-ID": ("/streams", {"last_event_id": str(at)}),
            "?after=": (f"/streams?after={at}", {}),
            "own address": ("/tokens", {"last_event_id": str(at)}),
            "Streamguard-Stream": ("/streams", {"streamguard_stream": at.sid}),
            "in the path": (f"/streams/{at.sid}", {}),
        }
        path, headers = asked[how]
        with reading(server, path, **OURS, **headers, connection="close") as again:
            again.until(b't2 "')
            gate.open()
            again.rest()
    from_start = how in ("Streamguard-Stream", "in the path")
    assert text_of(again.received) == "".join(TOKENS[0 if from_start else 2 : 6])
    assert [cursor.seq for cursor in cursors(again.received)] == list(range(1 if from_start else 3, 8))
    assert site.source.starts == 1


def test_a_stream_in_the_path_reads_on_at_its_own_cursor_only() -> None:
    with serving(Site(*TOKENS[:3]).app) as server:
        first, second = whole(server), whole(server)
        path = f"/streams/{first[0].sid}"
        read_on = exchange(server.connect(), path=path, last_event_id=str(first[1]), **SSE)
        crossed = exchange(server.connect(), path=path, last_event_id=str(second[1]), **OURS)
    assert text_of(read_on.body) == "t2 "
    assert problem(crossed) == (409, "misfit")


def test_ids_in_paths_can_be_switched_off() -> None:
    with serving(Site("t0 ", by_id=False).app) as server:
        at = whole(server)[0]
        assert problem(exchange(server.connect(), path=f"/streams/{at.sid}")) == (404, "no_such_endpoint")
        assert resume(server, at).verdict is not None


def test_a_request_that_names_no_stream_is_told_how() -> None:
    with serving(Site("t0 ").app) as server:
        for method in ("GET", "HEAD", "DELETE"):
            response = exchange(server.connect(), method, "/streams", last_event_id="the application's own")
            assert response.status == 400
        assert problem(exchange(server.connect(), path="/streams/status")) == (400, "no_stream")
        assert problem(exchange(server.connect(), path="/streams", streamguard_stream="x")) == (404, "unknown_stream")


def test_the_newest_stream_of_a_name_is_read_from_its_start() -> None:
    site = Site("t0 ", name=lambda request: request.query_params.get("chat"))
    with serving(site.app) as server:
        sids = [sid_of(exchange(server.connect(), path="/tokens?chat=seven")) for _ in range(2)]
        found = exchange(server.connect(), path="/streams?name=seven", **OURS)
        assert (sid_of(found), found.verdict) == (sids[-1], Verdict.COMPLETE)
        assert problem(exchange(server.connect(), path="/streams?name=eight")) == (404, "unknown_stream")
        assert problem(exchange(server.connect(), path="/streams?name=seven", user="bob")) == (404, "unknown_stream")
        status = json.loads(exchange(server.connect(), path="/streams/status?name=seven").body)
    assert (status["name"], status["status"]) == ("seven", "complete")


def test_a_name_that_could_be_guessed_names_nothing_to_callers_without_a_principal() -> None:
    site = Site("t0 ", authorize=anyone_with_the_id, name=lambda request: request.query_params["chat"])
    with serving(site.app) as server:
        for name, status in (("seven", 404), ("a-secret-of-22-letters", 200)):
            exchange(server.connect(), path=f"/tokens?chat={name}")
            assert exchange(server.connect(), path=f"/streams?name={name}").status == status


def test_head_says_what_get_would_and_reads_nothing() -> None:
    with serving(Site("t0 ").app) as server:
        seen = whole(server)
        head = exchange(server.connect(), "HEAD", "/streams", last_event_id=str(seen[0]), **OURS)
        assert (head.status, head.body, head.header("content-type")) == (200, b"", "text/event-stream; charset=utf-8")
        assert head.header("streamguard") is None
        assert exchange(server.connect(), "HEAD", "/streams", last_event_id=UNKNOWN, **OURS).status == 404
        assert exchange(server.connect(), "HEAD", "/streams", last_event_id=str(seen[-1]), **OURS).status == 204


# ---- who may ----------------------------------------------------------------------------------------


def test_each_verb_asks_for_its_action_with_a_request() -> None:
    site = Site("t0 ")
    with serving(site.app) as server:
        at = whole(server)[0]
        named = {"streamguard_stream": at.sid, "content_type": "application/json"}
        exchange(server.connect(), path="/tokens", last_event_id=str(at))
        for method, path in (
            ("GET", "/streams"),
            ("HEAD", "/streams"),
            ("POST", "/streams"),
            ("DELETE", "/streams"),
            ("GET", "/streams/status"),
            ("GET", "/streams/selftest"),
        ):
            exchange(server.connect(), method, path, **named)
    actions = ["start", "read", "read", "read", "ack", "cancel", "status", "start"]
    assert site.asked == [(action, "Request") for action in actions]


@pytest.mark.parametrize("sid", [True, False], ids=["there", "not there"])
def test_who_may_nothing_learns_nothing(sid: bool) -> None:
    with serving(Site("t0 ").app) as server:
        at = whole(server)[0] if sid else Cursor.parse(UNKNOWN)
        for method in ("GET", "POST", "DELETE"):
            response = exchange(server.connect(), method, "/streams", last_event_id=str(at), user="nobody")
            assert problem(response) == (403, "forbidden")
        for path in ("/streams/status", "/streams/selftest", "/tokens"):
            assert problem(exchange(server.connect(), path=path, user="nobody")) == (403, "forbidden")


def test_authorize_may_be_a_coroutine_function() -> None:
    async def authorize(request: Any, action: str) -> str | None:
        return "ann" if request.query_params.get("token") == "right" else None

    with serving(Site("t0 ", authorize=authorize).app) as server:
        assert exchange(server.connect(), path="/tokens?token=right").verdict is Verdict.COMPLETE
        assert exchange(server.connect(), path="/tokens?token=wrong").status == 403


# ---- cancel, status, self-test ------------------------------------------------------------------------


@pytest.mark.parametrize("negotiated", [True, False])
def test_a_cancel_ends_the_stream_and_only_a_reader_that_verifies_sees_a_clean_end(negotiated: bool) -> None:
    site = Site("t0 ", Gate())
    headers = OURS if negotiated else SSE
    with serving(site.app) as server, reading(server, **headers, connection="close") as connection:
        sid = sid_of(connection.until(b't0 "'))
        assert exchange(server.connect(), "DELETE", "/streams", streamguard_stream=sid).status == 204
        body = connection.rest()
        assert cursors(body)[-1].status == "cancelled"
        assert body.endswith(b"0\r\n\r\n") is negotiated
        site.source.wait_closed()
        site.idle()
        assert exchange(server.connect(), "DELETE", "/streams", streamguard_stream=sid).status == 204
    assert site.source.closes == 1


def test_a_cancel_of_a_stream_that_completed_is_never_a_false_204() -> None:
    with serving(Site("t0 ").app) as server:
        at = whole(server)[-1]
        assert problem(exchange(server.connect(), "DELETE", "/streams", last_event_id=str(at))) == (409, "ended")


class EndsAt(MemoryLog):
    """A log of which a stream ends as `status` in the middle of a cancel: before, or right after, it is recorded."""

    at, status = "", ""

    async def signal(self, sid: str, kind: SignalKind, payload: bytes = b"") -> None:
        zero = cursor_zero(sid)
        terminal = [Frame(1, 0, zero.crc, b"", status=self.status)]
        if self.at == "before":
            await self.append(Lease(sid, 1, 60.0), zero, terminal)
        await super().signal(sid, kind, payload)
        if self.at == "after":
            await self.append(Lease(sid, 1, 60.0), zero, terminal)


@pytest.mark.parametrize("at", ["before", "after"])
@pytest.mark.parametrize(("status", "answer"), [("complete", 409), ("failed", 409), ("cancelled", 204)])
def test_a_cancel_of_a_stream_that_ends_meanwhile_is_answered_by_its_end(at: str, status: str, answer: int) -> None:
    log = EndsAt()
    with serving(Site("t0 ", log=log).app) as server:

        async def elsewhere() -> Any:
            return (await log.create(StreamInfo("B" * 22, principal="ann"), 60.0)).sid

        sid: Any = server.call(elsewhere)
        log.at, log.status = at, status
        refused = exchange(server.connect(), "DELETE", "/streams", streamguard_stream=sid)
        assert refused.status == answer
        if answer == 409:
            assert problem(refused) == (409, "ended")
            assert f"as {status}".encode() in refused.body


def test_a_cancel_ends_a_stream_that_nobody_generates() -> None:
    site = Site("t0 ")
    with serving(site.app) as server:

        async def orphan() -> Any:
            info = StreamInfo("B" * 22, principal="ann")
            await site.log.release(await site.log.create(info, 60.0))
            return info.sid

        sid: Any = server.call(orphan)
        assert exchange(server.connect(), "DELETE", "/streams", streamguard_stream=sid).status == 204
        status = json.loads(exchange(server.connect(), path="/streams/status", streamguard_stream=sid).body)
    assert status["status"] == "cancelled"


@pytest.mark.parametrize("at", ["before signal", "after signal"])
def test_a_cancel_of_a_stream_that_is_purged_meanwhile_finds_none(at: str) -> None:
    site = Site("t0 ", log=PurgedAt())
    with serving(site.app) as server:

        async def elsewhere() -> Any:
            return (await site.log.create(StreamInfo("B" * 22, principal="ann"), 60.0)).sid

        sid: Any = server.call(elsewhere)
        site.log.at = at  # type: ignore[attr-defined]
        assert problem(exchange(server.connect(), "DELETE", "/streams", streamguard_stream=sid)) == (
            404,
            "unknown_stream",
        )


def test_the_status_of_a_stream_tells_none_of_its_text() -> None:
    gate = Gate()
    site = Site("secret ", gate, "more ")
    with serving(site.app) as server, reading(server, connection="close") as connection:
        sid = sid_of(connection.until(b'secret "'))
        response = exchange(server.connect(), path="/streams/status", streamguard_stream=sid)
        at = cursors(connection.received)[-1]
        status = json.loads(response.body)
        assert response.header("content-type") == "application/json"
        assert response.header("cache-control") == "no-store, no-transform"
        assert b"secret" not in response.body
        assert status.pop("age") >= 0
        assert status == {
            "status": "streaming",
            "dialect": "native",
            "name": None,
            "cursor": str(at),
            "first": str(cursor_zero(sid)),
            "frames": 1,
            "bytes": at.offset,
            "cancelled": False,
            "generated": True,
            "readers_here": 1,
        }
        gate.open()
        connection.rest()
        site.idle()
        after = json.loads(exchange(server.connect(), path="/streams/status", streamguard_stream=sid).body)
        assert (after["status"], after["generated"], after["readers_here"]) == ("complete", False, 0)


def test_the_self_test_fails_and_its_abort_arrives() -> None:
    with serving(Site("t0 ").app) as server:
        response = exchange(server.connect(), path="/streams/selftest")
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(f"{server.url}/streams/selftest")
    assert (response.status, response.clean, response.verdict) == (200, False, Verdict.FAILED)
    assert text_of(response.body) == "this stream fails on purpose"


def test_other_methods_and_addresses_are_told() -> None:
    with serving(Site("t0 ").app) as server:
        put = exchange(server.connect(), "PUT", "/streams")
        assert (problem(put), put.header("allow")) == ((405, "method_not_allowed"), "GET, HEAD, POST, DELETE, OPTIONS")
        assert problem(exchange(server.connect(), "POST", "/streams/status")) == (405, "method_not_allowed")
        assert problem(exchange(server.connect(), path="/streams/a/b")) == (404, "no_such_endpoint")
        options = exchange(server.connect(), "OPTIONS", "/streams")
        assert (options.status, options.header("allow")) == (204, "GET, HEAD, POST, DELETE, OPTIONS")


# ---- what a reader tells --------------------------------------------------------------------------------


def tell(server: Server, sid: str, body: Any, kind: str = "application/json", **headers: str) -> Response:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    own = {"streamguard_stream": sid, "content_type": kind, **headers}
    return exchange(server.connect(), "POST", "/streams", body=data, **own)


def test_an_acknowledgement_counts_for_its_connection_and_only_for_what_that_was_given() -> None:
    site = Site(*TOKENS[:3], Gate())
    with serving(site.app) as server, reading(server) as connection:
        sid = sid_of(connection.until(b't2 "'))
        (reader,) = site.guard.readers
        seen = cursors(connection.received)
        assert f'reader="{reader.name}"'.encode() in connection.received
        assert len(reader.name) == 11
        for cursor, acked in ((seen[1], seen[1]), (seen[0], seen[1]), (seen[2], seen[2])):
            assert tell(server, sid, {"reader": reader.name, "ack": str(cursor)}).status == 204
            assert reader.acked == acked
        for wrong in (
            seen[1]._replace(crc=1),
            seen[2]._replace(seq=9),
            Cursor.parse(UNKNOWN),
        ):
            assert problem(tell(server, sid, {"reader": reader.name, "ack": str(wrong)})) == (409, "misfit")
        assert problem(tell(server, sid, {"reader": "another"})) == (409, "not_here")
        assert problem(tell(server, sid, {"reader": reader.name}, user="bob")) == (404, "unknown_stream")
        assert reader.acked == seen[2]


def test_credit_is_not_granted_here_and_its_sender_is_told_so() -> None:
    with serving(Site("t0 ", Gate()).app) as server, reading(server) as connection:
        sid = sid_of(connection.until(b't0 "'))
        name = connection.received.partition(b'reader="')[2][:11].decode()
        answer = tell(server, sid, {"reader": name, "credit": [64, 65536]})
        assert (answer.status, answer.header("streamguard")) == (204, "v=1, credit=?0")
        assert tell(server, sid, {"reader": name}).header("streamguard") is None


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"3", {}, {"reader": 1}, {"reader": "a", "ack": "x"}, {"reader": "a", "ack": 1}]
    + [{"reader": "a", "credit": wrong} for wrong in (1, [], [1], [1, -1], [1, 2, 3], [True, 1], ["1", "2"])]
    + [b"[" * 4000],
)
def test_a_body_that_is_none_is_told(body: Any) -> None:
    with serving(Site("t0 ").app) as server:
        assert problem(tell(server, "A" * 22, body)) == (400, "bad_request")


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_what_a_form_of_another_site_could_post_is_refused(kind: str) -> None:
    with serving(Site("t0 ").app) as server:
        assert problem(tell(server, "A" * 22, {"reader": "a"}, kind)) == (415, "not_json")
        assert problem(tell(server, "A" * 22, {"reader": "a" * 5000})) == (413, "too_large")


# ---- addresses, other origins ------------------------------------------------------------------------------


def test_ids_stay_out_of_the_access_log(caplog: pytest.LogCaptureFixture) -> None:
    """The address that answers name has no id; the two forms that have one are for those who can set no header."""
    site = Site(*TOKENS[:3], name="chat")
    logger = logging.getLogger("uvicorn.access")
    logger.addHandler(caplog.handler)
    logger.setLevel(logging.INFO)
    try:
        with serving(site.app, access_log=True) as server:
            seen = whole(server)
            sid = seen[0].sid
            resume(server, seen[0])
            resume(server, seen[0], "EventSource")
            resume(server, seen[0], "SDK")
            named = {"streamguard_stream": sid}
            for method, path in (("GET", ""), ("HEAD", ""), ("DELETE", ""), ("GET", "/status"), ("GET", "?name=chat")):
                exchange(server.connect(), method, f"/streams{path}", **named)
            tell(server, sid, {"reader": "a", "ack": str(seen[0])})
            quiet = caplog.text
            exchange(server.connect(), path=f"/streams/{sid}")
            wait_until(lambda: caplog.text.count("HTTP/1.1") == 11)
    finally:
        logger.removeHandler(caplog.handler)
    assert "GET /streams HTTP/1.1" in quiet
    assert sid not in quiet
    assert sid in caplog.text


@pytest.mark.parametrize("where", ["at the root", "behind a root path", "mounted", "in a mount of its own"])
def test_the_address_that_an_answer_names_is_where_the_endpoints_are(where: str) -> None:
    site = Site(*TOKENS[:3])
    app, prefix, config = site.app, "", {}
    stream = "/tokens"
    if where == "behind a root path":
        config, prefix = {"root_path": "/v1"}, "/v1"
    elif where == "mounted":
        app, prefix = Starlette(routes=[Mount("/api", app=site.app)]), "/api"
        stream = "/api/tokens"
    elif where == "in a mount of its own":
        tokens = next(route for route in app.router.routes if getattr(route, "path", "") == "/tokens")
        assert isinstance(tokens, Route)
        app.router.routes.append(Mount("/inner", routes=[tokens]))
        stream = "/inner/tokens"
    with serving(app, **config) as server:
        response = exchange(server.connect(), path=stream, **OURS)
        assert f'resume="{prefix}/streams"' in (response.header("streamguard") or "")
        assert f'"resume":"{prefix}/streams"'.encode() in response.body
        # A proxy with a root path strips it before it hands a request on.
        path = "/streams" if where == "behind a root path" else f"{prefix}/streams"
        at = str(cursors(response.body)[0])
        assert text_of(exchange(server.connect(), path=path, last_event_id=at, **OURS).body) == "t1 t2 "


@pytest.mark.parametrize("mount", ["/münchen", "/a b", '/a"b', "/a%b", "/a?b", "/a#b", "/a:b@c;d=e,f", "/a%20b"])
def test_the_address_that_an_answer_names_is_percent_encoded(mount: str) -> None:
    """It is resolved against the request's own, as any link is."""
    site = Site(*TOKENS[:3])
    with serving(Starlette(routes=[Mount(mount, app=site.app)])) as server:
        response = exchange(server.connect(), path=f"{quote(mount)}/tokens", **OURS)
        assert response.verdict is Verdict.COMPLETE
        answer = parse_answer(response.header("streamguard"))
        assert answer is not None
        assert answer.resume is not None
        assert answer.resume.isascii()
        assert unquote(answer.resume) == f"{mount}/streams"
        where = urlsplit(urljoin(f"http://test{quote(mount)}/tokens", answer.resume))
        assert (where.path, where.query, where.fragment) == (answer.resume, "", "")
        at = str(cursors(response.body)[0])
        assert text_of(exchange(server.connect(), path=where.path, last_event_id=at, **OURS).body) == "t1 t2 "


def test_an_answer_whose_headers_cannot_be_written_leaves_no_reader_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **options: Any) -> Any:
        raise FieldRefused("resume")

    site = Site("t0 ")
    monkeypatch.setattr("streamguard.adapters.reading.answer_headers", refused)
    with serving(site.app) as server:
        assert exchange(server.connect(), path="/tokens", **OURS).status == 500
        site.idle()


def test_a_reader_whose_run_cannot_be_left_leaves_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    left = Run.leave

    def broken(run: Run) -> None:
        left(run)
        raise RuntimeError("it could not be left")

    site = Site("t0 ")
    monkeypatch.setattr(Run, "leave", broken)
    with serving(site.app) as server:
        exchange(server.connect(), path="/tokens", **OURS)
        site.idle()


def test_an_endpoint_that_catches_all_does_not_hide_them() -> None:
    async def anything(request: Any) -> PlainTextResponse:
        return PlainTextResponse("anything")

    site = Site("t0 ", installed=False)
    site.app.router.routes.append(Route("/{path:path}", anything))
    site.guard.install(site.app)
    with serving(site.app) as server:
        assert text_of(resume(server, cursor_zero(whole(server)[0].sid)).body) == "t0 "


def test_pages_of_another_origin_are_let_in_by_the_applications_own_cors_layer() -> None:
    site = Site(*TOKENS[:2])
    site.app.add_middleware(
        CORSMiddleware,
        allow_origins=["https://page.example"],
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=CORS_HEADERS,
        expose_headers=CORS_EXPOSED,
    )
    origin = {"origin": "https://page.example"}
    with serving(site.app) as server:
        asked = ", ".join(name.lower() for name in CORS_HEADERS)
        preflight = exchange(
            server.connect(),
            "OPTIONS",
            "/streams",
            access_control_request_method="DELETE",
            access_control_request_headers=asked,
            **origin,
        )
        answer = exchange(server.connect(), path="/tokens", **OURS, **origin)
    assert preflight.status == 200
    allowed = {name.strip().lower() for name in (preflight.header("access-control-allow-headers") or "").split(",")}
    assert allowed >= {name.lower() for name in CORS_HEADERS}
    assert (answer.header("access-control-expose-headers") or "").lower() == "streamguard"
    assert answer.header("access-control-allow-origin") == "https://page.example"


@pytest.mark.parametrize("path", ["streams", "/streams/", ""])
def test_a_path_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="begins with a slash"):
        Endpoints(Site("t0 ").guard, path)


def test_a_guard_is_installed_once() -> None:
    site = Site("t0 ")
    with pytest.raises(RuntimeError, match="installed already, at /streams"):
        site.guard.install(site.app)


def test_plain_asgi_serves_them_too() -> None:
    """Without a framework `authorize` is given the scope."""
    site = Site(*TOKENS[:3], on_disconnect=Detach(5.0), authorize=lambda asked, action: "ann")
    endpoints = Endpoints(site.guard, "/elsewhere")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await (endpoints if scope["path"].startswith("/elsewhere") else site.app)(scope, receive, send)

    with serving(app) as server:
        at = whole(server)[0]
        response = exchange(server.connect(), path="/elsewhere", last_event_id=str(at), **OURS)
        assert text_of(response.body) == "t1 t2 "
        assert exchange(server.connect(), path="/elsewhere/status", streamguard_stream=at.sid).status == 200
    assert site.asked[-1] == ("status", "dict")


@pytest.mark.parametrize("accept", ["text/event-stream, application/x-ndjson", "*/*"])
def test_a_client_that_verifies_goes_on_over_the_carrier_that_the_stream_began_with(accept: str) -> None:
    """Though it may accept server-sent events too, and asks by GET, as an EventSource does."""
    with serving(Site(*TOKENS[:3], wire="ndjson").app) as server:
        first = httpx.get(f"{server.url}/tokens", headers=OURS)
        zero = json.loads(first.text.splitlines()[0])["open"]
        again = httpx.get(f"{server.url}/streams", headers={**OURS, "last-event-id": zero, "accept": accept})
    assert "x-ndjson" in again.headers["content-type"]
    assert again.text == first.text
