"""The filter for uvicorn's line: it drops that line where we aborted, and nothing else. Unit tests; the servers
themselves are asked in `tests/stacks`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from streamguard.adapters.quiet import AbortFilter, quiet_server_logs
from streamguard.adapters.seal import ASGIApp, Receive, Scope, SealMiddleware, Send, mark_aborted

LINE = "ASGI callable returned without completing response."


class Cycle:
    """uvicorn's request: it calls the application, and logs what it thinks of the return."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.scope: dict[str, Any] = {"type": "http"}

    async def run_asgi(self, message: str = LINE) -> None:
        async def nothing(*args: Any) -> Any:
            return None

        await self.app(self.scope, nothing, nothing)
        logging.getLogger("uvicorn.error").error(message)


async def ours(scope: Scope, receive: Receive, send: Send) -> None:
    mark_aborted(scope)


async def copying(scope: Scope, receive: Receive, send: Send) -> None:
    """A layer that hands on a scope of its own."""
    await ours({**scope}, receive, send)


async def theirs(scope: Scope, receive: Receive, send: Send) -> None:
    pass


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    logger = logging.getLogger("uvicorn.error")
    before = list(logger.filters)
    quiet_server_logs()
    quiet_server_logs()
    assert len(logger.filters) == len(before) + 1, "a second call adds no second filter"
    with caplog.at_level(logging.INFO):
        yield caplog
    logger.filters[:] = before


@pytest.mark.parametrize(
    "app",
    [SealMiddleware(ours), SealMiddleware(copying), SealMiddleware(SealMiddleware(ours))],
    ids=["sealed", "under a layer that copies", "sealed twice"],
)
def test_the_line_of_an_abort_of_ours_is_dropped(app: ASGIApp, logged: pytest.LogCaptureFixture) -> None:
    anyio.run(Cycle(app).run_asgi)
    assert logged.messages == []


@pytest.mark.parametrize("app", [SealMiddleware(theirs), theirs, ours])
def test_an_answer_that_the_application_did_not_finish_is_reported(
    app: ASGIApp, logged: pytest.LogCaptureFixture
) -> None:
    """`ours` without a seal too: there is no mark, and a line too many is better than one too few."""
    anyio.run(Cycle(app).run_asgi)
    assert logged.messages == [LINE]


def test_any_other_line_of_the_same_request_passes(logged: pytest.LogCaptureFixture) -> None:
    anyio.run(Cycle(SealMiddleware(ours)).run_asgi, "Exception in ASGI application\n")
    assert logged.messages == ["Exception in ASGI application\n"]


@pytest.mark.parametrize("message", [LINE, "Started server process", ("an", "object")])
def test_a_record_from_elsewhere_passes(message: object) -> None:
    record = logging.LogRecord("uvicorn.error", logging.ERROR, __file__, 1, message, None, None)
    assert AbortFilter().filter(record)


def test_a_stack_that_is_deep_or_ends_is_no_request_of_uvicorn() -> None:
    def deep(more: int) -> bool:
        return deep(more - 1) if more else AbortFilter().filter(record)

    record = logging.LogRecord("uvicorn.error", logging.ERROR, __file__, 1, LINE, None, None)
    assert deep(50)
