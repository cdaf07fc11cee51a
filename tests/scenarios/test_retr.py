"""A second try after part of the answer is out: nothing is said twice, and what fails again in the same way is left."""

from __future__ import annotations

import re
from typing import Any

import pytest

from streamguard.client import ResumePolicy, Verdict
from streamguard.core.errors import FailedStream
from streamguard.testing.proxy import HEAD, Plan
from tests.adapters.asgi_apps import exchange
from tests.adapters.logged_apps import OURS, SSE, Site, cursors, reading, text_of, wait_until
from tests.adapters.servers import Gate, serving
from tests.client.reading import each_mode, read, read_through
from tests.processes.router import Router

AT_ONCE = ResumePolicy(attempts=3, base=0.0, max_wait=0.0)
WORDS = [f"t{number} " for number in range(6)]
FIRST = ResumePolicy(attempts=1, base=0.0, max_wait=0.0)


@each_mode
def test_text_that_was_handed_out_is_not_handed_out_again(mode: str) -> None:
    gate = Gate()
    site = Site(*WORDS[:3], gate, *WORDS[3:])
    with serving(site.app) as server, Router(lambda: [server.port]) as router:
        accumulated = ""

        def fail(frame: Any) -> None:
            nonlocal accumulated
            accumulated += frame.text
            if frame.seq == 3:
                router.cut()
                gate.open()

        seen = read(mode, f"{router.url}/tokens", "POST", fail, resume=AT_ONCE)
    assert seen.error is None
    assert accumulated == seen.received == "".join(WORDS)
    assert seen.receipt is not None
    assert seen.receipt.resumes == 1
    assert site.source.starts == 1


@each_mode
def test_a_stream_that_breaks_between_its_opening_and_its_first_token_begins_once(mode: str) -> None:
    gate = Gate()
    site = Site(gate, *WORDS)
    with serving(site.app) as server:
        with reading(server) as other:  # how long an opening is
            head, _, opening = other.until(b'"resume":"/streams"}\n\n\r\n').partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")

        def plan(index: int) -> Plan:
            if index:
                gate.open()
                return Plan()
            return Plan(after=HEAD, cut_at=len(opening))

        seen, proxy = read_through(mode, server.port, "/tokens", plan, "GET", resume=AT_ONCE)
    assert next(passage.ended for passage in proxy.history) == "cut"
    assert seen.error is None
    assert [frame.seq for frame in seen.frames] == list(range(1, 7))
    assert seen.text == "".join(WORDS)
    assert site.source.starts == 2  # the other's, and this one


@pytest.mark.parametrize("dialect", ["native", "openai"])
def test_what_begins_an_answer_is_sent_once_over_all_connections(dialect: str) -> None:
    """In a chat completion that is the role."""
    gate = Gate()
    site = Site("t0 ", gate, "t1 ", dialect=dialect)
    with serving(site.app) as server:
        with reading(server) as cut:
            cut.until(b"t0 ")
        gate.open()
        at = cursors(cut.received)[-1]
        rest = exchange(server.connect(), path="/streams", last_event_id=str(at), **OURS)
    both = cut.received + rest.body
    assert [cursor.seq for cursor in cursors(both)] == list(range(1, len(cursors(both)) + 1))
    assert len(re.findall(rb'"role": ?"assistant"', both)) == (dialect == "openai")
    assert (both.count(b"t0 "), both.count(b"t1 ")) == (1, 1)


# ---- what fails in the same way again -------------------------------------------------------------------


@each_mode
def test_a_source_that_failed_is_not_run_again_for_who_comes_back(mode: str) -> None:
    gate = Gate()
    site = Site(*WORDS[:3], gate, RuntimeError("always here"))
    with serving(site.app) as server, Router(lambda: [server.port]) as router:

        def cut(frame: Any) -> None:
            if frame.seq == 3:
                router.cut()
                gate.open()

        seen = read(mode, f"{router.url}/tokens", "POST", cut, resume=AT_ONCE)
        asked = [action for action, _ in site.asked]
        again = read(mode, f"{router.url}/tokens", "POST", resume=AT_ONCE)
    assert isinstance(seen.error, FailedStream)
    assert seen.error.code == "source_error"
    assert seen.text == "".join(WORDS[:3])
    assert asked == ["start", "read"]  # once, which brought the failure; it is believed
    assert isinstance(again.error, FailedStream)
    assert [action for action, _ in site.asked] == ["start", "read", "start"]
    assert site.source.starts == 2  # one for each request of the caller's own


@each_mode
def test_a_connection_that_breaks_at_the_same_place_again_ends_the_attempts(mode: str) -> None:
    """With one attempt: the first one that brings nothing new is the last. Five are the default."""
    site = Site(*WORDS, Gate())
    with serving(site.app) as server:
        with reading(server) as other:
            at = other.until(b't3 "').partition(b"\r\n\r\n")[2].index(b't3 "')

        def plan(index: int) -> Plan:
            return Plan(after=HEAD, cut_at=at if index == 0 else 30)

        seen, proxy = read_through(mode, server.port, "/tokens", plan, "GET", resume=FIRST)
        wait_until(lambda: not len(site.guard.readers))
        site.source.script[-1].open()
    assert seen.receipt is not None
    assert seen.receipt.verdict is Verdict.TRUNCATED
    assert "1 attempt to resume it brought no new frame" in str(seen.error)
    assert proxy.connections == 2
    assert seen.text == "".join(WORDS[:3])


def test_an_event_source_comes_back_from_a_failure_once() -> None:
    site = Site("t0 ", RuntimeError("always here"))
    with serving(site.app) as server:
        first = exchange(server.connect(), path="/tokens", **SSE)
        last = cursors(first.body)[-1]
        assert (last.status, first.clean, text_of(first.body)) == ("failed", False, "t0 ")
        again = exchange(server.connect(), path="/tokens", last_event_id=str(last), **SSE)
    assert (again.status, site.source.starts) == (204, 1)
