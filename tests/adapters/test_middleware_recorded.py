"""Streams recorded from real servers, behind the middleware: the verdict of the index, and the same payload."""

from __future__ import annotations

import logging
from random import Random
from typing import Any

import pytest

from streamguard.core.receipt import Verdict
from tests.adapters.middleware_apps import events
from tests.adapters.recorded_cuts import cuts_that_pass, through
from tests.core.test_recorded import ROWS, every, recorded, texts
from tests.core.wire.streams import read
from tests.cuts import cut_everywhere, cuts_of

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio"], scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "streamguard")


@every
async def test_a_recording_gets_the_verdict_of_the_index(row: dict[str, Any]) -> None:
    data = recorded(row)
    clean, whole = row["http_end"] == "clean", row["verdict"] == "complete"
    pieces = [data[at : at + 700] for at in range(0, len(data), 700)]
    sent, verdict = await through(row, pieces, "report", ends=clean)
    assert (verdict, sent.body, sent.clean) == (row["verdict"], data, clean)
    sent, verdict = await through(row, pieces, "guard", ends=clean)
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


def test_the_proof_counts_its_cuts_and_finds_none_that_passes() -> None:
    found = cut_everywhere(ROWS[:2], Random(0), cuts_that_pass, places=1, edges=2)
    assert found.rows[-1][-1] == 0
    assert found.cuts >= 4


async def test_a_cut_that_passes_would_be_found() -> None:
    row = next(row for row in ROWS if row["verdict"] == "complete")
    data = recorded(row)
    assert len(await cuts_that_pass(row, data, [len(data)])) == 2
