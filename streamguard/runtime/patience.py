"""How long a source that is told to stop is waited for.

Three cancel scopes lie around a source, all entered before it: its own may be open when it is closed, so none
may come later. It is told to stop by `scope`; `closing` shields its clean-up, with a deadline; `calm` is
shielded once it was told often enough, because one that catches a cancellation and goes on would keep a
processor busy for as long as it is told. After its limit it is abandoned: whoever waits is told, and the source
has the task to itself.
"""

from __future__ import annotations

import logging
from typing import Final

import anyio

from streamguard.runtime.cancellation import FATAL, leaf
from streamguard.runtime.closing import INSISTENCE
from streamguard.runtime.source import TokenSource

__all__ = ["TICK", "Patience"]

logger = logging.getLogger("streamguard")

# Seconds between two wakes of the clock watcher. A policy whose deadline is always now would keep a processor busy.
TICK: Final = 0.001


class Patience:
    """With one source. `limit`: seconds that it may take to stop, and to close. Times are on the driver's clock."""

    def __init__(self, limit: float) -> None:
        self.scope = anyio.CancelScope()
        self.closing = anyio.CancelScope()
        self.calm = anyio.CancelScope()
        self._limit = limit
        self._calm_due = self._abandon_due = float("inf")

    @property
    def due(self) -> float:
        """When to call `insist`."""
        return self._abandon_due if self.calm.shield else self._calm_due

    def stop(self, now: float) -> None:
        """The source is told to stop, now or after the write that is under way."""
        self._calm_due = now + min(INSISTENCE, self._limit)
        self._abandon_due = now + self._limit

    async def close(self, source: TokenSource, now: float, name: str) -> bool:
        """Close `source`, of the stream `name`, whatever that raises. False if it did not close in time."""
        self._calm_due = self._abandon_due = now + self._limit + INSISTENCE
        self.closing.shield = True
        self.closing.deadline = anyio.current_time() + self._limit
        self.calm.shield = False
        try:
            await source.aclose()
        except BaseException as exc:
            if leaf(exc, *FATAL) is not None:
                raise
            cancelled = leaf(exc, anyio.get_cancelled_exc_class())
            if cancelled is None:
                # `async generator ignored GeneratorExit`, or a fault in the source's own clean-up.
                logger.warning("stream %s: closing its source raised %r", name, exc)
            elif not self.closing.cancel_called:
                raise cancelled from None
            else:
                logger.warning(
                    "stream %s: its source did not close in time: "
                    "give its blocking calls a time limit, or raise this one, Timing(close=%g)",
                    name,
                    self._limit,
                )
                return False
        return True

    def insist(self, now: float) -> bool:
        """It did not stop until `due`: tell it no more. True if it is to be abandoned."""
        self.calm.shield = True
        return now >= self._abandon_due
