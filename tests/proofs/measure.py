"""Ratios that a noisy machine cannot fake.

Two things are measured in pairs, one after the other (A B A B …), so that whatever slows the machine
slows both; the ratio is the median over the pairs. The reference is the same code every time: if it alone
varies by more than 1.25 times, the machine was busy, and the run says "too noisy" and is repeated.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Final

import attrs

__all__ = ["MAX_SPREAD", "MIN_PAIRS", "Ratio", "TooNoisy", "cpu_seconds", "ratio"]

MIN_PAIRS: Final = 5
MAX_SPREAD: Final = 1.25


class TooNoisy(RuntimeError):
    """The reference varied too much in every attempt: nothing can be said on this machine now."""

    def __init__(self, spread: float, attempts: int) -> None:
        self.spread = spread
        super().__init__(f"too noisy: the reference varied {spread:.2f} times, after {attempts} attempts")


@attrs.frozen
class Ratio:
    """Subject over reference: the median of the pairs' ratios, the smallest and the largest, the medians of
    both (in the unit of the measurement), and how much the reference varied (largest over smallest)."""

    median: float
    low: float
    high: float
    subject: float
    reference: float
    spread: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f}, {self.pairs} pairs)"


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU seconds of this process for one call, without a collection in the middle."""
    gc.collect()
    gc.disable()
    try:
        start = time.process_time()
        work()
        return time.process_time() - start
    finally:
        gc.enable()


def ratio(
    subject: Callable[[], float],
    reference: Callable[[], float],
    *,
    pairs: int = MIN_PAIRS,
    attempts: int = 5,
    say: Callable[[str], None] = print,
) -> Ratio:
    """Measure both in interleaved pairs; each callable does one measurement and answers its cost.

    One unrecorded pair goes first, for caches and imports. Raises TooNoisy after `attempts`.
    """
    if pairs < MIN_PAIRS:
        raise ValueError(f"at least {MIN_PAIRS} pairs, not {pairs}")
    subject()
    reference()
    spread = 0.0
    for _ in range(attempts):
        measured = [(subject(), reference()) for _ in range(pairs)]
        references = [pair[1] for pair in measured]
        spread = max(references) / min(references)
        if spread <= MAX_SPREAD:
            ratios = [mine / theirs for mine, theirs in measured]
            return Ratio(
                statistics.median(ratios),
                min(ratios),
                max(ratios),
                statistics.median([pair[0] for pair in measured]),
                statistics.median(references),
                spread,
                pairs,
            )
        say(f"too noisy: the reference varied {spread:.2f} times; again")
    raise TooNoisy(spread, attempts)
