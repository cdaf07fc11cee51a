"""A proof's result as text on a terminal, as a page of the documentation, and as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from importlib import metadata

import attrs

from tests.proofs.registry import Proof, Result, Table

__all__ = ["Record", "as_json", "as_page", "as_text", "renewed"]

_OWN = ("streamguard-io", "anyio", "attrs")


@attrs.frozen
class Record:
    """One run of a proof. `command` is what runs it again."""

    proof: Proof
    result: Result
    seed: int
    seconds: float
    command: str

    @property
    def versions(self) -> dict[str, str]:
        names = dict.fromkeys((*_OWN, *self.result.packages))
        return {"python": platform.python_version(), **{name: _version(name) for name in names}}

    @property
    def machine(self) -> str:
        return f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value)


def _cells(table: Table) -> list[list[str]]:
    return [[_cell(value) for value in row] for row in [table.columns, *table.rows]]


def as_text(record: Record) -> str:
    """The tables in columns, and the verdict."""
    lines = [record.proof.claim, ""]
    for table in record.result.tables:
        rows = _cells(table)
        widths = [max(len(row[column]) for row in rows) for column in range(len(table.columns))]
        lines += [table.title] if table.title else []
        for row in rows:
            lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        lines.append("")
    lines += [*record.result.notes, ""] if record.result.notes else []
    verdict = "shown" if record.result.shown else "NOT SHOWN"
    return "\n".join([*lines, f"{record.proof.name}: {verdict} in {record.seconds:.1f} s, seed {record.seed}"])


def as_page(record: Record) -> str:
    """The page of this proof in Markdown. Its tables stand between markers."""
    lines = [f"# {record.proof.name}", "", record.proof.claim, "", f"    {record.command}", "", *_marked(record)]
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    lines += [
        "",
        *[line for figure in record.result.figures for line in (f"![{figure.alt}]({figure.name}.svg)", "")],
        *[line for note in record.result.notes for line in (note, "")],
        f"{'Shown' if record.result.shown else 'Not shown'}. Seed {record.seed}, {record.seconds:.0f} s on "
        f"{record.machine}; {versions}.",
    ]
    return "\n".join(lines) + "\n"


def renewed(page: str, record: Record) -> str:
    """`page`, with the tables of this proof between its markers; as it is, if it has none."""
    begin, *_, end = marked = _marked(record)
    before, found, rest = page.partition(begin)
    return before + "\n".join(marked) + rest.partition(end)[2] if found else page


def _marked(record: Record) -> list[str]:
    lines = [f"<!-- begin: {record.command} -->"]
    for table in record.result.tables:
        lines += [*([f"**{table.title}**", ""] if table.title else []), *_markdown(table), ""]
    return [*lines, f"<!-- end: {record.command} -->"]


def _markdown(table: Table) -> list[str]:
    head, *rows = [[cell.replace("|", "\\|") for cell in row] for row in _cells(table)]
    return [_row(head), _row(["---"] * len(head)), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def as_json(record: Record) -> str:
    """One object a line: name, verdict, seed, versions and tables."""
    return json.dumps(
        {
            "name": record.proof.name,
            "shown": record.result.shown,
            "seed": record.seed,
            "seconds": round(record.seconds, 3),
            "machine": record.machine,
            "versions": record.versions,
            "tables": [attrs.asdict(table) for table in record.result.tables],
            "notes": list(record.result.notes),
        },
        default=str,
    )
