"""What readers tell the server, brought to the connection that it is about.

A `POST` arrives at any process; the connection is at one. A reader that is here is told at once. For another, where the
log is shared, it goes through the log's control channel: each process listens there for the streams of which it has a
reader that gives credit, and passes over what is said to others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal

import anyio
import attrs

from streamguard.core.credit import Grant
from streamguard.core.cursor import Cursor
from streamguard.core.errors import CursorError
from streamguard.log.base import CursorTrimmed, LogError, LogUnavailable, StreamLog
from streamguard.runtime.background import Background
from streamguard.runtime.readers import Reader, Readers

__all__ = ["Grants", "Heard", "Told"]

_LISTEN: Final = 30.0  # seconds of one wait for what is said elsewhere

Heard = Literal["taken", "no credit", "passed on", "misfit", "not here"]


@attrs.frozen
class Told:
    """What one reader tells: how far it has come, and how far it may be sent to."""

    reader: str
    ack: Cursor | None = None
    credit: Grant | None = None

    @classmethod
    def parse(cls, body: bytes) -> Told:
        """From JSON. Raises ValueError for what is none of it."""
        try:
            told = json.loads(body)
            name, ack, credit = told["reader"], told.get("ack"), told.get("credit")
            if not isinstance(name, str) or not (credit is None or _is_credit(credit)):
                raise ValueError("another type")
            at = None if ack is None else Cursor.parse(ack)
            return cls(name, at, None if credit is None else Grant(*credit))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, CursorError) as exc:
            raise ValueError("not what a reader tells") from exc

    def dump(self) -> bytes:
        """As JSON."""
        ack = None if self.ack is None else str(self.ack)
        return json.dumps({"reader": self.reader, "ack": ack, "credit": self.credit}).encode()


class Grants:
    """Those of one process's readers of the streams of `log`."""

    def __init__(self, log: StreamLog, readers: Readers, background: Background) -> None:
        self._log = log
        self._readers = readers
        self._background = background
        self._shared = bool(getattr(log, "shared", True))
        self._listeners: dict[str, tuple[anyio.CancelScope, set[str]]] = {}  # by stream: for the readers of these names

    async def hear(self, told: Told, sid: str) -> Heard:
        """What a reader of the stream `sid` tells, and what becomes of it. Raises LogError."""
        reader = self._readers.get(told.reader)
        if reader is not None:
            return await self._taken(reader, told, sid)
        if not self._shared:
            return "not here"
        await self._log.signal(sid, "grant", told.dump())
        return "passed on"

    async def _taken(self, reader: Reader, told: Told, sid: str) -> Heard:
        if reader.sid != sid:
            return "not here"
        if told.ack is not None and not await self._fits(reader, told.ack):
            return "misfit"
        flow = reader.flow
        if told.ack is not None:
            reader.acknowledge(told.ack)
        if flow is None:
            return "taken" if told.credit is None else "no credit"
        flow.answered()
        if told.credit is not None:
            flow.give(told.credit)
        return "taken"

    async def _fits(self, reader: Reader, cursor: Cursor) -> bool:
        """Whether it was sent on that connection, and is a cursor of the stream's."""
        if not reader.was_given(cursor):
            return False
        if reader.flow is not None and reader.flow.acknowledge(cursor):
            return True
        try:
            await self._log.read(cursor, limit=1)
        except LogUnavailable:
            raise
        except CursorTrimmed:  # by the log, which is no fault of who had it
            return True
        except LogError:
            return False
        return True

    # ---- other processes ----------------------------------------------------------------------

    @contextmanager
    def heard(self, reader: Reader) -> Iterator[None]:
        """While the block runs, what is told of this reader at other processes reaches it."""
        if reader.flow is None or not self._shared:
            yield
            return
        sid = reader.sid
        if sid not in self._listeners:
            self._listeners[sid] = scope, _ = anyio.CancelScope(), set()

            async def listen() -> None:
                with scope:
                    await self._listen(sid)

            self._background.start(listen, f"streamguard grants {sid[:8]}")
        scope, names = self._listeners[sid]
        names.add(reader.name)
        try:
            yield
        finally:
            names.discard(reader.name)
            if not names:
                del self._listeners[sid]
                scope.cancel()

    async def _listen(self, sid: str) -> None:
        number, wait = 0, 0.0
        while True:
            try:
                signals = await self._log.signals(sid, number, wait)
                wait = _LISTEN
                for signal in signals:
                    number = signal.number
                    if signal.kind == "grant":
                        await self._heard(signal.payload, sid)
            except LogUnavailable:
                await anyio.sleep(1.0)
            except LogError:
                return  # the stream is gone, and its readers see that for themselves

    async def _heard(self, payload: bytes, sid: str) -> None:
        try:
            told = Told.parse(payload)
        except ValueError:
            return  # of another version
        reader = self._readers.get(told.reader)
        if reader is not None:
            await self._taken(reader, told, sid)


def _is_credit(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(part) is int and part >= 0 for part in value)
