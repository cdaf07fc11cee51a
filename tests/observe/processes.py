"""The same mixed streams in several processes at once, each of which this module runs.

    python -m tests.observe.processes COUNT SEED prometheus|opentelemetry
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from streamguard.observe.prometheus import Prometheus
from tests.observe.mixed import worked

__all__ = ["ROOT", "in_processes", "in_workers"]

ROOT = Path(__file__).parents[2]  # not by tests.modules, which reads the whole package


def in_workers(count: int, seeds: Sequence[int]) -> dict[str, float]:
    """What is expected of so many streams in each of several processes at once, whose numbers are in one folder."""
    expected: Counter[str] = Counter()
    for told in in_processes(count, seeds, "prometheus"):
        expected.update(told)
    return dict(expected)


def in_processes(count: int, seeds: Sequence[int], back_end: str) -> list[Any]:
    """What this module prints in several processes at once, one for each seed."""
    command = [sys.executable, "-m", "tests.observe.processes", str(count)]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen([*command, str(seed), back_end], cwd=ROOT, **pipes) for seed in seeds]
    printed = []
    for worker in workers:
        told, complaints = worker.communicate(timeout=300)
        assert worker.returncode == 0, complaints
        printed.append(json.loads(told))
    return printed


def _print(count: int, seed: int, back_end: str) -> None:
    if back_end == "prometheus":
        print(json.dumps(worked(count, seed, Prometheus()).expected))
    else:
        from tests.observe.measured import exported

        print(json.dumps(attrs.asdict(exported(count, seed))))


if __name__ == "__main__":
    _print(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
