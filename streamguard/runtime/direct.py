"""The direct path: source -> pipeline -> sink, in the task that serves the request.

No queue and no task switch per token. Two watchers run beside the driver for as long as the stream:
one waits for the reader to leave, one owns a single timer for the earliest of heartbeat, flush, stall
and peek deadline. The rules between them:

* The driver marks when it is *parked* in the source (`_parked`, the time since when). Only then may the
  clock watcher write, and it publishes its write (`_writing`), for which the driver waits before its
  own next one. So there is one write at a time and no lock.
* The source's step is never timed out or cancelled to get the clock back: that would destroy an async
  generator, lose its text and look like a normal end. It is cancelled once, when the stream is over.
* A watcher that wants the driver's attention sets one flag, `_attention`, which the hot loop reads once
  a token. Deadlines cost that loop two time stamps.
* The terminal is written in `_finish`, never from a `finally`: by the driver, or by the clock watcher where
  the driver is stuck in a source that does not stop. Where a send was interrupted, nobody knows what the
  transport took, and no terminal is written: an aborted connection says as much.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

import anyio
import attrs

from streamguard.core.errors import Failure, LocalProtocolError, SourceFailed, StreamBroken, failure_from
from streamguard.core.items import Item
from streamguard.observe.hooks import OnEnd, Outcome
from streamguard.runtime.report import deliver, make_outcome
from streamguard.runtime.sink import Sink, Stage
from streamguard.runtime.source import TokenSource
from streamguard.runtime.timing import DEFAULT_TIMING, Timing
from streamguard.runtime.turns import SLICE, LoopTurns

__all__ = ["DirectDriver"]

logger = logging.getLogger("streamguard")

T = TypeVar("T", bytes, list[Any])
_NEVER = float("inf")


@attrs.frozen
class _Why:
    """Why a stream ends though its source did not return. `status` is its terminal's, or `gone`."""

    status: str
    failure: Failure = Failure("gone", "the reader left")
    exception: Exception | None = None


_GONE: Final = _Why("gone")
_SHUTDOWN_LIMIT: Final = 1.0  # seconds for the last bytes of a stream whose task was cancelled


class DirectDriver(Generic[T]):
    """Drives one stream on one connection. `run` it once.

    `abort` says whether an end other than `complete` also aborts the connection.
    """

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
        self.exception: Exception | None = None  # what the source raised
        self._abort = abort
        self._on_end = on_end
        self._request_id = request_id
        self._clock = timing.clock
        self._name = stage.cursor.sid[:8]  # for the log; the whole grants access to the stream
        self._scope = anyio.CancelScope()
        self._parked = 0.0  # since when the driver waits for the source; 0.0 while it does not
        self._attention = True  # something to look at after the next item; the first one is always looked at
        self._late = False  # something to look at before the driver parks
        self._why: _Why | None = None
        self._stopped = _NEVER  # when the source was told to stop
        self._unsent: T | None = None  # framed, and not handed to the sink yet
        self._writing: anyio.Event | None = None
        self._torn = False  # a send was interrupted: what the transport took is not known
        self._opened = False
        self._ended = False
        self._gone = anyio.Event()
        self._rearm = anyio.Event()
        self._armed = _NEVER
        self._started = self._wrote = self._clock()
        self._first_item: float | None = None
        self._first_byte: float | None = None
        self._left = False  # the reader went before it had the whole
        self._abandoned = False

    async def run(self) -> Outcome:
        """Drive the stream to its end.

        Never raises for what the source, a policy or the reader did, except in peek mode before the
        headers went out. Re-raises a cancellation from outside.
        """
        try:
            async with anyio.create_task_group() as watchers:
                watchers.start_soon(self._watch_reader)
                watchers.start_soon(self._watch_clock)
                await self._drive()
                await self._finish()
                watchers.cancel_scope.cancel()
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True), anyio.move_on_after(_SHUTDOWN_LIMIT):
                self._why = self._why or _Why("shutdown", Failure("shutdown", "the server is going away", True))
                await self._finish()
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await self._close_source()
                await self._report()
        if self.exception is not None and not self._opened:
            raise self.exception
        assert self.outcome is not None
        return self.outcome

    def cancel(self, failure: Failure | None = None) -> None:
        """End the stream as `cancelled`, from this event loop. Does nothing once it has ended."""
        self._stop(_Why("cancelled", failure or Failure("cancelled", "the stream was cancelled")))

    # ---- the driver ---------------------------------------------------------------------------

    async def _drive(self) -> None:
        with self._scope:
            try:
                if not self.timing.peek:
                    await self._open()
                self._parked = self._clock()
                await self._steps(await self.source.open())
            except StreamBroken:
                self._why = self._why or _GONE
            except Exception as exc:
                self._why = self._why or _Why("failed", failure_from(exc), exc)
        self._parked = 0.0

    async def _steps(self, step: Callable[[], Awaitable[Item]]) -> None:
        """The hot path: one turn of this loop is one token."""
        clock = self._clock
        push = self.stage.push
        send = self.sink.send
        deadline = self.stage.deadline
        turns = LoopTurns()
        await turns.give()
        turned = clock()
        while True:
            if self._late and self._before_parking():
                return
            self._parked = clock()
            try:
                item = await step()
            except StopAsyncIteration:
                return
            self._parked = 0.0
            now = clock()
            out = push(item, now)
            if self._attention and await self._attend(out, now):
                return
            if out:
                try:
                    await send(out)
                except Exception as exc:
                    raise StreamBroken("the transport refused a write") from exc
                except BaseException:
                    self._torn = True
                    raise
                self._wrote = now
            due = deadline()
            if due is not None and due < self._armed:
                self._armed = due
                self._rearm.set()
            if now - turned > SLICE:
                turned = now
                await turns.give()

    async def _attend(self, out: T, now: float) -> bool:
        """What the watchers want looked at, with a frame in hand; true if the stream is over."""
        if self._first_item is None:
            self._first_item = now
        self._unsent = out  # so that a cancellation in here does not lose it
        await self._write_settled()
        if not self._opened and self._why is None:
            await self._open()
        if self._why is not None:
            return True
        self._unsent = None
        self._attention = False
        return False

    def _before_parking(self) -> bool:
        """The same between two items; true if the stream is over."""
        self._late = False
        self._rearm.set()
        return self._why is not None

    async def _open(self) -> None:
        self._opened = True
        try:
            await self.sink.start()
        except Exception as exc:
            raise StreamBroken("the transport refused the headers") from exc
        opening = self.stage.open()
        if opening:
            await self._send(opening)
        self._first_byte = self._clock()

    async def _send(self, out: T) -> None:
        try:
            await self.sink.send(out)
        except Exception as exc:
            raise StreamBroken("the transport refused a write") from exc
        except BaseException:
            self._torn = True
            raise
        self._wrote = self._clock()

    # ---- endings ------------------------------------------------------------------------------

    async def _finish(self) -> None:
        """The last bytes, and how the connection ends after them."""
        if self._ended:
            return
        self._ended = True
        await self._write_settled()
        why = self._why
        self._tell(why)
        if not self._opened and why is not None and (why.exception is not None or why.status == "shutdown"):
            return  # before the headers the server's own error answer is the better one
        try:
            await self._last_bytes(why)
        except Exception as exc:
            if not isinstance(exc, StreamBroken):
                logger.exception("stream %s: its last bytes could not be made", self._name)
            self._left = True
            await self.sink.abort()

    async def _last_bytes(self, why: _Why | None) -> None:
        self._left = self._gone.is_set()
        if why is _GONE or self._torn:
            self._left = True
            await self.sink.abort()
            return
        if not self._opened:
            await self._open()
        now = self._clock()
        last = self.stage.finish(now) if why is None else self.stage.fail(why.failure, now, why.status)
        if self._unsent is not None:
            last = self._unsent + last
        await self._send(last)
        if self.stage.status == "complete":
            await self.sink.end()
            return
        if not self._abandoned:
            await self._close_source()
        with anyio.move_on_after(self.timing.linger):
            # SDKs that raise on the terminal hang up at once, and proxies then book a client close.
            await self._gone.wait()
        await (self.sink.abort() if self._abort else self.sink.end())

    def _tell(self, why: _Why | None) -> None:
        if why is None or why is _GONE:
            return
        self.exception = why.exception
        unexpected = why.exception is not None and not isinstance(why.exception, (SourceFailed, LocalProtocolError))
        logger.log(
            logging.ERROR if unexpected else logging.WARNING,
            "stream %s ends as %s after %d frames: %s: %s",
            self._name,
            why.status,
            self.stage.cursor.seq,
            why.failure.code,
            why.failure.message,
            exc_info=why.exception if unexpected else None,
        )

    async def _close_source(self) -> None:
        """Close the source in this task, within its limit, whatever it raises."""
        with anyio.move_on_after(self.timing.close, shield=True) as limit:
            try:
                await self.source.aclose()
            except Exception as exc:
                # `async generator ignored GeneratorExit`, or a fault in the source's own clean-up.
                logger.warning("stream %s: closing its source raised %r", self._name, exc)
        if limit.cancelled_caught:
            self._abandoned = True
            logger.warning("stream %s: its source did not close in time", self._name)

    async def _report(self) -> None:
        """Give the Outcome to `on_end`, once."""
        if self.outcome is not None:
            return
        self.outcome = make_outcome(
            self.stage,
            status=self._why.status if self._why is not None else "gone",
            failure=self._why.failure if self._why is not None else None,
            left=self._left,
            times=(self._started, self._first_item, self._first_byte, self._clock()),
            request_id=self._request_id,
            abandoned=self._abandoned,
        )
        if self._on_end is not None:
            await deliver(self.outcome, self._on_end)

    # ---- the watchers -------------------------------------------------------------------------

    async def _watch_reader(self) -> None:
        await self.sink.gone()
        self._gone.set()
        self._stop(_GONE)

    def _stop(self, why: _Why) -> None:
        """End the stream: at once if the driver waits for the source, else after the write it is in."""
        if self._why is not None or self._ended:
            return
        self._why = why
        self._attention = self._late = True
        self._stopped = self._clock()
        self._rearm.set()
        if self._parked or why is _GONE:
            self._scope.cancel()

    async def _watch_clock(self) -> None:
        while not self._ended:
            self._rearm = anyio.Event()
            self._armed = self._next_due()
            with anyio.move_on_after(max(0.0, self._armed - self._clock())):
                await self._rearm.wait()
            now = self._clock()
            if now < self._armed or now < self._next_due():
                continue
            if not self._parked:
                self._late = True  # the driver is at work; it wakes this watcher before it parks
                self._armed = _NEVER
                await self._rearm.wait()
            elif self._why is not None:
                await self._abandon()
            else:
                await self._act(now)

    def _next_due(self) -> float:
        if self._why is not None:
            return self._stopped + self.timing.close
        due = _NEVER
        if not self._opened:
            due = self._started + self.timing.peek
        elif self.timing.heartbeat is not None:
            due = self._wrote + self.timing.heartbeat
        if self.timing.stall is not None and self._parked:
            due = min(due, self._parked + self.timing.stall)
        flush = self.stage.deadline()
        return due if flush is None else min(due, flush)

    async def _act(self, now: float) -> None:
        """What is due now, with the driver parked."""
        stall = self.timing.stall
        if stall is not None and now - self._parked >= stall:
            self._stop(_Why("stalled", Failure("stalled", f"the source was silent for {stall:g} s", True)))
            return
        self._writing = writing = anyio.Event()
        self._attention = True
        try:
            if not self._opened:
                await self._open()
                return
            out = self.stage.tick(now) or (self.stage.heartbeat() if self._beat_due(now) else None)
            if out:
                await self._send(out)
        except StreamBroken:
            self._stop(_GONE)
        except Exception as exc:
            self._stop(_Why("failed", failure_from(exc), exc))
        finally:
            writing.set()
            self._writing = None

    def _beat_due(self, now: float) -> bool:
        heartbeat = self.timing.heartbeat
        return heartbeat is not None and now >= self._wrote + heartbeat

    async def _abandon(self) -> None:
        """The source was told to stop and does not: the reader is told, and waits for it no longer."""
        self._abandoned = True
        logger.warning("stream %s: its source does not stop; it is abandoned", self._name)
        await self._finish()
        await self._report()

    async def _write_settled(self) -> None:
        if self._writing is not None:
            await self._writing.wait()
