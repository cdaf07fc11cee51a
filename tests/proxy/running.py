"""`streamguard proxy` as a process of its own.

    with running("http://127.0.0.1:8000", "--stall", "5") as proxy:
        ask(proxy.where, ...)
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import attrs

from tests.adapters.servers import DEADLINE, Connection
from tests.modules import ROOT

__all__ = ["Running", "running"]

_LISTENS = re.compile(
    r"streamguard proxy: (?:unix:)?(\S+) in front of [^\s,]+"
    r"(?:, metrics at ([^\s,]+))?(?:, dashboard at (\S+))?$"
)


@attrs.frozen
class Running:
    """A proxy's process, where it listens, and where it says that its metrics and its live page are."""

    process: subprocess.Popen[str]
    where: str
    metrics: str
    dashboard: str
    _printed: IO[str] = attrs.field(alias="printed")

    @property
    def port(self) -> int:
        return int(self.where.rpartition(":")[2])

    def connect(self) -> Connection:
        return Connection(self.port)

    def ended(self) -> int:
        return self.process.wait(DEADLINE)

    def printed(self) -> str:
        """What it has printed, once it has ended."""
        self._printed.seek(0)
        return self._printed.read()


@contextmanager
def running(upstream: str, *options: str, **environ: str) -> Iterator[Running]:
    """`environ` is set beside the environment."""
    command = [sys.executable, "-m", "streamguard.cli", "proxy", upstream, "--port", "0", *options]
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **environ}, stdout=printed, stderr=subprocess.PIPE, text=True
        )
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if found := _LISTENS.search(line):
                    yield Running(process, found[1], found[2] or "", found[3] or "", printed)
                    break
            else:
                raise AssertionError("the proxy did not start")
        finally:
            process.kill()
            process.communicate(timeout=DEADLINE)
