"""Ports of the loopback, for processes that take their own, and for addresses at which nobody is."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["free_port", "nobody"]


def free_port() -> int:
    """A port below those that the kernel gives to outgoing connections, which would take it before a server does."""
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port := random.randrange(20_000, 32_000)))
            except OSError:
                continue
            return port


@contextmanager
def nobody() -> Iterator[int]:
    """A port at which nobody listens: it is bound meanwhile, so that nobody else is given it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]
