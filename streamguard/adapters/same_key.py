"""Requests that bear one idempotency key at the same moment: the first one asks, the others wait for what comes of it.

A log takes a key with the stream that has it. An application that is not ours says only by its answer's head whether it
streams; a model's server may take seconds for that. Until then the log knows nothing, and each of several equal
requests would be the first one, and generate.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from streamguard.adapters.logged import Claim

__all__ = ["Begun", "SameKey", "nobody_waits"]

Begun = Callable[[], None]  # to be called, once or more, when those behind may look


def nobody_waits() -> None:
    """For a request that holds up no other."""


class SameKey:
    """Of one process; between processes the log decides, by which of them appends first."""

    def __init__(self) -> None:
        self._ahead: Final[dict[str, anyio.Event]] = {}

    async def claim(self, make: Callable[[], Awaitable[Claim]]) -> tuple[Claim, Begun]:
        """What `make` answers, which looks the key up, as soon as nobody is ahead; and what lets the next one look."""
        claim = await make()
        while claim.key is not None and claim.starts and (ahead := self._ahead.get(claim.key)) is not None:
            await ahead.wait()
            claim = await make()
        if claim.key is None or not claim.starts:
            return claim, nobody_waits
        # Nothing was waited for since it was looked up, so nobody else is the first one.
        key, behind = claim.key, anyio.Event()
        self._ahead[key] = behind

        def begun() -> None:
            if not behind.is_set():
                del self._ahead[key]
                behind.set()

        return claim, begun
