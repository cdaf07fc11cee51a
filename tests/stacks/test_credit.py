"""Credit on servers that buffer what a reader does not take: daphne without end, the others up to some megabytes."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.adapters.logged_apps import wait_until
from tests.adapters.servers import Connection
from tests.stacks.logged import PIECE
from tests.stacks.processes import Process, running, stack_params

WINDOW = 4 * PIECE
SMALL = 4096  # bytes of receive buffer


def flows(process: Process) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"{process.url}/flow", timeout=10.0).json()
    return found


def asking(process: Process, streamguard: str) -> Connection:
    connection = Connection(process.port, receive_buffer=SMALL)
    connection.get("/large", streamguard=streamguard)
    return connection


@pytest.mark.parametrize("stack", stack_params("daphne", "uvicorn-httptools"))
def test_a_reader_that_never_reads_is_sent_its_credit_and_no_more_and_missed_beats_end_it(stack: str) -> None:
    seen = [0]
    with running(stack, "tests.stacks.logged:app") as process:
        with asking(process, "v=1"):  # without credit far more is on its way

            def sent() -> bool:
                return any(flow["sent"] > 4 * WINDOW for flow in flows(process))

            wait_until(sent)
        wait_until(lambda: flows(process) == [])
        with asking(process, f"v=1, credit=(9999 {WINDOW})"):

            def over() -> bool:
                found = flows(process)
                seen.extend(flow["sent"] for flow in found)
                assert all(flow["limit"] == WINDOW for flow in found)
                return found == [] and max(seen) > 0

            wait_until(over)  # long before the write deadline of this application
    assert WINDOW <= max(seen) <= WINDOW + PIECE + 2  # a frame starts below the limit
