"""Streams recorded from real servers, through the proxy: the verdict of the index, and the same payload."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import anyio
import pytest

from streamguard.core.receipt import Verdict
from tests.adapters.middleware_apps import events
from tests.core.test_recorded import ROWS, every, recorded, texts
from tests.core.wire.streams import read
from tests.cuts import cuts_of
from tests.proofs.behind_the_proxy import whole_and_broken
from tests.proxy.replayed import Replay, replayed
from tests.recorded_cuts import CutsAreFound, quiet

__all__ = ["quiet"]  # for every test here


@pytest.fixture(scope="module")
def replay() -> Iterator[Replay]:
    with replayed("known", "provider") as made:
        yield made


@every
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


class TestTheProof(CutsAreFound):
    rows, ways = ROWS, 1

    @pytest.fixture(autouse=True)
    def through_the_proxy(self, replay: Replay) -> None:
        type(self).passing = staticmethod(replay.cuts_that_pass)

    def test_a_recording_that_comes_otherwise_would_be_found(self, replay: Replay) -> None:
        assert whole_and_broken(replay, ROWS[:2]) == []
        whole = next(row for row in ROWS if row["verdict"] == "complete")
        assert len(whole_and_broken(replay, [{**whole, "verdict": "failed"}])) == 1
