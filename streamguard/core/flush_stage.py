"""What holds text under a flush policy: `push` in, `tick` for time, `drain` at the end.

That is the fix for the oldest fault in streaming servers, a buffer whose last part has no flush: draining at the
end, and before everything that is not text, is the stage's business and cannot be forgotten by a policy's author.

A policy whose every answer is known is not asked, because the call costs more than the rest of a token here:
`Immediate`, one that counts pieces, and `Adaptive` for as long as nothing presses.
"""

from __future__ import annotations

import copy
from typing import Final

from streamguard.core.adaptive import Adaptive, Pressure, SampledPolicy
from streamguard.core.errors import PolicyError
from streamguard.core.flush import AnyOf, EveryBytes, EveryTokens, FlushPolicy, HoldBack, Immediate, checked_policy

__all__ = ["MAX_HELD", "FlushStage"]

# Characters held at most, whatever a policy says (guarantee G7): the default frame limit, so that frames stay whole.
MAX_HELD: Final = 1024 * 1024


def _sampled(policy: FlushPolicy) -> list[SampledPolicy]:
    """The policies in `policy`, or itself, that are told of pressure."""
    if isinstance(policy, AnyOf):
        return [found for part in policy.policies for found in _sampled(part)]
    if isinstance(policy, HoldBack):
        return _sampled(policy.flush)
    return [policy] if isinstance(policy, SampledPolicy) else []


class FlushStage:
    """Holds text under a policy.

    `immediate`: nothing is held, so that text may pass it by. `timed`: the policy may name a deadline. `sampled`: it is
    to be told of pressure, which may change the other two.
    """

    __slots__ = (
        "_adaptive", "_samples", "every", "held", "immediate", "left", "pieces", "policy", "sampled", "timed", "wanted",
    )  # fmt: skip

    def __init__(self, policy: FlushPolicy) -> None:
        # Exactly these types: a subclass may do as it likes.
        self.timed = type(policy) not in (Immediate, EveryTokens, EveryBytes, Adaptive)
        self.immediate = type(policy) in (Immediate, Adaptive)
        # A copy, because a policy given to a decorator or to two streams must not be shared.
        self.policy: FlushPolicy = policy if type(policy) is Immediate else copy.deepcopy(checked_policy(policy))
        self._adaptive = self.policy if type(self.policy) is Adaptive else None
        self._samples = [] if type(policy) is Immediate else [found.sample for found in _sampled(self.policy)]
        self.sampled = bool(self._samples)
        self.every = self.wanted = int(self.immediate)  # pieces after which text leaves, always and now; 0 asks it
        if type(policy) is EveryTokens:
            self.every = policy.n
            self.wanted = 1 if policy.first == "now" else policy.n
        self.pieces: list[str] = []  # what is held
        self.held = 0  # characters of it
        self.left = 0  # characters that left

    @property
    def taken(self) -> int:
        """Characters that came in, for the conservation check: counted as they came, not in what left."""
        return self.left + self.held

    def push(self, piece: str, now: float) -> str:
        """Take one non-empty piece; return the text that may leave, possibly none.

        Raises PolicyError, or whatever the policy raises, with `piece` safely held.
        """
        pieces = self.pieces
        pieces.append(piece)  # first, so that a policy that raises loses nothing
        self.held = held = self.held + len(piece)
        if self.every:
            return "" if len(pieces) < self.wanted and held < MAX_HELD else self.counted()
        leave = self.policy.push(piece, held, now)
        if type(leave) is int and not leave and held < MAX_HELD:
            return ""  # as `_release` would, without the call
        return self._release(held if held >= MAX_HELD else leave)

    def counted(self) -> str:
        """All that is held, now that there are `wanted` pieces."""
        self.wanted = self.every
        return self.drain()

    def sample(self, pressure: Pressure, now: float) -> bool:
        """Tell the policy what presses. True where `immediate` and `timed` are others now."""
        for tell in self._samples:
            tell(pressure, now)
        adaptive = self._adaptive
        if adaptive is None:
            return False
        # Not while text is held, which what passes by would overtake.
        free = not adaptive.window and not self.held
        if free is self.immediate:
            return False
        self.immediate, self.timed = free, not free
        self.every = self.wanted = int(free)
        return True

    def tick(self, now: float) -> str:
        """The text that time releases."""
        if not self.held:
            return ""
        return self._release(self.policy.tick(self.held, now))

    def drain(self) -> str:
        """All that is held. Called before everything that is not text, and at every ending."""
        text = "".join(self.pieces)
        self.pieces.clear()
        self.left += self.held
        self.held = 0
        return text

    def deadline(self) -> float | None:
        """When to call `tick`; None while nothing is held."""
        return self.policy.deadline() if self.held else None

    def hold(self, piece: str) -> None:
        """Take `piece` without asking the policy."""
        self.pieces.append(piece)
        self.held += len(piece)

    def _release(self, leave: int) -> str:
        held = self.held
        # Exactly int: True would mean one character, and a subclass may compare as it likes.
        if type(leave) is not int or not 0 <= leave <= held:
            raise PolicyError(type(self.policy).__name__, leave, held)
        if not leave:
            return ""
        text = self.drain()
        if leave < held:
            self.left -= held - leave
            self.hold(text[leave:])
        return text[:leave]
