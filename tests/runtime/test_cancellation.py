"""Whether somebody outside asked this task to stop, whatever exception came."""

from __future__ import annotations

import asyncio
import builtins
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from streamguard.runtime.cancellation import FATAL, OutsideCancellation, leaf
from tests.runtime.virtual import BACKENDS, run

COUNTS = hasattr(asyncio.Task, "cancelling")  # Python 3.11: a task counts its cancellations


@pytest.mark.parametrize("backend", BACKENDS)
def test_nobody_asked(backend: str) -> None:
    async def test() -> list[bool]:
        return [OutsideCancellation().requested(unknown=False)]

    assert run(backend, test) == [False]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_scope_around_it_was_cancelled(backend: str) -> None:
    async def test() -> list[bool]:
        with anyio.CancelScope() as scope:
            outside = OutsideCancellation()
            scope.cancel()
            asked = [outside.requested(unknown=False)]
            await outside.repeat()
        assert scope.cancelled_caught
        return [*asked, outside.requested(unknown=False)]

    assert run(backend, test) == [True, False]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_shield_between_hides_it(backend: str) -> None:
    async def test() -> bool:
        with anyio.CancelScope() as scope:
            scope.cancel()
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
                return OutsideCancellation().requested(unknown=False)
        raise AssertionError

    assert run(backend, test) is False


@pytest.mark.parametrize("hidden", [True, False])
def test_the_task_itself_was_cancelled(hidden: bool) -> None:
    async def test() -> None:
        asked: list[bool] = []

        async def victim() -> None:
            outside = OutsideCancellation()
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                asked.append(outside.requested(unknown=False))
                if not hidden:
                    raise
            await outside.repeat()

        task = asyncio.ensure_future(victim())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asked == [COUNTS]

    run("asyncio", test)


def test_what_was_asked_before_does_not_count() -> None:
    async def test() -> bool:
        task: Any = asyncio.current_task()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(1)
        asked = OutsideCancellation().requested(unknown=False)
        if COUNTS:
            task.uncancel()
        return asked

    assert run("asyncio", test) is False


def test_a_cancelled_task_that_was_awaited_is_not_this_one() -> None:
    async def test() -> bool:
        outside = OutsideCancellation()
        other = asyncio.ensure_future(asyncio.sleep(10))
        await asyncio.sleep(1)
        other.cancel()
        with pytest.raises(asyncio.CancelledError):
            await other
        return outside.requested(unknown=True)

    assert run("asyncio", test) is not COUNTS


def test_a_time_limit_inside_that_passed_leaves_no_trace() -> None:
    async def test() -> bool:
        outside = OutsideCancellation()
        with anyio.move_on_after(1):
            await asyncio.sleep(10)
        return outside.requested(unknown=True)

    assert run("asyncio", test) is not COUNTS


@pytest.mark.parametrize("unknown", [True, False])
def test_a_task_that_keeps_no_count_gives_the_answer_that_was_asked_for(unknown: bool) -> None:
    async def test() -> bool:
        outside = OutsideCancellation()
        outside._task = object()  # as before Python 3.11
        return outside.requested(unknown=unknown)

    assert run("asyncio", test) is unknown


def test_a_leaf_is_found_in_groups_of_groups() -> None:
    group = getattr(builtins, "BaseExceptionGroup", None) or pytest.importorskip("exceptiongroup").BaseExceptionGroup
    wanted = SystemExit(1)
    assert leaf(wanted, *FATAL) is wanted
    assert leaf(group("a", [ValueError(), group("b", [GeneratorExit(), wanted])]), *FATAL) is wanted
    assert leaf(group("a", [ValueError(), group("b", [GeneratorExit()])]), *FATAL) is None
    assert leaf(group("a", [ValueError()]), *FATAL) is None


def test_an_exception_with_an_attribute_of_that_name_is_no_group() -> None:
    exc = BaseException()
    exc.exceptions = "none"  # type: ignore[attr-defined]
    assert leaf(exc, *FATAL) is None
    assert leaf(ValueError(), *FATAL) is None
