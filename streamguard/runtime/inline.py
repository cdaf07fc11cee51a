"""A plain iterable, stepped by whoever asks for its items, on that thread, and in a context of its own.

It has no thread to change, which is most of what a token costs where servers call applications on threads. And whoever
asks waits for as long as a step takes: nothing can be sent meanwhile, and nothing noticed.
"""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn

from streamguard.core.items import Item
from streamguard.runtime.cancellation import FATAL
from streamguard.runtime.closing import close_sync

__all__ = ["InlineSteps"]

logger = logging.getLogger("streamguard")


class InlineSteps:
    """`iterable`, which is this object's to close, in `context`."""

    def __init__(self, iterable: Iterable[Item], context: contextvars.Context) -> None:
        self._iterable = iterable
        self._iterator: Iterator[Item] | None = None
        self._run = context.run
        self._step: Callable[[], Item] = self._first

    def next(self, timeout: float | None = None) -> Item:
        """The next item, however long that takes. Raises StopAsyncIteration behind the last one, and what the source
        raises: what would mean something else here as a RuntimeError."""
        try:
            return self._run(self._step)
        except StopIteration:
            self._step = _ended  # some iterators begin anew where they are asked again
            raise StopAsyncIteration from None
        except FATAL:
            raise  # a signal's handler raised it on this thread, as a server's does
        except BaseException as exc:
            self._step = _ended
            if isinstance(exc, Exception) and not isinstance(exc, StopAsyncIteration):
                raise
            raise RuntimeError(f"the source raised {type(exc).__name__}") from exc

    def close(self) -> None:
        """Close the iterator and the iterable. Logs what that raises, and raises nothing but what ends the program."""
        self._step = _ended
        iterator, iterable = self._iterator, self._iterable
        for part in (iterable,) if iterator is None or iterator is iterable else (iterator, iterable):
            try:
                self._run(close_sync, part)
            except FATAL:
                raise
            except BaseException as exc:
                logger.warning("closing a source raised %r", exc)

    def _first(self) -> Item:
        self._iterator = iterator = iter(self._iterable)
        self._step = iterator.__next__
        return self._step()


def _ended() -> NoReturn:
    raise StopIteration
