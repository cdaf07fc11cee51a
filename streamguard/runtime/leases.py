"""The two ends of a lease that are not kept by a producer: it is given with a stream, and let go of."""

from __future__ import annotations

import logging

import anyio

from streamguard.log.base import Lease, LogError, StreamExists, StreamInfo, StreamLog

__all__ = ["created", "let_go"]

logger = logging.getLogger("streamguard")


async def created(log: StreamLog, info: StreamInfo, ttl: float) -> Lease:
    """Make a stream. Raises StreamExists where its key has one, and LogUnavailable."""
    try:
        return await log.create(info, ttl)
    except StreamExists:
        raise
    except BaseException:  # it may be there all the same: whoever asks for its key again would wait for its lease
        await let_go(log, Lease(info.sid, 1, ttl))
        raise


async def let_go(log: StreamLog, lease: Lease) -> None:
    """Release a lease, so that another need not wait for its end: shielded, for a second at most. Raises nothing that
    the log says."""
    with anyio.CancelScope(shield=True), anyio.move_on_after(1.0):
        try:
            await log.release(lease)
        except LogError as exc:
            logger.warning("stream %s: its lease could not be let go: %s", lease.sid[:8], exc)
