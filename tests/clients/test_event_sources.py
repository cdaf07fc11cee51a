"""EventSources of others before a stream under a log: whatever happens to their connections, each frame is handed out
once, in order, and when the stream is over they stop, after one more request.

Chromium's stands in a page of another origin than the stream's, where a request that needed a preflight would fail.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from streamguard import Continue, Orphan
from streamguard.core.errors import SourceFailed
from streamguard.core.items import Block
from streamguard.log.sqlite import SQLiteLog
from streamguard.runtime.timing import Timing
from streamguard.testing.plan import HEAD, End, Plan, RandomCut
from tests.adapters.logged_apps import Site, TroubledLog, wait_until
from tests.adapters.servers import Gate, serving
from tests.clients.browser import Browser
from tests.clients.site import Front, through
from tests.clients.sources import SOURCES, Seen, read_chromium, read_eventsource, read_requests_sse
from tests.processes.router import Router

WORDS = [f"word {number} é\u2028\n " for number in range(60)]
TEXT = "".join(WORDS)
OPENING = b'"resume":"/streams"}\n\n'  # the last bytes of the event `open`

Read = Callable[[str, int], Seen]  # of an address; the port is where Chromium's page is


@pytest.fixture(params=SOURCES)
def read(request: pytest.FixtureRequest) -> Read:
    if request.param == "chromium":
        browser: Browser = request.getfixturevalue("browser")
        return lambda url, port: read_chromium(browser, f"http://127.0.0.1:{port}/page", url)
    one = read_eventsource if request.param == "eventsource" else read_requests_sse
    return lambda url, port: one(url)


def is_whole(seen: Seen, text: str = TEXT) -> bool:
    """No gap, no double, one stream, one end."""
    return (
        seen.text == text
        and seen.frames == list(range(1, len(seen.frames) + 1))
        and len(seen.sids) == 1
        and seen.ends == ["complete"]
    )


def are_all_but_the_last(statuses: list[int]) -> bool:
    """Answers, and then no more. Two, unless a busy Chromium drops the last words before an abort: then it asks for
    them again."""
    return statuses[-1] == 204 and set(statuses[:-1]) == {200}


def test_a_finished_stream_causes_one_more_request(read: Read) -> None:
    site = Site(*WORDS[:30], Block("image", {"url": "x"}), *WORDS[30:])
    front = Front(site.app)
    with serving(front) as server:
        seen = read(f"{server.url}/tokens", server.port)
    assert is_whole(seen)
    assert [event.type for event in seen.events if event.type != "message"] == ["open", "block", "end"]
    assert front.statuses == [200, 204]
    assert str(front.asked[1].cursor) == seen.events[-1].id
    assert site.source.starts == 1


def test_a_failed_stream_is_told_of_once(read: Read) -> None:
    site = Site("half ", SourceFailed("overloaded", "too much"), timing=Timing())
    front = Front(site.app)
    with serving(front) as server:
        seen = read(f"{server.url}/tokens", server.port)
    assert (seen.text, seen.ends) == ("half ", ["failed"])
    assert are_all_but_the_last(front.statuses)
    assert site.source.starts == front.anew


@pytest.mark.parametrize("end", ["fin", "reset"])
def test_a_stream_cut_at_random_bytes_comes_whole(read: Read, end: End) -> None:
    """The first cuts may fall before there is a cursor: the key stands for the stream then. None is before `retry`."""
    site = Site(*WORDS)
    front = Front(site.app)
    cuts = RandomCut(seed=5, low=90, high=800, base=Plan(after=HEAD, end=end))
    with serving(front) as server:
        seen, proxy = through(
            server.port,
            lambda index: cuts(index) if index < 10 else Plan(),
            lambda url: read(f"{url}/tokens?sg=key=k", server.port),
        )
    assert is_whole(seen)
    assert sum(passage.ended == "cut" for passage in proxy.history) >= 8
    assert front.statuses.count(204) == 1
    assert {asked.method for asked in front.asked} == {"GET"}
    assert site.source.starts == 1


def test_a_compressed_stream_that_is_cut_comes_whole(read: Read) -> None:
    """Though requests-sse drops what it has of a chunk that was cut, and begins again behind the one before."""
    site = Site(*WORDS, compress="gzip")
    front = Front(site.app)
    plan = Plan(after=HEAD, stall_at=600, stall=0.5, cut_at=602)
    with serving(front) as server:
        seen, proxy = through(
            server.port,
            lambda index: plan if index == 0 else Plan(),
            lambda url: read(f"{url}/tokens?sg=v%3D1%2Ccompress%3Dgzip%2Ckey%3Dk", server.port),
        )
    assert is_whole(seen)
    assert [passage.ended for passage in proxy.history][:1] == ["cut"]
    again = front.asked[1].cursor
    assert again is not None
    assert again.seq < 60
    assert site.source.starts == 1


def test_a_stream_cut_at_each_byte_of_a_frame_comes_whole(read: Read) -> None:
    """The key is for requests-sse: it drops what it has of a chunk that was cut, and with that the cursor."""
    site = Site("aé ", "b ", "c")
    front = Front(site.app)

    def plan(index: int) -> Plan:
        return Plan(after=OPENING, cut_at=len(front.asked)) if len(front.asked) < 64 else Plan()

    with serving(front) as server:
        seen, proxy = through(server.port, plan, lambda url: read(f"{url}/tokens?sg=key=k", server.port))
    assert is_whole(seen, "aé b c")
    assert sum(passage.ended == "cut" for passage in proxy.history) >= 60
    assert front.statuses.count(204) == 1
    assert site.source.starts == 1


@pytest.mark.parametrize(
    ("cut", "query"),
    [
        (Plan(after=b"retry: 10\n", cut_at=0), "?sg=key=k"),
        # Behind the chunk; the stall lets a client take what it has, before it learns of the cut.
        (Plan(after=OPENING, stall_at=0, stall=0.5, cut_at=2), ""),
    ],
    ids=["before the cursor, with a key", "behind the cursor"],
)
def test_a_cut_before_the_first_frame_is_no_second_generation(read: Read, cut: Plan, query: str) -> None:
    gate = Gate()
    site = Site(gate, *WORDS)
    front = Front(site.app, before=lambda number: gate.open() if number == 3 else None)

    def plan(index: int) -> Plan:
        return cut if len(front.asked) < 3 else Plan()

    with serving(front) as server:
        seen, proxy = through(server.port, plan, lambda url: read(f"{url}/tokens{query}", server.port))
    assert is_whole(seen)
    assert sum(passage.ended == "cut" for passage in proxy.history) >= 3
    assert site.source.starts == (1 if query else front.anew)


def test_a_stream_that_is_gone_is_told_of_once(read: Read) -> None:
    site = Site(*WORDS[:3], Gate())

    async def forget(number: int) -> None:
        if front.asked[number].cursor is not None:
            await site.log.purge(principal="ann")

    front = Front(site.app, before=forget)
    # Behind the third frame, and its chunk; the stall lets a client take them.
    cut = Plan(stall_at=0, stall=0.5, cut_at=0, after=b'word 2 \xc3\xa9\\u2028\\n "\n\n\r\n')
    with serving(front) as server:
        seen, _ = through(server.port, cut, lambda url: read(f"{url}/tokens", server.port))
    assert (seen.text, seen.ends) == ("".join(WORDS[:3]), ["failed"])
    assert seen.events[-1].id.endswith(".lost")
    assert are_all_but_the_last(front.statuses)
    assert site.source.starts == front.anew


def test_a_log_in_trouble_is_waited_for(read: Read) -> None:
    log = TroubledLog()
    site = Site(*WORDS, log=log)

    def trouble(number: int) -> None:
        log.trouble = number in (1, 2)

    front = Front(site.app, before=trouble)
    cut = Plan(cut_at=0, after=b"word 3 \xc3\xa9")
    with serving(front) as server:
        seen, _ = through(
            server.port,
            lambda index: Plan() if front.asked else cut,
            lambda url: read(f"{url}/tokens?sg=key=k", server.port),
        )
    assert is_whole(seen)
    assert front.statuses == [200, 200, 200, 200, 204]
    assert site.source.starts == 1


async def rest(orphan: Orphan) -> AsyncIterator[str]:
    for word in WORDS[orphan.text.count("word") :]:
        yield word


def goes_on(orphan: Orphan) -> Continue:
    return Continue(rest(orphan))


class Stand(Gate):
    """A gate that tells when somebody waits at it."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = Gate()

    def __await__(self) -> Any:
        self.reached.open()
        return super().__await__()


def test_a_server_that_goes_away_in_mid_stream_is_followed_by_another(read: Read, tmp_path: Path) -> None:
    def site(*script: Any) -> Site:
        return Site(*script, log=SQLiteLog(tmp_path / "streams.db"), resumer=goes_on)

    stand = Stand()
    here, there = site(*WORDS[:20], stand), site()
    fronts = [Front(here.app), Front(there.app)]
    ports: list[int] = []
    with serving(fronts[1]) as stays, Router(lambda: ports) as router, ThreadPoolExecutor() as pool:
        with serving(fronts[0], timeout_graceful_shutdown=0) as goes:
            ports += [goes.port, stays.port]
            reading = pool.submit(read, f"{router.url}/tokens?sg=key=k", stays.port)
            stand.reached.wait()
            wait_until(lambda: fronts[0].statuses == [200])
        seen = reading.result()
    assert is_whole(seen)
    assert {json.loads(event.data)["reason"] for event in seen.events if event.type == "bye"} <= {"shutdown"}
    assert fronts[0].statuses == [200]
    assert fronts[1].statuses == [200, 204]
    assert (here.source.starts, here.source.closes, there.source.starts) == (1, 1, 0)
