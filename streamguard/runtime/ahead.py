"""An async source that runs ahead of its reader: a task of its own, which takes every step and closes.

Its task belongs to a group that the driver's task enters at the first step and leaves when it closes, both inside
the driver's scopes. What tells the source to stop, and what shields its clean-up, stand around the source in its
own task, because a generator that waits at a `yield` may hold scopes of its own, which must be left first.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable
from time import monotonic

import anyio
import anyio.abc
import anyio.lowlevel

from streamguard.core.items import Item
from streamguard.runtime.buffer import Buffer, HandOver
from streamguard.runtime.cancellation import OutsideCancellation
from streamguard.runtime.closing import INSISTENCE, close
from streamguard.runtime.turns import SLICE

__all__ = ["AheadIterator"]


class AheadIterator:
    """`producer`, driven ahead of whoever iterates by as much as `bounds` allow."""

    def __init__(self, producer: AsyncIterable[Item], bounds: Buffer) -> None:
        self._producer = producer
        self._hand_over = HandOver(bounds)
        self._tasks: anyio.abc.TaskGroup | None = None

    def __aiter__(self) -> AheadIterator:
        return self

    async def __anext__(self) -> Item:
        if self._tasks is None and not self._hand_over.closed:
            self._told = anyio.CancelScope()  # cancelled to stop the source
            self._closing = anyio.CancelScope()  # shields its clean-up
            self._calm = anyio.CancelScope()  # shielded once it was told often enough
            self._over = anyio.Event()
            self._failure: Exception | None = None  # what closing raised
            self._tasks = anyio.create_task_group()
            await self._tasks.__aenter__()
            self._tasks.start_soon(self._run)
        return await self._hand_over.take()

    def tell_buffer(self, told: Callable[[HandOver], object]) -> None:
        """Give `told` the buffer that all items go through."""
        told(self._hand_over)

    async def aclose(self) -> None:
        """Stop the source, and wait until its task has closed it. Raises what closing raises."""
        self._hand_over.close()
        if self._tasks is None:
            await close(self._producer)  # never started: any task may
            return
        self._told.cancel()
        try:
            await self._insist()
            await self._over.wait()
        finally:
            self._closing.shield = self._calm.shield = False  # a limit was reached: the clean-up is told to stop too
            with anyio.CancelScope(shield=True):
                await self._insist()
            await self._tasks.__aexit__(None, None, None)
        if self._failure is not None:
            raise self._failure

    async def _insist(self) -> None:
        """Tell the source, at every `await`, for a moment: one that catches it and goes on would keep a processor busy
        for as long as it is told."""
        with anyio.move_on_after(INSISTENCE):
            await self._over.wait()
        self._calm.shield = True

    async def _run(self) -> None:
        iterator: AsyncIterator[Item] | None = None
        try:
            with self._told, self._closing, self._calm:
                try:
                    iterator = self._producer.__aiter__()
                    await self._steps(iterator)
                finally:
                    self._closing.shield = True
                    await self._close(iterator)
        finally:
            self._over.set()

    async def _steps(self, iterator: AsyncIterator[Item]) -> None:
        hand_over = self._hand_over
        outside = OutsideCancellation()
        failure: BaseException | None = None
        slice_end = monotonic() + SLICE
        try:
            while True:
                try:
                    item = await iterator.__anext__()  # not every iterator can be looped over
                except StopAsyncIteration:
                    break
                if not hand_over.put(item) and not await hand_over.room_made():
                    break
                if monotonic() > slice_end:  # one that never suspends would keep everybody else waiting
                    await anyio.lowlevel.checkpoint()
                    slice_end = monotonic() + SLICE
        except Exception as exc:
            failure = exc
        except BaseException as exc:
            failure = exc
            # A cancellation that nobody asked for fails the source. Raised on, it would cancel the group, and look
            # like a server that is going away.
            if not isinstance(exc, anyio.get_cancelled_exc_class()) or outside.requested(unknown=False):
                raise
        finally:
            hand_over.end(failure)  # before the clean-up, which may take its time

    async def _close(self, iterator: AsyncIterator[Item] | None) -> None:
        parts = [self._producer] if iterator is None or iterator is self._producer else [iterator, self._producer]
        for part in parts:
            try:
                await close(part)
            except Exception as exc:
                self._failure = self._failure or exc
