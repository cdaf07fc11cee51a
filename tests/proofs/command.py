"""The command line of proofs and benchmarks."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from tests.modules import ROOT
from tests.proofs.registry import Proof, Run, proofs_in
from tests.proofs.report import Record, as_json, as_page, as_text, renewed

__all__ = ["main"]

DOCS = ROOT / "docs"
PAGES = DOCS / "proofs"
README = ROOT / "README.md"


def _parser(package: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {package}", description=f"Run {package.partition('.')[2]}.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to run; see --list")
    parser.add_argument("--list", action="store_true", help="list the names with their claims, and run nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line instead of tables")
    parser.add_argument("--seed", type=int, default=1, help="the seed of everything that is drawn (default 1)")
    parser.add_argument("--no-page", action="store_true", help="leave docs/proofs as it is")
    return parser


def _perform(package: str, proof: Proof, options: argparse.Namespace) -> bool:
    start = time.perf_counter()
    result = proof.run(Run(options.seed, lambda line: print(line, file=sys.stderr, flush=True)))
    command = f"python -m {package} {proof.name}"
    record = Record(proof, result, options.seed, time.perf_counter() - start, command)
    if not options.no_page:
        PAGES.mkdir(parents=True, exist_ok=True)
        (PAGES / f"{proof.name}.md").write_text(as_page(record), encoding="utf-8")
        for figure in result.figures:
            (PAGES / f"{figure.name}.svg").write_text(figure.svg, encoding="utf-8")
        for page in (README, *DOCS.rglob("*.md")):  # others may show the same tables
            text = page.read_text(encoding="utf-8")
            if (again := renewed(text, record)) != text:
                page.write_text(again, encoding="utf-8")
    print(as_json(record) if options.json else as_text(record), flush=True)
    return result.shown


def main(package: str, argv: Sequence[str] | None = None, *, all_by_default: bool = False) -> int:
    """Run the named proofs of `package`; 0 if each was shown."""
    parser = _parser(package)
    options = parser.parse_args(argv)
    proofs = proofs_in(package)
    if options.list:
        width = max(map(len, proofs), default=0)
        for name, proof in sorted(proofs.items()):
            print(f"{name.ljust(width)}  {proof.claim} (at most {proof.minutes:g} min)")
        return 0
    names = options.names or (sorted(proofs) if all_by_default else [])
    if not names:
        parser.error("name what to run, or --list")
    unknown = [name for name in names if name not in proofs]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(sorted(proofs)) or 'none'}")
    shown = [_perform(package, proofs[name], options) for name in names]
    return 0 if all(shown) else 1
