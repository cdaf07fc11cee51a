"""`streamguard proxy` as a process of its own.

    with running("http://127.0.0.1:8000", "--stall", "5") as proxy:
        ask(proxy.where, ...)
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import attrs

from tests.adapters.servers import DEADLINE, Connection
from tests.modules import ROOT

__all__ = ["Running", "running"]


@attrs.frozen
class Running:
    """A proxy's process, and where it listens."""

    process: subprocess.Popen[str]
    where: str

    @property
    def port(self) -> int:
        return int(self.where.rpartition(":")[2])

    def connect(self) -> Connection:
        return Connection(self.port)

    def ended(self) -> int:
        return self.process.wait(DEADLINE)


@contextmanager
def running(upstream: str, *options: str) -> Iterator[Running]:
    command = [sys.executable, "-m", "streamguard.cli", "proxy", upstream, "--port", "0", *options]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"streamguard proxy: (?:unix:)?(\S+) in front of", line):
                yield Running(process, found[1])
                break
        else:
            raise AssertionError("the proxy did not start")
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE)
