"""What a log may forget is forgotten now and then, by whoever starts streams in it."""

from __future__ import annotations

import logging
from typing import Final

import anyio

from streamguard.log.base import LogUnavailable, StreamLog
from streamguard.runtime.background import Background

__all__ = ["Sweeper"]

logger = logging.getLogger("streamguard")

_SWEEP: Final = 30.0  # seconds between two looks at what the log may forget


class Sweeper:
    """Of one log, beside the caller."""

    def __init__(self, log: StreamLog, background: Background) -> None:
        self.swept = 0.0  # when, the last time
        self._log = log
        self._background = background

    def now_and_then(self) -> None:
        """To be called often."""
        now = anyio.current_time()
        if now - self.swept >= _SWEEP:
            self.swept = now
            self._background.start(self._sweep, "streamguard sweep")

    async def _sweep(self) -> None:
        try:
            while await self._log.sweep():
                pass
        except LogUnavailable as exc:
            logger.warning("what is too old could not be forgotten now: %s", exc)
