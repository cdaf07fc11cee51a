"""The Outcome: made on every exit, given once, and harmless to the stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from streamguard.core.errors import Failure, SourceFailed
from streamguard.core.items import Finish
from streamguard.observe.hooks import Outcome
from streamguard.runtime.report import HOOK_LIMIT
from streamguard.runtime.source import TokenSource
from tests.runtime.fakes import SID, Hook, Script, Served, Wire, serve
from tests.runtime.virtual import run

pytestmark = pytest.mark.anyio


async def test_every_field_of_a_complete_stream() -> None:
    script = Script(1.0, "a", 1.0, "b", Finish("length", {"total_tokens": 2}))
    served = await serve(script, Wire(slow=0.25), heartbeat=None).run()
    outcome = served.outcome
    cursor = served.wire.read().cursor
    assert outcome == Outcome(
        status="complete",
        finish_reason="length",
        failure=None,
        items=2,
        frames=3,
        bytes=outcome.cursor.offset,
        sent=len(served.wire.body),
        usage={"total_tokens": 2},
        cursor=cursor,  # type: ignore[arg-type]
        delivered="unknown",
        started=0.0,
        first_item=1.25,
        first_byte=0.25,
        ended=3.0,
        request_id="request",
        abandoned=False,
    )
    assert outcome.cursor.sid == SID
    assert outcome.cursor.status == "complete"


async def test_a_failed_stream_tells_what_its_terminal_told() -> None:
    served = await serve(Script("a", SourceFailed("overloaded", "later", retryable=True))).run()
    assert served.outcome.failure == Failure("overloaded", "later", True)
    assert served.outcome.delivered == "no"
    assert served.outcome.frames == 2


EXITS: dict[str, Callable[[Served], Any]] = {
    "left at once": lambda served: served.wire.left.set(),
    "cancelled at once": lambda served: served.cancel(),
}


@pytest.mark.parametrize("way", EXITS)
async def test_there_is_an_outcome_on_instant_exits(way: str) -> None:
    served = serve(Script("a", 1.0))
    EXITS[way](served)
    await served.run()
    assert served.outcome.status == ("gone" if way == "left at once" else "cancelled")
    assert served.outcome.items <= 1
    assert served.outcome.delivered == "no"


async def test_there_is_an_outcome_for_a_stream_whose_task_was_cancelled_before_it_sent_anything() -> None:
    served = serve(Script("a"))
    with anyio.CancelScope() as scope:
        scope.cancel()
        await served.driver.run()
    assert scope.cancelled_caught
    assert served.outcome.status == "shutdown"
    assert served.outcome.delivered == "no"


async def test_what_the_source_reported_so_far_counts() -> None:
    served = serve(Script("a", Finish(None, {"prompt_tokens": 3}), "b", 9.0))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.run)
        await anyio.sleep(1)
        served.wire.left.set()
    assert served.outcome.usage == {"prompt_tokens": 3}
    assert served.outcome.items == 2
    assert served.outcome.frames == 2
    assert served.outcome.sent == len(served.wire.body)


async def test_a_hook_may_be_a_plain_function() -> None:
    outcomes: list[Outcome] = []
    served = serve(Script("a"))
    served.driver._on_end = outcomes.append
    outcome = await served.driver.run()
    assert outcomes == [outcome]


async def test_no_hook_is_no_fault() -> None:
    served = serve(Script("a"))
    served.driver._on_end = None
    assert (await served.driver.run()).status == "complete"


@pytest.mark.parametrize("kind", ["function", "coroutine"])
async def test_a_hook_that_raises_is_logged_and_the_stream_is_not_harmed(kind: str, caplog: Any) -> None:
    def raises(outcome: Outcome) -> None:
        raise ConnectionError("the billing system is down")

    async def raises_later(outcome: Outcome) -> None:
        raises(outcome)

    served = serve(Script("a"))
    served.driver._on_end = raises if kind == "function" else raises_later
    assert (await served.driver.run()).status == "complete"
    assert "on_end raised" in caplog.text
    assert "the billing system is down" in caplog.text
    assert SID not in caplog.text  # the whole name of a stream grants access to it


async def test_a_hook_that_hangs_is_given_up_after_its_limit(caplog: Any) -> None:
    served = await serve(Script("a"), hook=Hook(anyio.sleep_forever)).run()
    assert anyio.current_time() == HOOK_LIMIT == 5.0
    assert "on_end took longer than 5 s" in caplog.text
    assert served.hook.finished == 0


async def test_a_hook_is_shielded_from_a_cancellation() -> None:
    served = serve(Script("a", 9.0), hook=Hook(lambda: anyio.sleep(3)))
    with anyio.move_on_after(1) as scope:
        await served.driver.run()
    assert scope.cancelled_caught
    assert served.hook.finished == 1


def test_a_hook_is_shielded_from_the_cancellation_that_asyncio_itself_delivers() -> None:
    """A scope's shield does not keep that out."""

    async def test() -> None:
        hook = Hook(lambda: anyio.sleep(3))
        served = serve(Script("a"), hook=hook)
        task = asyncio.ensure_future(served.driver.run())
        await asyncio.sleep(1)  # the stream is over, and the hook at work
        assert served.outcome.status == "complete"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert hook.finished == 1

    run("asyncio", test)


async def test_the_hook_comes_after_the_source_was_closed_and_the_connection_ended() -> None:
    seen: list[tuple[int, str]] = []
    script = Script("a", SourceFailed("x", "y"))

    async def look() -> None:
        seen.append((script.closes, served.wire.calls[-1]))

    served = serve(TokenSource(script), hook=Hook(look))
    await served.run()
    assert seen == [(1, "abort")]
