"""A process that is told to go, by SIGTERM to a server as its users start it: nothing in the application says so.

Each server's process learns of it by itself. What it is like then is asked by a stream that runs in it: a server that
takes no connections any more cannot be asked from outside.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from tests.absence import absent
from tests.adapters.logged_apps import OURS, text_of
from tests.adapters.servers import DEADLINE, Connection
from tests.stacks.processes import STACKS, Process, running

APP = "tests.stacks.drain:app"
REFUSED = "503 retry-after: 1 x-should-retry: true"
LOOKED = f"200; /ready 503; /silent {REFUSED}; /logged {REFUSED}; "

# A server, its further arguments, and with what it exits; uvicorn raises the signal again, once it has served.
SERVERS = {
    "uvicorn": ("uvicorn-h11", [], (0, -signal.SIGTERM)),
    "uvicorn, two workers": ("uvicorn-h11", ["--workers", "2"], (0,)),
    "granian": ("granian-h1", [], (0,)),
    "hypercorn": ("hypercorn-h1", [], (0,)),
    "hypercorn, in one process": ("hypercorn-h1", ["--workers", "0"], (0,)),
}


def params(*names: str) -> list[object]:
    return [
        pytest.param(
            *SERVERS[name],
            id=name,
            marks=pytest.mark.skipif(
                absent(STACKS[SERVERS[name][0]].server), reason=f"absent (install: {STACKS[SERVERS[name][0]].install})"
            ),
        )
        for name in names or SERVERS
    ]


def asking(process: Process, path: str, stack: ExitStack) -> Connection:
    """A connection on which the first word of a stream has come."""
    connection = stack.enter_context(Connection(process.port))
    connection.get(path, connection="close", **OURS)
    connection.until(b"data: ")
    return connection


@pytest.mark.parametrize(("stack", "args", "codes"), params())
def test_a_process_that_is_told_to_go_drains(stack: str, args: Sequence[str], codes: Sequence[int]) -> None:
    with ExitStack() as after, running(stack, APP, args=args, STREAMGUARD_TEST_GRACE="1") as process:
        streams = {path: asking(process, path, after) for path in ("/looking", "/silent", "/logged")}
        process.terminate()
        bodies = {path: connection.rest() for path, connection in streams.items()}
        code = process.wait(DEADLINE)
        log = process.log()
    assert text_of(bodies["/looking"]) == LOOKED, log  # it was ready, and at once no more; and it was let finish
    assert b'"status":"complete"' in bodies["/looking"]
    assert bodies["/looking"].endswith(b"0\r\n\r\n")
    assert b'"status":"shutdown"' in bodies["/silent"]
    assert b'"reason":"shutdown"' in bodies["/logged"]
    assert not bodies["/silent"].endswith(b"0\r\n\r\n")
    assert not bodies["/logged"].endswith(b"0\r\n\r\n")
    assert code in codes, log
