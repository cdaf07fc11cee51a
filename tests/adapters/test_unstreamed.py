"""A provider's request that asks for no stream, at a guarded endpoint of each framework: refused before the source
starts, where the body is known."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import anthropic
import openai
import pytest
from aiohttp import web
from fastapi import FastAPI
from flask import Flask, request
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from streamguard.adapters import aiohttp as on_aiohttp
from streamguard.adapters import django as on_django
from streamguard.adapters import fastapi as on_fastapi
from streamguard.adapters import flask as on_flask
from streamguard.adapters import starlette as on_starlette
from streamguard.adapters import wsgi as on_wsgi
from streamguard.app import anyone_with_the_id
from streamguard.log.memory import MemoryLog
from streamguard.observe.hooks import Observer, Refused
from tests.adapters.aiohttp_serving import serving_aiohttp
from tests.adapters.django_site import ASGI, DIRECT, WSGI
from tests.adapters.servers import Connection, serving
from tests.adapters.wsgi_calls import called

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
HOW: Any = {"dialect": "openai"}

Post = Callable[[Any], tuple[int, bytes]]  # a body -> status, answer
Asked = list[str]


def in_log(module: Any) -> Any:
    return module.StreamGuard(MemoryLog(), authorize=anyone_with_the_id, on_sigterm=False)


def ways(module: Any) -> dict[str, Any]:
    return {"plain": module.guarded(**HOW), "in a log": in_log(module).stream(**HOW)}


async def source(asked: Asked) -> AsyncIterator[str]:
    asked.append("the source")
    yield "hello"


def sync_source(asked: Asked) -> Iterator[str]:
    asked.append("the source")
    yield "hello"


@contextmanager
def of_starlette(asked: Asked, way: str) -> Iterator[Post]:
    async def yields(request: Request) -> AsyncIterator[str]:
        async for item in source(asked):
            yield item

    async def returns(request: Request) -> Any:
        await request.json()
        return source(asked)

    guard = ways(on_starlette)[way]
    routes = [Route(f"/{view.__name__}", guard(view), methods=["POST"]) for view in (yields, returns)]
    app = Starlette(routes=routes)
    app.add_middleware(on_starlette.SealMiddleware)
    with serving(app) as server:
        yield posting(server.port)


@contextmanager
def of_fastapi(asked: Asked, way: str) -> Iterator[Post]:
    app, guard = FastAPI(), ways(on_fastapi)[way]

    @app.post("/yields")
    @guard
    async def yields(body: dict[str, Any]) -> AsyncIterator[str]:
        async for item in source(asked):
            yield item

    @app.post("/returns")
    @guard
    async def returns(body: dict[str, Any]) -> Any:
        return source(asked)

    app.add_middleware(on_fastapi.SealMiddleware)
    with serving(app) as server:
        yield posting(server.port)


@contextmanager
def of_aiohttp(asked: Asked, way: str) -> Iterator[Post]:
    async def yields(request: web.Request) -> AsyncIterator[str]:
        async for item in source(asked):
            yield item

    async def returns(request: web.Request) -> Any:
        await request.json()
        return source(asked)

    app, guard = web.Application(), ways(on_aiohttp)[way]
    for view in (yields, returns):
        app.router.add_post(f"/{view.__name__}", guard(view))
    with serving_aiohttp(app) as server:
        yield posting(server.port)


@contextmanager
def of_django_asgi(asked: Asked, way: str) -> Iterator[Post]:
    async def view(request: Any) -> AsyncIterator[str]:
        async for item in source(asked):
            yield item

    DIRECT["view"] = ways(on_django)[way](view)
    with serving(on_django.SealMiddleware(ASGI)) as server:
        yield posting(server.port, "/direct/view")


@contextmanager
def of_django_wsgi(asked: Asked, way: str) -> Iterator[Post]:
    def view(request: Any) -> Iterator[str]:
        return sync_source(asked)

    DIRECT["view"] = ways(on_django)[way](view)
    yield calling(WSGI, "/direct-sync/view")


@contextmanager
def of_flask(asked: Asked, way: str) -> Iterator[Post]:
    app = Flask(__name__)

    @app.post("/")
    @ways(on_flask)[way]
    def chat() -> Iterator[str]:
        assert request.json
        return sync_source(asked)

    yield calling(app, "/")


@contextmanager
def of_wsgi(asked: Asked, way: str) -> Iterator[Post]:
    yield calling(ways(on_wsgi)[way](lambda environ: sync_source(asked)), "/")


def posting(port: int, *paths: str) -> Post:
    """To each of the paths, which answer alike."""
    def post(body: Any) -> tuple[int, bytes]:
        found = set()
        for path in paths or ("/yields", "/returns"):
            with Connection(port) as connection:
                fields = {"content_type": "application/json", "connection": "close"}
                connection.request("POST", path, body=json.dumps(body).encode(), **fields)
                head, _, rest = connection.rest().partition(b"\r\n\r\n")
                status = int(head.split()[1])
                found.add((status, rest if status != 200 else b"hello"))
        assert len(found) == 1, found
        return found.pop()

    return post


def calling(app: Any, path: str) -> Post:
    def post(body: Any) -> tuple[int, bytes]:
        answer = called(app, path, "POST", json.dumps(body).encode(), CONTENT_TYPE="application/json")
        return answer.status, answer.body

    return post


FRAMEWORKS: list[Callable[[Asked, str], AbstractContextManager[Post]]] = [
    of_starlette, of_fastapi, of_aiohttp, of_django_asgi, of_django_wsgi, of_flask, of_wsgi
]  # fmt: skip


@pytest.mark.parametrize("way", ["plain", "in a log"])
@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.__name__)
def test_it_is_refused_before_the_source_starts(framework: Any, way: str) -> None:
    asked: Asked = []
    with framework(asked, way) as post:
        status, body = post(CHAT)
        assert (status, json.loads(body)["error"]["code"]) == (400, "stream_required")
        assert asked == []
        assert post({**CHAT, "stream": True})[0] == 200
        assert post({"text": "of an application's own page"})[0] == 200
        assert set(asked) == {"the source"}


def test_the_sdks_raise_what_they_are_told() -> None:
    async def source(request: Request) -> AsyncIterator[str]:
        yield "hello"

    paths = {"openai": "/v1/chat/completions", "openai-responses": "/v1/responses", "anthropic": "/v1/messages"}
    told: list[Refused] = []

    class Telling(Observer):
        def refused(self, event: Refused) -> None:
            told.append(event)

    routes = [
        Route(path, on_starlette.guarded(dialect=dialect, observe=Telling())(source), methods=["POST"])
        for dialect, path in paths.items()
    ]
    app = Starlette(routes=routes)
    app.add_middleware(on_starlette.SealMiddleware)
    with serving(app) as server:
        url = f"http://127.0.0.1:{server.port}"
        with openai.OpenAI(base_url=f"{url}/v1", api_key="any") as client:
            with pytest.raises(openai.BadRequestError, match="only streams") as caught:
                client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
            with pytest.raises(openai.BadRequestError, match="only streams"):
                client.responses.create(model="m", input="hi")
        with anthropic.Anthropic(base_url=url, api_key="any") as other:
            with pytest.raises(anthropic.BadRequestError, match="only streams"):
                other.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}])
    assert (caught.value.code, caught.value.param) == ("stream_required", "stream")
    assert [event.why for event in told] == ["stream_required"] * 3


def test_an_endpoint_may_still_answer_it_itself() -> None:
    @on_starlette.guarded(**HOW)
    async def endpoint(request: Request) -> Any:
        return source([]) if (await request.json()).get("stream") else JSONResponse({"object": "chat.completion"})

    app = Starlette(routes=[Route("/", endpoint, methods=["POST"])])
    app.add_middleware(on_starlette.SealMiddleware)
    with serving(app) as server:
        post = posting(server.port, "/")
        assert post(CHAT)[0] == 200


def test_a_body_that_nobody_has_read_is_left_to_the_source() -> None:
    async def reads(request: web.Request) -> AsyncIterator[str]:
        yield str(len(await request.content.read()))

    async def returns(request: web.Request) -> Any:
        return reads(request)

    app = web.Application()
    app.router.add_post("/", on_aiohttp.guarded(**HOW)(returns))
    with serving_aiohttp(app) as server:
        assert posting(server.port, "/")(CHAT)[0] == 200
