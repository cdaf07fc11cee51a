"""Streams recorded from real servers, behind the middleware: the verdict of the index, and the same payload."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from streamguard.adapters.middleware_judge import judge_of
from streamguard.core.dialect import Raw
from streamguard.core.receipt import Verdict
from tests.adapters.middleware_apps import events
from tests.adapters.recorded_cuts import cuts_that_pass, through
from tests.core.test_recorded import ROWS, every, recorded, texts
from tests.core.wire.streams import read
from tests.cuts import cuts_of, profile_of
from tests.recorded_cuts import CutsAreFound, pieces, quiet

__all__ = ["quiet"]  # for every test here

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio"], scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@every
async def test_a_recording_gets_the_verdict_of_the_index(row: dict[str, Any]) -> None:
    data = recorded(row)
    clean, whole = row["http_end"] == "clean", row["verdict"] == "complete"
    judge = judge_of("events", Raw("known", profile_of(row)))
    judge.feed(data)
    assert judge.end(clean=clean).verdict == row["verdict"]
    sent, verdict = await through(row, pieces(data), "report", ends=clean)
    assert (verdict, sent.body, sent.clean) == ("complete" if whole else "failed", data, clean)
    sent, verdict = await through(row, pieces(data), "guard", ends=clean)
    assert (verdict == "complete", sent.clean) == (whole, whole)
    answer = read([sent.body], dialect="raw")
    assert answer.verdict is (Verdict.COMPLETE if whole else Verdict.FAILED)
    if row["text"]:
        assert answer.texts == texts(row)
    if whole:
        assert events(sent.body) == events(data)


@pytest.mark.parametrize("row", ROWS[::3], ids=lambda row: row["file"].removesuffix(".sse"))
async def test_a_recording_that_is_cut_is_never_taken_for_the_whole(row: dict[str, Any]) -> None:
    """Some of them, at some edges and places; the proof `behind-the-middleware` cuts all, at every edge."""
    data = recorded(row)
    cuts = cuts_of(row, data, Random(row["file"]), edges=2, places=2)
    assert len(cuts) >= 1
    assert await cuts_that_pass(row, data, cuts) == []


class TestTheProof(CutsAreFound):
    rows, passing, ways = ROWS, staticmethod(cuts_that_pass), 2
