"""The direct path: source -> pipeline -> sink, in the task that serves the request.

No queue and no task switch per token. Two watchers run beside the driver for as long as the stream:
one waits for the reader to leave, one owns a single timer for the earliest of heartbeat, flush, stall
and peek deadline. The rules between them:

* The driver marks when it is *parked* in the source (`_parked`, the time since when). Only then may the
  clock watcher write, and it claims the connection for its write, so there is one write at a time.
* The source's step is never timed out or cancelled to get the clock back: that would destroy an async
  generator, lose its text and look like a normal end. It is cancelled once, when the stream is over.
* A watcher that wants the driver's attention sets one flag, `_attention`, which the hot loop reads once
  a token. Deadlines cost that loop two time stamps.
* The source is closed while the driver's cancel scope is still entered: a generator that waits at a `yield`
  may hold scopes of its own, and those must be left before the ones around them.
* A write that was interrupted is followed by an abort, not a terminal: nobody knows what was taken (`ending`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator
from typing import Any, Final, Generic, TypeVar

import anyio

from streamguard.core.errors import Failure, failure_from
from streamguard.core.items import Item
from streamguard.observe.hooks import OnEnd, Outcome
from streamguard.runtime.cancellation import FATAL, OutsideCancellation, leaf
from streamguard.runtime.connection import Connection, Lost
from streamguard.runtime.ending import GONE, SHUTDOWN, SHUTDOWN_LIMIT, Ending, Why
from streamguard.runtime.patience import TICK, Patience
from streamguard.runtime.report import deliver, make_outcome
from streamguard.runtime.sink import Sink, Stage
from streamguard.runtime.source import TokenSource
from streamguard.runtime.timing import DEFAULT_TIMING, Timing
from streamguard.runtime.turns import SLICE, LoopTurns

__all__ = ["DirectDriver"]

logger = logging.getLogger("streamguard")

T = TypeVar("T", bytes, list[Any])
_NEVER: Final = float("inf")


class DirectDriver(Generic[T]):
    """Drives one stream on one connection, once. `abort`: whether an end other than `complete` aborts it."""

    def __init__(
        self,
        source: TokenSource,
        stage: Stage[T],
        sink: Sink[T],
        timing: Timing = DEFAULT_TIMING,
        *,
        abort: bool = True,
        on_end: OnEnd | None = None,
        request_id: str | None = None,
    ) -> None:
        self.source = source
        self.stage: Stage[T] = stage
        self.sink: Sink[T] = sink
        self.timing = timing
        self.outcome: Outcome | None = None
        self._on_end = on_end
        self._request_id = request_id
        self._clock = timing.clock
        self._line: Connection[T] = Connection(sink, timing.clock)
        # For the log. Never the whole sid, which grants access to the stream.
        self._name = stage.cursor.sid[:8] + (f" (request {request_id[:64]})" if request_id else "")
        self._end: Ending[T] = Ending(stage, self._line, timing, name=self._name, abort=abort)
        self._patience = Patience(timing.close)
        self._scope = self._patience.scope  # cancelled to stop the source
        self._thread: int | None = None  # of the event loop, once it runs
        self._parked: float | None = None  # since when the driver waits for the source; None while it does not
        self._attention = True  # something to look at after the next item; the first one is always looked at
        self._late = False  # something to look at before the driver parks
        self._rearm = anyio.Event()
        self._armed = self._words_due = _NEVER  # the latter: when the reader is told, while the source closes
        self._ticked = -_NEVER
        self._started = self._clock()
        self._first_item: float | None = None
        self._abandoned = False

    @property
    def exception(self) -> Exception | None:
        """What the source raised, or a policy; None while the stream goes on."""
        return self._end.why.exception if self._end.why is not None else None

    async def run(self) -> Outcome:
        """Drive the stream to its end. Re-raises a cancellation from outside.

        Raises nothing for what source, policy or reader did, except in peek mode before the headers went out.
        """
        self._thread = threading.get_ident()
        self._outside = OutsideCancellation()
        fatal: BaseException | None = None
        try:
            async with anyio.create_task_group() as watchers:
                watchers.start_soon(self._watch_reader)
                watchers.start_soon(self._watch_clock)
                fatal = await self._drive()
                await self._line.settled()
                await self._end.finish()
                watchers.cancel_scope.cancel()
            await self._end.finish_soon()  # where the group took a cancellation of the source's own for its own
        except anyio.get_cancelled_exc_class():
            await self._end.finish_soon()
            if self._outside.requested(unknown=True):
                raise
        except BaseException as exc:  # a fault of this module: whatever it is, the stream ends in one Outcome
            if leaf(exc, *FATAL) is not None:
                raise
            logger.exception("stream %s: its driver failed", self._name)
            self._end.why = self._end.why or Why("failed", Failure("internal", "the driver of the stream failed"))
            await self._end.finish_soon()
        finally:
            with anyio.CancelScope(shield=True):
                await self._report()
        if fatal is not None:
            raise fatal
        if self._outside.requested(unknown=False):
            await self._outside.repeat()  # one that came together with ours
        if self.exception is not None and not self._line.opened:
            raise self.exception
        assert self.outcome is not None
        return self.outcome

    def cancel(self, failure: Failure | None = None) -> None:
        """End the stream as `cancelled`, unless it has ended. Raises RuntimeError in a thread other than its loop's."""
        if self._thread not in (None, threading.get_ident()):
            raise RuntimeError("cancel a stream from its event loop, for example by loop.call_soon_threadsafe")
        self._stop(Why("cancelled", failure or Failure("cancelled", "the stream was cancelled")))

    # ---- the driver ---------------------------------------------------------------------------

    async def _drive(self) -> BaseException | None:
        """Drive the source, say the last words, close it. Returns what is to be raised when all is done."""
        fatal: BaseException | None = None
        with self._scope, self._patience.closing, self._patience.calm:
            try:
                await self._produce()
                if not self._scope.cancel_called:
                    await self._last_words()  # before the source's clean-up, which may take its time
            except BaseException as exc:
                cancelled = leaf(exc, anyio.get_cancelled_exc_class())
                if leaf(exc, *FATAL) is not None:
                    fatal = exc  # raised in here, the task group would wrap it
                elif cancelled is None:
                    raise
                if fatal is not None or not self._scope.cancel_called:
                    await self._interrupted(exc)
                if fatal is None and cancelled is not None:
                    raise cancelled from None  # out of its group, which no scope would take for a cancellation
            finally:
                await self._close_source()
        return fatal

    async def _produce(self) -> None:
        """Everything until the source's end, or until there is a reason to end."""
        end = self._end
        try:
            self._line.opening = self.stage.open()
            if not self.timing.peek:
                await self._line.open()
            if self._before_parking():
                return
            self._parked = self._clock()
            await self._steps(await self.source.open())
        except Lost:
            end.why = end.why or GONE
        except BaseException as exc:
            if leaf(exc, anyio.get_cancelled_exc_class(), *FATAL) is not None:
                raise
            plain = exc if isinstance(exc, Exception) else None  # else an exception that nobody should be given
            end.why = end.why or Why("failed", failure_from(exc), plain)
        finally:
            self._parked = None
        if not self._scope.cancel_called and self._outside.requested(unknown=False):
            await self._outside.repeat()  # the source hid it; half an answer must not pass for a whole one

    async def _steps(self, items: AsyncIterator[Item]) -> None:
        """The hot path, a token a turn. Parked until it awaits something else: in between nobody else runs."""
        clock = self._clock
        push = self.stage.push
        send = self.sink.send
        deadline = self.stage.deadline
        timed = self.stage.timed
        line = self._line
        turns = LoopTurns()
        await turns.give()
        now = clock()
        slice_end = now + SLICE
        if self._late and self._before_parking():
            return
        self._parked = now
        async for item in items:
            now = clock()
            out = push(item, now)
            if self._attention:
                self._parked = None
                if await self._attend(out, now):
                    return
                now = clock()
            if out:
                self._parked = None
                try:
                    await send(out)
                except Exception as exc:
                    line.torn = line.lost = True
                    raise Lost from exc
                except BaseException:
                    line.torn = True
                    raise
                line.wrote = now
                now = clock()  # the write may have waited, and that is not the source's silence
            if timed:
                due = deadline()
                if due is not None and due < self._armed:
                    self._armed = due
                    self._rearm.set()
            if now > slice_end:
                self._parked = None
                await turns.give()
                now = clock()
                slice_end = now + SLICE
            if self._late and self._before_parking():
                return
            self._parked = now

    async def _attend(self, out: T, now: float) -> bool:
        """What the watchers want looked at, with a frame in hand; true if the stream is over."""
        if self._first_item is None:
            self._first_item = now
        end = self._end
        end.unsent = out  # so that a cancellation in here does not lose it
        await self._line.settled()
        if not self._line.opened and end.why is None:
            await self._line.open()
        if end.why is not None:
            return True
        end.unsent = None
        self._attention = False
        return False

    def _before_parking(self) -> bool:
        """The same between two items; true if the stream is over."""
        self._late = False
        self._rearm.set()
        return self._end.why is not None

    async def _last_words(self) -> None:
        self._end.begin()
        await self._line.settled()
        await self._end.last_words()

    async def _interrupted(self, exc: BaseException) -> None:
        """The driver was interrupted, not by us: from outside, or by what the source awaited."""
        end = self._end
        if leaf(exc, *FATAL) is None and not self._outside.requested(unknown=True):
            end.why = end.why or Why("failed", Failure("source_error", type(exc).__name__))
        elif not end.begun:
            end.why = end.why or SHUTDOWN
        with anyio.CancelScope(shield=True), anyio.move_on_after(SHUTDOWN_LIMIT):
            await self._last_words()

    async def _close_source(self) -> None:
        """Close the source in this task, within its limit, whatever it raises."""
        self._parked = self._clock()  # a clean-up that does not stop either is the clock watcher's to abandon
        if not self._end.begun:
            self._words_due = self._parked  # the clean-up may take its time, and the reader need not wait for it
        self._rearm.set()
        self._abandoned |= not await self._patience.close(self.source, self._parked, self._name)
        self._parked = None

    async def _report(self) -> None:
        """Give the Outcome to `on_end`, once; neither it nor an abandoned source holds an aborted connection."""
        if self.outcome is not None:
            return
        why = self._end.why
        self.outcome = make_outcome(
            self.stage,
            status="failed" if why is None else why.status,
            failure=None if why is None else why.failure,
            opened=self._line.opened,
            left=self._line.lost or why is GONE,
            times=(self._started, self._first_item, self._line.first_byte, self._clock()),
            request_id=self._request_id,
            abandoned=self._abandoned,
        )
        self._line.kill()
        if self._on_end is not None:
            await deliver(self.outcome, self._on_end)

    # ---- the watchers -------------------------------------------------------------------------

    async def _watch_reader(self) -> None:
        try:
            await self.sink.gone()
        except Exception as exc:
            logger.warning("stream %s: its transport raised %r, and is taken for gone", self._name, exc)
        self._line.leave()
        self._stop(GONE)
        if not self._end.begun:
            self._scope.cancel()  # also in a write, and where another end was on its way

    def _stop(self, why: Why) -> None:
        """End the stream: at once if the driver waits for the source, else after the write it is in."""
        if self._end.why is not None or self._end.begun:
            return
        self._end.why = why
        self._attention = self._late = True
        self._patience.stop(self._clock())
        self._rearm.set()
        if self._parked is not None:
            self._scope.cancel()

    async def _watch_clock(self) -> None:
        woken = -_NEVER
        while self.outcome is None:
            self._rearm = anyio.Event()
            self._armed = max(self._next_due(self._clock()), woken + TICK)
            with anyio.move_on_after(max(0.0, self._armed - self._clock())):
                await self._rearm.wait()
            now = self._clock()
            if now < self._armed:
                continue
            woken, due = now, self._next_due(now)
            if (now := self._clock()) < due:  # read once more: a policy may answer by a clock of its own
                continue
            if self._parked is None:
                self._late = True  # the driver is at work; it wakes this watcher before it parks
                self._armed = _NEVER
                await self._rearm.wait()
            elif self._end.why is not None or self._end.begun:
                await self._insist(now)
            else:
                await self._act(now)

    def _next_due(self, now: float) -> float:
        if self._end.why is not None or self._end.begun:
            return min(self._words_due, self._patience.due)
        due = _NEVER
        if not self._line.opened:
            due = self._started + self.timing.peek
        elif self.timing.heartbeat is not None:
            due = self._line.wrote + self.timing.heartbeat
        if self.timing.stall is not None:
            due = min(due, (now if self._parked is None else self._parked) + self.timing.stall)
        try:
            flush = self.stage.deadline()
            if flush is not None:
                flush = min(_NEVER, 0.0 + flush)  # what cannot be added to a float, or is too large for one, is no time
        except Exception as exc:  # a user's policy
            self._stop(Why("failed", failure_from(exc), exc))
            return now
        # One that the last tick did not move was answered: waking for it again would be a busy loop.
        return due if flush is None or flush <= self._ticked else min(due, flush)

    async def _act(self, now: float) -> None:
        """What is due now, with the driver parked."""
        stall, heartbeat = self.timing.stall, self.timing.heartbeat
        if stall is not None and self._parked is not None and now - self._parked >= stall:
            self._stop(Why("stalled", Failure("stalled", f"the source was silent for {stall:g} s", True)))
            return
        self._attention = True
        with self._line.claim():
            try:
                if not self._line.opened:
                    await self._line.open()
                    return
                self._ticked = now
                out = self.stage.tick(now)
                if not out and heartbeat is not None and now >= self._line.wrote + heartbeat:
                    out = self.stage.heartbeat()
                    self._line.wrote = now  # also where a stage has no sign of life: it would be due for ever
                if out:
                    await self._line.send(out)
            except Lost:
                self._stop(GONE)
            except Exception as exc:
                self._stop(Why("failed", failure_from(exc), exc))

    async def _insist(self, now: float) -> None:
        """The source was told to stop, or to close, and does not: the reader is told, and waits no longer."""
        if now >= self._words_due:
            self._words_due = _NEVER
            with self._line.claim():
                await self._end.last_words()
            return
        if not self._patience.insist(now):
            return
        self._abandoned = True
        logger.warning("stream %s: its source does not stop; it is abandoned", self._name)
        with self._line.claim():
            await self._end.finish()
        await self._report()
