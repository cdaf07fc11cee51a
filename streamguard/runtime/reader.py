"""Log -> connection: the half of a resumable stream that is read.

The direct driver again, over the stored frames as its source: `stored` gives them in pages, first those that are
there, then each as it is appended, exactly once whatever the moment. So heartbeats, the write deadline, the watch on
the reader and the aborts are those of any other stream. What differs: an end that is not the stream's is a `bye`, and
an abort; the stream lives on, and the reader comes back with its last cursor. One that will not is told by an error of
its dialect, and by the abort.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Final

from streamguard.core.cursor import Cursor
from streamguard.core.dialect import Dialect
from streamguard.core.errors import Failure, SourceFailed
from streamguard.core.frame import Frame, status_of
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.items import Ending
from streamguard.core.terminal import failure_beside
from streamguard.log.base import PAGE, LogError, StreamLog, StreamState, follow
from streamguard.runtime.ending import SLOW
from streamguard.runtime.flow import Flow

__all__ = ["Page", "ReplayStage", "stored"]

_LOOK: Final = 1.0  # seconds without a frame after which a reader looks whether anybody generates the stream
_REST: Final = Failure("cut", "the rest of this answer was not sent: ask again", retryable=True)

Page = Sequence[Any]  # of frames, or of rows, as the log has them
Orphaned = Callable[[StreamState], Awaitable[None]]


class _Reads:
    """What is behind a cursor, page by page, of a log that is asked for it by reads and waits."""

    def __init__(self, log: StreamLog, after: Cursor, before: Callable[[], Awaitable[None]] | None) -> None:
        self._log = log
        self._after = after
        self._before = before  # a wait
        self._more = True  # there may be some at hand; else to wait for it is to find out

    async def next(self, seconds: float) -> Page:
        """The next page; an empty one where nothing came in so many seconds."""
        while self._more or await self._waited(seconds):
            page = await self._log.read(self._after)
            self._more = len(page) >= PAGE
            if page:
                last = page[-1]
                self._after = Cursor(self._after.sid, last.seq, last.offset, last.crc)
                return page
        self._more = True
        return []

    async def _waited(self, seconds: float) -> bool:
        if self._before is not None:
            await self._before()
        return await self._log.wait(self._after, seconds)


async def stored(
    log: StreamLog,
    after: Cursor,
    orphaned: Orphaned,
    *,
    look: float = _LOOK,
    reading: Callable[[], Awaitable[None]] | None = None,
    always: bool = True,
    rows: bool = False,
    leave: Callable[[], bool] | None = None,
    flow: Flow | None = None,
) -> AsyncGenerator[Page, None]:
    """The frames of a stream behind `after`, in pages, up to its terminal; as `rows`, if so wanted, where the log has
    them at hand.

    `orphaned` is called when nobody generates it any more: it takes the stream over, or seals it. `reading` is called
    while somebody waits for frames: before each wait, or unless `always` after each that was in vain. With `flow` the
    frames come as far as there is credit. The pages end early where `leave` answers True, and where the reader leaves
    it without credit for too long. Raises SourceFailed where the log has no more to give.
    """
    before, vain = (reading, None) if always else (None, reading)
    try:
        tail = follow(log, after) if rows else None
        following = _Reads(log, after, before) if tail is None else tail
        while leave is None or not leave():
            if tail is not None and before is not None:
                await before()
            page: Page = await following.next(look)
            if page:
                while flow is not None and not flow.free(page):
                    if (count := await flow.some(page, reading, leave)) is None:
                        return
                    if count:
                        yield page[:count]
                        page = page[count:]
                yield page
                if status_of(page[-1]) is not None:
                    return
                continue
            if vain is not None:
                await vain()
            state = await log.state(after.sid)
            if not state.held and not state.sealed:
                await orphaned(state)
            elif state.sealed and tail is not None:  # which waits for nothing there
                return
    except LogError as exc:
        raise SourceFailed("log", str(exc), retryable=True) from exc


class ReplayStage:
    """Pages of frames -> bytes of one connection, behind `at`; `resume` is the address to come back to, `flow`
    what a reader that gives credit says. `tells` is the dialect in which a reader is told that its connection ends
    before the stream, where a `bye` says nothing to it. `stands` says how the stream does, in the words of a log."""

    timed = False
    part = "reader"

    def __init__(
        self,
        guard: CompletionGuard,
        at: Cursor,
        *,
        own_ids: bool,
        resume: str | None,
        flow: Flow | None = None,
        tells: Dialect | None = None,
    ) -> None:
        self.guard = guard
        self.ending = Ending()
        self.items = 0
        self.parting = "lost"  # the reason of a `bye`
        self.stands: Callable[[], str] = _lives
        self._last: Any = None  # frame, or row
        self._at = at._replace(status=None)
        self._own_ids = own_ids
        self._resume = resume
        self._flow = flow
        self._tells = tells

    def open(self) -> bytes:
        return self.guard.open(self._at, own_ids=self._own_ids, resume=self._resume)

    def push(self, item: Any, now: float) -> bytes:
        """A page of frames, which is what `stored` yields."""
        self.items += len(item)
        self._last = item[-1]
        return self.guard.admit_all(item)

    def tick(self, now: float) -> bytes:
        return b""

    def deadline(self) -> None:
        return None

    def heartbeat(self) -> bytes:
        flow = self._flow
        if flow is None:
            return self.guard.heartbeat()
        return self.guard.heartbeat(blocked=flow.blocked) if flow.beat() else b""

    def finish(self, now: float) -> bytes:
        """The pages ended: at the terminal, or because this reader is to go."""
        if self._flow is not None and self._flow.slow and self.guard.status is None:
            self.parting, self.ending.failure = "slow", SLOW.failure
        return b"" if self.guard.status is not None else self._bye(self.parting)

    def fail(self, failure: Failure, now: float, status: str = "failed") -> bytes:
        """This connection ends, not the stream."""
        if self.guard.status is not None:
            return b""
        self.ending.failure = failure
        return self._bye("shutdown" if "shutdown" in (status, failure.code) else self.parting)

    def _bye(self, reason: str) -> bytes:
        """Once: a driver asks for its last words again as long as there is no status, and a `bye` gives none."""
        return b"" if self.guard.state == "parted" else self._in_band() + self.guard.bye(reason)

    def _in_band(self) -> bytes:
        """The error of the dialect, for a reader that would take a clean end for the whole: the abort behind it may not
        reach it (HTTP/1.0 shows none). For the stream, which lives on, it is no frame: it is not in the log."""
        if self._tells is None:
            return b""
        guard, encoder = self.guard, FramedEncoder(self._tells, at=self._at)
        if self._last is not None:
            encoder.follow([self._last if isinstance(self._last, Frame) else Frame(*self._last)])
        encoder.last = guard.last
        failure = self.ending.failure
        if failure is None or failure.code == "log":
            failure = _REST  # what a log says of itself names files and hosts
        data = b"".join(map(guard.encoder.frame, encoder.fail(failure)))
        guard.bytes += len(data)
        return data

    @property
    def status(self) -> str | None:
        return self.guard.status

    @property
    def was_cancelled(self) -> bool:
        """Whether a stream that ended as `cancelled` was asked to: it did not have to go, as one that nobody reads."""
        failure = failure_beside(self._last if isinstance(self._last, Frame) else Frame(*self._last))
        return failure is not None and failure.code == "cancelled"

    @property
    def cursor(self) -> Cursor:
        return self.guard.cursor if self.guard.state != "unopened" else self._at

    @property
    def sent(self) -> int:
        return self.guard.bytes


def _lives() -> str:
    """Where it is not generated here: whether it is over is not known."""
    return "lives in its log"
