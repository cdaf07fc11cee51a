"""The two seams: what a driver needs of a stage and of a connection, and nothing more."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from streamguard.core.cursor import Cursor
from streamguard.core.dialect import Native
from streamguard.core.errors import Failure
from streamguard.core.flush import Immediate
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.items import Ending, Item
from streamguard.core.pipeline import Pipeline
from streamguard.core.wire import Sse
from streamguard.runtime.direct import DirectDriver
from streamguard.runtime.sink import Sink, Stage
from streamguard.runtime.source import TokenSource
from tests.runtime.fakes import Script, Wire, timing

pytestmark = pytest.mark.anyio


def test_a_pipeline_is_a_stage_and_the_fake_is_a_sink() -> None:
    stage: Stage[bytes] = Pipeline(Immediate(), FramedEncoder(Native()), CompletionGuard(Sse()))
    sink: Sink[bytes] = Wire()
    assert stage.status is None
    assert sink is not None


class Upper:
    """The least that can be driven: a stage of somebody else, that makes upper case."""

    cursor = Cursor("", 0, 0, 0)
    sent = 0
    timed = False

    def __init__(self) -> None:
        self.ending = Ending()
        self.status: str | None = None
        self.items = 0

    def open(self) -> bytes:
        return b"<"

    def push(self, item: Item, now: float) -> bytes:
        self.items += 1
        return str(item).upper().encode()

    def tick(self, now: float) -> bytes:
        return b""

    def finish(self, now: float) -> bytes:
        self.status = "complete"
        return b">"

    def fail(self, failure: Failure, now: float, status: str = "failed") -> bytes:
        self.status = status
        return b"!"

    def heartbeat(self) -> bytes:
        return b"."

    def deadline(self) -> float | None:
        return None


@pytest.mark.parametrize(
    ("last", "body", "calls"),
    [("b", b"<A..B>", ["end"]), (ValueError(), b"<A..!", ["abort"])],
)
async def test_a_driver_drives_any_stage_into_any_sink(last: Any, body: bytes, calls: list[str]) -> None:
    wire = Wire()
    driver = DirectDriver(TokenSource(Script("a", 2.5, last)), Upper(), wire, timing(heartbeat=1.0))
    outcome = await driver.run()
    assert wire.body == body
    assert wire.calls[-1:] == calls
    assert outcome.items == body.count(b"A") + body.count(b"B")


async def test_an_end_that_is_no_complete_one_may_be_clean_where_the_reader_verifies() -> None:
    wire = Wire()
    await DirectDriver(TokenSource(Script("a", ValueError())), Upper(), wire, timing(), abort=False).run()
    assert wire.calls[-1] == "end"


class Refusing(Upper):
    """Cannot make its last bytes."""

    def finish(self, now: float) -> bytes:
        raise RuntimeError("no end")

    def fail(self, failure: Failure, now: float, status: str = "failed") -> bytes:
        raise RuntimeError("no end")


@pytest.mark.parametrize("last", ["b", ValueError()])
@pytest.mark.parametrize("abort", [True, False])
async def test_a_stage_that_cannot_end_gets_its_connection_aborted(last: Any, abort: bool, caplog: Any) -> None:
    wire = Wire()
    outcome = await DirectDriver(TokenSource(Script("a", last)), Refusing(), wire, timing(), abort=abort).run()
    assert wire.calls[-1] == "abort"
    assert outcome.status == "failed"
    assert outcome.delivered == "no"
    assert "last bytes could not be made" in caplog.text


class Shut(Upper):
    def open(self) -> bytes:
        raise ValueError("a carrier and a dialect that do not go together")


async def test_a_stage_that_cannot_open_fails_before_the_headers() -> None:
    """The server's own error answer tells more than an empty stream."""
    wire = Wire()
    script = Script("a")
    driver = DirectDriver(TokenSource(script), Shut(), wire, timing())
    with pytest.raises(ValueError, match="do not go together"):
        await driver.run()
    assert wire.calls == []
    assert script.tasks == []
    assert driver.outcome is not None
    assert anyio.current_time() == 0
