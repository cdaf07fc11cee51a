"""How a stream ends on its connection: its last words, said once, and the parting after them.

The terminal is written in `last_words`, never from a `finally`: by the driver, or by its clock watcher where
the driver is stuck in a source that does not stop. Both methods go on where a cancelled call of them stopped:
a terminal that was not made is made, one whose write was interrupted is not written again, and a connection
that was not ended is aborted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import anyio
import attrs

from streamguard.core.arguments import one_line
from streamguard.core.errors import Failure, LocalProtocolError, SourceFailed
from streamguard.runtime.connection import Connection, Lost
from streamguard.runtime.seen import UNSEEN, Unseen
from streamguard.runtime.sink import Stage
from streamguard.runtime.timing import Timing

__all__ = ["GONE", "SHUTDOWN", "SHUTDOWN_LIMIT", "SLOW", "Ending", "Why", "log_end", "lost"]

logger = logging.getLogger("streamguard")

T = TypeVar("T", bytes, list[Any])


@attrs.frozen
class Why:
    """Why a stream ends though its source did not return. `status` is its terminal's, or `gone`."""

    status: str
    failure: Failure
    exception: Exception | None = None


GONE: Final = Why("gone", Failure("gone", "the reader left"))
SLOW: Final = Why("slow", Failure("slow", "the reader took nothing for too long", True))
SHUTDOWN: Final = Why("shutdown", Failure("shutdown", "the server is going away", True))
_EARLY: Final = " (before its first item: with Timing(peek=…) the reader would get an HTTP status)"
_DROPPED: Final = ("slow", "gone")  # the codes of a reader that took nothing, or answered nothing
SHUTDOWN_LIMIT: Final = 1.0  # seconds for the last bytes of a stream whose task was cancelled


def lost(line: Connection[Any]) -> Why:
    """Why a stream ends whose connection was lost."""
    return SLOW if line.slow else GONE


class Ending(Generic[T]):
    """Ends one stream. `why` stays None where its source returns; `abort` says whether an end other than
    `complete` also aborts the connection."""

    def __init__(
        self,
        stage: Stage[T],
        line: Connection[T],
        timing: Timing,
        *,
        name: str,
        abort: bool,
        seen: Unseen = UNSEEN,
    ) -> None:
        self.why: Why | None = None
        self.begun = False  # from here on nothing but the last words may be written
        self.unsent: T | None = None  # framed, and not handed to the connection yet
        self._stage: Stage[T] = stage
        self._line: Connection[T] = line
        self._timing = timing
        self._seen = seen
        self._abort = abort
        self._told = False
        self._finished = False
        self._name = name
        # Of a stream in a log: whether this is its `producer` or a `reader`; empty for any other.
        self.part: str = getattr(stage, "part", "")
        self._stands: Callable[[], str] = getattr(stage, "stands", str)

    def begin(self) -> None:
        """The source is over, or told to be: from now on `why` is settled."""
        self.begun = True

    async def last_words(self) -> None:
        """The terminal, if there is anybody to tell, and the clean end after `complete`."""
        self.begin()
        why, line = self.why, self._line
        if why is GONE and self.part == "reader":
            self._tell()
        if why is GONE or line.over:
            return
        if line.torn or line.slow:
            self._tell()
            return
        if not line.opened and why is not None and (why.exception is not None or why is SHUTDOWN):
            return  # before the headers the server's own error answer is the better one
        try:
            if self._stage.status is None:
                await self._terminal(why)
            if self._stage.status == "complete":
                await line.end()
        except Lost:
            pass
        except Exception:
            logger.exception("stream %s: its last bytes could not be made", self._name)
            line.torn = True

    async def finish(self) -> None:
        """The last words, and how the connection ends after them."""
        await self.last_words()
        await self._end_connection()
        await self._line.part()
        if self._line.slow and self._stage.status is not None:  # written to its end, and not taken to it
            self._tell_dropped()
        self._finished = True

    async def _end_connection(self) -> None:
        line = self._line
        if line.over or not line.opened:
            return
        if self._stage.status not in (None, "complete") and not line.torn:
            with anyio.move_on_after(self._timing.linger):
                # SDKs that raise on the terminal hang up at once, and proxies then book a client close.
                await line.gone.wait()
            if not self._abort:
                await line.end()
        await line.abort()

    async def finish_soon(self) -> None:
        """The same where the task was cancelled: within a limit, and aborted whatever comes."""
        if self._finished:
            return
        with anyio.CancelScope(shield=True):
            try:
                with anyio.move_on_after(SHUTDOWN_LIMIT):
                    await self.finish()
            finally:
                await self._line.abort()

    async def _terminal(self, why: Why | None) -> None:
        line, stage = self._line, self._stage
        if not line.opened:
            await line.open()
        now = self._timing.clock()
        last = stage.finish(now) if why is None else stage.fail(why.failure, now, why.status)
        self._tell()
        self._seen.terminal(now)
        if self.unsent:
            last = self.unsent + last
        if last:
            await line.send(last)

    def _tell_parted(self, failure: Failure) -> None:
        """What ended is a connection of a stream that lives on in its log, or this process's part in it. A reader that
        was dropped is a warning, as it is where its stream ends with it; one that left by itself is none."""
        what = "a reader is not served any more," if self.part == "reader" else "this process lets go of it"
        dropped = failure.code in _DROPPED and failure is not GONE.failure
        logger.log(
            logging.WARNING if dropped else logging.INFO,
            "stream %s %s: %s after %d items: %s: %s",
            one_line(self._name),
            "goes on" if self.part == "producer" else "is over" if self._stage.status is not None else self._stands(),
            what,
            self._stage.items,
            one_line(failure.code),
            one_line(failure.message),
        )

    def _tell_dropped(self) -> None:
        """The reader of a stream that was written to its end took nothing of what its transport holds."""
        if self._told:
            return
        self._told = True
        if self.part:
            self._tell_parted(SLOW.failure)
            return
        logger.warning(
            "stream %s ended as %s after %d items, and its end was not taken: %s: %s",
            one_line(self._name),
            self._stage.status,
            self._stage.items,
            SLOW.failure.code,
            SLOW.failure.message,
        )

    def _tell(self) -> None:
        """One line in the log for a stream that did not complete; a traceback where nobody chose the failure."""
        why, stage = self.why, self._stage
        status = stage.status or (why.status if why is not None else "failed")
        failure = stage.ending.failure or (why.failure if why is not None else None)
        if self._told or status == "complete" or failure is None:
            return
        self._told = True
        exc = why.exception if why is not None else None
        if self.part and stage.status is None and exc is None:
            self._tell_parted(failure)
            return
        early = exc is not None and not stage.items and not self._timing.peek and not self.part
        log_end(self._name, status, failure, exc, stage.items, early=early)


def log_end(name: str, status: str, failure: Failure, exc: Exception | None, items: int, *, early: bool) -> None:
    """The line of a stream that did not complete, of whose source `exc` came. `early`: before its first item."""
    unexpected = exc is not None and not isinstance(exc, (SourceFailed, LocalProtocolError))
    logger.log(
        logging.ERROR if unexpected else logging.WARNING,
        "stream %s ended as %s after %d items: %s: %s%s",
        one_line(name),
        status,
        items,
        one_line(failure.code),
        one_line(failure.message),
        _EARLY if early else "",
        exc_info=exc if unexpected else None,
    )
