"""What each server prints at an abort of ours, and the filter for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.absence import require

require("h2", "pip install h2")
require("httpx", "pip install httpx")

from tests.stacks.behaviour import abort_lines  # noqa: E402
from tests.stacks.connections import connected  # noqa: E402
from tests.stacks.processes import Process, running, stack_params  # noqa: E402

UVICORN = "ERROR:    ASGI callable returned without completing response."


def _asking(process: Process, path: str, until: bytes) -> Callable[[], None]:
    def ask() -> None:
        with connected(process) as reader:
            reader.get(path)
            reader.until(until)
            reader.rest(0.5)

    return ask


def _failing(process: Process) -> Callable[[], None]:
    return _asking(process, "/stream/log/async-generator?count=3&fails=1", b"event: end")


@pytest.mark.parametrize("app", ["app", "layered"])
@pytest.mark.parametrize("stack", stack_params())
def test_uvicorn_alone_has_a_line_of_its_own_for_an_abort(stack: str, app: str) -> None:
    """And that only where its transport cannot be reached: one that was closed under it is gone, and nothing more."""
    with running(stack, f"tests.stacks.app:{app}") as process:
        lines, log = abort_lines(process, _failing(process)), process.log()
    loud = stack.startswith("uvicorn") and app == "layered"
    assert lines == ([UVICORN] if loud else [])
    assert log.count("ended as failed after 3 items: overloaded: come back later") == 2


@pytest.mark.parametrize("stack", stack_params("uvicorn-h11", "uvicorn-httptools"))
def test_the_filter_drops_it_for_our_aborts_and_for_nothing_else(stack: str) -> None:
    with running(stack, "tests.stacks.app:layered", STREAMGUARD_TEST_QUIET="1") as process:
        assert abort_lines(process, _failing(process)) == []
        assert "ended as failed after 3 items" in process.log()
        assert abort_lines(process, _asking(process, "/incomplete", b"half")) == [UVICORN]
