"""The connections of this process that read streams of a log: who reads which stream, and how far each is.

A stream takes so many readers here; one more is let in, and the oldest goes. An exclusive stream has one: the same
client takes the place of its own old connection, which may be half open, and any other client is refused.

A reader's name is 64 random bits, given to it alone; what it tells the server bears that name.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import attrs

from streamguard.core.cursor import Cursor
from streamguard.runtime.flow import Flow
from streamguard.runtime.seen import UNSEEN, Unseen

__all__ = ["Busy", "Reader", "Readers", "new_reader"]


def new_reader() -> str:
    """A connection's name: 64 random bits, 11 characters of base64url."""
    return secrets.token_urlsafe(8)


class Busy(Exception):
    """An exclusive stream has a reader, which is another client."""


@attrs.define(eq=False)
class Reader:
    """One connection. `start` is where it began, `position` answers the cursor of the last frame that it was given,
    `replace` ends it for a newer one; `client` is what the client calls itself, `acked` the furthest that it
    acknowledged, `flow` how far it may be sent to, where it gives credit; `seen` is told what it acknowledges."""

    start: Cursor
    position: Callable[[], Cursor]
    replace: Callable[[], None]
    client: str | None = None
    name: str = attrs.field(factory=new_reader)
    acked: Cursor | None = None
    flow: Flow | None = None
    seen: Unseen = UNSEEN

    @property
    def sid(self) -> str:
        return self.start.sid

    def was_given(self, cursor: Cursor) -> bool:
        """Whether a position was reached on this connection."""
        return cursor.sid == self.sid and self.start.seq <= cursor.seq <= self.position().seq

    def acknowledge(self, cursor: Cursor) -> None:
        """The client has everything up to here. One that comes late, after a later one, changes nothing."""
        if self.acked is None or cursor.seq > self.acked.seq:
            self.acked = cursor
            self.seen.acknowledged(cursor.seq, None if self.flow is None else self.flow.measured)


class Readers:
    """All connections that read streams here."""

    def __init__(self) -> None:
        self._names: dict[str, Reader] = {}
        self._streams: dict[str, dict[str, Reader]] = {}  # each in the order of coming

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[Reader]:
        return iter(self._names.values())

    def get(self, name: str) -> Reader | None:
        return self._names.get(name)

    def count(self, sid: str) -> int:
        """How many read this stream."""
        return len(self._streams.get(sid, ()))

    def others(self, reader: Reader) -> bool:
        """Whether its stream has another one."""
        return any(other is not reader for other in self._streams.get(reader.sid, {}).values())

    def furthest(self, sid: str) -> int | None:
        """The largest offset, in bytes, that a reader of this stream was given; None where nobody reads it."""
        return max((reader.position().offset for reader in self._streams.get(sid, {}).values()), default=None)

    def join(self, reader: Reader, *, limit: int, exclusive: bool = False) -> None:
        """Let a reader in, and the oldest go above `limit`. Raises Busy where an exclusive stream has another's."""
        others = self._streams.setdefault(reader.sid, {})
        if exclusive and any(other.client != reader.client for other in others.values()):
            raise Busy
        while len(others) >= (1 if exclusive else limit):
            oldest = next(iter(others.values()))
            del others[oldest.name], self._names[oldest.name]
            oldest.replace()
        others[reader.name] = self._names[reader.name] = reader

    def leave(self, reader: Reader) -> None:
        """A connection is over; one that was replaced is gone already."""
        if self._names.pop(reader.name, None) is None:
            return
        others = self._streams[reader.sid]
        del others[reader.name]
        if not others:
            del self._streams[reader.sid]
