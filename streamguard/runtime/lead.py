"""How far a stream is generated ahead of its readers: a source that waits for them, though it writes to a log.

A log decouples the two, and bounds what is kept: a source that is far quicker than its reader runs to its end, and the
log trims what the reader still needs. With a limit the source waits, as it does without a log, once it is that far
ahead of the one of its readers here that is furthest, so that a slow reader keeps no other waiting. While nobody reads
here it waits for nobody: how long it then goes on is for `on_disconnect` to say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio

from streamguard.core.cursor import Cursor
from streamguard.runtime.readers import Readers

__all__ = ["Lead"]

_SHORTEST: Final = 0.005  # seconds between two looks at how far the readers are
_LONGEST: Final = 0.1


class Lead:
    """Of the stream `sid`: at most `most` bytes, and one append. `free` is the offset up to which nobody need look."""

    def __init__(self, readers: Readers, sid: str, most: int) -> None:
        self.free = 0
        self._readers = readers
        self._sid = sid
        self._most = most
        self._ended = False
        self._changed = anyio.Event()
        self.waited: Callable[[float], object] | None = None  # called after a wait, with its seconds

    def end(self) -> None:
        """Wait no more: the stream is told to end."""
        self._ended = True
        self._changed.set()

    async def wait(self, tail: Cursor) -> None:
        """Until a reader has come near enough to `tail`, or nobody reads it."""
        pause = _SHORTEST
        since: float | None = None
        while not self._ended:
            furthest = self._readers.furthest(self._sid)
            self.free = (tail.offset if furthest is None else furthest) + self._most
            if tail.offset <= self.free:
                break
            since = anyio.current_time() if since is None else since
            with anyio.move_on_after(pause):
                await self._changed.wait()
            pause = min(2 * pause, _LONGEST)
        if since is not None and self.waited is not None:
            self.waited(anyio.current_time() - since)
