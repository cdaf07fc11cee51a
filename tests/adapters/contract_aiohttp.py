"""The test application of the aiohttp adapter, for `check_adapter`: a response, and decorated handlers in a log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from streamguard.adapters.aiohttp import GuardedResponse, StreamGuard
from streamguard.app import anyone_with_the_id
from streamguard.log.memory import MemoryLog
from streamguard.testing import SOURCES, AdapterSources

__all__ = ["aiohttp_app"]


def aiohttp_app(sources: AdapterSources) -> web.Application:
    app = web.Application()
    guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id)

    async def plain(request: web.Request) -> web.StreamResponse:
        name, label = request.match_info["source"], request.query["label"]
        return await GuardedResponse(sources.open(name, label), **sources.options(name)).serve(request)

    async def facts(request: web.Request) -> web.Response:
        return web.json_response(sources.facts(request.match_info["label"]))

    def add(name: str) -> None:
        @guard.stream(**sources.options(name))
        async def tokens(request: web.Request) -> AsyncIterator[Any]:
            async for item in sources.open(name, request.query["label"]):
                yield item

        app.router.add_route("*", f"/logged/{name}", tokens)

    for name in SOURCES:
        add(name)
    app.router.add_get("/facts/{label}", facts)
    guard.install(app, "/streams")  # before a path that matches anything: aiohttp may look in the order of adding
    app.router.add_route("*", "/{source}", plain)
    return app
