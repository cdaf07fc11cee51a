"""The record of a stream that did not end complete and delivered: what it says, and what it must not."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import anyio
import attrs
import pytest

from streamguard.core.errors import SourceFailed
from streamguard.observe.record import LOGGER, JsonLines, Record, Recorder
from streamguard.runtime.drain import Drain
from streamguard.runtime.takeover import Continue
from tests.observe.mixed import KINDS, Mixed, Request, complete, orphan, words
from tests.runtime import virtual

SECRET = "the application's own words"


def recorded(*kinds: Any, **headers: str) -> list[Record]:
    """The records of streams of these kinds."""
    records: list[Record] = []

    async def main() -> None:
        mixed = Mixed(Recorder(records.append))
        async with anyio.create_task_group() as tasks:
            for kind in kinds:
                tasks.start_soon(kind, mixed)
        await mixed.guard.aclose()
        assert mixed.slot is not None
        mixed.slot.release()

    virtual.run("asyncio", main)
    return records


def test_a_whole_stream_has_no_record_and_each_other_has_one() -> None:
    by_name = {kind.__name__: kind for kind in KINDS}
    assert recorded(complete, complete, by_name["logged"]) == []
    found = recorded(*[by_name[name] for name in ("failed", "cancelled", "stalled", "abandoned", "slow", "left")])
    assert sorted(each.status for each in found) == ["cancelled", "failed", "gone", "slow", "stalled", "stalled"]
    assert sorted(each.abandoned for each in found) == [False] * 5 + [True]


def test_a_reader_that_left_and_came_back_has_a_record_and_its_stream_has_none() -> None:
    by_name = {kind.__name__: kind for kind in KINDS}
    (record,) = recorded(by_name["resumed"])
    assert (record.part, record.status, record.cause) == ("reader", "parted", "gone")
    assert record.cursor.startswith("2.")


def test_a_record_says_when_how_far_and_in_what_surroundings() -> None:
    async def failing(mixed: Mixed) -> None:
        async def source() -> AsyncIterator[str]:
            yield SECRET
            await anyio.sleep(2.0)
            yield SECRET
            raise SourceFailed("mine", SECRET)

        mixed.observe.attached(drain)
        drain.begin()
        trace = "0af7651916cd43dd8448eb211c80319c"
        request = Request(x_request_id="r" * 300, traceparent=f"00-{trace}-b7ad6b7169203331-01", authorization=SECRET)
        request.scope["route"] = attrs.make_class("Route", {"path": attrs.field()})("/chat/{name}")
        await request.at(mixed.answer(source))

    drain = Drain()
    (record,) = recorded(failing)
    assert (record.status, record.cause, record.delivered) == ("failed", "mine", "no")
    assert (record.items, record.frames, record.lost, record.cursor[:2]) == (2, 3, 0, "3.")
    assert (record.first_item, record.first_frame, record.ended) == (0.0, 0.0, pytest.approx(2.0))
    assert (record.trace_id, record.route) == ("0af7651916cd43dd8448eb211c80319c", "/chat/{name}")
    assert record.request_id == "r" * 200
    assert record.system.draining
    assert record.system.open == {"direct": 0, "producer": 0, "reader": 0}
    for text in (str(record), json.dumps(record.as_dict())):
        assert SECRET not in text


def test_nothing_that_came_with_a_request_or_from_an_application_forges_a_field_or_a_line() -> None:
    async def failing(mixed: Mixed) -> None:
        async def source() -> AsyncIterator[str]:
            yield "words"
            raise SourceFailed(f"{SECRET}\x1b[31m\n", "m")

        request = Request(x_request_id='r1 delivered=yes; process: "\x9b31m\x85forged')
        request.scope["route"] = attrs.make_class("Route", {"path": attrs.field()})("/a b\u2028c")
        await request.at(mixed.answer(source))

    (record,) = recorded(failing)
    assert record.cause == "own"
    assert record.request_id == 'r1 delivered=yes; process: "Â\\x9b31mÂ\\x85forged'  # its bytes, as HTTP has them
    line = str(record)
    assert SECRET not in line
    assert line.isprintable()
    shown = r'"r1 delivered=yes; process: \"\u00c2\\x9b31m\u00c2\\x85forged"'
    assert rf' request_id={shown} route="/a b\\u2028c"; process: ' in line


def test_no_record_holds_an_id_that_grants_access() -> None:
    ids: list[str] = []

    async def one(mixed: Mixed) -> None:
        request = Request()
        await request.at(mixed.answer(words(2), write=8.0, stall=0.05))
        ids.append(request.body.decode().partition("id: ")[2][:22])

    (record,) = recorded(one)
    assert len(ids[0]) == 22
    assert ids[0] not in json.dumps(record.as_dict())
    assert record.stream == ids[0][:8]


def test_a_record_is_a_line_in_the_log_and_in_json_if_so_wanted(caplog: Any) -> None:
    def logged() -> logging.LogRecord:
        async def main() -> None:
            mixed = Mixed(Recorder())
            await {kind.__name__: kind for kind in KINDS}["stalled"](mixed)
            assert mixed.slot is not None
            mixed.slot.release()

        with caplog.at_level(logging.WARNING, LOGGER):
            virtual.run("asyncio", main)
        return next(each for each in caplog.records if each.name == LOGGER)

    line = logged()
    assert line.levelno == logging.WARNING
    assert "(direct) ended as stalled: cause=stalled delivered=no items=1 frames=2" in line.getMessage()
    found = json.loads(JsonLines().format(line))
    assert (found["status"], found["system"]["waiting"]) == ("stalled", 0)
    plain = logging.LogRecord("any", logging.ERROR, "", 0, "it is %s", ("so",), None)
    other = json.loads(JsonLines().format(plain))
    assert (other["level"], other["message"]) == ("ERROR", "it is so")


def test_what_happened_on_the_way_is_in_the_record() -> None:
    by_name = {kind.__name__: kind for kind in KINDS}

    async def taken_over_and_cut(mixed: Mixed) -> None:
        mixed.guard.resumers["on"] = attrs.evolve(mixed.guard.resumers["on"], resumer=broken)
        cursor = await orphan(mixed, "on")
        await Request("/streams", streamguard="v=1", last_event_id=str(cursor)).at(mixed.endpoints)

    def broken(found: Any) -> Any:
        async def source() -> AsyncIterator[str]:
            yield "four"
            raise ValueError

        return Continue(source)

    (slow,) = recorded(by_name["slow"])
    assert slow.blocked == pytest.approx(8.0)
    (producer,) = recorded(taken_over_and_cut)
    assert (producer.part, producer.taken_over_at, producer.cause) == ("producer", 3, "source_error")
