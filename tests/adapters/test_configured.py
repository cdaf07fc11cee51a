"""Slips in how streams are made resumable, over Starlette and FastAPI: each is told where it shows first."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from typing import Any

import attrs
import httpx
import pytest
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from streamguard import anyone_with_the_id
from streamguard.adapters import fastapi, starlette
from streamguard.adapters.options import AnswerOptions, StreamOptions
from streamguard.adapters.seal import UnsealedResponse
from streamguard.log.base import LogUnavailable
from streamguard.log.memory import MemoryLog

pytestmark = pytest.mark.anyio

FRAMEWORKS = pytest.mark.parametrize("framework", [starlette, fastapi], ids=["starlette", "fastapi"])
TWICE = (
    "endpoint 'chat' under guard.stream answers with a guarded response of its own: remove @guarded, "
    "and return the source"
)


async def words() -> AsyncIterator[str]:
    yield "t0 "


def a_guard(framework: Any = starlette, **options: Any) -> Any:
    return framework.StreamGuard(MemoryLog(), **{"authorize": anyone_with_the_id, **options})


def a_request() -> Request:
    return Request({"type": "http", "method": "POST", "path": "/", "headers": [], "query_string": b""})


# ---- guarded twice ----------------------------------------------------------------------------------


@FRAMEWORKS
def test_a_guarded_function_is_refused_when_decorating(framework: Any) -> None:
    @framework.guarded
    async def chat(request: Request) -> AsyncIterator[str]:
        yield "t0 "

    @functools.wraps(chat)
    async def wrapped(request: Request) -> Any:
        return await chat(request)

    guard = a_guard(framework)
    for endpoint in (chat, wrapped):
        for decorate in (guard.stream, guard.stream(name="n")):
            with pytest.raises(TypeError) as caught:
                decorate(endpoint)
            assert str(caught.value) == TWICE


@FRAMEWORKS
async def test_a_guarded_response_is_refused_at_the_first_answer(framework: Any) -> None:
    async def chat(request: Request) -> Any:
        return framework.GuardedResponse(words())

    with pytest.raises(TypeError) as caught:
        await a_guard(framework).stream(chat)(a_request())
    assert str(caught.value) == TWICE


@FRAMEWORKS
async def test_a_plain_response_and_a_logged_one_pass(framework: Any) -> None:
    guard = a_guard(framework)

    async def no(request: Request) -> Any:
        return JSONResponse({"error": "no"}, 422)

    async def logged(request: Request) -> Any:
        return guard.response(request, words())

    assert (await guard.stream(no)(a_request())).status_code == 422
    assert isinstance(await guard.stream(logged)(a_request()), framework.ResumableResponse)


# ---- names ------------------------------------------------------------------------------------------


def chat_of(answer: Any) -> Any:
    def chat(request: Any) -> Any:
        return answer

    return chat


async def later(request: Any) -> str:
    return "seven"


class Later:
    async def __call__(self, request: Any) -> str:
        return "seven"


ASYNC = " is a coroutine function: write a plain `def`, which reads the name from the request's path, query or headers"


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("", ValueError, "name is a text that is not empty, or None for no name; not ''"),
        (7, TypeError, "name is a text, or a function of the request that returns one, not 7"),
        (later, TypeError, "name: the function later" + ASYNC),
        (functools.partial(later), TypeError, None),
        (Later(), TypeError, None),
    ],
    ids=["empty", "int", "async def", "partial", "object"],
)
def test_a_name_that_is_none_is_refused_when_decorating(name: Any, kind: type[Exception], said: str | None) -> None:
    with pytest.raises(kind) as caught:
        a_guard().stream(name=name)
    assert str(caught.value) == said if said is not None else str(caught.value).endswith(ASYNC)


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (7, TypeError, "the function chat answered 7 for name: return a text, for example str(…), or None for no name"),
        (b"7", TypeError, "the function chat answered b'7' for name: return a text, for example str(…), or None"),
        ("", ValueError, "the function chat answered '' for name: return a text that is not empty, or None"),
    ],
    ids=["int", "bytes", "empty"],
)
async def test_what_a_function_answers_for_a_name_is_checked_alike(answer: Any, kind: Any, said: str) -> None:
    options, _ = StreamOptions.split({"name": chat_of(answer)})
    with pytest.raises(kind) as caught:
        options.name_of(None)
    assert str(caught.value).startswith(said)


async def test_a_coroutine_for_a_name_is_told_as_what_it_is() -> None:
    options, _ = StreamOptions.split({"name": chat_of(later(None))})
    with pytest.raises(TypeError, match=r"^the function chat answered a coroutine for name: "):
        options.name_of(None)


def test_a_text_none_and_what_functions_answer_are_names() -> None:
    names: Any = ["seven", None, chat_of("seven"), chat_of(None)]
    assert [StreamOptions.split({"name": name})[0].name_of(None) for name in names] == ["seven", None] * 2


# ---- installed --------------------------------------------------------------------------------------


INSTALLED = (
    'this guard is not installed: nobody can come back to its streams. Call guard.install(app, "/streams") after every '
    "add_middleware"
)


async def answered(app: Any, path: str = "/tokens") -> int:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
        return (await client.get(path, headers={"streamguard": "v=1"})).status_code


async def test_a_guard_that_is_not_installed_says_so_once_at_its_first_stream(caplog: Any) -> None:
    async def tokens(request: Request) -> AsyncIterator[str]:
        yield "t0 "

    for install, lines in ((False, [("ERROR", INSTALLED)]), (True, [])):
        caplog.clear()
        guard = a_guard()
        app = Starlette(routes=[Route("/tokens", guard.stream(tokens))])
        if install:
            guard.install(app)
        assert [await answered(app) for _ in range(2)] == [200, 200]
        assert [(record.levelname, record.message) for record in caplog.records if "guard" in record.message] == lines


@FRAMEWORKS
def test_two_guards_of_one_application_have_a_path_each(framework: Any) -> None:
    app = FastAPI() if framework is fastapi else Starlette()
    a_guard(framework).install(app)
    other = a_guard(framework)
    with pytest.raises(RuntimeError) as caught:
        other.install(app, "/streams")
    assert str(caught.value) == "another guard is at /streams already; give this one a path of its own"
    other.install(app, "/others")
    assert other.path == "/others"


def test_what_is_no_application_or_no_path_is_refused() -> None:
    guard, app = a_guard(), Starlette()
    wants = 'guard.install(app, "/streams"): app is a Starlette or FastAPI application: its seal stands round all of it'
    for wrong in ("/streams", APIRouter(), Starlette, None):
        with pytest.raises(TypeError) as caught:
            guard.install(wrong, app)
        assert str(caught.value).startswith(wants)
    with pytest.raises(TypeError, match=r'^the path is a text, for example "/streams", not None$'):
        guard.install(app, None)
    with pytest.raises(ValueError, match=r"without \{parameters\}; not '/chats/\{chat\}/streams'$"):
        guard.install(app, "/chats/{chat}/streams")
    assert (guard.path, app.routes, app.user_middleware) == (None, [], [])


# ---- a server that stops ----------------------------------------------------------------------------


class Held:
    """A stream that is held up after its first token, asked for over bare ASGI, so that its task can be cancelled."""

    def __init__(self) -> None:
        guard = a_guard()

        async def tokens(request: Request) -> AsyncIterator[str]:
            yield "t0 "
            await asyncio.Event().wait()

        self.guard, self.sent, self.asked = guard, bytearray(), False
        self.app = Starlette(routes=[Route("/tokens", guard.stream(tokens))])
        guard.install(self.app)

    async def send(self, message: Any) -> None:
        self.sent += message.get("body", b"")

    async def receive(self) -> Any:
        if not self.asked:
            self.asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError

    async def cancelled(self, message: str | None) -> asyncio.Task[None]:
        headers = [(b"streamguard", b"v=1")]
        scope = {"type": "http", "method": "GET", "path": "/tokens", "headers": headers, "query_string": b""}
        task: asyncio.Task[None] = asyncio.ensure_future(self.app(scope, self.receive, self.send))
        while b"t0" not in self.sent:
            assert not task.done(), task
            await asyncio.sleep(0)
        task.cancel(message)
        await asyncio.wait([task])
        await self.guard.aclose()
        return task


def test_a_cancellation_of_uvicorns_at_its_stop_ends_in_the_answer_and_no_other_does() -> None:
    """uvicorn logs a traceback of what comes out; a layer outside that cancels waits for it to come out."""

    async def check() -> None:
        for message, ours in (("Task cancelled, timeout graceful shutdown exceeded", True), ("", False), (None, False)):
            held = Held()
            task = await held.cancelled(message)
            assert task.cancelled() is not ours
            assert b'"reason":"shutdown"' in held.sent

    asyncio.run(check())


# ---- what is said -----------------------------------------------------------------------------------


async def test_a_start_that_the_log_refuses_is_one_line_on_the_server(caplog: Any) -> None:
    async def tokens(request: Request) -> AsyncIterator[str]:
        yield "t0 "

    class Away(MemoryLog):
        async def create(self, info: Any, ttl: float) -> Any:
            raise LogUnavailable("the disk is full")

    class NotThere(Away):
        async def find_key(self, key: str) -> Any:
            raise LogUnavailable("the disk is full")

    for log, headers in ((Away(), {}), (NotThere(), {"idempotency-key": "0123456789abcdef-a-long-one"})):
        caplog.clear()
        guard = starlette.StreamGuard(log, authorize=anyone_with_the_id)
        app = Starlette(routes=[Route("/tokens", guard.stream(tokens))])
        guard.install(app)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
            assert (await client.get("/tokens", headers=headers)).status_code == 503
        (line,) = [record for record in caplog.records if record.name == "streamguard"]
        assert (line.levelname, "the disk is full" in line.message) == ("WARNING", True)


@pytest.mark.parametrize("asking", ["", "?after=garbage"], ids=["Last-Event-ID", "after"])
async def test_what_is_no_cursor_is_told_as_that(asking: str) -> None:
    app = Starlette()
    a_guard().install(app)
    headers = {} if asking else {"last-event-id": "garbage"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
        answer = await client.get(f"/streams{asking}", headers=headers)
        nameless = await client.get("/streams")
    assert (answer.status_code, nameless.status_code) == (400, 400)
    assert "the Last-Event-ID is no cursor: it is the id of an event, as it came" in answer.text
    assert "cursor" not in nameless.text


def test_the_missing_seal_is_told_with_the_line_of_a_guard() -> None:
    assert "guard.install(app, ...)` after every add_middleware" in str(UnsealedResponse())


async def test_guard_stream_above_a_route_is_told_by_its_name(caplog: Any) -> None:
    app, guard = FastAPI(), a_guard(fastapi)

    async def tokens() -> dict[str, str]:
        return {}

    guard.stream(app.get("/tokens")(tokens))
    guard.install(app)
    assert await answered(app) == 200
    assert "put @guard.stream below the route's decorator" in caplog.text


@pytest.mark.parametrize("option", ["exclusive", "confidential"])
def test_a_switch_is_true_or_false(option: str) -> None:
    with pytest.raises(TypeError, match=f"^{option} is True or False, not 'yes'$"):
        a_guard().stream(**{option: "yes"})


def test_an_unknown_option_of_a_stream_is_told_all_that_there_are() -> None:
    names = ", ".join(field.name for kind in (StreamOptions, AnswerOptions) for field in attrs.fields(kind))
    for wrong, advice in (("exclusiv", ": did you mean 'exclusive'?"), ("zzz", ";")):
        with pytest.raises(TypeError) as caught:
            a_guard().stream(**{wrong: True})
        assert str(caught.value) == f"unknown option {wrong!r}{advice} known: {names}"
    with pytest.raises(TypeError, match=r"return guard\.response\(request, source, headers=…\)"):
        a_guard().stream(headers={})
    with pytest.raises(TypeError, match=r"write @guard\.stream\(dialect='openai'\)"):
        a_guard().stream("openai")
