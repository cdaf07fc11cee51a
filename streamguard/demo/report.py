"""What was measured, as a table for people, JSON for programs and a picture for slides.

matplotlib is imported when a picture is asked for, and not before: it takes a second to load.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from streamguard.demo.lab import CutRow, LagRow, Result
from streamguard.demo.resume import ResumeResult

__all__ = [
    "PICTURES", "as_json", "cut_table", "lag_table", "plot", "print_legend", "print_resumes", "print_tables",
    "progress", "resume_json",
]  # fmt: skip

PICTURES: Final = (".svg", ".png")  # what `plot` writes, by the file's suffix


@contextmanager
def progress(console: Console) -> Iterator[Callable[[str, int], Callable[[], object]]]:
    """A bar for each experiment, in the form that `lab.run` takes as `start`; gone when it is over. Where it is no
    terminal, a line for each tenth."""
    if not console.is_terminal:
        yield functools.partial(_told, console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:

        def start(title: str, total: int) -> Callable[[], object]:
            task = bars.add_task(title, total=total)
            return lambda: bars.advance(task)

        yield start


def _told(console: Console, title: str, total: int) -> Callable[[], object]:
    """Says how far an experiment is. The console flushes each line."""
    made, every = 0, -(-total // 10)

    def tell() -> None:
        console.print(f"{title}: {made} of {total}", markup=False, highlight=False, soft_wrap=True)

    def advance() -> None:
        nonlocal made
        made += 1
        if made == total or not made % every:
            tell()

    tell()
    return advance


def as_json(result: Result) -> str:
    """One object: `settings`, `rows` (the lagging sender), `cuts` (the cut connection), `kept`."""

    def cut(row: CutRow) -> dict[str, Any]:
        return {**attrs.asdict(row), "silent": row.silent}

    found = {
        "settings": attrs.asdict(result.settings),
        "rows": [attrs.asdict(row) for row in result.rows],
        "cuts": [cut(row) for row in result.cuts],
        "kept": result.kept,
    }
    return json.dumps(found, indent=2)


def resume_json(result: ResumeResult) -> str:
    """One object: `seed`, `rows`, `kept`."""
    found = {"seed": result.seed, "rows": [attrs.asdict(row) for row in result.rows], "kept": result.kept}
    return json.dumps(found, indent=2)


def print_resumes(result: ResumeResult, console: Console) -> None:
    """The third experiment's table, and what it says."""
    table = Table(box=SIMPLE_HEAD, title="Cut ten times and resumed", title_justify="left")
    table.add_column("log")
    for name in ("answers", "cuts", "resumes", "frames twice", "text as generated", "seconds"):
        table.add_column(name, justify="right")
    for row in result.rows:
        if row.why_not is not None:
            table.add_row(row.log, "-", "-", "-", "-", "not tried", "-")
            continue
        numbers = (row.answers, row.cuts, row.resumes, row.duplicates)
        table.add_row(row.log, *map(str, numbers), f"{row.identical} of {row.answers}", f"{row.seconds:.1f}")
    console.print(table)
    for row in result.rows:
        if row.why_not is not None:
            # As it is: a line of its own is not cut to a column, and "[redis]" is no markup.
            console.print(f"{row.log} was not tried: {row.why_not}", markup=False, highlight=False, soft_wrap=True)
    console.print("Nothing was lost, repeated or mixed in." if result.kept else "A text is not the one that was made.")


def _rate(hits: int, of: int) -> str:
    return f"{hits / of:.1%}" if of else "-"


def _interval(ci: tuple[float, float]) -> str:
    return f"{ci[0] * 100:.1f}–{ci[1] * 100:.1f}%"


def _colour(bad: int, variant: str) -> str:
    return "red" if bad else "green" if variant in ("guarded", "streamguard") else ""


def _table(title: str, *columns: str) -> Table:
    """A table that fits 80 columns; words stand left, figures right."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, justify="left" if name in ("endpoint", "how it is cut", "reader") else "right")
    return table


_LEGEND: Final = """\
chunk: tokens sent at once; unguarded+flush: a last, short one is sent, too
truncated: answers whose end never came; noticed: of those, the client raised"""


def print_legend(console: Console) -> None:
    """What the tables' names mean. Before anything runs: it is what a pipe shows first."""
    console.print(_LEGEND, markup=False, highlight=False, soft_wrap=True)


def lag_table(result: Result) -> Table:
    """The first experiment."""
    title = (
        f"The sender lags {result.settings.delay * 1000:g} ms behind; the response ends when generation does"
    )
    table = _table(title, "chunk", "endpoint", "answers", "truncated", "95% interval", "noticed", "first text")
    for index, row in enumerate(result.rows):
        last = index + 1 == len(result.rows) or result.rows[index + 1].chunk != row.chunk
        first = "-" if row.ttft_ms is None else f"{row.ttft_ms:.0f} ms"
        told = f"{row.noticed} of {row.truncated}" if row.truncated else "-"
        table.add_row(
            str(row.chunk),
            row.variant,
            str(row.answers),
            _rate(row.truncated, row.answers),
            _interval(row.ci),
            told,
            first,
            style=_colour(row.truncated - row.noticed, row.variant),
            end_section=last,
        )
    return table


def cut_table(result: Result) -> Table:
    """The second experiment."""
    title = "A connection that is cut at a random byte of the body"
    table = _table(title, "how it is cut", "reader", "cut", "lost text", "noticed", "silent", "95% interval")
    for index, row in enumerate(result.cuts):
        last = index + 1 == len(result.cuts) or result.cuts[index + 1].fault != row.fault
        table.add_row(
            row.fault,
            row.reader,
            str(row.cut),
            str(row.incomplete),
            str(row.noticed),
            _rate(row.silent, row.cut),
            _interval(row.ci),
            style=_colour(row.silent, row.reader),
            end_section=last,
        )
    return table


def print_tables(result: Result, console: Console) -> None:
    console.print()
    console.print(lag_table(result))
    console.print()
    console.print(cut_table(result))
    console.print()
    if result.kept:
        console.print("Every guarded answer was whole, or its reader was told that it was not.")
    else:
        console.print("[red]A guarded answer lacked text and its reader was not told: please report this.[/red]")


def plot(result: Result, path: Path) -> None:
    """The first table as a picture, in the format of the path's suffix.

    Raises ValueError for a suffix that is none of `PICTURES`, ModuleNotFoundError without matplotlib.
    """
    if path.suffix not in PICTURES:
        raise ValueError(f"{path.name}: a picture ends in {' or '.join(PICTURES)}")
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    sizes = [str(chunk) for chunk in result.settings.chunks]
    for offset, (variant, colour) in enumerate(_COLOURS.items()):
        rows = [row for row in result.rows if row.variant == variant]
        places = [index + (offset - 1) * 0.08 for index in range(len(rows))]
        axes.errorbar(
            places,
            [_percent(row) for row in rows],
            yerr=[
                [max(0.0, _percent(row) - row.ci[0] * 100) for row in rows],
                [max(0.0, row.ci[1] * 100 - _percent(row)) for row in rows],
            ],
            label=variant,
            color=colour,
            marker="o",
            capsize=3,
        )
    axes.set_xticks(range(len(sizes)), sizes)
    axes.set_xlabel("tokens in a chunk")
    axes.set_ylabel("truncated answers, % (95 % interval)")
    axes.set_title(f"The sender lags {result.settings.delay * 1000:g} ms; the response ends when generation does")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    with matplotlib.rc_context({"svg.hashsalt": "streamguard"}):  # and no date: the same result is the same file
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


_COLOURS: Final = {"unguarded": "#c0392b", "unguarded+flush": "#e08e0b", "guarded": "#1e8449"}


def _percent(row: LagRow) -> float:
    return 100 * row.truncated / row.answers if row.answers else 0.0
