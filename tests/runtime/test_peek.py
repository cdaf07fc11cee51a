"""Waiting with the headers for the first item, so that an early failure keeps its HTTP status."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from streamguard.core.errors import SourceFailed, UnsupportedItem
from streamguard.core.flush import EveryTokens
from streamguard.core.receipt import Verdict
from tests.runtime.fakes import Script, Wire, serve

pytestmark = pytest.mark.anyio


async def test_an_early_exception_comes_out_of_run_before_anything_was_sent() -> None:
    error = PermissionError("not yours")
    script = Script(1.0, error)
    served = serve(script, peek=5.0)
    with pytest.raises(PermissionError) as caught:
        await served.driver.run()
    assert caught.value is error
    assert served.wire.calls == []
    assert served.outcome.status == "failed"
    assert served.outcome.sent == served.outcome.bytes == 0
    assert script.closes == 1


async def test_without_peek_the_same_exception_is_a_terminal() -> None:
    served = await serve(Script(PermissionError("not yours"))).run()
    assert served.wire.read().status == "failed"
    assert served.wire.calls[0] == "start"


@pytest.mark.parametrize(
    ("script", "advised"), [([PermissionError("no")], True), (["a", PermissionError("no")], False)]
)
async def test_the_log_says_what_would_have_kept_the_status(
    script: list[Any], advised: bool, caplog: pytest.LogCaptureFixture
) -> None:
    await serve(Script(*script)).run()
    assert ("Timing(peek=" in caplog.text) == advised
    caplog.clear()
    served = serve(Script("a", PermissionError("no")), peek=5.0)
    await served.run()
    assert "Timing(peek=" not in caplog.text


async def wrong_item() -> Any:
    yield object()


@pytest.mark.parametrize(("source", "error"), [(lambda: 5, TypeError), (wrong_item, UnsupportedItem)])
async def test_an_early_mistake_comes_out_too(source: Any, error: type[Exception]) -> None:
    served = serve(source, peek=5.0)
    with pytest.raises(error):
        await served.driver.run()
    assert served.wire.calls == []


async def test_loading_that_fails_early_comes_out() -> None:
    async def load() -> Any:
        await anyio.sleep(1)
        raise SourceFailed("no_such_model", "there is none")

    served = serve(load, peek=5.0)
    with pytest.raises(SourceFailed):
        await served.driver.run()
    assert served.wire.calls == []


async def test_headers_leave_with_the_first_item_if_it_comes_in_time() -> None:
    served = await serve(Script(1.0, "a", 20.0, "b"), peek=5.0, heartbeat=9.0).run()
    assert served.wire.times[:2] == [1.0, 1.0]
    assert served.wire.beats == 2
    assert served.outcome.first_byte == 1.0
    assert served.wire.read().verdict is Verdict.COMPLETE


async def test_headers_leave_with_the_first_item_though_the_policy_holds_it() -> None:
    served = await serve(Script(1.0, "a", 20.0, "b"), peek=5.0, policy=EveryTokens(8, first="policy")).run()
    assert served.wire.times[0] == 1.0
    assert served.wire.text == "ab"


async def test_headers_leave_when_the_time_is_over_and_the_first_item_later() -> None:
    served = await serve(Script(8.0, "a"), peek=5.0, heartbeat=2.0).run()
    assert served.wire.times[0] == 5.0
    assert served.wire.beats == 1
    assert served.wire.text == "a"


async def test_an_exception_after_the_time_is_a_terminal() -> None:
    served = await serve(Script(8.0, ValueError("late")), peek=5.0).run()
    assert served.wire.read().status == "failed"


async def test_a_source_that_is_over_early_is_complete() -> None:
    served = await serve(Script(), peek=5.0).run()
    assert served.wire.calls == ["start", "send", "send", "end"]
    assert served.wire.read().verdict is Verdict.COMPLETE


async def test_the_first_item_may_come_while_headers_are_being_sent() -> None:
    served = await serve(Script(6.0, "a"), Wire(on_start=lambda: anyio.sleep(3)), peek=5.0).run()
    assert served.wire.text == "a"
    assert served.wire.overlaps == 0


async def test_a_reader_that_leaves_early_gets_nothing() -> None:
    served = serve(Script(3.0, "a"), peek=5.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.run)
        await anyio.sleep(1)
        served.wire.left.set()
    assert served.outcome.status == "gone"
    assert served.wire.calls == []


async def test_a_stream_that_stalls_or_is_cancelled_early_is_an_answer() -> None:
    served = await serve(Script(30.0, "a"), peek=50.0, stall=5.0).run()
    assert served.wire.read().status == "stalled"
    served = serve(Script(30.0, "a"), peek=50.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.run)
        await anyio.sleep(1)
        served.cancel()
    assert served.wire.read().status == "cancelled"


async def test_a_shutdown_before_the_headers_leaves_the_answer_to_the_server() -> None:
    served = serve(Script(30.0, "a"), peek=50.0)
    with anyio.move_on_after(1) as scope:
        await served.driver.run()
    assert scope.cancelled_caught
    assert served.wire.calls == []
    assert served.outcome.status == "shutdown"


async def test_a_policy_that_raises_at_the_first_item_comes_out() -> None:
    class Broken:
        def push(self, piece: str, held: int, now: float) -> int:
            raise ArithmeticError

        def tick(self, held: int, now: float) -> int:
            return 0

        def deadline(self) -> None:
            return None

    served = serve(Script("a"), peek=5.0, policy=Broken())
    with pytest.raises(ArithmeticError):
        await served.driver.run()
