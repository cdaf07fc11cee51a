"""A stage whose bytes are compressed on their way to the connection.

What a stage made is sent in the order in which it was made, or the connection is aborted: that is the driver's rule for
frames, and all that a compressor, whose bytes depend on those before them, needs.

The trailer is not a stage's: only an end that is clean has one. Who ends the body asks the same `GzipBody` for it.
"""

from __future__ import annotations

from collections.abc import Callable

from streamguard.core.compress import GzipBody
from streamguard.core.cursor import Cursor
from streamguard.core.errors import Failure
from streamguard.core.items import Ending, Item
from streamguard.runtime.sink import Stage

__all__ = ["CompressedStage"]


class CompressedStage:
    """`stage`, compressed into `body`; each answer can be read as it comes."""

    def __init__(self, stage: Stage[bytes], body: GzipBody) -> None:
        self._stage = self.inner = stage
        self._write = body.write
        self._body = body
        self.part: str = getattr(stage, "part", "")
        self.stands: Callable[[], str] = getattr(stage, "stands", str)
        self.timed = stage.timed
        self.deadline = stage.deadline

    def open(self) -> bytes:
        return self._write(self._stage.open())

    def push(self, item: Item, now: float) -> bytes:
        out = self._stage.push(item, now)
        return self._write(out) if out else out

    def tick(self, now: float) -> bytes:
        return self._write(self._stage.tick(now))

    def finish(self, now: float) -> bytes:
        return self._write(self._stage.finish(now))

    def fail(self, failure: Failure, now: float, status: str = "failed") -> bytes:
        return self._write(self._stage.fail(failure, now, status))

    def heartbeat(self) -> bytes:
        return self._write(self._stage.heartbeat())

    @property
    def ending(self) -> Ending:
        return self._stage.ending

    @property
    def status(self) -> str | None:
        return self._stage.status

    @property
    def items(self) -> int:
        return self._stage.items

    @property
    def cursor(self) -> Cursor:
        return self._stage.cursor

    @property
    def sent(self) -> int:
        """Compressed bytes: they are compared with what the transport holds."""
        return self._body.written
