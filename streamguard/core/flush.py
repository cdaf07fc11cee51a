"""When held text leaves. A policy decides; it never holds the text.

A stage (`flush_stage`) holds what has not left yet and asks its policy one question per piece: *how many
characters of what is held may leave now?* A policy can therefore delay text but never lose,
repeat, reorder or alter it, a user's own policy included.

A policy that wants to know whether its earlier text has left needs no bookkeeping either:
`held == len(piece)` says that nothing else is held.

Time is an argument (`now`, monotonic seconds); `deadline()` says when `tick` should be called.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, Protocol, runtime_checkable

import attrs
from attrs.setters import NO_OP

__all__ = [
    "AnyOf",
    "AtBoundary",
    "EveryBytes",
    "EveryTokens",
    "FlushPolicy",
    "HoldBack",
    "Immediate",
    "Within",
    "any_of",
    "checked_policy",
]

First = Literal["now", "policy"]

# `on_setattr=NO_OP` below: else attrs validates at every assignment, and counting costs more than a frame.


@runtime_checkable
class FlushPolicy(Protocol):
    """Decides when text leaves. One instance serves one stream; streams copy the one they are given.

    One that has a method `sample(pressure, now)` too is told of load, between two pieces: how late the event loop is,
    how much it works, and what the connection has not sent. `SampledPolicy` and `Pressure`, in
    `streamguard.core.adaptive`, are the types.
    """

    def push(self, piece: str, held: int, now: float) -> int:
        """How many of the `held` characters (the new `piece` included, at their end) may leave now."""
        ...

    def tick(self, held: int, now: float) -> int:
        """The same question when time has passed and no piece came."""
        ...

    def deadline(self) -> float | None:
        """When `tick` should next be called, in the clock of `now`; None for never."""


def _positive(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, (int, float)) or not value > 0:
        raise ValueError(f"{attribute.name} must be a number above zero, not {value!r}")


def _first(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value not in ("now", "policy"):
        raise ValueError(f'first must be "now" or "policy", not {value!r}')


@attrs.define
class Immediate:
    """Every piece leaves as it comes: one frame a token."""

    def push(self, piece: str, held: int, now: float) -> int:
        return held

    def tick(self, held: int, now: float) -> int:
        return held

    def deadline(self) -> float | None:
        return None


@attrs.define(on_setattr=NO_OP)
class EveryTokens:
    """Text leaves when `n` pieces are held. With `first="now"` the first piece does not wait."""

    n: int = attrs.field(validator=_positive)
    first: First = attrs.field(default="now", validator=_first, kw_only=True)
    _count: int = attrs.field(default=0, init=False)
    _wanted: int = attrs.field(init=False)  # pieces after which text leaves: `n`, or one at first

    def __attrs_post_init__(self) -> None:
        self._wanted = 1 if self.first == "now" else self.n

    def push(self, piece: str, held: int, now: float) -> int:
        self._count = count = self._count + 1 if held > len(piece) else 1
        if count < self._wanted:
            return 0
        self._wanted = self.n
        self._count = 0
        return held

    def tick(self, held: int, now: float) -> int:
        return 0

    def deadline(self) -> float | None:
        return None


@attrs.define(on_setattr=NO_OP)
class EveryBytes:
    """Text leaves when `n` bytes of UTF-8 are held. With `first="now"` the first piece does not wait."""

    n: int = attrs.field(validator=_positive)
    first: First = attrs.field(default="now", validator=_first, kw_only=True)
    _bytes: int = attrs.field(default=0, init=False)
    _begun: bool = attrs.field(default=False, init=False)

    def push(self, piece: str, held: int, now: float) -> int:
        if held == len(piece):
            self._bytes = 0
        self._bytes += len(piece) if piece.isascii() else len(piece.encode())
        if self._bytes >= self.n or (not self._begun and self.first == "now"):
            self._begun = True
            self._bytes = 0
            return held
        self._begun = True
        return 0

    def tick(self, held: int, now: float) -> int:
        return 0

    def deadline(self) -> float | None:
        return None


@attrs.define(on_setattr=NO_OP)
class Within:
    """Text is held for at most `seconds`, counted from its first held piece."""

    seconds: float = attrs.field(validator=_positive)
    first: First = attrs.field(default="now", validator=_first, kw_only=True)
    _due: float | None = attrs.field(default=None, init=False)
    _begun: bool = attrs.field(default=False, init=False)

    def push(self, piece: str, held: int, now: float) -> int:
        if not self._begun:
            self._begun = True
            if self.first == "now":
                return held
        if self._due is None or held == len(piece):
            self._due = now + self.seconds
        return self.tick(held, now)

    def tick(self, held: int, now: float) -> int:
        if self._due is None or now < self._due:
            return 0
        self._due = None
        return held

    def deadline(self) -> float | None:
        return self._due


# Closing punctuation and the white space after it; CJK full stops need no space.
# One mark of a run is enough: with `+` after it, a long run without a space takes quadratic time.
_SENTENCE: Final = r"[.!?…][\"'”’)\]]*\s+|[。！？]+[”’」』）]*|\n+"
_NAMED: Final = {"word": r"\s+", "sentence": _SENTENCE}


def _boundary(pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
        return pattern
    if not isinstance(pattern, str):
        raise TypeError(f'AtBoundary takes "word", "sentence" or a pattern for text, not {pattern!r}')
    # A name with a slip in it would be a pattern that text hardly ever holds, and hold the whole answer back.
    if pattern not in _NAMED and (not pattern or pattern.isalpha()):
        known = 'AtBoundary knows "word" and "sentence"'
        raise ValueError(f"{known}, not {pattern!r}; for a pattern give re.compile({pattern!r})")
    try:
        return re.compile(_NAMED.get(pattern, pattern))
    except re.error as exc:
        raise ValueError(f"AtBoundary's pattern {pattern!r} is no regular expression: {exc}") from None


@attrs.define(on_setattr=NO_OP)
class AtBoundary:
    """Text leaves up to the end of its last boundary: `"word"`, `"sentence"`, or a regular expression.

    One of letters alone must be compiled, since as a string it may be a name with a slip in it (ValueError).
    The expression is searched in the last `window` characters that the policy has seen, so that a
    boundary may lie over several pieces and the work stays linear.
    """

    pattern: re.Pattern[str] = attrs.field(converter=_boundary)
    window: int = attrs.field(default=64, validator=_positive, kw_only=True)
    _tail: str = attrs.field(default="", init=False)

    def push(self, piece: str, held: int, now: float) -> int:
        seen = self._tail + piece
        end = 0
        for match in self.pattern.finditer(seen):
            if match.end() > match.start():
                end = match.end()
        # A boundary inside what already left releases nothing.
        release = max(0, held - (len(seen) - end)) if end else 0
        self._tail = seen[max(end, len(seen) - self.window) :]
        return release

    def tick(self, held: int, now: float) -> int:
        return 0

    def deadline(self) -> float | None:
        return None


@attrs.define(init=False)
class HoldBack:
    """Holds text that may be the beginning of a stop string, until it is clear whether it is.

    What cannot be part of one leaves by `flush` (default: at once). A whole stop string leaves
    like any text: stopping the source, or cutting the string off, is the source's business.

    The automaton is Knuth-Morris-Pratt, one state a stop string: its state is the number of
    characters at the end of the text that match the string's beginning, so no text is kept.
    """

    stop: tuple[str, ...]
    flush: FlushPolicy
    _tables: tuple[tuple[int, ...], ...]
    _matched: list[int]

    def __init__(self, stop: list[str] | tuple[str, ...] | str, *, flush: FlushPolicy | None = None) -> None:
        self.stop = (stop,) if isinstance(stop, str) else tuple(stop)
        if not self.stop or not all(self.stop):
            raise ValueError("HoldBack needs at least one stop string, and none may be empty")
        self.flush = Immediate() if flush is None else checked_policy(flush)
        self._tables = tuple(_borders(word) for word in self.stop)
        self._matched = [0] * len(self.stop)

    def push(self, piece: str, held: int, now: float) -> int:
        for index, word in enumerate(self.stop):
            matched = self._matched[index]
            if not matched and word[0] not in piece:
                continue  # the usual way: nothing here begins this stop string
            borders = self._tables[index]
            for char in piece:
                while matched and word[matched] != char:
                    matched = borders[matched - 1]
                if word[matched] == char:
                    matched += 1
                if matched == len(word):
                    matched = 0  # a whole stop string is no beginning: it may leave
            self._matched[index] = matched
        return self._clear(self.flush.push(piece, held, now), held)

    def tick(self, held: int, now: float) -> int:
        return self._clear(self.flush.tick(held, now), held)

    def deadline(self) -> float | None:
        return self.flush.deadline()

    def _clear(self, release: int, held: int) -> int:
        # What is matched may have left already, by a forced drain: then there is nothing to hold.
        return min(release, max(0, held - max(self._matched)))


def _borders(word: str) -> tuple[int, ...]:
    """For each prefix of `word`, the length of its longest proper border (Knuth-Morris-Pratt)."""
    table = [0] * len(word)
    length = 0
    for index in range(1, len(word)):
        while length and word[index] != word[length]:
            length = table[length - 1]
        if word[index] == word[length]:
            length += 1
        table[index] = length
    return tuple(table)


@attrs.define
class AnyOf:
    """What `any_of` makes."""

    policies: tuple[FlushPolicy, ...]

    def push(self, piece: str, held: int, now: float) -> int:
        return max([policy.push(piece, held, now) for policy in self.policies])

    def tick(self, held: int, now: float) -> int:
        return max([policy.tick(held, now) for policy in self.policies])

    def deadline(self) -> float | None:
        return min([due for policy in self.policies if (due := policy.deadline()) is not None], default=None)


def any_of(*policies: FlushPolicy) -> FlushPolicy:
    """Text leaves as soon as one of `policies` lets it: `any_of(EveryTokens(8), Within(0.04))`."""
    if not policies:
        raise ValueError("any_of needs at least one policy")
    for policy in policies:
        if isinstance(policy, (list, tuple)):
            raise TypeError("pass the policies one by one: any_of(EveryTokens(8), Within(0.04))")
        checked_policy(policy)
    if any(isinstance(policy, HoldBack) for policy in policies):
        raise ValueError("any_of would release what HoldBack holds; write HoldBack(stop, flush=any_of(...))")
    return AnyOf(policies)


def checked_policy(policy: FlushPolicy) -> FlushPolicy:
    """`policy`, if it is one. Raises TypeError for anything else, a policy's class included."""
    if isinstance(policy, type) or not isinstance(policy, FlushPolicy):
        raise TypeError(f"{policy!r} is no flush policy: give an instance, for example EveryTokens(8)")
    return policy
