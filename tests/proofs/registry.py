"""What a proof is: a function with a claim, found by the module it stands in.

    @proof(claim="At least 95 % of the mutants of the core are killed.", minutes=40)
    def mutants(run: Run) -> Result: ...

There is no list to keep: `proofs_in(package)` imports the package's modules and takes every `Proof` that
they hold. Benchmarks are proofs in another package.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence

import attrs

__all__ = ["Figure", "Proof", "Result", "Run", "Table", "proof", "proofs_in"]


@attrs.frozen
class Run:
    """What a proof is given: the seed of everything it draws, and `say` to report progress."""

    seed: int
    say: Callable[[str], None]


@attrs.frozen
class Table:
    """Rows under columns. A cell is text, or a number that is written with three significant digits."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""


@attrs.frozen
class Figure:
    """A picture beside the page: `svg` is its text, `alt` says in words what it shows."""

    name: str
    alt: str
    svg: str


@attrs.frozen
class Result:
    """What a proof found: its tables, whether they show the claim, and what to know when reading them.

    `packages` names the distributions whose versions matter, beside the library's own.
    """

    shown: bool
    tables: Sequence[Table]
    notes: Sequence[str] = ()
    packages: Sequence[str] = ()
    figures: Sequence[Figure] = ()


@attrs.frozen
class Proof:
    """A claim and the function that shows it, within `minutes` on two cores."""

    name: str
    claim: str
    minutes: float
    run: Callable[[Run], Result]


def proof(*, claim: str, minutes: float) -> Callable[[Callable[[Run], Result]], Proof]:
    """Make a function a proof; its name with hyphens is the proof's."""

    def make(run: Callable[[Run], Result]) -> Proof:
        return Proof(run.__name__.replace("_", "-"), claim, minutes, run)

    return make


def proofs_in(package: str) -> dict[str, Proof]:
    """The proofs of a package's modules, by name."""
    found: dict[str, Proof] = {}
    parent = importlib.import_module(package)
    for module in sorted(pkgutil.iter_modules(parent.__path__), key=lambda info: info.name):
        if module.name == "__main__":
            continue
        for value in vars(importlib.import_module(f"{package}.{module.name}")).values():
            if type(value) is Proof:  # asked of no object itself: a framework's lazy settings would be made
                assert found.setdefault(value.name, value) is value, f"two proofs are named {value.name}"
    return found
