"""Streams recorded from real servers, through the proxy: the verdict of the index, and the same payload."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from random import Random
from typing import Any

import anyio
import pytest

from streamguard.core.receipt import Verdict
from tests.adapters.middleware_apps import events
from tests.core.test_recorded import ROWS, recorded, texts
from tests.core.wire.streams import read
from tests.cuts import cut_everywhere, cuts_of
from tests.proofs.behind_the_proxy import whole_and_broken
from tests.proxy.replayed import Replay, replayed

EVERY = pytest.mark.parametrize("row", ROWS, ids=lambda row: row["file"].removesuffix(".sse"))


@pytest.fixture(scope="module")
def replay() -> Iterator[Replay]:
    with replayed("known", "provider") as made:
        yield made


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "streamguard")


@EVERY
def test_a_recording_gets_the_verdict_of_the_index(replay: Replay, row: dict[str, Any]) -> None:
    data, whole = recorded(row), row["verdict"] == "complete"
    answer = replay.read(row, ends=row["http_end"] == "clean")
    assert (answer.clean, answer.verdict) == (whole, Verdict.COMPLETE if whole else Verdict.FAILED)
    if row["text"]:
        assert read([answer.body], dialect="raw").texts == texts(row)
    if whole:
        assert events(answer.body) == events(data)


def test_a_recording_that_is_cut_is_never_taken_for_the_whole(replay: Replay) -> None:
    """Some of them, at an edge and a place; the proof `behind-the-proxy` cuts all, at every edge."""
    for row in ROWS[::9]:
        data = recorded(row)
        cuts = cuts_of(row, data, Random(row["file"]), edges=1, places=1)
        assert len(cuts) >= 1
        assert anyio.run(replay.cuts_that_pass, row, data, cuts) == []


def test_the_proof_counts_its_cuts_and_finds_none_that_passes(replay: Replay) -> None:
    found = cut_everywhere(ROWS[:2], Random(0), replay.cuts_that_pass, places=1, edges=1)
    assert (found.rows[-1][-1], found.cuts >= 4) == (0, True)
    assert whole_and_broken(replay, ROWS[:2]) == []


def test_a_cut_that_passes_would_be_found(replay: Replay) -> None:
    row = next(row for row in ROWS if row["verdict"] == "complete")
    data = recorded(row)
    assert len(anyio.run(replay.cuts_that_pass, row, data, [len(data)])) == 1
    assert len(whole_and_broken(replay, [{**row, "verdict": "failed"}])) == 1
