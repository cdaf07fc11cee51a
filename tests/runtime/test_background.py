"""Tasks that outlive whoever started them, on asyncio and on trio."""

from __future__ import annotations

import contextvars
import logging

import anyio
import anyio.lowlevel
import pytest

from streamguard.runtime.background import Background
from tests.runtime.virtual import BACKENDS, run

pytestmark = pytest.mark.anyio
VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


class OddError(BaseException):
    """One that `except Exception` does not catch."""


async def test_a_task_outlives_the_one_that_started_it() -> None:
    background, went, go = Background(), list[str](), anyio.Event()

    async def work() -> None:
        await go.wait()
        went.append("on")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.lowlevel.checkpoint)
        background.start(work, "work")
        tasks.cancel_scope.cancel()
    assert (len(background), went) == (1, [])
    go.set()
    await anyio.sleep(1.0)
    assert (len(background), went) == (0, ["on"])


async def test_it_has_the_context_of_whoever_started_it_and_changes_nothing_there() -> None:
    background, found = Background(), list[str]()
    VARIABLE.set("the starter's")

    async def work() -> None:
        found.append(VARIABLE.get())
        VARIABLE.set("its own")

    background.start(work, "work")
    await anyio.sleep(1.0)
    assert (found, VARIABLE.get()) == (["the starter's"], "the starter's")


@pytest.mark.parametrize("exc", [ValueError("oh"), OddError("oh")], ids=["plain", "odd"])
async def test_what_it_raises_is_logged_and_harms_nobody(
    exc: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    background = Background()

    async def work() -> None:
        raise exc

    with caplog.at_level(logging.ERROR):
        background.start(work, "streamguard work")
        await anyio.sleep(1.0)
    assert [record.getMessage() for record in caplog.records] == ["streamguard work failed"]
    assert len(background) == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_is_cancelled_when_the_loop_ends(backend: str) -> None:
    ends: list[str] = []

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ends.append("cancelled")

    async def test() -> None:
        Background().start(work, "work")
        await anyio.sleep(1.0)

    run(backend, test)
    assert ends == ["cancelled"]


async def test_all_of_them_are_told_to_go_and_waited_for_one_that_has_not_begun_too() -> None:
    background, went = Background(), list[str]()

    async def work() -> None:
        went.append("began")
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1.0)
            went.append("last words")

    background.start(work, "one")
    await anyio.sleep(0.1)
    background.start(work, "two")
    assert await background.aclose(5.0)
    assert len(background) == 0
    assert went.count("last words") == went.count("began") >= 1
    assert await background.aclose(5.0)


async def test_one_that_does_not_go_is_not_waited_for_beyond_the_limit() -> None:
    background, go = Background(), anyio.Event()

    async def work() -> None:
        with anyio.CancelScope(shield=True):
            await go.wait()

    background.start(work, "work")
    await anyio.sleep(0.1)
    since = anyio.current_time()
    assert not await background.aclose(2.0)
    assert anyio.current_time() - since == pytest.approx(2.0, abs=0.5)
    go.set()
    await anyio.sleep(0.1)
    assert len(background) == 0
