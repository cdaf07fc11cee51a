"""What a count of some in many says about the rate behind it."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final

__all__ = ["wilson"]

Z95: Final = NormalDist().inv_cdf(0.975)


def wilson(hits: int, trials: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval for a rate, 95 % by default, as two numbers from 0 to 1.

    It stays inside of them and says something at 0 hits too, where the textbook's interval has no width
    (Wilson, JASA 22, 1927). With no trials it is everything. Raises ValueError for more hits than trials.
    """
    if not 0 <= hits <= trials:
        raise ValueError(f"{hits} of {trials} is no count")
    if trials == 0:
        return 0.0, 1.0
    rate = hits / trials
    scale = 1 + z * z / trials
    middle = (rate + z * z / (2 * trials)) / scale
    half = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials)) / scale
    # At the ends the exact value is the end itself, which rounding misses.
    return (0.0 if hits == 0 else middle - half), (1.0 if hits == trials else middle + half)
