"""Requests that bear one idempotency key at the same moment: the first one asks, the others wait for what comes of it.

A log takes a key with the stream that has it. An application that is not ours says only by its answer's head whether it
streams; a model's server may take seconds for that. Until then the log knows nothing, and each of several equal
requests would be the first one, and generate. Whoever waits is watched, as at admission.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import attrs

from streamguard.adapters.logged import Claim
from streamguard.core.exchange import problem
from streamguard.runtime.leaving import left_before

__all__ = ["LEFT", "Begun", "SameKey", "nobody_waits"]

LEFT: Final = problem(503, "left", "the reader left")

Begun = Callable[[], None]  # to be called, once or more, when those behind may look


def nobody_waits() -> None:
    """For a request that holds up no other."""


class SameKey:
    """Of one process; between processes the log decides, by which of them appends first."""

    def __init__(self) -> None:
        self._ahead: Final[dict[str, anyio.Event]] = {}

    async def claim(
        self, make: Callable[[], Awaitable[Claim]], gone: Callable[[], Awaitable[object]]
    ) -> tuple[Claim, Begun]:
        """What `make` answers, which looks the key up, as soon as nobody is ahead; and what lets the next one look.
        `gone` returns when the reader has left: then the claim is refused, as LEFT."""
        claim = await make()
        while claim.key is not None and claim.starts and (ahead := self._ahead.get(claim.key)) is not None:
            if await left_before(ahead, gone):
                return attrs.evolve(claim, refused=LEFT), nobody_waits
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
