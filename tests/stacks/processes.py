"""Servers as their users start them: a process each, by its own command line, with its own defaults.

    with running("hypercorn-h2") as process:
        httpx.Client(http1=False, http2=process.http2).get(f"{process.url}/counters")

HTTP/2 is cleartext with prior knowledge, which hypercorn and granian speak: no certificate is needed. A server
is ready when it answered: an HTTP/1.1 server a request that no application knows, an HTTP/2 server the
connection preface, which the application does not see. At the end its whole process group is killed and reaped
(granian's workers would outlive their parent), whatever state it is in.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Final

import attrs
import pytest

from tests.absence import absent, require
from tests.modules import ROOT
from tests.ports import free_port

__all__ = ["READY", "STACKS", "NotReady", "Process", "Stack", "running", "stack_params"]

READY: Final = 60.0  # seconds that a server may take until it answers
_POLL: Final = 0.02  # seconds between two looks at a server that starts
_ATTEMPTS: Final = 3  # on another port each: somebody else may take one between the choice and the server's bind
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # and an empty SETTINGS frame
_REQUEST: Final = b"GET /ready HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n"


class NotReady(RuntimeError):
    """A server that did not start, with what it printed."""


@attrs.frozen
class Stack:
    """A server and a protocol. `command` is what follows `python -m`, with {app} and {port} to be filled in."""

    server: str
    install: str
    command: Sequence[str]
    http2: bool = False
    needs: Sequence[str] = ()

    def require(self) -> None:
        """Skip the test if the server, or a library that it needs for this protocol, is not installed."""
        for tool in (self.server, *self.needs):
            require(tool, self.install)

    def line(self, app: str, port: int) -> list[str]:
        return [sys.executable, "-m", *[part.format(app=app, port=port) for part in self.command]]


def _uvicorn(http: str) -> Stack:
    command = ["uvicorn", "{app}", "--host", "127.0.0.1", "--port", "{port}", "--http", http, "--no-access-log"]
    return Stack("uvicorn", f"pip install uvicorn {http}", command, needs=(http,))


def _granian(http: str) -> Stack:
    command = ["granian", "{app}", "--interface", "asgi", "--host", "127.0.0.1", "--port", "{port}", "--http", http]
    return Stack("granian", "pip install granian", command, http2=http == "2")


_HYPERCORN: Final = Stack(
    "hypercorn", "pip install hypercorn", ["hypercorn", "{app}", "--bind", "127.0.0.1:{port}"], needs=("h2",)
)
STACKS: Final[Mapping[str, Stack]] = {
    "uvicorn-h11": _uvicorn("h11"),
    "uvicorn-httptools": _uvicorn("httptools"),
    "hypercorn-h1": _HYPERCORN,
    "hypercorn-h2": attrs.evolve(_HYPERCORN, http2=True),
    "granian-h1": _granian("1"),
    "granian-h2": _granian("2"),
    "daphne": Stack(
        "daphne",
        "pip install daphne",
        ["daphne", "-b", "127.0.0.1", "-p", "{port}", "--access-log", os.devnull, "{app}"],
    ),
}


def stack_params(*names: str) -> list[object]:
    """Stacks (all of them, if none is named) as parameters of a test; those that are not installed are skipped."""
    return [
        pytest.param(
            name,
            marks=[
                pytest.mark.skipif(absent(tool), reason=f"absent: {tool} (install it with: {STACKS[name].install})")
                for tool in (STACKS[name].server, *STACKS[name].needs)
            ],
        )
        for name in names or STACKS
    ]


@attrs.define(eq=False)
class Process:
    """A server that runs. `http2` says that it is to be spoken to in HTTP/2 with prior knowledge."""

    stack: str
    port: int
    http2: bool
    _child: subprocess.Popen[bytes]
    _output: IO[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._child.pid

    def log(self) -> str:
        """What the server and its application printed so far, both streams."""
        return os.pread(self._output.fileno(), os.fstat(self._output.fileno()).st_size, 0).decode(errors="replace")

    def terminate(self) -> None:
        """Send SIGTERM, as a process manager does. Does not wait."""
        self._child.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> int | None:
        """The exit code, or None if the server still runs after `seconds`."""
        try:
            return self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def await_ready(self) -> bool:
        """Wait until the server answers. False if its port is not its own; raises NotReady if it says nothing."""
        until = time.monotonic() + READY
        while time.monotonic() < until:
            if self._child.poll() is not None:
                return False
            if self._answers(until - time.monotonic()):
                return self._child.poll() is None
            time.sleep(_POLL)
        raise NotReady(f"{self.stack} did not answer in {READY:g} s:\n{self.log()}")

    def kill(self) -> None:
        """End the server and all of its processes at once."""
        try:
            os.killpg(self._child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has ended, and so have its workers
        self._child.wait()

    def _answers(self, seconds: float) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=max(seconds, _POLL)) as connection:
                connection.sendall(_PREFACE if self.http2 else _REQUEST)
                return bool(connection.recv(1))
        except OSError:
            return False


@contextmanager
def running(
    stack: str, app: str = "tests.stacks.app:app", *, port: int | None = None, args: Sequence[str] = (), **env: str
) -> Iterator[Process]:
    """Run `app` on a stack of `STACKS` while the block runs; skips the test if the server is not installed.

    `args` are added to the server's command line, `env` to its environment. Raises NotReady if it does not start.
    """
    STACKS[stack].require()
    with tempfile.TemporaryFile() as output:
        process = _started(stack, app, port, args, env, output)
        try:
            yield process
        finally:
            process.kill()


def _started(
    stack: str, app: str, port: int | None, args: Sequence[str], env: Mapping[str, str], output: IO[bytes]
) -> Process:
    where, log = STACKS[stack], ""
    for _ in range(_ATTEMPTS if port is None else 1):
        chosen = free_port() if port is None else port
        child = subprocess.Popen(
            [*where.line(app, chosen), *args],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group of its own, which can be killed as a whole
        )
        process = Process(stack, chosen, where.http2, child, output)
        try:
            if process.await_ready():
                return process
        except BaseException:
            process.kill()
            raise
        process.kill()
        log = process.log()
    raise NotReady(f"{stack} did not start:\n{log}")
