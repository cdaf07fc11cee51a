"""What a reader that gives credit tells the server: how far it has come, and how far it may be sent to. No I/O.

Credit is granted anew once half of it is used, which is when the caller *took* what came, and each heartbeat is
answered, with the last grant again: it may be lost, and its sender waits. What is to be told is merged: at most one
`POST` a second, and one on its way. A caller that takes nothing tells nothing: after three beats the server takes it
for gone, and the reading goes on later by a resume.

A `POST` needs a connection beside the answer's. Where the client's pool has none, nothing is lost as long as there is
credit; after that the server waits for what cannot be told, and the reader is `stuck`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from threading import Event, Lock
from time import monotonic
from typing import Any, Final, Literal

import anyio

from streamguard.client.head import problem_in
from streamguard.core.arguments import shown
from streamguard.core.credit import Credit, Granter
from streamguard.core.cursor import Cursor

__all__ = ["CREDIT", "Acks", "Outcome", "credit_of", "outcome_of", "tell", "tell_sync"]

CREDIT: Final = (8192, 1024 * 1024)
"""Frames and bytes that a reader grants by default: half of a megabyte and more of small frames."""
_PAUSE: Final = 1.0  # seconds between two, at least
_LONGEST: Final = 15.0  # the same where the server answers none
_MOST: Final = 10**15 - 1  # of a Structured Field's integers

Outcome = Literal["taken", "later", "no place", "over"]
"""What became of a POST: `later` is another attempt, `no place` the same where the pool had no connection for it."""


def credit_of(value: object) -> tuple[int, int] | None:
    """The credit that `credit=` means; None for no credit. Raises TypeError and ValueError for what is none."""
    if value is None or isinstance(value, bool):
        return CREDIT if value else None
    if not (isinstance(value, tuple) and len(value) == 2 and all(type(part) is int for part in value)):
        raise TypeError(f"credit is True, or frames and bytes: (8192, 1_048_576), not {shown(value)}")
    if not all(1 <= part <= _MOST for part in value):
        raise ValueError(f"credit is for one frame and one byte at least, not {value!r}")
    return value


def outcome_of(status: int, body: bytes) -> Outcome:
    """What a server's answer means. Only one that does not know the reader, or the stream, is told no more: of another
    acknowledgement (`misfit`), with credentials that are good again, it may take the next."""
    if status < 300:
        return "taken"
    gone = status in (404, 410) or (status == 409 and problem_in(body).code == "not_here")
    return "over" if gone else "later"


class Acks:
    """Those of one connection, whose name is `reader`, of the stream behind `at`. `note` is called by whoever reads,
    the rest by one who tells, which may be another thread."""

    def __init__(self, reader: str, credit: tuple[int, int], at: Cursor) -> None:
        self.over = Event()  # the connection is
        self._reader = reader
        self._at = at
        self._granter = Granter(*credit, at)
        self._grant = self._told = self._granter.grant
        self._left = Credit(*credit, at)  # by all grants that may have reached the server
        self._placed = True  # the last one found a connection
        self._beats = self._since = 0  # that came, and until the last frame came
        self._wanted = False
        self._telling = False
        self._due = 0.0  # when the next may leave, in monotonic seconds
        self._pause = _PAUSE
        self._lock = Lock()

    def note(self, cursor: Cursor | None, beats: int) -> bool:
        """All up to `cursor` was taken, and so many heartbeats have come: whether somebody must begin to tell that."""
        if cursor is None:
            return False
        with self._lock:
            grant = self._granter.used(cursor)
            self._grant = grant or self._grant
            self._wanted = self._wanted or grant is not None or beats > self._beats
            if cursor != self._at:
                self._since = beats
            self._at, self._beats = cursor, beats
            begin = self._wanted and not self._telling and not self.over.is_set()
            self._telling = self._telling or begin
            return begin

    @property
    def stuck(self) -> bool:
        """Whether the server waits for a grant, and there is no connection to tell it by. It waits for none where only
        the terminal is left, which comes at once: behind the last frame that it may send there must be a beat."""
        with self._lock:
            return not self._placed and self._beats > self._since and not self._left.allows(self._at)

    def wait(self, now: float) -> float | None:
        """Seconds until the next is to be told; None: nothing is, and whoever tells it is to go."""
        with self._lock:
            if self.over.is_set() or not self._wanted:
                self._telling = False
                return None
            return max(0.0, self._due - now)

    def take(self, now: float) -> bytes:
        """The body to POST now."""
        with self._lock:
            self._wanted = False
            self._due = now + self._pause
            self._told = self._grant
            told: dict[str, Any] = {"reader": self._reader, "ack": str(self._at), "credit": self._grant}
            return json.dumps(told).encode()

    def answered(self, outcome: Outcome, now: float) -> None:
        """What became of the one that was taken. What was not heard is told again, ever less often."""
        with self._lock:
            self._placed = outcome != "no place"
            if self._placed:
                self._left.give(self._told)
            if outcome == "taken":
                self._pause = _PAUSE
            elif outcome == "over":
                self.over.set()
            else:
                self._wanted = True
                self._pause = min(2 * self._pause, _LONGEST)
                self._due = now + self._pause


async def tell(acks: Acks, post: Callable[[bytes], Awaitable[Outcome]]) -> None:
    """Tell all that there is to be told, from now on."""
    while (wait := acks.wait(monotonic())) is not None:
        if wait:
            await anyio.sleep(wait)
        else:
            acks.answered(await post(acks.take(monotonic())), monotonic())


def tell_sync(acks: Acks, post: Callable[[bytes], Outcome]) -> None:
    """The same, in a thread."""
    while (wait := acks.wait(monotonic())) is not None:
        if wait:
            acks.over.wait(wait)
        else:
            acks.answered(post(acks.take(monotonic())), monotonic())
