"""At an application's shutdown its streams are let go of, then its log is closed, then comes the application's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette

from streamguard import anyone_with_the_id
from streamguard.adapters import shutdown
from streamguard.adapters.endpoints import RootedSeal
from streamguard.adapters.seal import SealMiddleware
from streamguard.adapters.starlette import StreamGuard
from streamguard.log.base import LogUnavailable
from streamguard.log.memory import MemoryLog
from streamguard.log.sqlite import SQLiteLog
from streamguard.runtime.source import TokenSource
from tests.runtime.fakes import Script

pytestmark = pytest.mark.anyio


class Closed(MemoryLog):
    """A log that says when it is closed, and may fail to."""

    def __init__(self, said: list[str], fails: bool = False) -> None:
        super().__init__()
        self.said = said
        self.fails = fails

    async def aclose(self) -> None:
        self.said.append("log")
        if self.fails:
            raise OSError("the disk is gone")


@asynccontextmanager
async def lived(app: Any) -> AsyncIterator[None]:
    """The life of an application, as a server leads it: from its startup to its shutdown. Raises RuntimeError for an
    application that does not start."""
    to_app, from_server = anyio.create_memory_object_stream[dict[str, Any]](2)
    to_server, from_app = anyio.create_memory_object_stream[dict[str, Any]](2)
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    answer: dict[str, Any] = {}

    async def serve() -> None:
        try:
            await app(scope, from_server.receive, to_server.send)
        except RuntimeError:
            pass  # it has said so

    async with anyio.create_task_group() as tasks, to_app, from_server, to_server, from_app:
        tasks.start_soon(serve)
        await to_app.send({"type": "lifespan.startup"})
        answer = await from_app.receive()
        if answer["type"] == "lifespan.startup.complete":
            yield
            await to_app.send({"type": "lifespan.shutdown"})
            assert (await from_app.receive())["type"] == "lifespan.shutdown.complete"
    if answer.get("type") == "lifespan.startup.failed":
        raise RuntimeError(answer["message"])


def application(kind: Any, said: list[str]) -> Any:
    @asynccontextmanager
    async def own(app: Any) -> AsyncIterator[None]:
        yield
        said.append("application")

    return kind(lifespan=own)


@pytest.mark.parametrize("kind", [Starlette, FastAPI])
async def test_streams_are_let_go_of_then_the_log_is_closed_then_the_applications_own(kind: Any) -> None:
    said: list[str] = []

    async def cleanup() -> None:
        said.append("source")

    guard = StreamGuard(Closed(said), authorize=anyone_with_the_id)
    app, source = application(kind, said), Script("a", anyio.Event(), cleanup=cleanup)
    guard.install(app)
    async with lived(app):
        run = await guard.start(TokenSource(source), principal="")
        await anyio.wait_all_tasks_blocked()
    assert said == ["source", "log", "application"]
    state = await guard.log.state(run.sid)
    assert (state.held, state.sealed, state.tail.seq) == (False, False, 1)  # it lives on, for whoever takes it over
    assert (len(guard.runs), source.closes) == (0, 1)


async def test_an_application_under_a_seal_alone_that_is_started_again_takes_new_streams() -> None:
    seal = SealMiddleware(Starlette())
    for _ in range(2):
        async with lived(seal):
            assert seal.draining.ready
            seal.draining.drain()
            assert not seal.draining.ready
            assert seal.draining.draining in shutdown._drains
        assert seal.draining.draining not in shutdown._drains


async def test_a_log_that_others_use_is_left_open(tmp_path: Path) -> None:
    log = SQLiteLog(tmp_path / "streams.db")
    for _ in range(2):
        guard, app = StreamGuard(log, authorize=anyone_with_the_id), Starlette()
        guard.install(app, close_log=False)
        async with lived(app):
            pass
        assert await log.find_key("none") is None
    await log.aclose()


async def test_an_application_that_is_started_again_says_that_its_log_was_closed(tmp_path: Path) -> None:
    guard, app = StreamGuard(SQLiteLog(tmp_path / "streams.db"), authorize=anyone_with_the_id), Starlette()
    guard.install(app)
    async with lived(app):
        assert await guard.log.find_key("none") is None
    with pytest.raises(LogUnavailable):
        await guard.log.find_key("none")
    with pytest.raises(RuntimeError, match="close_log=False"):
        async with lived(app):
            pass


async def test_one_whose_log_can_be_used_again_starts_again() -> None:
    guard, app = StreamGuard(MemoryLog(), authorize=anyone_with_the_id), Starlette()
    guard.install(app)
    for _ in range(2):
        async with lived(app):
            run = await guard.start(TokenSource(Script("a")), principal="")
            await run.over.wait()


async def test_a_log_that_cannot_be_closed_is_told_of_and_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    said: list[str] = []
    app = application(Starlette, said)
    StreamGuard(Closed(said, fails=True), authorize=anyone_with_the_id).install(app)
    async with lived(app):
        pass
    assert said == ["log", "application"]
    assert "the log could not be closed" in caplog.text


async def test_the_seal_by_itself_closes_nothing() -> None:
    said: list[str] = []
    async with lived(RootedSeal(application(Starlette, said))):
        pass
    assert said == ["application"]
