"""What each server does with a guarded answer: disconnect, back-pressure, HEAD, SIGTERM, its log.

The proof `servers` measures the same and writes the table of `docs/reference/servers.md`; the last tests here
compare that page with what this machine says.
"""

from __future__ import annotations

import httpx
import pytest

from tests.absence import require

for _library in ("aiohttp", "h2", "httpx", "httpx_sse", "openai"):
    require(_library, f"pip install {_library.replace('_', '-')}")
require("curl", "apt-get install curl")

from tests.proofs import servers  # noqa: E402
from tests.stacks.behaviour import (  # noqa: E402
    BLOCKED,
    MODES,
    back_pressure,
    disconnect,
    eventually,
    head,
    shutdown,
)
from tests.stacks.connections import connected  # noqa: E402
from tests.stacks.processes import Process, running, stack_params  # noqa: E402
from tests.stacks.sources import KINDS  # noqa: E402

MEGABYTE = 1024 * 1024


@pytest.mark.parametrize("mode", MODES)
def test_a_source_whose_reader_leaves_stops_within_a_token(process: Process, mode: str) -> None:
    left = disconnect(process, "async-generator", mode)
    assert left.right, left
    if mode == BLOCKED:
        assert left.waited


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "async-generator"])
def test_and_so_does_every_other_kind_of_source(process: Process, kind: str) -> None:
    # A thread and a task of its own may have one step under way, and one that waits in the buffer for its turn. Were a
    # thread's steps shorter than the turns of a busy loop, it would have more.
    left = disconnect(process, kind, "producing", more="&pace=0.02")
    assert (left.told, left.closed, left.elsewhere, left.status) == (True, 1, 0, "gone")
    assert left.late <= 2


@pytest.mark.parametrize("mode", ["idle", "producing"])
@pytest.mark.parametrize("stack", stack_params("hypercorn-h2", "granian-h2"))
def test_a_reader_that_resets_its_stream_is_told_of_too(stack: str, mode: str) -> None:
    with running(stack) as process:
        left = disconnect(process, "async-generator", mode, reset=True)
        assert left.right, left


def test_a_source_waits_for_a_reader_that_does_not_read(process: Process) -> None:
    """Also where the server's own `send` returns whatever is waiting to be sent."""
    taken = back_pressure(process)
    assert taken is not None
    assert taken < 32 * MEGABYTE


REACHED = ("uvicorn-h11", "uvicorn-httptools", "hypercorn-h2", "daphne")


def test_a_reader_that_does_not_read_is_dropped_where_the_transport_can_be_reached(process: Process) -> None:
    label = f"deaf-{process.stack}"
    with connected(process, reading=False) as reader:
        reader.get(f"/stream/{label}/async-generator?count=1024&silent=1&size=65536&write=0.5")
        (one,) = eventually(process, label, lambda found: found[0]["status"] is not None)
        assert (one["status"], one["closed"]) == ("slow", 1)
        if process.stack in REACHED:
            reader.rest(10.0)
            assert reader.end == "cut"


def test_head_answers_without_a_body_and_starts_nothing(process: Process) -> None:
    assert head(process) == (200, 0, 0)


def test_streams_of_one_http2_connection_end_apart(process: Process) -> None:
    """An abort ends its own stream only: a second one on the connection goes on."""
    if not process.http2:
        return
    label = f"apart-{process.stack}"
    with httpx.Client(http1=False, http2=True, base_url=process.url, timeout=20.0) as client:
        with client.stream("GET", f"/stream/{label}/async-generator?pace=0.01&count=100") as whole:
            with pytest.raises(httpx.RemoteProtocolError):
                client.post(f"/{label}/async-generator/raises-3/native/chat/completions")
            assert b'"status":"complete"' in whole.read()


@pytest.mark.parametrize("stack", stack_params("hypercorn-h1", "hypercorn-h2", "daphne"))
def test_a_server_that_cancels_at_shutdown_ends_no_stream_cleanly(stack: str) -> None:
    with running(stack, args=["--graceful-timeout", "1"] if stack != "daphne" else []) as process:
        found = shutdown(process, 10.0)
    assert (found.end, found.seconds is None) == ("cut", False)
    # hypercorn closes its HTTP/2 connections before it cancels what they serve.
    assert found.status == (None if stack == "hypercorn-h2" else "shutdown")


@pytest.mark.parametrize("stack", stack_params("uvicorn-h11", "uvicorn-httptools"))
def test_uvicorn_with_a_limit_tells_the_reader_of_its_shutdown(stack: str) -> None:
    with running(stack, args=["--timeout-graceful-shutdown", "1"]) as process:
        found = shutdown(process, 10.0)
    assert (found.status, found.end, found.seconds is None) == ("shutdown", "cut", False)


@pytest.mark.parametrize("stack", stack_params("daphne"))
def test_daphne_with_a_time_limit_ends_a_stream_cleanly_and_a_verifying_reader_knows(stack: str) -> None:
    """`--http-timeout` is the one setting of a server that makes a silent end; the terminal is what is missing."""
    with running(stack, args=["--http-timeout", "1"]) as process, connected(process) as reader:
        reader.get("/stream/limit/async-generator?pace=0.05")
        body = reader.rest(10.0)
        assert reader.end == "clean"
        assert b"event: end" not in body
        (one,) = eventually(process, "limit", lambda found: found[0]["status"] is not None)
        assert one["status"] == "gone"


def test_the_page_says_what_the_clients_report(process: Process) -> None:
    row = servers.reports_row(process, 20.0)  # no answer stays open: nobody waits for so long
    assert servers.documented(servers.REPORTS)[process.stack] == row[1:]


def test_the_page_says_what_the_server_does(process: Process) -> None:
    assert servers.documented(servers.LEAVING)[process.stack] == servers.leaving_row(process)[1:]
