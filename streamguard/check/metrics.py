"""How many generations run in a model's server, by what it tells of itself in the form of Prometheus. No I/O.

Whether a server goes on after its reader left cannot be seen on the connection, which is gone: it is seen where the
server counts what runs.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["GAUGES", "running"]

GAUGES: Final = (
    "vllm:num_requests_running",
    "sglang:num_running_reqs",
    "tgi_batch_current_size",
    "llamacpp:requests_processing",
)
"""What the engines call it; the first that is there counts."""

_LINE: Final = re.compile(r"([A-Za-z_:][\w:]*)(?:\{[^}]*\})?[ \t]+([0-9.]+(?:[eE][+-]?[0-9]+)?)(?:[ \t].*)?", re.ASCII)


def running(page: str, name: str | None = None) -> float | None:
    """The sum of the gauge `name` (one of `GAUGES`, if None) over its labels; None where the page has none."""
    sums: dict[str, float] = {}
    for line in page.split("\n"):
        if (match := _LINE.fullmatch(line.strip())) is not None:
            sums[match[1]] = sums.get(match[1], 0.0) + float(match[2])
    for wanted in (name,) if name is not None else GAUGES:
        if wanted in sums:
            return sums[wanted]
    return None
