"""Pictures that go with a proof's page, as SVG. The same figures make the same file: no date, no drawn identifiers."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import attrs

__all__ = ["Point", "trade_off"]

_LINE, _CHOSEN = "#5b6b7a", "#1e8449"  # told apart on white and on a dark page


@attrs.frozen
class Point:
    """One way of doing it: what it costs, along, and what it brings, upwards. `chosen`: the one that is spoken for."""

    name: str
    cost: float
    gain: float
    chosen: bool = False


def trade_off(panels: Mapping[str, Sequence[Point]], *, cost: str, gain: str) -> str:
    """The text of an SVG: a panel for each title, with a line through all ways but the chosen one, in their order."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * len(panels), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)
    for axes, (title, points) in zip(grid[0], panels.items(), strict=True):
        others = [point for point in points if not point.chosen]
        axes.plot([point.cost for point in others], [point.gain for point in others], color=_LINE, marker="o", lw=1)
        for point in points:
            if point.chosen:
                axes.plot([point.cost], [point.gain], color=_CHOSEN, marker="*", markersize=14, linestyle="none")
            axes.annotate(
                point.name, (point.cost, point.gain), xytext=(6, -12), textcoords="offset points", fontsize=8
            )
        axes.set_title(title)
        axes.set_xlabel(cost)
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.margins(x=0.2)
    grid[0][0].set_ylabel(gain)
    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "streamguard", "svg.fonttype": "none"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
