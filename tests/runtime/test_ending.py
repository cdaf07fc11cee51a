"""The last words of a stream: said once, and gone on with where a cancelled call of them stopped."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from streamguard.core.errors import Failure, SourceFailed
from streamguard.core.flush import Immediate
from streamguard.core.pipeline import Pipeline
from streamguard.core.receipt import Verdict
from streamguard.runtime.connection import Connection
from streamguard.runtime.ending import GONE, SHUTDOWN, SHUTDOWN_LIMIT, Ending, Why
from tests.runtime.fakes import Wire, native, timing

pytestmark = pytest.mark.anyio

FAILED = Why("failed", Failure("overloaded", "later"), SourceFailed("overloaded", "later"))
CANCELLED = Why("cancelled", Failure("cancelled", "the stream was cancelled"))


class Stream:
    """An ending and what it works on, after the opening and one token."""

    def __init__(self, wire: Wire, *, abort: bool = True, **limits: Any) -> None:
        self.wire = wire
        self.pipeline: Pipeline = native(Immediate())
        self.line: Connection[bytes] = Connection(wire, anyio.current_time)
        self.line.opening = self.pipeline.open()
        self.ending: Ending[bytes] = Ending(self.pipeline, self.line, timing(**limits), name="stream", abort=abort)

    async def begun(self) -> Stream:
        await self.line.open()
        await self.line.send(self.pipeline.push("a", 0.0))
        return self


async def test_a_source_that_returned_is_complete_and_ends_cleanly() -> None:
    stream = await Stream(Wire()).begun()
    await stream.ending.finish()
    assert stream.wire.calls[-2:] == ["send", "end"]
    assert stream.wire.read().verdict is Verdict.COMPLETE


@pytest.mark.parametrize(("why", "status"), [(FAILED, "failed"), (CANCELLED, "cancelled"), (SHUTDOWN, "shutdown")])
async def test_every_other_end_is_told_and_then_aborted(why: Why, status: str) -> None:
    stream = await Stream(Wire(), linger=0.5).begun()
    stream.ending.why = why
    await stream.ending.last_words()
    assert stream.wire.calls[-1] == "send"
    await stream.ending.finish()
    assert stream.wire.calls[-1] == "abort"
    assert stream.wire.read().status == status
    assert anyio.current_time() == 0.5


async def test_control_characters_of_a_failure_are_escaped_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Else a message that holds what a user wrote could forge a line of the log, or rewrite a terminal's."""
    stream = await Stream(Wire()).begun()
    failure = Failure("bad\r\nERROR forged", "über \x1b[2J\n\x85end")
    stream.ending.why = Why("failed", failure, SourceFailed("bad", "end"))
    await stream.ending.last_words()
    said = r"bad\r\nERROR forged: über \x1b[2J\n\x85end"
    assert [record.getMessage().endswith(f": {said}") for record in caplog.records] == [True]


async def test_it_may_be_clean_where_the_reader_verifies() -> None:
    stream = await Stream(Wire(), abort=False).begun()
    stream.ending.why = FAILED
    await stream.ending.finish()
    assert stream.wire.calls[-1] == "end"


async def test_a_reader_who_is_gone_is_told_nothing() -> None:
    stream = await Stream(Wire()).begun()
    stream.ending.why = GONE
    await stream.ending.finish()
    assert stream.wire.calls == ["start", "send", "send", "abort"]
    assert stream.pipeline.status is None


async def test_nothing_follows_a_torn_write() -> None:
    stream = await Stream(Wire(slow=lambda number, data: 9.0 if number == 3 else 0.0)).begun()
    with anyio.move_on_after(1):
        await stream.line.send(stream.pipeline.push("b", 0.0))
    await stream.ending.finish()
    assert stream.wire.calls[-2:] == ["send", "abort"]


async def test_said_twice_is_said_once() -> None:
    stream = await Stream(Wire()).begun()
    stream.ending.why = FAILED
    for _ in range(3):
        await stream.ending.finish()
    assert stream.wire.body.count(b"event: end\n") == 1
    assert stream.wire.calls.count("abort") == 1


@pytest.mark.parametrize("why", [None, FAILED])
async def test_a_terminal_whose_write_was_interrupted_is_not_written_again(why: Why | None) -> None:
    stream = await Stream(Wire(slow=lambda number, data: 9.0 if b"event: end" in data else 0.0)).begun()
    stream.ending.why = why
    with anyio.move_on_after(1):
        await stream.ending.finish()
    await stream.ending.finish_soon()
    assert stream.wire.calls[-2:] == ["send", "abort"]
    assert stream.wire.read().verdict is Verdict.TRUNCATED


async def test_a_wait_for_hanging_up_that_was_interrupted_ends_in_the_abort() -> None:
    stream = await Stream(Wire(), linger=60.0).begun()
    stream.ending.why = FAILED
    with anyio.move_on_after(1):
        await stream.ending.finish()
    assert stream.wire.calls[-1] == "send"
    await stream.ending.finish_soon()
    assert stream.wire.calls[-1] == "abort"
    assert anyio.current_time() == 1 + SHUTDOWN_LIMIT


async def test_a_frame_that_was_made_and_not_sent_goes_before_the_terminal() -> None:
    stream = await Stream(Wire()).begun()
    stream.ending.unsent = stream.pipeline.push("b", 0.0)
    stream.ending.why = CANCELLED
    await stream.ending.finish()
    assert stream.wire.text == "ab"
    assert stream.wire.read().status == "cancelled"


@pytest.mark.parametrize("why", [FAILED, SHUTDOWN])
async def test_before_the_headers_a_failure_is_the_servers_to_answer(why: Why) -> None:
    stream = Stream(Wire())
    stream.ending.why = why
    await stream.ending.finish()
    assert stream.wire.calls == []


@pytest.mark.parametrize("why", [None, CANCELLED])
async def test_before_the_headers_any_other_end_is_an_answer(why: Why | None) -> None:
    stream = Stream(Wire())
    stream.ending.why = why
    await stream.ending.finish()
    assert stream.wire.calls[0] == "start"
    assert stream.wire.read().status == ("complete" if why is None else "cancelled")
