"""A source that writes server-sent events itself is told so once, at its first item."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from streamguard.adapters import first
from streamguard.adapters.starlette import guarded
from streamguard.core.dialect import Raw
from tests.adapters.asgi_apps import exchange
from tests.adapters.servers import serving

TOLD = "a server-sent event already"


@pytest.fixture(autouse=True)
def untold() -> Iterator[None]:
    """Once a process: each test has to begin anew."""
    first._warn.cache_clear()
    yield
    first._warn.cache_clear()


def told(caplog: pytest.LogCaptureFixture, items: list[Any], times: int = 1, **options: Any) -> int:
    """How often a stream of `items`, served `times` times, was told of."""

    @guarded(**options)
    async def endpoint(request: Request) -> AsyncIterator[Any]:
        for item in items:
            yield item

    with serving(Starlette(routes=[Route("/", endpoint)])) as server:
        for _ in range(times):
            assert exchange(server.connect()).status == 200
    return caplog.text.count(TOLD)


@pytest.mark.parametrize(
    "item",
    [
        "data: hi\n\n", "data:hi\n\n", b"data: hi\n\n", 'data: {"a": 1}\r\n\r\n', "event: x\ndata: hi\n\n",
        "id: 1\ndata: hi\n\n", "data: a\ndata: b\n\ndata: c\n\n",
    ],
)  # fmt: skip
def test_an_event_as_first_text_is_told(item: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert told(caplog, [item]) == 1


@pytest.mark.parametrize("item", ["data", "data: a colon", "data: one line\n", "so data: hi\n\n", "\n\n", b"\xff\n\n"])
def test_what_only_looks_like_one_is_not(item: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert told(caplog, [item, "data: hi\n\n"]) == 0


def test_it_is_told_once_a_process(caplog: pytest.LogCaptureFixture) -> None:
    assert told(caplog, ["data: hi\n\n"] * 3, times=3) == 1


def test_events_are_what_dialect_raw_takes(caplog: pytest.LogCaptureFixture) -> None:
    assert told(caplog, ["data: hi\n\n"], dialect=Raw(end="asgi")) == 0


@pytest.mark.parametrize("dialect", ["openai", "text"])
def test_every_other_dialect_frames_it_once_more(dialect: str, caplog: pytest.LogCaptureFixture) -> None:
    assert told(caplog, ["data: hi\n\n"], dialect=dialect) == 1
