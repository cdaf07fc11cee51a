"""The test applications of the adapters that run on ASGI, for `check_adapter`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from streamguard.adapters import fastapi as on_fastapi
from streamguard.adapters.asgi import GuardedAnswer
from streamguard.adapters.endpoints import Endpoints, RootedSeal
from streamguard.adapters.logged import LoggedAnswer
from streamguard.adapters.seal import ASGIApp, Receive, Scope, Send
from streamguard.adapters.starlette import GuardedResponse, StreamGuard
from streamguard.app import anyone_with_the_id
from streamguard.log.memory import MemoryLog
from streamguard.testing.adapter_sources import SOURCES, AdapterSources

__all__ = ["ASGI_APPS"]


def asgi_app(sources: AdapterSources) -> ASGIApp:
    """Pure ASGI, without a framework."""
    guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id)
    endpoints = Endpoints(guard, "/streams")

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        *folder, name = request.url.path.strip("/").split("/")
        label = request.query_params.get("label", name)
        if request.url.path.startswith("/streams"):
            await endpoints(scope, receive, send)
        elif folder == ["facts"]:
            await JSONResponse(sources.facts(label))(scope, receive, send)
        elif folder == ["logged"]:
            logged = LoggedAnswer(guard, sources.open(name, label), **sources.options(name))
            await logged(scope, receive, send)
        else:
            answer = GuardedAnswer(sources.open(name, label), **sources.options(name))
            await answer(scope, receive, send)

    return RootedSeal(route)


def starlette_app(sources: AdapterSources) -> ASGIApp:
    """Starlette: a response for the plain endpoints, and a decorator for those in the log."""
    guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id)

    async def plain(request: Request) -> Response:
        name, label = request.path_params["source"], request.query_params["label"]
        return GuardedResponse(sources.open(name, label), **sources.options(name))

    async def in_log(request: Request) -> Response:
        name, label = request.path_params["source"], request.query_params["label"]
        return guard.response(request, sources.open(name, label), **sources.options(name))

    async def facts(request: Request) -> Response:
        return JSONResponse(sources.facts(request.path_params["label"]))

    both = ["GET", "POST"]
    app = Starlette(
        routes=[
            Route("/facts/{label}", facts),
            Route("/logged/{source}", in_log, methods=both),
            Route("/{source}", plain, methods=both),
        ]
    )
    guard.install(app, "/streams")
    return app


def fastapi_app(sources: AdapterSources) -> ASGIApp:
    """FastAPI: decorated endpoints that yield."""
    app = FastAPI()
    guard = on_fastapi.StreamGuard(MemoryLog(), authorize=anyone_with_the_id)

    @app.get("/facts/{label}")
    async def facts(label: str) -> Any:
        return sources.facts(label)

    def add(name: str) -> None:
        async def tokens(label: str) -> AsyncIterator[Any]:
            async for item in sources.open(name, label):
                yield item

        options = sources.options(name)
        methods = ["GET", "HEAD", "POST"]
        app.api_route(f"/{name}", methods=methods)(on_fastapi.guarded(**options)(tokens))
        app.api_route(f"/logged/{name}", methods=methods)(guard.stream(**options)(tokens))

    for name in SOURCES:
        add(name)
    guard.install(app, "/streams")
    return app


ASGI_APPS: dict[str, Callable[[AdapterSources], ASGIApp]] = {
    "asgi": asgi_app,
    "starlette": starlette_app,
    "fastapi": fastapi_app,
}
