"""How much of one connection may be on its way: the send window, kept where the server's transport shows its socket.

A frame is handed to the server while what was written and not acknowledged by the reader's system is below the window;
else it waits here, where it can still be merged with what comes after it, and not in buffers that nobody looks into.
What is on its way is what the transport holds and what the system does. An adaptive window (`core/window.py`) learns
from what Linux tells of a connection (TCP_INFO): acknowledged bytes, how long that takes, what had to be sent again. A
fixed one needs none of that. That time is also taken here, from write to look: the shorter counts.

To look costs some microseconds, so it is done at most once a millisecond while there is room.
"""

from __future__ import annotations

import functools
import logging
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

import anyio
import attrs

from streamguard.adapters.transport import SEES_QUEUES, Transport, queued
from streamguard.core.arguments import shown
from streamguard.core.window import Sample, SendWindow

__all__ = ["Link", "Pacer", "a_window", "link_of", "make_pacer"]

logger = logging.getLogger("streamguard")

_FRESH: Final = 0.001  # seconds that a look counts, while there is room
_SHORTEST, _LONGEST = 0.001, 0.02  # seconds between two looks while there is none, and something moves
_MARKS: Final = 256  # writes whose acknowledgement is waited for
_STALLED: Final = 0.1  # the same while nothing does
_TCP_INFO: Final = getattr(socket, "TCP_INFO", None) if sys.platform == "linux" else None
_SIZE: Final = 216  # bytes of struct tcp_info, up to and with the one that came with Linux 4.19
_RTT, _ACKED, _AGAIN = 68, 120, 208  # where its fields stand: microseconds, bytes, bytes


@attrs.frozen
class Link:
    """What a system tells of one connection: bytes that were acknowledged and that were sent again since it began, and
    how long an acknowledgement takes lately, in seconds."""

    acked: int
    again: int
    rtt: float


def a_window(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Validate: True, False, or so many bytes."""
    if not isinstance(value, (bool, int)):
        raise TypeError(f"window is True, False, or a number of bytes, for example 65536; not {shown(value)}")
    if not isinstance(value, bool) and value < 1:
        raise ValueError(f"window is one byte or more, not {value}")


def link_of(connection: Any) -> Link | None:
    """What the system tells of a connection; None where it tells nothing of this kind."""
    if _TCP_INFO is None or connection is None:
        return None
    try:
        if hasattr(connection, "getsockopt"):
            data = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _SIZE)
        else:  # uvloop's own object, which has a number and no options
            same = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, connection.fileno())
            try:
                data = same.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _SIZE)
            finally:
                same.detach()  # else it would close the connection
    except OSError:  # closed, or no TCP
        return None
    if len(data) < _SIZE:
        return None
    (rtt,) = struct.unpack_from("=I", data, _RTT)
    (acked,) = struct.unpack_from("=Q", data, _ACKED)
    (again,) = struct.unpack_from("=Q", data, _AGAIN)
    return Link(acked, again, rtt / 1e6)


class Pacer:
    """Keeps one connection's window. `window` is a number of bytes, or learns."""

    def __init__(self, transport: Transport, window: int | SendWindow, clock: Callable[[], float] = monotonic) -> None:
        self.held = 0  # bytes that wait here
        self._transport = transport
        self._window = window
        self._clock = clock
        self._room = 0  # as of the last look, less what was written since
        self._looked = -_FRESH
        self._acked = -1
        self._pause = _SHORTEST
        self._waited = False
        self._written = 0  # since the connection began, as far as is known without a look
        self._marks: deque[tuple[int, float]] = deque(maxlen=_MARKS)  # that after a write, and when it was

    @property
    def size(self) -> int:
        """The window, in bytes."""
        return self._window if isinstance(self._window, int) else self._window.size

    def on_its_way(self) -> int:
        """What was written and not acknowledged, in bytes."""
        return self._transport.held() + queued(self._transport.socket())

    async def admit(self, size: int) -> None:
        """Wait until there is room for a write of `size` bytes to start. One may overshoot the window."""
        if self._room <= 0 or self._clock() - self._looked > _FRESH:
            self._look()
        if self._room <= 0:
            self.held, self._waited = size, True
            try:
                pause = self._pause
                while self._room <= 0:
                    before = self._room
                    await anyio.sleep(pause)
                    self._look()
                    # Of a reader that takes nothing it is enough to know that now and then.
                    pause = self._pause if self._room != before else min(2 * pause, _STALLED)
            finally:
                self.held = 0
        self._room -= size
        if not isinstance(self._window, int):
            self._written += size
            self._marks.append((self._written, self._clock()))

    def _look(self) -> None:
        now = self._looked = self._clock()
        away = self.on_its_way()
        if not isinstance(self._window, int):
            link = link_of(self._transport.socket())
            if link is not None:
                held = self._waited or self._room <= 0
                self._written = link.acked + away
                sample = Sample(now, self._written, link.acked, self._quickest(link, now), link.again, held)
                self._window.take(sample)
                self._acked, self._waited = link.acked, False
                self._pause = min(max(link.rtt / 8, _SHORTEST), _LONGEST)
        self._room = self.size - away

    def _quickest(self, link: Link, now: float) -> float | None:
        """How long an acknowledgement took, of those that are new. Linux tells an average, in which those are that a
        reader's system put off, as it does when a little comes; what is seen here is late by the time since a look."""
        if link.acked <= self._acked:
            return None
        rtt, marks = link.rtt, self._marks
        while marks and marks[0][0] <= link.acked:
            rtt = min(rtt, now - marks.popleft()[1])
        return rtt


def make_pacer(transport: Transport | None, window: bool | int) -> Pacer | None:
    """The pacer of a connection; None where none is wanted, or none can be had."""
    if window is False:
        return None
    connection = None if transport is None or not SEES_QUEUES else transport.socket()
    if transport is None or connection is None or (window is True and link_of(connection) is None):
        _say_who_has_none()
        return None
    return Pacer(transport, SendWindow() if window is True else window)


@functools.cache
def _say_who_has_none() -> None:
    logger.warning(
        "a send window is set, and this server does not show its sockets to an application, or this system tells "
        "nothing of them: the window is the server's and the system's own (how-to: credit-and-windows)"
    )
