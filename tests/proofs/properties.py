"""Every property test of the suite, at 20,000 examples each."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from tests.modules import ROOT
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["properties"]

_DURATION = re.compile(r"^([0-9.]+)s call +(\S+)$", re.MULTILINE)


@proof(claim="Each property of the suite holds for 20,000 drawn examples.", minutes=60)
def properties(run: Run) -> Result:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "hypothesis", "--durations=0", "--durations-min=0"]
    command += [f"--hypothesis-seed={run.seed}", "-p", "no:cacheprovider", "-p", "no:randomly"]
    environment = os.environ | {"HYPOTHESIS_PROFILE": "proof"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=False, stdout=subprocess.PIPE, text=True, timeout=3600
    )
    rows = [(test.partition("tests/")[2], float(seconds)) for seconds, test in _DURATION.findall(done.stdout)]
    if done.returncode:
        run.say(done.stdout)
    return Result(
        shown=done.returncode == 0 and bool(rows),
        tables=[Table(("property", "seconds"), sorted(rows))],
        notes=[done.stdout.strip().rpartition("\n")[2]],
        packages=["hypothesis", "pytest"],
    )


