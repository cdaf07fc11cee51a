"""Streams recorded from real servers, through the source for each API: the index's verdict, and the same payload."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from streamguard.core.dialect import Anthropic, Dialect, OpenAI, OpenAIResponses, Raw
from streamguard.core.errors import failure_from
from streamguard.core.items import Event, Finish
from streamguard.core.receipt import Verdict
from streamguard.core.wire import Sse
from tests.core.test_recorded import FOLDER, events, recorded, texts
from tests.core.wire.streams import read, written
from tests.cuts import cuts_of, profile_of
from tests.recorded_cuts import CutsAreFound, pieces, quiet
from tests.upstream.recorded import Found, cuts_that_pass, read_from, verdict_of

__all__ = ["quiet"]  # for every test here

pytestmark = pytest.mark.anyio

ROWS: list[dict[str, Any]] = json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))
STREAMS = [row for row in ROWS if row["verdict"] != "http_error"]
OWN: dict[str, Dialect] = {
    "openai-chat": OpenAI(),
    "openai-responses": OpenAIResponses(),
    "anthropic-messages": Anthropic(),
}


def named(row: dict[str, Any]) -> str:
    return str(row["file"]).removesuffix(".sse")


every = pytest.mark.parametrize("row", STREAMS, ids=named)


@pytest.fixture(params=["asyncio"], scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


def guarded(row: dict[str, Any], found: Found, dialect: Dialect) -> list[bytes]:
    """What a guarded endpoint makes of a source."""
    fail = None if found.failure is None else failure_from(found.failure)
    return written(found.items, dialect, Sse(), fail=fail)


@every
async def test_the_events_of_a_recording_are_handed_on_unchanged_with_the_verdict_of_the_index(
    row: dict[str, Any],
) -> None:
    data = recorded(row)
    found = await read_from(row, pieces(data), "events", clean=row["http_end"] == "clean")
    assert verdict_of(found) == row["verdict"]
    said = [(item.event or "message", item.data) for item in found.items]
    source = events(data)
    assert said == source[: len(said)]
    if row["verdict"] != "failed":  # an error event is told in the log, and nothing of it is handed on
        assert said == source
    for dialect in (Raw(profile=profile_of(row)), OWN.get(row["api"])):
        if dialect is None:
            continue
        answer = read(guarded(row, found, dialect), dialect=dialect)
        assert answer.verdict is (Verdict.COMPLETE if row["verdict"] == "complete" else Verdict.FAILED)
        if row["text"]:
            assert answer.texts == texts(row)
        # All before the marker; dialects that read an event escape what clients take for a line's end.
        payload = [frame.raw.decode() for frame in answer.frames][: len(said) - 1]
        before = [text for _, text in said[:-1]]
        assert payload == before or list(map(json.loads, payload)) == list(map(json.loads, before)) != []


@every
async def test_the_text_of_a_recording_is_that_of_the_index(row: dict[str, Any]) -> None:
    found = await read_from(row, pieces(recorded(row)), "stream", clean=row["http_end"] == "clean")
    if set(row["text"] or ()) > {"0"}:
        assert found.failure is not None
        assert found.failure.failure.code == "upstream_format"  # text of several answers would be mixed
        return
    assert verdict_of(found) == row["verdict"]
    if row["text"]:
        assert found.text == row["text"]["0"]
    assert not any(isinstance(item, Event) for item in found.items)
    if row["verdict"] == "complete":
        *_, finish = found.items
        assert isinstance(finish, Finish)
        assert finish.reason in ("stop", "length", "tool_calls")
        if row["api"] in ("openai-chat", "openai-completions"):
            assert finish.reason == row["finish"]["0"]
        assert finish.usage is None or {"prompt_tokens", "completion_tokens"} <= finish.usage.keys()


@pytest.mark.parametrize("row", [row for row in ROWS if row["verdict"] == "http_error"], ids=named)
async def test_an_answer_that_is_no_stream_fails_before_any_item(row: dict[str, Any]) -> None:
    found = await read_from(row, [recorded(row)], "events")
    assert (found.items, verdict_of(found)) == ([], "http_error")


@every
async def test_a_recording_that_is_cut_is_never_taken_for_the_whole(row: dict[str, Any]) -> None:
    """At some edges and places; the proof `recorded-upstreams` cuts at every edge, and at more places."""
    data = recorded(row)
    cuts = cuts_of(row, data, Random(row["file"]), edges=1, places=1)
    assert len(cuts) >= 1
    assert await cuts_that_pass(row, data, cuts) == []


class TestTheProof(CutsAreFound):
    rows, passing, ways = STREAMS, staticmethod(cuts_that_pass), 3
