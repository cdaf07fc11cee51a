"""What a source may do to a stream, as Hypothesis strategies: shared by the tests of every stage.

texts            any text: line ends of every kind, NUL, byte-order marks, emoji, halves of characters,
                 look-alikes of our own framing
token_cuts       the same, cut anywhere, a surrogate pair included
byte_cuts        bytes, cut anywhere
policies         every flush policy of the library, composed too
hostile          a user's policy that raises or answers nonsense, by a script
honest           a user's policy that answers what it may
endings          how a source stops
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import attrs
from hypothesis import strategies as st

from streamguard.core.flush import (
    AtBoundary,
    EveryBytes,
    EveryTokens,
    FlushPolicy,
    HoldBack,
    Immediate,
    Within,
    any_of,
)

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

LINE_ENDS = ["\n", "\r", "\r\n", "\n\n", "\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1e"]
LOOK_ALIKES = [
    "data: x\n\n",
    "event: end\ndata: {}\n\n",
    "id: AAECAwQFBgcICQoLDA0ODw.1.7.6fb73295.complete\n",
    ": sg AAECAwQFBgcICQoLDA0ODw.1.7.6fb73295\n",
    "\n\ndata: [DONE]\n\n",
    "[DONE]",
    '{"choices":[]}',
    '","end":"',
    '"',
    "\\",
    "\\u2028",
    "SG\x01",
]
HALVES = ["\ud83d", "\ude42", "\ud83d\ude42", "\ude42\ud83d", "\udcff", "\udfff", "\ud800", "\udbff", "\udc00"]
CHARACTERS = [
    "\0",
    "\x1b",
    "\x7f",
    "\ufeff",
    "\ufffd",
    "\ufffe",
    "é",
    "e\u0301",
    "你好",
    "🙂",
    "👩\u200d👩\u200d👧",
    "\U0010ffff",
    "\ue000",
    "\ud7ff",
]
WORDS = [" ", "a", "ab", ". ", "! ", "。", "<end>", "</s>", "<", "END", "aab", "STOP"]

_any_character = st.characters(exclude_categories=())
_pieces = st.one_of(
    st.sampled_from(LINE_ENDS),
    st.sampled_from(LOOK_ALIKES),
    st.sampled_from(CHARACTERS),
    st.sampled_from(WORDS),
    st.text(_any_character, max_size=4),
)

# Any text without halves of characters: what a reader can be given as it is.
clean_texts: st.SearchStrategy[str] = st.lists(_pieces, max_size=8).map("".join).map(lambda text: whole(text))  # noqa: PLW0108 - it is defined below

# Any text at all.
texts: st.SearchStrategy[str] = st.lists(st.one_of(_pieces, st.sampled_from(HALVES)), max_size=8).map("".join)

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
        high, low = match[0]
        return chr(0x10000 + ((ord(high) - 0xD800) << 10) + (ord(low) - 0xDC00))

    return _HALF.sub("\ufffd", _PAIR.sub(joined, text))


def cut(value: Any, places: Sequence[int]) -> list[Any]:
    """`value` (str or bytes) cut at `places`, which may repeat: then pieces are empty."""
    edges = [0, *sorted(places), len(value)]
    return [value[start:stop] for start, stop in pairwise(edges)]


@st.composite
def token_cuts(draw: st.DrawFn, source: st.SearchStrategy[str] = texts) -> list[str]:
    """A text as a source would yield it: in pieces, some of them empty, cut anywhere."""
    text = draw(source)
    return cut(text, draw(st.lists(st.integers(0, len(text)), max_size=12)))


@st.composite
def byte_cuts(draw: st.DrawFn, source: st.SearchStrategy[bytes]) -> list[bytes]:
    """Bytes in pieces, cut anywhere: whole, a byte at a time, or at random."""
    data = draw(source)
    kind = draw(st.sampled_from(["whole", "bytes", "random"]))
    if kind == "whole":
        return [data]
    if kind == "bytes":
        return [data[at : at + 1] for at in range(len(data))]
    return cut(data, draw(st.lists(st.integers(0, len(data)), max_size=12)))


_first = st.sampled_from(["now", "policy"])
_plain_policies = st.one_of(
    st.builds(Immediate),
    st.builds(EveryTokens, st.integers(1, 9), first=_first),
    st.builds(EveryBytes, st.integers(1, 40), first=_first),
    st.builds(Within, st.sampled_from([0.001, 0.04, 1.0]), first=_first),
    st.builds(AtBoundary, st.sampled_from(["word", "sentence", r"</?\w+>", "b*"]), window=st.integers(1, 64)),
)
_stops = st.lists(st.sampled_from(["<end>", "</s>", "aab", "aa", "END", "\n\n", "🙂", "data:"]), min_size=1, max_size=3)
_composed_policies = st.lists(_plain_policies, min_size=1, max_size=3).map(lambda several: any_of(*several))

# Every policy of the library.
policies: st.SearchStrategy[FlushPolicy] = st.one_of(
    _plain_policies,
    _composed_policies,
    st.builds(HoldBack, _stops, flush=st.one_of(st.none(), _plain_policies, _composed_policies)),
)


@attrs.define
class Scripted:
    """A user's policy that goes through a script, over and over.

    A float from 0 to 1 is that part of what is held; an exception is raised; anything else is the answer.
    """

    script: Sequence[Any]
    at: int = 0

    def push(self, piece: str, held: int, now: float) -> int:
        return self._answer(held)

    def tick(self, held: int, now: float) -> int:
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
