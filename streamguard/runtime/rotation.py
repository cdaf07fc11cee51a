"""When a connection is old enough to end, though its stream goes on: its reader comes back, and reads on elsewhere.

For layers that cut what is open for too long, and so that a new process gets its share of readers. Each connection has
an age of its own below the maximum: those that began together, after a deploy, do not all come back together.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import anyio

__all__ = ["JITTER", "rotation"]

JITTER: Final = 0.2  # of the maximum, by which a connection's age may be below it


def rotation(max_age: float, told: Callable[[], object]) -> Callable[[], bool]:
    """What answers whether a connection that begins now is to end, asked again and again; `told` is called before it
    first says so. `max_age` in seconds."""
    due = anyio.current_time() + max_age * random.uniform(1 - JITTER, 1)

    def leave() -> bool:
        if anyio.current_time() < due:
            return False
        told()
        return True

    return leave
