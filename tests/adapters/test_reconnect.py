"""A chat's running stream by its name, as the AI SDK's transport asks for it; and the reader's own cancel, which a
dialect with an abort part ends cleanly."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamguard import anyone_with_the_id
from streamguard.adapters import fastapi
from streamguard.adapters.reconnect import ReconnectAnswer
from streamguard.adapters.starlette import StreamGuard
from streamguard.core.errors import Failure
from streamguard.log.memory import MemoryLog
from streamguard.runtime.slots import Limits
from streamguard.runtime.timing import Timing
from tests.adapters.asgi_apps import Response as Got
from tests.adapters.asgi_apps import exchange, unchunked
from tests.adapters.logged_apps import Counted, TroubledLog, by_header, cursors, reading, wait_until
from tests.adapters.servers import Connection, Gate, Server, serving

QUICK = Timing(linger=0.05)
ENDED = b"0\r\n\r\n"  # the last chunk of a body that ends cleanly


@attrs.define
class Chat:
    """An application whose answers wait for `gate`, behind their second word."""

    server: Server
    guard: Any
    source: Counted
    gate: Gate

    def ask(self, chat: str = "seven") -> Any:
        return reading(self.server, f"/chat/{chat}", "POST", accept="*/*", connection="close")

    def again(self, chat: str = "seven", method: str = "GET", **headers: str) -> Got:
        return exchange(self.server.connect(), method, f"/chat/{chat}/stream", **headers)

    def cancel(self, chat: str = "seven") -> int:
        return exchange(self.server.connect(), "DELETE", f"/streams?name={chat}").status


def named(request: Request) -> str:
    return str(request.path_params["chat"])


def on_starlette(guard: StreamGuard, source: Counted, dialect: str) -> Starlette:
    @guard.stream(name=named, dialect=dialect, timing=QUICK)
    async def ask(request: Request) -> AsyncIterator[Any]:
        async for item in source():
            yield item

    async def again(request: Request) -> Response:
        return guard.reconnect(request, request.path_params["chat"], timing=QUICK)

    app = Starlette(
        routes=[Route("/chat/{chat}", ask, methods=["POST"]), Route("/chat/{chat}/stream", again, methods=None)]
    )
    guard.install(app, "/streams")
    return app


def on_fastapi(guard: fastapi.StreamGuard, source: Counted, dialect: str) -> FastAPI:
    app = FastAPI()

    @app.post("/chat/{chat}")
    @guard.stream(name=named, dialect=dialect, timing=QUICK)
    async def ask(chat: str) -> AsyncIterator[Any]:
        async for item in source():
            yield item

    @app.get("/chat/{chat}/stream")
    async def again(request: Request, chat: str) -> Response:
        return guard.reconnect(request, chat, timing=QUICK)

    guard.install(app, "/streams")
    return app


@contextmanager
def chat(
    dialect: str = "ui", *, framework: str = "starlette", log: MemoryLog | None = None, authorize: Any = by_header
) -> Iterator[Chat]:
    gate = Gate()
    source = Counted("one ", "two ", gate, "three ")
    if framework == "starlette":
        guard = StreamGuard(log or MemoryLog(), authorize=authorize)
        app: Any = on_starlette(guard, source, dialect)
    else:
        guard = fastapi.StreamGuard(log or MemoryLog(), authorize=authorize)
        app = on_fastapi(guard, source, dialect)
    with serving(app) as server:
        yield Chat(server, guard, source, gate)
        gate.open()


def frames(body: bytes) -> list[bytes]:
    return re.findall(rb"^data: (.*)$", body, re.MULTILINE)


# ---- the stream of a chat -------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", ["starlette", "fastapi"])
def test_a_page_that_is_loaded_again_is_given_the_whole_running_stream(framework: str) -> None:
    with chat(framework=framework) as site:
        with site.ask() as first:
            first.until(b"two ")
        with reading(site.server, "/chat/seven/stream", accept="*/*", connection="close") as again:
            head = again.until(b"two ").partition(b"\r\n\r\n")[0].lower()
            site.gate.open()
            body, clean = unchunked(again.rest().partition(b"\r\n\r\n")[2])
        assert clean
        assert b"x-vercel-ai-ui-message-stream: v1" in head
        kinds = re.findall(rb'"type":"([\w-]+)"', body)
        text = [b"text-start", *3 * [b"text-delta"], b"text-end"]
        assert kinds == [b"start", b"start-step", *text, b"finish-step", b"finish"]
        assert (frames(body)[-1], site.source.starts) == (b"[DONE]", 1)


def test_there_is_nothing_to_resume_where_the_stream_has_ended_or_is_anothers_or_never_was() -> None:
    with chat() as site:
        assert site.again().status == 204
        with site.ask() as first:
            first.until(b"two ")
            assert site.again(user="bob").status == 204
            assert site.again("eight").status == 204
            assert site.again(user="nobody").status == 403
            head = site.again(method="HEAD")
            assert (head.status, head.body) == (200, b"")
            site.gate.open()
            first.rest()
        ended = site.again()
        assert (ended.status, ended.header("cache-control")) == (204, "no-store, no-transform")
        assert site.source.starts == 1


def test_a_reader_with_a_cursor_goes_on_behind_it() -> None:
    with chat() as site:
        with site.ask() as first:
            at = cursors(first.until(b"two "))[-1]
        site.gate.open()
        wait_until(lambda: not len(site.guard.runs))
        rest = site.again(last_event_id=str(at))
        assert cursors(rest.body)[0].seq == at.seq + 1
        assert b"one " not in rest.body
        assert b"three " in rest.body


def test_a_name_that_could_be_guessed_opens_nothing_where_nobody_is_told_from_anybody() -> None:
    hard = "0123456789abcdef-hard-to-guess"
    with chat(authorize=anyone_with_the_id) as site:
        for name, status in (("seven", 204), (hard, 200)):
            with site.ask(name) as first:
                first.until(b"two ")
                assert site.again(name, method="HEAD").status == status


def test_only_reads_are_answered_and_trouble_with_the_log_is_said() -> None:
    log = TroubledLog()
    with chat(log=log) as site, site.ask() as first:
        first.until(b"two ")
        assert site.again(method="POST").status == 405
        log.trouble = True
        assert site.again().status == 503
        log.trouble = False


def test_a_name_that_is_none_is_refused_and_so_are_limits() -> None:
    guard = StreamGuard(MemoryLog(), authorize=by_header)
    for name, kind in ((None, TypeError), (7, TypeError), ("", ValueError)):
        with pytest.raises(kind, match="the name of a stream is a text"):
            ReconnectAnswer(guard, name)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="what resumes has no limits"):
        ReconnectAnswer(guard, "seven", limits=Limits(max_streams=1))


# ---- the reader's own cancel ----------------------------------------------------------------------------


def cut(connection: Connection) -> tuple[list[bytes], bool]:
    """The data that came, and whether the body ended cleanly."""
    body = connection.rest()
    return frames(body), body.endswith(ENDED)


def test_a_readers_own_cancel_ends_a_ui_stream_cleanly_with_its_abort_part() -> None:
    with chat() as site, site.ask() as first:
        first.until(b"two ")
        assert site.cancel() == 204
        found, clean = cut(first)
        assert (found[-2:], clean) == ([b'{"type":"abort"}', b"[DONE]"], True)
        assert b'{"type":"finish"}' not in found
        assert site.again().status == 204


@pytest.mark.parametrize("dialect", ["native", "openai", "openai-responses", "anthropic", "ag-ui"])
def test_a_cancel_aborts_where_a_dialect_has_no_part_for_it(dialect: str) -> None:
    with chat(dialect) as site, site.ask() as first:
        first.until(b"two ")
        assert site.cancel() == 204
        assert cut(first)[1] is False


@pytest.mark.parametrize(("code", "clean"), [("cancelled", True), ("evicted", False), ("enough", False)])
def test_a_ui_stream_that_had_to_go_is_no_cancel_of_its_readers(code: str, clean: bool) -> None:
    with chat() as site, site.ask() as first:
        run = site.guard.runs.get(cursors(first.until(b"two "))[-1].sid)
        site.server.call(run.producer.cancel, Failure(code, "it ends"))
        found, ended = cut(first)
        assert (found[-1], ended) == (b"[DONE]", clean)
