"""A source that writes server-sent events itself is told so once, at its first item."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from streamguard import anyone_with_the_id
from streamguard.adapters import first
from streamguard.adapters.starlette import StreamGuard, guarded
from streamguard.core.dialect import Raw
from streamguard.log.memory import MemoryLog
from tests.adapters.asgi_apps import exchange
from tests.adapters.servers import serving

TOLD = "a server-sent event already"


@pytest.fixture(autouse=True)
def untold() -> Iterator[None]:
    """Once a process: each test has to begin anew."""
    first._warn.cache_clear()
    yield
    first._warn.cache_clear()


def logging(**options: Any) -> Any:
    return StreamGuard(MemoryLog(), authorize=anyone_with_the_id).stream(**options)


@pytest.fixture(params=[guarded, logging], ids=["guarded", "stream"])
def decorate(request: pytest.FixtureRequest) -> Any:
    return request.param


def told(caplog: pytest.LogCaptureFixture, decorate: Any, items: list[Any], times: int = 1, **options: Any) -> int:
    """How often a stream of `items`, served `times` times, was told of."""

    async def endpoint(request: Request) -> AsyncIterator[Any]:
        for item in items:
            yield item

    with serving(Starlette(routes=[Route("/", decorate(**options)(endpoint))])) as server:
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
def test_an_event_as_first_text_is_told(item: Any, decorate: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert told(caplog, decorate, [item]) == 1


@pytest.mark.parametrize("item", ["data", "data: a colon", "data: one line\n", "so data: hi\n\n", "\n\n", b"\xff\n\n"])
def test_what_only_looks_like_one_is_not(item: Any, decorate: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert told(caplog, decorate, [item, "data: hi\n\n"]) == 0


def test_it_is_told_once_a_process(decorate: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert told(caplog, decorate, ["data: hi\n\n"] * 3, times=3) == 1


def test_events_are_what_dialect_raw_takes(decorate: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert told(caplog, decorate, ["data: hi\n\n"], dialect=Raw(end="asgi")) == 0


@pytest.mark.parametrize(("decorate", "dialect"), [(guarded, "openai"), (guarded, "text"), (logging, "openai")])
def test_every_other_dialect_frames_it_once_more(decorate: Any, dialect: str, caplog: pytest.LogCaptureFixture) -> None:
    assert told(caplog, decorate, ["data: hi\n\n"], dialect=dialect) == 1
