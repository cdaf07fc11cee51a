"""The two seams of a driver: what it drives, and where the bytes go.

A `Stage` is a Pipeline or a part of one. A `Sink` is a few lines for each framework. The driver calls it
from one place at a time; nothing here is called twice at once. `abort` must leave the connection in a
state that no reader can take for a clean end: for ASGI that is a body without its last message, never an
exception.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, TypeVar

from streamguard.core.cursor import Cursor
from streamguard.core.errors import Failure
from streamguard.core.items import Ending, Item

__all__ = ["Sink", "Stage"]

Out = TypeVar("Out", covariant=True)
In = TypeVar("In", contravariant=True)


class Stage(Protocol[Out]):
    """What the driver drives: a Pipeline, or a part of one. An empty answer is nothing to send.

    `timed` says whether `deadline` can ever be other than None; if not, the driver does not ask. One with a `sampled`
    that is true is told what presses, by `sample(pressure, now)`, which says whether `timed` is another now.
    """

    def open(self) -> Out: ...
    def push(self, item: Item, now: float) -> Out: ...
    def tick(self, now: float) -> Out: ...
    def finish(self, now: float) -> Out: ...
    def fail(self, failure: Failure, now: float, status: str = "failed") -> Out: ...
    def heartbeat(self) -> Out: ...
    def deadline(self) -> float | None: ...

    @property
    def timed(self) -> bool: ...
    @property
    def ending(self) -> Ending: ...
    @property
    def status(self) -> str | None: ...
    @property
    def items(self) -> int: ...
    @property
    def cursor(self) -> Cursor: ...
    @property
    def sent(self) -> int: ...


class Sink(Protocol[In]):
    """One connection. `In` is what it takes: bytes, or a list for a stage that makes no bytes."""

    async def start(self) -> None:
        """Send what goes before the body (status and headers)."""

    def send(self, data: In) -> Awaitable[None]:
        """Send a part of the body; returns when the transport takes more. May raise if it is gone."""
        ...

    async def end(self) -> None:
        """End the body cleanly."""

    async def abort(self) -> None:
        """End the connection so that no reader can take it for a clean end."""

    def unsent(self) -> int | None:
        """How many bytes the transport took and its socket has not taken yet; None where that cannot be seen."""
        ...

    def kill(self, *, drop: bool) -> bool:
        """Close the transport itself, now. False where it cannot be reached.

        After `abort`, for a connection that otherwise would stay open until the task that serves it returns: behind
        what the transport took. With `drop`, for a reader that does not read: without it, at any time.
        """
        ...

    async def gone(self) -> None:
        """Return when the reader has left. Cancelled at the end of the stream, never before."""
