"""A language model's timing, without the model: seeded answers, and the record of what was generated.

An answer is a text in tokens, the gap before each, and what comes after the last: the step in which the
model finds that it is done, and the time that the endpoint takes to store the finished answer. Seeds vary
all of them; nothing else in the lab draws a random number that an answer's fate could depend on.

The ledger is kept where the text is made, by the side that makes it. Whether an answer arrived whole is
judged against it and never against what the reader believes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Final

import attrs

__all__ = ["Answer", "Entry", "Generation", "Ledger", "answer", "long_answer"]

_WORDS: Final = (
    "the", "a", "of", "to", "and", "in", "is", "it", "that", "for", "as", "with", "on", "be", "this", "by", "from",
    "are", "at", "an", "or", "which", "was", "can", "each", "its", "not", "stream", "token", "answer", "reader",
    "server", "tail", "chunk", "buffer", "queue", "sender", "clock", "model", "text", "word", "line", "end", "start",
    "naïve", "façade", "答え", "поток", "straße",
)  # fmt: skip

# Seconds, but for the first two. Natural answers are of many lengths, so that the last chunk holds anything
# from nothing to all but one token; tokens come at 500 a second, which keeps one answer near a fifth of a
# second. Storing takes up to a few tenths, often much less. With `DELAY` of demo/lab.py these give about
# the loss that a published account measured at chunk sizes 8 and 16.
LENGTH: Final = 40
LENGTH_SIGMA: Final = 0.35
GAP: Final = 0.002
GAP_SIGMA: Final = 0.4
STORE: Final = 0.095


@attrs.frozen
class Answer:
    """What one generation will be. Times in seconds."""

    tokens: tuple[str, ...]
    gaps: tuple[float, ...]
    """Before each token, and one more before the model's end."""
    store: float
    """How long the endpoint takes to store the finished answer."""


def answer(seed: int, number: int) -> Answer:
    """Answer `number` of `seed`: always the same."""
    rng = random.Random(f"{seed}/{number}")
    length = min(3 * LENGTH, max(LENGTH // 4, round(LENGTH * rng.lognormvariate(0.0, LENGTH_SIGMA))))
    tokens = tuple(f"{rng.choice(_WORDS)} " for _ in range(length - 1))
    gaps = tuple(GAP * rng.lognormvariate(-(GAP_SIGMA**2) / 2, GAP_SIGMA) for _ in range(length + 1))
    return Answer((*tokens, "end."), gaps, rng.expovariate(1 / STORE))


def long_answer(seed: int, number: int) -> Answer:
    """The same, of as many tokens as ten answers have."""
    parts = [answer(seed, 10 * number + part) for part in range(10)]
    tokens = tuple(token for part in parts for token in part.tokens)
    gaps = tuple(gap for part in parts for gap in part.gaps[:-1])
    return Answer(tokens, (*gaps, 0.0), 0.0)


@attrs.define
class Entry:
    """What was generated of one answer so far."""

    text: str = ""
    over: bool = False
    """Whether the model came to its end."""


@attrs.define
class Ledger:
    """What a server's source has made, by the request's id. The oldest of more than `limit` is dropped."""

    limit: int = 50_000
    entries: dict[str, Entry] = attrs.field(factory=dict)

    def open(self, key: str) -> Entry:
        if len(self.entries) >= self.limit:
            del self.entries[next(iter(self.entries))]
        entry = self.entries[key] = Entry()
        return entry

    def take(self) -> dict[str, Entry]:
        """All of it, leaving nothing behind."""
        taken, self.entries = self.entries, {}
        return taken


@attrs.define
class Generation:
    """One running generation. `pace` stretches its times: 0.5 is twice as fast."""

    answer: Answer
    entry: Entry
    pace: float = 1.0

    async def tokens(self) -> AsyncIterator[str]:
        """The tokens at their times, whether or not somebody takes them in time, as an engine makes them."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        for token, gap in zip(self.answer.tokens, self.answer.gaps, strict=False):
            due += gap * self.pace
            await asyncio.sleep(max(0.0, due - loop.time()))
            self.entry.text += token
            yield token
        await asyncio.sleep(self.answer.gaps[-1] * self.pace)
        self.entry.over = True

    async def store(self) -> None:
        """What an endpoint does when generation is over: count usage, write the conversation down."""
        await asyncio.sleep(self.answer.store * self.pace)
