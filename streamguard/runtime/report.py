"""Making an Outcome, and giving it to the application without letting that harm the stream.

A hook that does not end in time is told to stop, once, and then left behind: on asyncio it is a task of its
own. trio has no way to leave a task behind; there a hook that goes on is waited for, but no longer told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio

from streamguard.core.arguments import one_line
from streamguard.core.cursor import Cursor
from streamguard.core.errors import Failure
from streamguard.observe.hooks import OnEnd, Outcome
from streamguard.runtime.cancellation import FATAL, leaf
from streamguard.runtime.sink import Stage

__all__ = ["HOOK_GRACE", "HOOK_LIMIT", "deliver", "deliver_from_thread", "log_name", "make_outcome"]

logger = logging.getLogger("streamguard")

HOOK_LIMIT: Final = 5.0  # seconds that a hook may take
HOOK_GRACE: Final = 0.1  # seconds more for one that was told to stop


def log_name(stage: Stage[Any], request_id: str | None, asked: str = "") -> str:
    """What a stream is called in the log, in one line. Never by the whole sid, which grants access to it."""
    request = f" of {asked}" if asked else ""
    return one_line(f"{stage.cursor.sid[:8]}{request}" + (f" (request {request_id[:64]})" if request_id else ""))


async def deliver(outcome: Outcome, on_end: OnEnd) -> None:
    """Call `on_end` once, shielded and within its limit; what it raises is logged."""
    name = outcome.cursor.sid[:8]  # never the whole: it grants access
    try:
        result = on_end(outcome)
    except BaseException as exc:
        _raised(exc, name)
        return
    if result is not None:
        # A task of its own, because a shield alone does not keep out asyncio's own `Task.cancel`.
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_finished, result, name)


def deliver_from_thread(
    outcome: Outcome, on_end: OnEnd, wait: Callable[[Callable[..., Awaitable[None]], Any, str], object]
) -> None:
    """The same on a thread without an event loop. `wait(function, *args)` runs an async one in a loop of another."""
    name = outcome.cursor.sid[:8]
    try:
        result = on_end(outcome)
    except BaseException as exc:
        _raised(exc, name)
        return
    if result is not None:
        wait(_finished, result, name)


def _raised(exc: BaseException, name: str) -> None:
    """Log what a hook raised, unless it ends the program."""
    if leaf(exc, *FATAL) is not None:
        raise exc
    logger.error("stream %s: on_end raised", name, exc_info=exc)


async def _finished(hook: Awaitable[None], name: str) -> None:
    """Wait for the hook, within its limit."""
    with anyio.CancelScope(shield=True):
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            await _insist(hook, name)
        else:
            await _leave_behind(hook, name)


async def _leave_behind(hook: Awaitable[None], name: str) -> None:
    told = False
    task = asyncio.ensure_future(_call(hook, name, lambda: told))
    await asyncio.wait([task], timeout=HOOK_LIMIT)
    if not task.done():
        told = True
        logger.warning("stream %s: on_end took longer than %g s", name, HOOK_LIMIT)
        task.cancel()
        await asyncio.wait([task], timeout=HOOK_GRACE)
    if not task.done():
        logger.warning("stream %s: on_end does not stop; it is left behind", name)


async def _insist(hook: Awaitable[None], name: str) -> None:
    told, calm = anyio.CancelScope(), anyio.CancelScope()

    async def limit() -> None:
        await anyio.sleep(HOOK_LIMIT)
        logger.warning("stream %s: on_end took longer than %g s", name, HOOK_LIMIT)
        told.cancel()
        await anyio.sleep(HOOK_GRACE)
        calm.shield = True  # one that catches it would be told at every await, and keep the processor busy

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(limit)
        with told, calm:
            await _call(hook, name, lambda: told.cancel_called)
        tasks.cancel_scope.cancel()


async def _call(hook: Awaitable[None], name: str, told: Callable[[], bool]) -> None:
    try:
        await hook
    except BaseException as exc:
        cancelled = leaf(exc, anyio.get_cancelled_exc_class())
        if cancelled is not None and told():
            raise cancelled from None
        _raised(exc, name)


def make_outcome(
    stage: Stage[Any],
    *,
    status: str,
    failure: Failure | None,
    opened: bool,
    left: bool,
    times: tuple[float, float | None, float | None, float],
    request_id: str | None,
    abandoned: bool,
) -> Outcome:
    """The Outcome of a stream. `status` and `failure` count where no terminal was made; `opened` says that headers
    went out, `left` that the reader went before it had the whole; `times` are when it started, its first item,
    its first bytes, and its end. Never raises: a record that cannot be made is an empty one, with its reason."""
    rest = (*times, request_id, abandoned)
    try:
        ending, cursor = stage.ending, stage.cursor
        status = stage.status or status  # what the reader was told
        if status == "complete":
            failure = None  # it left behind the end that was made for it, which `delivered` says
        return Outcome(
            status,
            ending.finish_reason,
            ending.failure or failure,
            stage.items,
            cursor.seq,
            cursor.offset,
            stage.sent if opened else 0,
            ending.usage,
            cursor,
            "unknown" if status == "complete" and not left else "no",
            *rest,
        )
    except Exception:
        logger.exception("the record of a stream that ended as %s could not be made", status)
        unknown = None if status == "complete" else Failure("internal", "the stream's record could not be made")
        return Outcome(status, None, unknown, 0, 0, 0, 0, None, Cursor("", 0, 0, 0), "no", *rest)
