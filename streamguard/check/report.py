"""What was seen and what it means: words and figures for people, JSON for programs, and the answer while it runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from time import monotonic
from typing import Any, Final

import attrs
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from streamguard.check.evidence import Evidence, Probe
from streamguard.check.fault import Finding
from streamguard.check.observation import BUCKETS, Observation, histogram
from streamguard.core.arguments import one_line

__all__ = ["as_json", "live", "outcome", "print_report"]

_SAID: Final = 500  # characters of an answer that is no stream
_BAR: Final = 30  # characters of a histogram's longest row
_TITLE: Final = "time between tokens"
_COLOUR: Final = {"fault": "bold red", "warning": "yellow", "note": "dim"}
_SHOWN_HEADERS: Final = (
    "server", "via", "content-type", "content-encoding", "transfer-encoding", "connection", "cache-control",
    "x-accel-buffering", "streamguard",
)  # fmt: skip


def outcome(evidence: Evidence, findings: Sequence[Finding]) -> str:
    """`ok`, `fault`, or `no stream`."""
    if any(finding.severity == "fault" for finding in findings):
        return "fault"
    return "no stream" if evidence.nothing else "ok"


# ---- for programs -------------------------------------------------------------------------------


def as_json(evidence: Evidence, findings: Sequence[Finding]) -> str:
    """One object: `verdict`, `findings`, `answers`, and what was tried beside them."""
    leave, probe, test = evidence.leave, evidence.probe, evidence.selftest
    found = {
        "url": evidence.request.url,
        "method": evidence.request.method,
        "verdict": outcome(evidence, findings),
        "why": evidence.nothing,
        "findings": [attrs.asdict(finding) for finding in findings],
        "answers": [_figures(run) for run in evidence.runs],
        "beside": None if probe is None else {"asked": probe.asked, "answered": probe.answered, "alone": probe.alone},
        "abort": _abort(evidence) if test is not None and test.streamed else None,
        "without_compression": None if evidence.plain is None else _figures(evidence.plain),
        "leave": None if leave is None else {"told": leave.told, **attrs.asdict(leave)},
    }
    return json.dumps(found, indent=2, default=str)


def _figures(run: Observation) -> dict[str, Any]:
    end = run.end
    receipt = None if end is None else end.receipt
    return {
        "status": run.status,
        "http": run.version,
        "headers": {name: run.headers[name] for name in _SHOWN_HEADERS if name in run.headers},
        "api": run.api,
        "seconds": {"head": run.head, "first_byte": run.first_byte, "first_token": run.first_token, "end": run.ended},
        "bytes": run.size,
        "tokens": len(run.arrivals),
        "bursts": len(run.bursts),
        "gaps": {"bounds": list(BUCKETS), "counts": histogram(run.gaps), "median": run.usual_gap},
        "longest_silence": run.longest_silence,
        "beats": len(run.beats),
        "compression": run.coding,
        "clean": run.clean,
        "broke": run.why,
        "framed": run.framed,
        "guarded": run.guarded,
        "terminal": None if end is None else end.marker or (receipt is not None and receipt.status is not None),
        "whole": end is not None and end.whole,
        "receipt": None if receipt is None else str(receipt),
        "refusal": run.refusal,
    }


def _abort(evidence: Evidence) -> str:
    test = evidence.selftest
    if test is None or not test.streamed:
        return f"not seen ({evidence.untried})" if evidence.untried else "not seen"
    return "a clean end: it looks whole" if test.clean else f"an error ({test.why})"


# ---- for people ---------------------------------------------------------------------------------


def print_report(evidence: Evidence, findings: Sequence[Finding], console: Console) -> None:
    """Figures, then what they mean, then the verdict."""
    request = evidence.request
    console.print(f"{request.method} {request.url}", markup=False, highlight=False, soft_wrap=True)
    if evidence.streams:
        _print_figures(evidence, console)
    for finding in findings:
        _print_finding(finding, console)
    if outcome(evidence, findings) == "no stream":
        said = next((run.said for run in evidence.runs if run.said), b"").decode("utf-8", "replace").strip()
        words = f"There was no stream to check: {one_line(evidence.nothing)}."
        console.print()
        console.print(words, markup=False, highlight=False, soft_wrap=True)
        for line in said[:_SAID].split("\n") if said else ():
            console.print(one_line(line.rstrip()), markup=False, highlight=False, style="dim", soft_wrap=True)
        return
    count = sum(finding.severity == "fault" for finding in findings)
    good = "[green]In order.[/green]"
    console.print("\n" + (good if not count else f"[bold red]{count} fault{'s' * (count > 1)}.[/bold red]"))


def _print_figures(evidence: Evidence, console: Console) -> None:
    """As tables on a terminal; else line by line as they are, for grep finds no half of a field."""
    figures = _figures_of(evidence)
    gaps = [gap for run in evidence.streams for gap in run.gaps]
    if console.is_terminal:
        console.print(_table(figures))
        if gaps:
            console.print(_histogram(gaps))
        return
    width = max(len(name) for name, _ in figures)
    lines = [f"{name:<{width}}  {value}" for name, value in figures]
    if gaps:
        rows = [(_TITLE, "", ""), *_bars(gaps)]
        width = max(len(name) for name, _, _ in rows)
        lines += [f"{name:>{width}} {bar:<{_BAR}} {count}" for name, bar, count in rows]
    for line in lines:
        console.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)


def _print_finding(finding: Finding, console: Console) -> None:
    colour = _COLOUR[finding.severity]
    console.print(f"\n[{colour}]{finding.severity}: {finding.code}[/{colour}]", highlight=False)
    page = f"{finding.page.removeprefix('docs/')}, in streamguard's documentation" if finding.page else ""
    for label, text in (("", finding.words), ("change: ", finding.setting), ("see: ", page)):
        if text:  # as it is: a setting is not cut to a column, and "[check]" is no markup
            console.print(f"  {label}{text}", markup=False, highlight=False, soft_wrap=True)


def _table(figures: Sequence[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in figures:
        table.add_row(name, escape(value))
    return table


def _figures_of(evidence: Evidence) -> list[tuple[str, str]]:
    """The name of each figure and what it is, in one line."""
    runs = evidence.streams
    first, last = runs[0], runs[-1]
    rows: list[tuple[str, str]] = []

    def row(name: str, value: str) -> None:
        rows.append((name, one_line(value)))

    row("answer", f"{first.status}, {first.version}, {first.api}" + (", guarded" if first.guarded else ""))
    row("headers", "; ".join(f"{name}: {first.headers[name]}" for name in _SHOWN_HEADERS[:-1] if name in first.headers))
    row("time to headers", _times([run.head for run in runs]))
    row("to the first byte", _times([run.first_byte for run in runs]))
    row("to the first token", _times([run.first_token for run in runs]))
    row("to the end", _times([run.ended for run in runs]))
    arrivals = _counts([len(run.bursts) for run in runs])
    row("tokens", f"{_counts([len(run.arrivals) for run in runs])}, {arrivals} arrivals")
    row("signs of life", f"{_counts([len(run.beats) for run in runs])}; longest silence {_longest(runs):.2f} s")
    row("compression", "none" if first.coding == "identity" else first.coding)
    row("end", _end(last))
    if evidence.probe is not None:
        row("a request beside it", _beside(evidence.probe))
    row("a cut answer is", _abort(evidence))
    if evidence.leave is not None and evidence.leave.told:
        row("a reader that leaves", _leave(evidence))
    return rows


def _end(run: Observation) -> str:
    end = run.end
    assert end is not None  # it is a stream that is over
    how = "clean" if run.clean else f"cut: {run.why}"
    said = str(end.receipt) if end.receipt is not None else "end marker" if end.marker else "no end marker"
    return f"{how}; {said}"


def _beside(probe: Probe) -> str:
    return "not answered" if probe.answered is None else f"answered after {probe.answered - probe.asked:.3f} s"


def _leave(evidence: Evidence) -> str:
    leave = evidence.leave
    assert leave is not None
    if leave.stopped is None:
        return f"not noticed in {leave.waited:.1f} s"
    if leave.ignored and leave.resumable:
        return f"the answer ran on for {leave.stopped:.2f} s, as for one that comes back ({leave.by})"
    if leave.ignored:
        return f"not noticed: the answer ran on for {leave.stopped:.2f} s of {leave.rest:.2f}, to its end ({leave.by})"
    return f"noticed after {leave.stopped:.2f} s of {leave.rest:.2f} ({leave.by})"


def _longest(runs: Sequence[Observation]) -> float:
    return max(run.longest_silence for run in runs)


def _times(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    if len(known) == 1:
        return f"{known[0]:.3f} s"
    return f"{median(known):.3f} s ({min(known):.3f} to {max(known):.3f})"


def _counts(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def _histogram(gaps: Sequence[float]) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="dim")
    table.add_column()
    table.add_column(justify="right")
    table.add_row(_TITLE, "", "")
    for row in _bars(gaps):
        table.add_row(*row)
    return table


def _bars(gaps: Sequence[float]) -> list[tuple[str, str, str]]:
    """The rows of a histogram: up to which time, a bar, how many."""
    counts = histogram(gaps)
    names = [f"up to {bound * 1000:g} ms" if bound < 1 else f"up to {bound:g} s" for bound in BUCKETS]
    return [
        (name, "█" * max(1, round(_BAR * count / max(counts))), str(count))
        for name, count in zip([*names, f"above {BUCKETS[-1]:g} s"], counts, strict=True)
        if count
    ]


@contextmanager
def live(console: Console) -> Iterator[Callable[[str, Observation | None], None]]:
    """Shows the answer as it runs, on a terminal; what it answers is told of each stage. Gone when it is over."""
    now: tuple[str, Observation | None, float] = ("", None, 0.0)

    def stage(title: str, run: Observation | None) -> None:
        nonlocal now
        now = (title, run, monotonic())

    if not console.is_terminal:
        yield stage
        return
    with Live(console=console, get_renderable=lambda: _running(*now), refresh_per_second=8, transient=True):
        yield stage


def _running(title: str, run: Observation | None, since: float) -> Group:
    lines = [Text(title, style="bold")]
    if run is not None:
        gaps = run.gaps
        figures = [
            f"{monotonic() - since:6.1f} s",
            "headers " + ("…" if run.head is None else f"{run.head:.2f} s"),
            "first token " + ("…" if run.first_token is None else f"{run.first_token:.2f} s"),
        ]
        lines.append(Text("   ".join(figures)))
        came = f"{len(run.arrivals)} tokens, {len(run.bursts)} arrivals, {len(run.beats)} signs of life"
        lines.append(Text(f"           {came}"))
        if gaps:
            return Group(*lines, _histogram(gaps))
    return Group(*lines)
