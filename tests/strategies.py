"""What our own tests draw, beyond what the public kit has (`streamguard.testing.strategies`).

texts, clean_texts, token_cuts, byte_cuts, policies    the public ones
hostile          a user's policy that raises or answers nonsense, by a script
honest           a user's policy that answers what it may
clocks, endings  how time passes, how a source stops
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import attrs
from hypothesis import strategies as st

from streamguard.core.flush import FlushPolicy
from streamguard.testing import strategies
from streamguard.testing.chunks import cut
from streamguard.testing.strategies import byte_cuts, token_cuts

__all__ = [
    "Scripted",
    "byte_cuts",
    "clean_texts",
    "clocks",
    "cut",
    "endings",
    "Incomparable",
    "Liar",
    "honest",
    "hostile",
    "policies",
    "texts",
    "token_cuts",
    "whole",
]

texts: st.SearchStrategy[str] = strategies.texts()
clean_texts: st.SearchStrategy[str] = strategies.clean_texts()
policies: st.SearchStrategy[FlushPolicy] = strategies.flush_policies()

# Seconds that pass between one call and the next.
clocks: st.SearchStrategy[float] = st.sampled_from([0.0, 0.001, 0.02, 0.04, 0.5, 30.0])

# How a source stops: it returns, it raises, or something outside stops it with this status.
endings: st.SearchStrategy[str] = st.sampled_from(
    ["return", "raise", "failed", "cancelled", "stalled", "slow", "shutdown"]
)

_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_HALF = re.compile("[\ud800-\udfff]")


def whole(text: str) -> str:
    """What a reader is given for `text`: pairs joined, lone halves as U+FFFD. By other means than the core's."""

    def joined(match: re.Match[str]) -> str:
        high, low = map(ord, match[0])
        return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))

    return _HALF.sub("\ufffd", _PAIR.sub(joined, text))


@attrs.define
class Scripted:
    """A user's policy that goes through a script, over and over.

    A float from 0 to 1 is that part of what is held; an exception is raised; anything else is the answer.
    """

    script: Sequence[Any]
    at: int = 0

    def push(self, piece: str, held: int, now: float) -> Any:
        return self._answer(held)

    def tick(self, held: int, now: float) -> Any:
        return self._answer(held)

    def deadline(self) -> float | None:
        return 0.0

    def _answer(self, held: int) -> Any:
        answer = self.script[self.at % len(self.script)]
        self.at += 1
        if isinstance(answer, BaseException):
            raise answer
        if type(answer) is str and answer == "above":
            return held + 1
        if type(answer) is float and 0 <= answer <= 1:
            return int(held * answer)
        return answer


class Incomparable:
    """An answer whose every comparison raises, as some array types do."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth of this answer is ambiguous")


class Liar(int):
    """An int that says it is below nothing, so that a cut text would lose its end."""

    def __lt__(self, other: object) -> bool:
        return False


_parts = st.sampled_from([0.0, 0.1, 0.5, 1.0])
_nonsense = st.sampled_from(
    [-1, -(10**30), 10**30, "above", "all", None, 2.5, float("nan"), True, Incomparable(), Liar(1), [1], 10**400]
)
_faults = st.sampled_from([ValueError("a secret"), RuntimeError(), KeyError("x"), TypeError(), RecursionError()])

# A user's policy that keeps the rules, and delays as it likes.
honest: st.SearchStrategy[FlushPolicy] = st.lists(_parts, min_size=1, max_size=6).map(Scripted)

# A user's policy that does not.
hostile: st.SearchStrategy[FlushPolicy] = st.lists(st.one_of(_parts, _nonsense, _faults), min_size=1, max_size=6).map(
    Scripted
)
