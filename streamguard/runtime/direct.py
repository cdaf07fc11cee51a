"""The direct path: source -> pipeline -> sink, in one task from the first step to the close.

No queue and no task switch per token. It is a task beside the one that serves the request: else whatever wakes the
source would pass through the coroutines of server and framework, at every token. For as long as the stream the serving
task waits for the reader to leave, and a third keeps the clock (`watch`, which has the rules between it and the
driver). Then:

* The source is closed while the driver's cancel scope is still entered: a generator that waits at a `yield`
  may hold scopes of its own, and those must be left before the ones around them.
* A write that was interrupted is followed by an abort, not a terminal: nobody knows what was taken (`ending`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import anyio
import anyio.lowlevel

from streamguard.core.errors import Failure, failure_from
from streamguard.core.items import Item
from streamguard.observe.hooks import OnEnd, Outcome
from streamguard.runtime.cancellation import FATAL, OutsideCancellation, leaf
from streamguard.runtime.connection import Connection, Lost
from streamguard.runtime.ending import GONE, SHUTDOWN, SHUTDOWN_LIMIT, Ending, Why, lost
from streamguard.runtime.patience import Patience
from streamguard.runtime.pressure import StreamPressure
from streamguard.runtime.report import deliver, log_name, make_outcome
from streamguard.runtime.seen import UNSEEN, Unseen
from streamguard.runtime.shortcut import NearSource, Shortcut
from streamguard.runtime.sink import Sink, Stage
from streamguard.runtime.source import TokenSource
from streamguard.runtime.timing import DEFAULT_TIMING, Timing
from streamguard.runtime.turns import SLICE, LoopTurns
from streamguard.runtime.wakeup import running_trio
from streamguard.runtime.watch import ClockWatch

__all__ = ["DirectDriver"]

logger = logging.getLogger("streamguard")

T = TypeVar("T", bytes, list[Any])


class DirectDriver(Generic[T]):
    """Drives one stream on one connection, once. `abort`: whether an end other than `complete` aborts it. `on_first` is
    called with the source's first item, once taken, and must not raise; `seen` is told what happens, `asked` logged."""

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
        asked: str = "",
        on_first: Callable[[Item], None] | None = None,
        seen: Unseen = UNSEEN,
    ) -> None:
        stage, sink = seen.timed(stage, sink)
        self.source = source
        self.stage: Stage[T] = stage
        self.sink: Sink[T] = sink
        self.timing = timing
        self.outcome: Outcome | None = None
        self._on_end, self._on_first = on_end, on_first
        self._seen, self._request_id = seen, request_id
        self._clock = timing.clock
        self._line: Connection[T] = Connection(sink, timing.clock, timing.write)
        self._name = log_name(stage, request_id, asked)
        self._end: Ending[T] = Ending(stage, self._line, timing, name=self._name, abort=abort, seen=seen)
        self._patience = Patience(timing.close)
        self._scope = self._patience.scope  # cancelled to stop the source
        self._thread: int | None = None  # of the event loop, once it runs
        shared = stage, self._line, self._end, self._patience, timing
        self._watch: ClockWatch[T] = ClockWatch(*shared, name=self._name, seen=seen)
        self._pressure: StreamPressure | None = None  # for a flush policy that is told of it
        self._near: NearSource | None = None  # the source, while it has this driver's shortcut
        self._started = self._clock()
        self._first_item: float | None = None
        self._abandoned = False
        self._inside: OutsideCancellation | None = None  # the driver's task, once it runs
        # Raised when all is done: what ends the program, which a group would wrap, and a cancellation of who serves.
        self._fatal: BaseException | None = None
        self._asked: BaseException | None = None

    @property
    def exception(self) -> Exception | None:
        """What the source raised, or a policy; None while the stream goes on."""
        return self._end.why.exception if self._end.why is not None else None

    @property
    def opened(self) -> bool:
        """Whether headers were sent."""
        return self._line.opened

    async def run(self) -> Outcome:
        """Drive the stream to its end. Re-raises a cancellation from outside.

        Raises nothing for what source, policy or reader did, except in peek mode before the headers went out.
        """
        self._thread = threading.get_ident()
        self._seen.opened()
        outside = OutsideCancellation()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._whole, tasks.cancel_scope)
                await self._serve(outside)
        except anyio.get_cancelled_exc_class():
            if self._asked is None and outside.requested(unknown=True):
                raise  # else the first one is, which says who asked
        except BaseException as exc:  # a fault of this module, or of the transport
            self._fatal = self._fatal or leaf(exc, *FATAL)
            if self._fatal is None:
                logger.exception("stream %s: its driver failed", self._name)
        finally:
            if self.outcome is None:
                await self._never_begun()
        if self._fatal is not None:
            raise self._fatal
        if self._asked is not None:
            raise self._asked
        if outside.requested(unknown=False):
            await outside.repeat()  # one that came together with ours
        if self.exception is not None and not self._line.opened:
            raise self.exception
        assert self.outcome is not None
        return self.outcome

    def cancel(self, failure: Failure | None = None) -> None:
        """End the stream as `cancelled`, unless it has ended. Raises RuntimeError in a thread other than its loop's."""
        if self._thread not in (None, threading.get_ident()):
            raise RuntimeError("cancel a stream from its event loop, for example by loop.call_soon_threadsafe")
        self._watch.stop(Why("cancelled", failure or Failure("cancelled", "the stream was cancelled")))

    # ---- the serving task ---------------------------------------------------------------------

    async def _serve(self, outside: OutsideCancellation) -> None:
        """Wait for the reader to leave, then for the driver, which ends this by its scope.

        A cancellation of this task alone is the driver's: passed on as it is, once. By the scope of the group it would
        come again at every await, the source's clean-up included.
        """
        wait: Callable[[], Awaitable[None]] = self._watch_reader
        while True:
            try:
                await wait()
                wait = anyio.sleep_forever
            except anyio.get_cancelled_exc_class() as exc:
                if outside.by_scope:  # which reaches the driver by itself
                    raise
                if not outside.requested(unknown=True):  # the transport's own
                    wait = anyio.sleep_forever
                elif self._inside is None:
                    raise
                else:
                    outside.pass_on(self._inside)
                    self._asked = self._asked or exc
                await anyio.lowlevel.cancel_shielded_checkpoint()  # one that raises at once would keep the loop busy

    async def _watch_reader(self) -> None:
        try:
            await self.sink.gone()
        except Exception as exc:
            logger.warning("stream %s: its transport raised %r, and is taken for gone", self._name, exc)
        self._watch.left()
        self._watch.stop_now(GONE)

    async def _never_begun(self) -> None:
        """The driver's task was cancelled before its first step: nothing was sent, and the source has not begun."""
        self._end.why = self._end.why or SHUTDOWN
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(self.timing.close):
                await self._close_source()
            await self._report()

    def shut_down(self) -> None:
        """End the stream as `shutdown`, in its event loop: its reader is told, in a second at most."""
        self._line.hurry(SHUTDOWN_LIMIT)
        self._watch.stop(SHUTDOWN)
        self._watch.rearm.set()  # also where it was told to end before: its reader has less time now

    def drop(self, why: Failure) -> None:
        """The reader is gone though what is written to it is taken: end without a word, and drop its connection."""
        self._line.give_up()
        self._watch.stop_now(Why("gone", why))

    # ---- the driver ---------------------------------------------------------------------------

    async def _whole(self, tasks: anyio.CancelScope) -> None:
        """The driver's task: all of the stream, whatever comes. It ends the waiting of the one that serves."""
        self._inside = OutsideCancellation()
        self._seen.entered(self.source)
        try:
            async with anyio.create_task_group() as watchers:  # over before what follows: it writes, too
                watchers.start_soon(self._watch.run, self._abandon)
                await self._drive()
                await self._line.settled()
                await self._end.finish()
                watchers.cancel_scope.cancel()
            await self._end.finish_soon()  # where the group took a cancellation of the source's own for its own
        except anyio.get_cancelled_exc_class():
            await self._end.finish_soon()
            if self._inside.requested(unknown=True):
                raise
        except BaseException as exc:  # a fault of this module: whatever it is, the stream ends in one Outcome
            self._fatal = self._fatal or leaf(exc, *FATAL)
            logger.exception("stream %s: its driver failed", self._name)
            self._end.why = self._end.why or Why("failed", Failure("internal", "the driver of the stream failed"))
            await self._end.finish_soon()
        finally:
            try:
                await self._report()
            except FATAL as exc:
                self._fatal = exc
            finally:
                tasks.cancel()

    async def _drive(self) -> None:
        """Drive the source, say the last words, close it."""
        with self._scope, self._patience.closing, self._patience.calm:
            try:
                await self._produce()
                if not self._scope.cancel_called:
                    await self._last_words()  # before the source's clean-up, which may take its time
            except BaseException as exc:
                cancelled = leaf(exc, anyio.get_cancelled_exc_class())
                if leaf(exc, *FATAL) is not None:
                    self._fatal = exc
                elif cancelled is None:
                    raise
                if self._fatal is not None or not self._scope.cancel_called:
                    await self._interrupted(exc)
                if self._fatal is None and cancelled is not None:
                    raise cancelled from None  # out of its group, which no scope would take for a cancellation
            finally:
                await self._close_source()

    async def _produce(self) -> None:
        """Everything until the source's end, or until there is a reason to end."""
        end = self._end
        try:
            self._line.opening = self.stage.open()
            if not self.timing.peek:
                await self._line.open()
            if self._watch.before_parking():
                return
            self._watch.parked = self._clock()
            turns = LoopTurns(await self.source.open())
            self._pressure = StreamPressure.of(self.stage, self._line.unsent, self._clock)
            self._lend(turns)
            while await self._loop(turns):
                pass
        except Lost as exc:
            if not self._end.part and isinstance(exc.__cause__, Exception) and not isinstance(exc.__cause__, OSError):
                logger.warning("stream %s: its transport refused a part with %r", self._name, exc.__cause__)
            end.why = end.why or lost(self._line)
        except BaseException as exc:
            if leaf(exc, anyio.get_cancelled_exc_class(), *FATAL) is not None:
                raise
            plain = exc if isinstance(exc, Exception) else None  # else an exception that nobody should be given
            end.why = end.why or Why("failed", failure_from(exc), plain)
        finally:
            self._watch.parked = None
            if self._near is not None:
                self._near.shortcut = None
        assert self._inside is not None
        if not self._scope.cancel_called and self._inside.requested(unknown=False):
            await self._inside.repeat()  # the source hid it; half an answer must not pass for a whole one

    def _lend(self, turns: LoopTurns[Item]) -> None:
        """Let a source that is pushed to in this loop write its items by itself, where nothing else is to be done."""
        if not isinstance(turns.source, NearSource) or running_trio() is not None:
            return
        if not self.stage.timed and self._pressure is None:
            near, shared = turns.source, (self._line, self._watch, self._patience, self._clock)
            near.shortcut = Shortcut(near, self.stage, self.sink, turns, shared)
            self._near = near

    async def _loop(self, turns: LoopTurns[Item]) -> bool:
        """The hot path, the source item by item. Parked until it awaits something else: in between nobody else runs.
        True where the source is to be stepped another way from now on (`turns`)."""
        stage, line, watch = self.stage, self._line, self._watch
        clock, push, send, deadline, timed = self._clock, stage.push, self.sink.send, stage.deadline, stage.timed
        mark, ran, pressure = turns.mark, turns.ran, self._pressure
        slice_end = (now := clock()) + SLICE
        if watch.late and watch.before_parking():
            return False
        watch.parked = now
        async for item in turns.source:
            now = clock()
            out = push(item, now)
            if watch.attention:
                watch.parked = None
                if await self._attend(item, out, now):
                    return False
                now = clock()
            if out:
                watch.parked = None
                line.wrote = now
                try:
                    await send(out)
                except Exception as exc:
                    line.torn = line.lost = True
                    raise Lost from exc
                except BaseException:
                    line.torn = True
                    raise
                now = clock()  # the write may have waited, and that is not the source's silence
            if timed and (due := deadline()) is not None and due < watch.armed:
                watch.armed = due
                watch.rearm.set()
            if now > slice_end:
                late = now - slice_end
                slice_end = now + SLICE
                if pressure is not None and pressure.look(now):
                    return True
                if ran[0] is mark and turns.due(late):
                    if await watch.beside(turns, late, now):
                        return True
                    slice_end = (now := clock()) + SLICE
            ran[0] = mark
            if watch.late and watch.before_parking():
                return False
            watch.parked = now
        return False

    async def _attend(self, item: Item, out: T, now: float) -> bool:
        """What the watchers want looked at, with a frame in hand; true if the stream is over."""
        if self._first_item is None:
            self._first_item = now
            if self._on_first is not None:
                self._on_first(item)
        self._watch.attended(now)
        end = self._end
        end.unsent = out  # so that a cancellation in here does not lose it
        await self._line.settled()
        if not self._line.opened and end.why is None:
            await self._line.open()
        if end.why is not None:
            return True
        end.unsent = None
        self._watch.attention = not self._seen.attended(now)
        return False

    async def _last_words(self) -> None:
        self._end.begin()
        await self._line.settled()
        await self._end.last_words()

    async def _interrupted(self, exc: BaseException) -> None:
        """The driver was interrupted, not by us: from outside, or by what the source awaited."""
        end = self._end
        assert self._inside is not None
        if leaf(exc, *FATAL) is None and not self._inside.requested(unknown=True):
            end.why = end.why or Why("failed", Failure("source_error", type(exc).__name__))
        elif not end.begun:
            end.why = end.why or SHUTDOWN
        with anyio.CancelScope(shield=True), anyio.move_on_after(SHUTDOWN_LIMIT):
            await self._last_words()

    async def _close_source(self) -> None:
        """Close the source in this task, within its limit, whatever it raises."""
        since = self._watch.closing()
        closed = await self._patience.close(self.source, since, self._name)
        self._abandoned |= not closed
        self._seen.source_closed(since, abandoned=not closed)
        self._watch.parked = None

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
            left=self._line.lost or self._line.torn or why is GONE,
            times=(self._started, self._first_item, self._line.first_byte, self._clock()),
            request_id=self._request_id,
            abandoned=self._abandoned,
        )
        self._line.release()
        self._seen.closed(self.outcome, aborted=self._line.aborted)
        if self._on_end is not None:
            with anyio.CancelScope(shield=True):
                await deliver(self.outcome, self._on_end)

    async def _abandon(self) -> None:
        """The source does not stop: the stream is over without it."""
        self._abandoned = True
        await self._report()
