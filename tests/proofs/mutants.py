"""Mutants of the core: does some test fail when a line of it is changed?

mutmut 3 changes one function at a time and runs only the tests that call it, in forked processes, so that some
thousand mutants take minutes. Each group of modules is judged by its own tests alone: that another module's test
would notice is luck. It changes the bodies of functions; what stands at module level (the transition
table, the regular expressions) is out of its reach and is held by tests that spell it out.

The tests that try every other value of every byte are left out: they would take most of the time of each mutant
that survives. Without them no mutant is killed that they would not kill too.

A mutant that no test kills is a *survivor*. `survivors.toml` says of each accepted one why it changes nothing that
anybody could notice; entries name the function and the line, so that they outlive mutmut's numbering.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from tests.modules import ROOT
from tests.proofs.registry import Result, Run, Table, proof
from tests.toml import load_toml

__all__ = ["ACCEPTED", "GROUPS", "Survivor", "accepted", "mutants"]

# Modules under `core/`, and the tests under `tests/core/` that must hold them.
GROUPS = (
    (("states", "cursor", "guard", "flush"), ("test_states.py", "test_cursor.py", "test_guard.py", "test_flush.py")),
    (
        ("verify", "check", "terminal", "rejoin", "wire/*"),
        ("test_verify.py", "test_verify_resume.py", "test_rejoin.py", "wire"),
    ),
)
NEEDED = 95.0  # per cent
ACCEPTED = Path(__file__).with_name("survivors.toml")

_CONFIG = """
[tool.mutmut]
source_paths = ["streamguard"]
only_mutate = [{modules}]
pytest_add_cli_args_test_selection = [{tests}]
pytest_add_cli_args = ["-q", "-p", "no:cacheprovider", "-k", "not change_of_a_byte"]
"""
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_KILLED = ("killed", "timeout", "caught by type check", "segfault")
_RESULT = re.compile(r"^\s*(streamguard\.\S+): (.+)$", re.MULTILINE)


@attrs.frozen
class Survivor:
    """A change that no test notices: the function, its line, and what the line became."""

    function: str
    was: str
    now: str

    def __str__(self) -> str:
        return f"{self.function}: {self.was} -> {self.now}"


def _place(mutant: str) -> tuple[str, str]:
    """The module and the function: `streamguard.core.flush.xǁWithinǁpush__mutmut_3` is in
    `core.flush`, `Within.push`."""
    module, _, name = mutant.rpartition("__mutmut_")[0].removeprefix("streamguard.").rpartition(".")
    return module, name.removeprefix("xǁ").replace("ǁ", ".") if "ǁ" in name else name.removeprefix("x_")


def _mutmut(folder: Path, *arguments: str) -> str:
    """One mutmut command. Its own failures are ours; a mutant that survives is not one."""
    command = [sys.executable, "-m", "mutmut", *arguments]
    environment = os.environ | {"HYPOTHESIS_PROFILE": "few", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        said = [line for line in done.stdout.splitlines() if line[:1] not in _SPINNER]
        raise RuntimeError(f"{' '.join(command[2:])} failed:\n" + "\n".join(said[-60:]))
    return done.stdout


def _lay_out(folder: Path, modules: Sequence[str], tests: Sequence[str]) -> None:
    """The package, its tests and a configuration, away from the checkout: mutmut writes beside what it mutates."""
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in ("streamguard", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    config = _CONFIG.format(
        modules=", ".join(f'"streamguard/core/{name}.py"' for name in modules),
        tests=", ".join(f'"tests/core/{name}"' for name in tests),
    )
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8") + config
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")


def _changed_lines(diff: str) -> tuple[str, str]:
    was = [line[1:].strip() for line in diff.splitlines() if line.startswith("-") and not line.startswith("---")]
    now = [line[1:].strip() for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    return " ".join(was), " ".join(now)


def _survivors(folder: Path, results: list[tuple[str, str]]) -> Iterator[Survivor]:
    for mutant, status in results:
        if status not in _KILLED:
            was, now = _changed_lines(_mutmut(folder, "show", mutant))
            yield Survivor(".".join(_place(mutant)), was, now)


def accepted() -> dict[Survivor, str]:
    """The survivors that are explained, and why each is none."""
    entries = load_toml(ACCEPTED).get("survivor", [])
    return {Survivor(entry["function"], entry["was"], entry["now"]): entry["why"] for entry in entries}


@proof(claim="At least 95 % of the mutants of the core are killed by its own tests.", minutes=40)
def mutants(run: Run) -> Result:
    results: list[tuple[str, str]] = []
    survivors: list[Survivor] = []
    for modules, tests in GROUPS:
        run.say(f"mutants of {', '.join(modules)}: this takes minutes")
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            _lay_out(folder, modules, tests)
            _mutmut(folder, "run", "--max-children", str(os.cpu_count() or 1))
            found = _RESULT.findall(_mutmut(folder, "results", "--all", "true"))
            survivors += sorted(_survivors(folder, found), key=str)
            results += found
    made, killed = Counter[str](), Counter[str]()
    for mutant, status in results:
        module, _ = _place(mutant)
        made[module] += 1
        killed[module] += status in _KILLED
    rows = [(module, made[module], killed[module], 100 * killed[module] / made[module]) for module in sorted(made)]
    share = 100 * sum(killed.values()) / max(1, sum(made.values()))
    rows.append(("all", sum(made.values()), sum(killed.values()), share))
    explained = accepted()
    unexplained = [survivor for survivor in survivors if survivor not in explained]
    return Result(
        shown=share >= NEEDED and not unexplained,
        tables=[
            Table(("module", "mutants", "killed", "%"), rows),
            Table(
                ("function", "line", "became", "why it is accepted"),
                [(s.function, s.was, s.now, explained.get(s, "not explained")) for s in survivors],
                title="Survivors",
            ),
        ],
        notes=[f"{len(survivors)} survivors, {len(unexplained)} of them not explained."],
        packages=["mutmut", "hypothesis", "pytest"],
    )
