"""Benchmarks compare like with like, and the page that shows them has their rows."""

from __future__ import annotations

import gzip
import itertools
import zlib
from pathlib import Path

import pytest

from streamguard.core.compress import Gzip
from tests.benchmarks.acks import Acknowledging, Asked
from tests.benchmarks.aiohttp_served import WAYS as AIOHTTP_WAYS
from tests.benchmarks.aiohttp_served import aiohttp_served
from tests.benchmarks.compression import KINDS, WINDOWS, answer, compression_window
from tests.benchmarks.cost import LIMITS, check
from tests.benchmarks.first_token import PARSERS
from tests.benchmarks.idle import idle
from tests.benchmarks.load import stream
from tests.benchmarks.observed import WAYS as OBSERVED
from tests.benchmarks.observed import microseconds
from tests.benchmarks.paths import WAYS, Way, serve, tokens
from tests.benchmarks.proxied import BRIEF as PROXIED_BRIEF
from tests.benchmarks.proxied import proxied
from tests.benchmarks.reading import CUTS, DIALECTS
from tests.benchmarks.served import BRIEF, served
from tests.benchmarks.wsgi_served import framework_served
from tests.modules import ROOT
from tests.proofs.registry import Run

PAGE = ROOT / "docs" / "explanation" / "performance.md"
COMPRESSING = ROOT / "docs" / "how-to" / "compress-answers.md"


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_way_sends_one_frame_and_makes_one_send_for_what_it_counts(way: Way) -> None:
    assert check(way, 81) == (way.frames(81), way.frames(81))


def test_a_way_that_sends_less_is_found() -> None:
    with pytest.raises(AssertionError, match="11 frames for 81"):
        check(Way("guarded", WAYS["guarded, EveryTokens(8)"].make), 81)


def test_every_way_sends_the_same_text() -> None:
    bodies = {name: serve(way.make(tokens(17)), keep=True).body for name, way in WAYS.items()}
    for name, body in bodies.items():
        assert b"stream" in body, name
        assert body.count(b"Hello") == 2, name


def labels(command: str, columns: int, page: Path = PAGE) -> list[tuple[str, ...]]:
    """The first cells of every row that the page shows of a benchmark, heads and rules left out."""
    text = page.read_text(encoding="utf-8")
    begin, end = (f"<!-- {mark}: python -m tests.benchmarks {command} -->" for mark in ("begin", "end"))
    lines = text[text.index(begin) : text.index(end)].splitlines()
    rows = []
    for before, line in itertools.pairwise(lines):
        if line.startswith("| ") and before.startswith("| ") and not line.startswith("| ---"):
            rows.append(tuple(cell.strip() for cell in line.strip("|").split("|")[:columns]))
    return rows


def test_the_page_shows_the_rows_that_the_commands_make() -> None:
    pairs = [(limit.subject, limit.reference) for limit in LIMITS]
    reads = list(itertools.product(DIALECTS, CUTS))
    assert [(name,) for name in WAYS] == labels("cost-per-token", 1)[: len(WAYS)]
    assert labels("cost-per-token", 2)[len(WAYS) :] == pairs * 2
    assert labels("bytecode-per-token", 1)[: len(WAYS)] == [(name,) for name in WAYS]
    assert labels("decoding-and-verifying", 2) == reads * 2
    assert labels("time-to-first-token", 1) == [(f"uvicorn, {parser}",) for parser in PARSERS]
    assert labels("compression", 2, COMPRESSING) == [(f"`{dialect}`", policy) for dialect, policy in KINDS]
    windows = [cells[0].partition(",")[0] for cells in labels("compression-window", 1, COMPRESSING)]
    assert windows == [str(window) for window in WINDOWS]


def test_readers_that_acknowledge_get_all_and_are_believed() -> None:
    with served("logged", "httptools", "uvloop", "tests.benchmarks.logged") as port:
        asked = Asked(port, (4, 65536))
        load = stream(port, "/brief", 3, make=lambda load: Acknowledging("/brief", load, asked))
    assert (load.tokens, asked.refused) == (3 * BRIEF, [])
    assert asked.posts >= 3  # without them the streams stop behind the fourth token


def test_what_idle_streams_cost_is_of_streams_that_stay() -> None:
    cost = idle("guarded", streams=5, seconds=0.1, http="httptools", loop="uvloop")
    assert cost.cpu >= 0
    assert cost.received == 0  # no heartbeat is due yet


@pytest.mark.parametrize(("framework", "way"), [("flask", "guarded"), ("django", "inline"), ("django-asgi", "guarded")])
def test_the_views_of_a_framework_send_every_token(framework: str, way: str) -> None:
    with framework_served(framework, way) as port:
        assert stream(port, "/brief", 3).tokens == 3 * BRIEF


def test_both_ways_through_a_process_in_front_send_every_token() -> None:
    with proxied("proxy", "relay", loop="uvloop") as ports:
        assert [stream(port, "/brief", 3).tokens for port in ports] == [3 * PROXIED_BRIEF] * 2


@pytest.mark.parametrize("way", AIOHTTP_WAYS)
def test_both_handlers_of_aiohttp_send_every_token(way: str) -> None:
    with aiohttp_served(way, "asyncio") as port:
        assert stream(port, "/brief", 3).tokens == 3 * BRIEF


@pytest.mark.parametrize(("dialect", "policy"), KINDS)
def test_what_is_compressed_is_the_same_answer_and_each_part_of_it_can_be_read_as_it_comes(
    dialect: str, policy: str
) -> None:
    plain, small = answer(dialect, policy, None), answer(dialect, policy, Gzip())
    read = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    *parts, trailer = small
    assert [len(read.decompress(part)) for part in parts] == [len(part) for part in plain]
    assert len(gzip.decompress(b"".join(parts) + trailer)) == len(b"".join(plain))


def test_what_a_compressed_stream_holds_is_bounded_by_its_window() -> None:
    result = compression_window.run(Run(1, lambda line: None))
    assert result.shown
    holds = [float(str(row[1])) for row in result.tables[0].rows]
    assert holds == sorted(holds)
    assert all(kb >= 4 * 2**window / 1000 for kb, window in zip(holds, WINDOWS, strict=True))


@pytest.mark.parametrize("way", OBSERVED.values(), ids=OBSERVED)
def test_an_observed_answer_sends_what_an_unobserved_one_does(way: Way) -> None:
    assert microseconds(way, 20, 20)() > 0  # which counts them
    assert serve(way.make(tokens(20))).sends == serve(OBSERVED["nothing"].make(tokens(20))).sends
