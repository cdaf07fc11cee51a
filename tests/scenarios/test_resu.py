"""Coming back to a stream that was cut: with which cursor, to what, and who may."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from starlette.requests import Request

import streamguard.app
from streamguard.client import ResumePolicy, Verdict
from streamguard.client.head import Refusal
from streamguard.client.resume import Attempt, ResumeState
from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.errors import StreamGap
from streamguard.core.wire import SseDecoder
from streamguard.log.base import Retention
from streamguard.log.kept import FRAME_COST
from streamguard.log.memory import MemoryLog
from tests.adapters.asgi_apps import Response, exchange
from tests.adapters.logged_apps import ASKING, OURS, SSE, Site, cursors, reading, sid_of, text_of
from tests.adapters.servers import Gate, Server, serving
from tests.client.reading import read
from tests.processes.router import Router
from tests.scenarios.stacks import read as verified

AT_ONCE = ResumePolicy(attempts=2, base=0.0, max_wait=0.0)


def words(count: int) -> list[str]:
    return [f"t{number} " for number in range(count)]


def resume(server: Server, cursor: Cursor, asking: str = "ours") -> Response:
    method, own = ASKING[asking]
    path = "/streams" if method == "GET" else "/tokens"
    return exchange(server.connect(), method, path, last_event_id=str(cursor), **own)


# ---- which frames come ------------------------------------------------------------------------------


def test_a_reader_that_comes_back_gets_the_later_frames_only() -> None:
    gate = Gate()
    site = Site(*words(12), gate, *words(20)[12:])
    with serving(site.app) as server:
        with reading(server) as cut:
            cut.until(b't11 "')
        gate.open()
        at = cursors(cut.received)[-1]
        rest = resume(server, at)
    assert [cursor.seq for cursor in cursors(rest.body)] == list(range(13, 22))  # eight, and the terminal
    assert text_of(cut.received) + text_of(rest.body) == "".join(words(20))


@pytest.mark.parametrize("asking", list(ASKING))
def test_a_cursor_of_before_a_restart_is_refused_and_starts_nothing(asking: str) -> None:
    with serving(Site(*words(20)).app) as server:
        at = cursors(exchange(server.connect(), path="/tokens", **OURS).body)[11]
    site = Site(*words(20))  # the same application, whose memory begins anew
    with serving(site.app) as server:
        answer = resume(server, at, asking)
    assert b"t12" not in answer.body
    assert b'"unknown_stream"' in answer.body
    assert answer.status == {"ours": 404, "EventSource": 200, "SDK": 409}[asking]
    assert answer.clean is (asking != "EventSource")
    assert site.source.starts == 0


def test_a_reader_whose_server_was_restarted_has_a_gap_and_no_mixed_text() -> None:
    gate = Gate()
    before, after = Site(*words(12), gate), Site(*words(20))
    with serving(before.app) as one, serving(after.app) as two:
        ports = [one.port]
        with Router(lambda: ports) as router:

            def restart(frame: Any) -> None:
                if frame.seq == 12:
                    ports[:] = [two.port]
                    router.cut()

            seen = read("sync", f"{router.url}/tokens", "GET", restart, resume=AT_ONCE)
            gate.open()
    assert isinstance(seen.error, StreamGap)
    assert (seen.error.code, seen.error.expected) == ("unknown_stream", 13)
    assert seen.text == "".join(words(12))
    assert after.source.starts == 0


def test_a_reader_that_a_ring_has_overtaken_is_told_so() -> None:
    """A ring of about a hundred frames, of which two hundred and fifty came."""
    gate, all_words = Gate(), words(250)
    site = Site(*all_words[:5], gate, *all_words[5:], retention=Retention(max_bytes=100 * (FRAME_COST + 7)))
    with serving(site.app) as server:
        with Router(lambda: [server.port]) as router:

            def overtake(frame: Any) -> None:
                if frame.seq == 5:
                    router.cut()
                    gate.open()
                    site.source.wait_closed()

            seen = read("sync", f"{router.url}/tokens", "GET", overtake, resume=AT_ONCE)
        site.idle()
        assert seen.frames[-1].seq == 5
        assert isinstance(seen.error, StreamGap)
        assert seen.error.cursor is not None
        answer = exchange(server.connect(), path="/streams", streamguard_stream=seen.error.cursor.sid, **OURS)
    assert (seen.error.code, seen.error.expected) == ("trimmed", 6)
    assert seen.receipt is not None
    assert seen.receipt.verdict is Verdict.GAP
    assert (answer.status, json.loads(answer.body)["code"]) == (410, "trimmed")  # and from the start even less


def test_a_reader_that_resumes_behind_another_and_that_one_both_complete() -> None:
    gate = Gate()
    site = Site(*words(10), gate, *words(20)[10:])
    with serving(site.app) as server:
        with reading(server, connection="close", **OURS) as ahead:
            ahead.until(b't9 "')
            third = cursors(ahead.received)[2]
            with reading(server, "/streams", last_event_id=str(third), connection="close", **OURS) as behind:
                behind.until(b't9 "')
                gate.open()
                bodies = [ahead.rest(), behind.rest()]
    assert [text_of(body) for body in bodies] == ["".join(words(20)), "".join(words(20)[3:])]
    assert [cursors(body)[-1].status for body in bodies] == ["complete"] * 2
    assert cursors(bodies[1]) == cursors(bodies[0])[3:]


def test_who_attaches_without_a_cursor_is_told_where_the_stream_begins() -> None:
    gate = Gate()
    site = Site(*words(10), gate, *words(12)[10:])
    with serving(site.app) as server, reading(server) as first:
        sid = sid_of(first.until(b't9 "'))
        with reading(server, "/streams", streamguard_stream=sid, connection="close", **OURS) as late:
            late.until(b't9 "')
            gate.open()
            head, _, body = late.rest().partition(b"\r\n\r\n")
    zero = str(cursor_zero(sid))
    assert f'cursor="{zero}"'.encode() in head
    assert f"event: open\nretry: 2000\nid: {zero}\n".encode() in body
    assert [cursor.seq for cursor in cursors(body)] == list(range(1, 14))


def test_frames_that_are_missing_at_the_start_are_a_gap() -> None:
    with serving(Site(*words(12)).app) as server:
        answer = exchange(server.connect(), path="/tokens", **OURS)
    opening, *frames = answer.body.split(b"\n\n")
    assert verified([b"\n\n".join([opening, *frames])]).verdict is Verdict.COMPLETE
    assert verified([b"\n\n".join([opening, *frames[3:]])]).verdict is Verdict.GAP


# ---- names and ids ------------------------------------------------------------------------------------


@pytest.mark.parametrize("separator", [".", ":", "/", "-", "~", "&", "}"])
def test_a_separator_in_a_streams_name_separates_nothing(separator: str) -> None:
    names = [f"{separator}chat", f"ch{separator}at", f"chat{separator}", "chat"]
    site = Site("t0 ", "t1 ", name=lambda request: request.query_params["chat"])
    with serving(site.app) as server:

        def named(path: str, name: str) -> Response:
            return exchange(server.connect(), path=path + quote(name, safe=""), **OURS)

        sids = [sid_of(named("/tokens?chat=", name)) for name in names]
        for name, sid in zip(names, sids, strict=True):
            found = named("/streams?name=", name)
            assert (sid_of(found), text_of(found.body)) == (sid, "t0 t1 ")
        unknown = named("/streams?name=", 2 * separator)
    assert (unknown.status, json.loads(unknown.body)["code"]) == (404, "unknown_stream")


@pytest.mark.parametrize("sid", ["-AAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAA-_AAAAAAAAAAA", "_AAAAAAAAAAAAAAAAAAAA-"])
def test_a_sid_with_a_dash_wherever_it_stands_is_resumed(sid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The separator of a cursor is the dot, which no sid holds; of what it may hold nothing separates."""
    monkeypatch.setattr(streamguard.app, "new_sid", lambda: sid)
    with serving(Site(*words(3)).app) as server:
        seen = cursors(exchange(server.connect(), path="/tokens", **OURS).body)
        assert {cursor.sid for cursor in seen} == {sid}
        for path in ("/streams", f"/streams/{sid}"):
            assert text_of(exchange(server.connect(), path=path, last_event_id=str(seen[0]), **OURS).body) == "t1 t2 "
        assert text_of(exchange(server.connect(), path=f"/streams?after={seen[0]}", **OURS).body) == "t1 t2 "
        dotted = sid[:8] + "." + sid[9:]
        for headers in ({"streamguard_stream": dotted}, {"streamguard_stream": sid[::-1]}):
            refused = exchange(server.connect(), path="/streams", **OURS, **headers)
            assert (refused.status, json.loads(refused.body)["code"]) == (404, "unknown_stream")


# ---- who may --------------------------------------------------------------------------------------------


def test_a_flood_of_another_principals_streams_harms_no_stream_that_runs() -> None:
    gate = Gate()
    site = Site("t0 ", gate, "t1 ", log=MemoryLog(max_streams=8))
    with serving(site.app) as server, reading(server) as first:
        at = cursors(first.until(b't0 "'))[0]
        site.source.script = ("t0 ", "t1 ")  # of those that begin from now on
        for _ in range(30):
            assert exchange(server.connect(), path="/tokens", user="bob", **OURS).verdict is Verdict.COMPLETE
        gate.open()
        assert text_of(resume(server, at).body) == "t1 "


def test_nor_one_that_has_ended_and_whose_reader_may_come_back() -> None:
    site = Site("t0 ", "t1 ", log=MemoryLog(max_streams=8))
    with serving(site.app) as server:
        at = [cursors(exchange(server.connect(), path="/tokens", **OURS).body)[0] for _ in range(4)]
        for _ in range(30):
            assert exchange(server.connect(), path="/tokens", user="bob", **OURS).verdict is Verdict.COMPLETE
        assert [text_of(resume(server, cursor).body) for cursor in at] == ["t1 "] * 4


# ---- ids as text ----------------------------------------------------------------------------------------


def test_an_empty_id_clears_the_cursor_and_an_absent_one_keeps_it() -> None:
    decoder = SseDecoder()
    seen = [event.last_event_id for event in decoder.feed(b"id: 1\ndata: a\n\nid:\ndata: b\n\ndata: c\n\n")]
    assert seen == ["1", "", ""]
    assert [event.last_event_id for event in SseDecoder().feed(b"id: 1\ndata: a\n\ndata: b\n\n")] == ["1", "1"]


def test_an_id_with_nul_is_ignored() -> None:
    decoder = SseDecoder()
    decoder.feed(b"id: 1\ndata: a\n\nid: 2\x00\ndata: b\n\n")
    assert decoder.last_event_id == "1"


def test_an_id_of_zero_is_an_id() -> None:
    (event,) = SseDecoder().feed(b"id: 0\ndata: a\n\n")
    assert (event.id, event.last_event_id) == ("0", "0")


@pytest.mark.parametrize("asking", ["ours", "EventSource"])
def test_who_has_nothing_yet_resumes_at_zero_and_gets_the_first_frame(asking: str) -> None:
    """Our frames are numbered from 1; what is before the first is number 0, and it is sent as that."""
    with serving(Site(*words(3)).app) as server:
        zero = cursor_zero(sid_of(exchange(server.connect(), path="/tokens", **OURS)))
        assert str(zero).split(".")[1] == "0"
        answer = resume(server, zero, asking)
    assert f"id: {zero}\n".encode() in answer.body
    assert [cursor.seq for cursor in cursors(answer.body)] == [1, 2, 3, 4]


@pytest.mark.parametrize("id", ["0", "17", ""])
def test_an_id_that_is_no_cursor_of_ours_is_the_applications_business(id: str) -> None:
    seen: list[str | None] = []

    def authorize(request: Request, action: str) -> str:
        seen.append(request.headers.get("last-event-id"))
        return "ann"

    site = Site(*words(2), authorize=authorize)
    with serving(site.app) as server:
        answer = exchange(server.connect(), path="/tokens", last_event_id=id, **SSE)
    assert answer.verdict is Verdict.COMPLETE
    assert (seen, site.source.starts) == ([id], 1)


# ---- when ------------------------------------------------------------------------------------------------

READERS = 1000
URL = httpx.URL("http://here.example/streams")
SID = "AAAAAAAAAAAAAAAAAAAAAA"


def dropped_at_once(rounds: int, *, retry: float = 0.0, asked: str | None = None) -> list[list[float]]:
    """When each of the readers comes, round after round, counted from the end of the round before: all are cut at one
    moment, and each further attempt is refused with 503."""
    chance = random.Random(7)
    comings = []
    headers = {} if asked is None else {"retry-after": asked}
    states = [ResumeState(ResumePolicy(attempts=rounds), URL, chance.random) for _ in range(READERS)]
    for state in states:
        state.retry = retry
    attempts: list[Any] = [state.again(Cursor(SID, 5, 30, 7)) for state in states]
    for _ in range(rounds):
        assert all(isinstance(attempt, Attempt) for attempt in attempts)
        comings.append([attempt.wait for attempt in attempts])
        attempts = [state.refused(Refusal(503, headers, "")) for state in states]
    return comings


def are_spread(waits: list[float], low: float, high: float) -> bool:
    """Whether they lie between the bounds, and about as many in each tenth as in any other."""
    tenths = Counter(int((wait - low) / (high - low) * 10) for wait in waits)
    return min(waits) >= low and max(waits) <= high and all(60 < tenths[tenth] < 140 for tenth in range(10))


def test_a_thousand_readers_dropped_at_once_come_back_spread_over_the_window() -> None:
    for number, waits in enumerate(dropped_at_once(5)):
        assert are_spread(waits, 0.0, 0.5 * 2**number)


def test_what_a_server_asks_for_is_waited_for_and_spread_behind_it() -> None:
    first, second = dropped_at_once(2, retry=3.0, asked="7")
    assert are_spread(first, 3.0, 3.5)
    assert are_spread(second, 7.0, 8.0)
