"""The direct path on a thread: source -> pipeline -> whoever iterates, without an event loop.

For servers that call an application on a thread and take its body as an iterator (WSGI). The pipeline and the clock are
the thread's that iterates: it waits for the next item, and no longer than until something is due, a sign of life or a
flush say. The source has a thread of its own, because one that blocks would stop the clock too; one that is stepped
inline does, and what is due then is done once it comes back.

    driver = BlockingDriver(source, stage, timing)
    driver.peek()                  # before the headers: an early failure can still become a status
    for part in driver: ...        # raises BodyAborted behind a terminal other than `complete`
    driver.close()                 # always, whatever happened

What is not known while the thread is elsewhere, in the server's write, is looked at when it comes back: now and then,
and at least every LOOK seconds while the source is silent (`_look`). Those are the reader's leaving, where it can be
seen, and the end of a drain's grace. A reader that left is met at the latest by the server's next write but one, which
fails; the server then closes the iterator.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final

from streamguard.core.errors import Failure, failure_from
from streamguard.core.items import Item
from streamguard.observe.hooks import OnEnd, Outcome
from streamguard.runtime.blocking_source import LOOK, BlockingSource, Quiet
from streamguard.runtime.cancellation import FATAL
from streamguard.runtime.drain import Drain
from streamguard.runtime.ending import GONE, SHUTDOWN, SLOW, Why, log_end
from streamguard.runtime.loopthread import loop_thread
from streamguard.runtime.report import deliver_from_thread, log_name, make_outcome
from streamguard.runtime.seen import UNSEEN, Unseen
from streamguard.runtime.sink import Stage
from streamguard.runtime.timing import DEFAULT_TIMING, Timing

__all__ = ["LOOK", "BlockingDriver", "BodyAborted"]

_PAUSE: Final = 0.01  # seconds between two looks whether a reader that was told of a failure hangs up
_WAIT: Final = 0.01  # seconds of a server's write that broke, from which on it is told as one that waited
_NEVER: Final = float("inf")


class BodyAborted(BrokenPipeError):
    """The stream ended otherwise than whole, and its body must not end cleanly.

    A broken pipe, because servers are used to those: they close the connection, and log no traceback.
    """

    def __init__(self) -> None:
        super().__init__(errno.EPIPE, "the answer did not complete: its connection is cut")


def _stalled(stall: float) -> Why:
    return Why("stalled", Failure("stalled", f"the source was silent for {stall:g} s", True))


class BlockingDriver:
    """Drives one stream, once. `abort`: whether it raises behind a terminal other than `complete`.

    `gone` answers whether the reader has left, None where that cannot be seen; `trailer` makes what a clean end puts
    behind the body; `aborted` what is raised; `cut` cuts the connection, from another thread, where it can be reached.
    `on_first` is called with the source's first item; it must not raise. `asked` is what the log calls the request by.
    """

    def __init__(
        self,
        source: BlockingSource,
        stage: Stage[bytes],
        timing: Timing = DEFAULT_TIMING,
        *,
        abort: bool = True,
        aborted: Callable[[], BaseException] = BodyAborted,
        drain: Drain | None = None,
        gone: Callable[[], bool] | None = None,
        cut: Callable[[], None] | None = None,
        trailer: Callable[[], bytes] = bytes,
        on_end: OnEnd | None = None,
        on_first: Callable[[Item], None] | None = None,
        request_id: str | None = None,
        asked: str = "",
        seen: Unseen = UNSEEN,
    ) -> None:
        self.outcome: Outcome | None = None
        self._source = source
        self._stage: Stage[bytes] = seen.timed(stage, None)[0]
        self._timing = timing
        self._clock = timing.clock
        self._abort = abort
        self._aborted = aborted
        self._drain = drain or Drain()
        self._gone = gone
        self._cut = cut
        self._trailer = trailer
        self._on_end = on_end
        self._on_first = on_first
        self._request_id = request_id
        self._seen = seen
        self._why: Why | None = None
        self._told: Why | None = None  # by another thread
        self._exit: BaseException | None = None  # what ends the process
        self._begun = self._whole = self._over = self._logged = self._ended_early = False
        self._fresh = True  # until the first frame
        self._held: list[Item] = []  # the first item, where the headers waited for it
        self._started = self._wrote = self._clock()
        self._parked = _NEVER  # since when the source is waited for; never, while it is not
        self._ticked = -_NEVER
        self._first_item: float | None = None
        self._first_byte: float | None = None
        self._name = log_name(stage, request_id, asked)
        self._parts = self._make()
        seen.parks(lambda: None if self._parked == _NEVER else self._parked)
        seen.opened()

    def cancel(self, failure: Failure | None = None) -> None:
        """End the stream as `cancelled`, unless it has ended. From any thread."""
        self._told = Why("cancelled", failure or Failure("cancelled", "the stream was cancelled"))
        self._source.interrupt()

    def overdue(self) -> None:
        """Asked now and then, on another thread, where the source is stepped on the one that iterates: one that holds
        it beyond a limit leaves nobody to write a terminal, so that the reader is told by a cut connection."""
        stall, silent = self._timing.stall, self._clock() - self._parked
        if self._told is not None:
            return
        if stall is not None and silent >= stall:
            self._seen.stalled(silent)
            self._told = _stalled(stall)
        elif silent >= LOOK and self._drain.over:
            self._told = SHUTDOWN
        if self._told is not None and self._cut is not None:
            self._cut()

    def peek(self) -> None:
        """Wait for the first item, for as long as headers may wait. Raises what the source raised before it."""
        if not self._timing.peek:
            return
        self._open()
        try:
            self._held.append(self._source.next(self._timing.peek))
        except (Quiet, StopAsyncIteration):
            pass  # the source's end comes again when it is asked again
        except Exception as exc:
            self._fail(exc)
            self._tell()
            raise

    def __iter__(self) -> Iterator[bytes]:
        return self._parts  # itself, and not one that asks it: a token's way has no call too many

    def close(self) -> None:
        """Close the source, within its limit, and give the Outcome to `on_end`; once."""
        if self._over:
            return
        self._over = True
        self._parts.close()
        if not self._whole and self._why is None:
            self._why = GONE  # not even begun: nobody was told anything
        since = self._clock()
        abandoned = not self._source.close(self._timing.close)
        self._seen.source_closed(since, abandoned=abandoned)
        self.outcome = make_outcome(
            self._stage,
            status="complete" if self._why is None else self._why.status,
            failure=None if self._why is None else self._why.failure,
            opened=self._first_byte is not None,
            left=not self._whole,
            times=(self._started, self._first_item, self._first_byte, self._clock()),
            request_id=self._request_id,
            abandoned=abandoned,
        )
        self._seen.closed(self.outcome, aborted=self._ended_early)
        if self._on_end is not None:
            deliver_from_thread(self.outcome, self._on_end, loop_thread().wait)

    # ---- the body ---------------------------------------------------------------------------------

    def _make(self) -> Generator[bytes, None, None]:
        """The body's parts."""
        try:
            if opening := self._stage.open():
                yield opening
            self._wrote = self._first_byte = self._clock()
            self._open()
            last = b"" if self._why is not None else (yield from self._items())
            self._parked = _NEVER
            if self._why is not GONE:
                last += self._terminal()
                self._seen.terminal(self._clock())
                self._wrote = self._clock()  # else the source's silence would pass for the reader's
                yield last
            self._whole = True
        except BaseException as exc:  # the server closes the iterator, or is told to stop
            self._why = self._why or self._interrupted(exc)
            self._tell()
            raise
        if self._exit is not None:
            raise self._exit
        if self._stage.status != "complete" and (self._abort or self._why is GONE):
            self._linger()
            self._ended_early = True
            raise self._aborted()

    def _open(self) -> None:
        """Start the source, once."""
        if self._begun:
            return
        self._begun = True
        try:
            self._source.start()
        except Exception as exc:
            self._fail(exc)

    def _items(self) -> Generator[bytes, None, bytes]:
        """Everything until the source's end, or a reason to end. Returns what was framed and not yielded."""
        stage, source, clock = self._stage, self._source, self._clock
        push, held, following, timed = stage.push, self._held, source.next, stage.timed
        # What is due is looked at exactly once the source was silent for a while; None: as long as the clock lets it.
        least = min(self._timing.heartbeat or _NEVER, self._timing.stall or _NEVER)
        every = min(LOOK, least)
        pause = step = None if least > 2 * LOOK else every
        looked = self._parked = clock()
        while True:
            try:
                item = held.pop() if held else following(pause)
                now = clock()
                out = push(item, now)
            except Quiet:
                now = clock()
                out = b"" if self._looked(now) else self._quiet(now)
                if self._why is not None:
                    return out
                if out:
                    self._wrote = now
                    yield out
                    self._wrote = clock()
                pause = self._due(now := clock()) - now
                continue
            except StopAsyncIteration:
                return b""
            except FATAL as exc:  # a server's signal handler raised it here: its reader can still be told
                self._why, self._exit = SHUTDOWN, exc
                return b""
            except Exception as exc:
                self._fail(exc)
                return b""
            if self._fresh:
                self._attend(item, now)
            if self._told is not None or now - looked > every:
                looked = now
                if self._looked(now):
                    return out
                out = out or self._beat(now)  # items may come and come, and a policy hold their text
            if out:
                self._wrote = now
                self._parked = _NEVER
                yield out
                now = clock()  # the write may have waited, and that is not the source's silence
                self._wrote = now
            self._parked = now
            pause = self._due(now) - now if timed else step

    def _attend(self, item: Item, now: float) -> None:
        """One of the first items is framed: for `on_first`, and for who observes the first frame."""
        if self._first_item is None:
            self._first_item = now
            if self._on_first is not None:
                self._on_first(item)
        self._fresh = not self._seen.attended(now)

    def _due(self, now: float) -> float:
        """When to look again, at the latest, while the source is silent."""
        due = now + LOOK
        if self._timing.heartbeat is not None:
            due = min(due, self._wrote + self._timing.heartbeat)
        if self._timing.stall is not None:
            due = min(due, self._parked + self._timing.stall)
        if not self._stage.timed:
            return due
        try:
            flush = self._stage.deadline()
            return due if flush is None or flush <= self._ticked else min(due, 0.0 + flush)
        except Exception as exc:  # a user's policy
            self._fail(exc)  # which is seen at the next look
            return now

    def _looked(self, now: float) -> bool:
        """Whether the stream is to end for a reason that is not the source's."""
        self._seen.progress(now)
        if self._told is not None:
            self._why = self._told
        elif self._drain.over:
            self._why = SHUTDOWN
        elif self._gone is not None and self._gone():
            self._why = GONE
        return self._why is not None

    def _quiet(self, now: float) -> bytes:
        """What the source's silence is to be answered with."""
        stall = self._timing.stall
        if stall is not None and now - self._parked >= stall:
            self._seen.stalled(now - self._parked)
            self._why = _stalled(stall)
            return b""
        try:
            self._ticked = now
            return self._stage.tick(now) or self._beat(now)
        except Exception as exc:  # a user's policy
            self._fail(exc)
            return b""

    def _beat(self, now: float) -> bytes:
        """A sign of life, where one is due."""
        heartbeat = self._timing.heartbeat
        return b"" if heartbeat is None or now < self._wrote + heartbeat else self._stage.heartbeat()

    # ---- the end ------------------------------------------------------------------------------------

    def _terminal(self) -> bytes:
        stage, why, now = self._stage, self._why, self._clock()
        if why is None:
            try:
                last = stage.finish(now)
                if stage.status == "complete":
                    return last + self._trailer()
                self._tell()  # the source ended without what its end needs
                return last
            except Exception as exc:  # a user's policy
                why = self._fail(exc)
        last = stage.fail(why.failure, now, why.status)
        self._tell()
        return last

    def _fail(self, exc: Exception) -> Why:
        self._why = why = Why("failed", failure_from(exc), exc)
        return why

    def _interrupted(self, exc: BaseException) -> Why:
        """Why whoever iterates stopped before the end."""
        if not isinstance(exc, GeneratorExit):
            return SHUTDOWN
        limit, waited = self._timing.write, self._clock() - self._wrote
        if waited >= _WAIT:
            self._seen.blocked("transport", waited)
        # The server's write failed: where that took as long as a reader has at most, it did not read.
        return SLOW if limit is not None and waited >= limit else GONE

    def _linger(self) -> None:
        """Let a reader that was told of a failure hang up by itself: SDKs do, and proxies then book a client close."""
        if self._why is GONE or self._gone is None:
            return
        until = self._clock() + self._timing.linger
        while self._clock() < until and not self._gone():
            time.sleep(_PAUSE)

    def _tell(self) -> None:
        """One line in the log for a stream that did not complete."""
        why, stage = self._why, self._stage
        if why is GONE or self._logged:  # where the terminal's write fails it comes here once more
            return
        ending: Any = stage.ending
        failure = ending.failure or (None if why is None else why.failure)
        if failure is None:
            return
        self._logged = True
        exc = None if why is None else why.exception
        status = stage.status or ("failed" if why is None else why.status)
        early = exc is not None and not stage.items and not self._timing.peek
        log_end(self._name, status, failure, exc, stage.items, early=early)
