"""Making an Outcome, and giving it to the application without letting that harm the stream."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Any, Final

import anyio

from streamguard.core.errors import Failure
from streamguard.observe.hooks import OnEnd, Outcome
from streamguard.runtime.sink import Stage

__all__ = ["HOOK_LIMIT", "deliver", "make_outcome"]

logger = logging.getLogger("streamguard")

HOOK_LIMIT: Final = 5.0  # seconds that a hook may take


async def deliver(outcome: Outcome, on_end: OnEnd) -> None:
    """Call `on_end` once, shielded and within its limit; what it raises is logged."""
    name = outcome.cursor.sid[:8]  # never the whole: it grants access
    try:
        result = on_end(outcome)
    except Exception:
        logger.exception("stream %s: on_end raised", name)
        return
    if result is not None:
        # A task of its own, because a shield alone does not keep out asyncio's own `Task.cancel`.
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_finished, result, name)


async def _finished(hook: Awaitable[None], name: str) -> None:
    with anyio.move_on_after(HOOK_LIMIT, shield=True) as limit:
        try:
            await hook
        except Exception:
            logger.exception("stream %s: on_end raised", name)
    if limit.cancelled_caught:
        logger.warning("stream %s: on_end took longer than %g s", name, HOOK_LIMIT)


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
    its first bytes, and its end."""
    ending = stage.ending
    status = stage.status or status
    return Outcome(
        status=status,
        finish_reason=ending.finish_reason,
        failure=ending.failure or failure,
        items=stage.items,
        frames=stage.cursor.seq,
        bytes=stage.cursor.offset,
        sent=stage.sent if opened else 0,
        usage=ending.usage,
        cursor=stage.cursor,
        delivered="unknown" if status == "complete" and not left else "no",
        started=times[0],
        first_item=times[1],
        first_byte=times[2],
        ended=times[3],
        request_id=request_id,
        abandoned=abandoned,
    )
