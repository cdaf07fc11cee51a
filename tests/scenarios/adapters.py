"""One endpoint under each adapter, on a server that runs: what a test says is what every framework's users get.

    with ADAPTERS["flask"](site) as port: ...

The endpoint calls `site.make()`, and answers what that returned, guarded, with `site.options`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import attrs
import flask
from aiohttp import web
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Route

from streamguard.adapters import aiohttp as on_aiohttp
from streamguard.adapters import flask as on_flask
from streamguard.adapters import wsgi as on_wsgi
from streamguard.adapters.asgi import GuardedAnswer
from streamguard.adapters.fastapi import guarded
from streamguard.adapters.seal import Receive, Scope, SealMiddleware, Send
from streamguard.adapters.starlette import GuardedResponse
from tests.adapters.aiohttp_serving import serving_aiohttp
from tests.adapters.servers import serving
from tests.adapters.wsgi_servers import serving_wsgi

__all__ = ["ADAPTERS", "PATHS", "Site"]


@attrs.define
class Site:
    """What the endpoint does. A test sets both before it asks."""

    make: Callable[[], Any] = list
    options: dict[str, Any] = attrs.field(factory=dict)


@contextmanager
def _asgi(site: Site) -> Iterator[int]:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await GuardedAnswer(site.make(), **site.options)(scope, receive, send)

    with serving(SealMiddleware(app), lifespan="off") as server:
        yield server.port


@contextmanager
def _starlette(site: Site) -> Iterator[int]:
    async def endpoint(request: Any) -> Any:
        return GuardedResponse(site.make(), **site.options)

    app = Starlette(routes=[Route("/", endpoint)])
    app.add_middleware(SealMiddleware)
    with serving(app) as server:
        yield server.port


@contextmanager
def _fastapi(site: Site) -> Iterator[int]:
    app = FastAPI()

    @app.get("/")
    async def endpoint() -> Any:
        async def inner() -> Any:
            return site.make()

        return await guarded(**site.options)(inner)()

    app.add_middleware(SealMiddleware)
    with serving(app) as server:
        yield server.port


@contextmanager
def _aiohttp(site: Site) -> Iterator[int]:
    async def handler(request: web.Request) -> web.StreamResponse:
        return await on_aiohttp.GuardedResponse(site.make(), **site.options).serve(request)

    app = web.Application()
    app.router.add_get("/", handler)
    with serving_aiohttp(app) as server:
        yield server.port


@contextmanager
def _flask(site: Site) -> Iterator[int]:
    app = flask.Flask(__name__)
    app.add_url_rule("/", "endpoint", lambda: on_flask.GuardedResponse(site.make(), **site.options))
    with serving_wsgi("waitress", app) as url:
        yield _port(url)


@contextmanager
def _wsgi(site: Site) -> Iterator[int]:
    def app(environ: Any, start_response: Any) -> Any:
        return on_wsgi.GuardedResponse(site.make(), **site.options)(environ, start_response)

    with serving_wsgi("waitress", app) as url:
        yield _port(url)


def _django(under: str, path: str) -> Callable[[Site], AbstractContextManager[int]]:
    @contextmanager
    def serve(site: Site) -> Iterator[int]:
        from streamguard.adapters.django import GuardedResponse as DjangoResponse
        from tests.adapters.django_site import ASGI, DIRECT, WSGI  # which sets Django up, once for the process

        async def later(request: Any) -> Any:
            return DjangoResponse(request, site.make(), **site.options)

        def view(request: Any) -> Any:
            return DjangoResponse(request, site.make(), **site.options)

        DIRECT["site"] = later if "sync" not in path else view
        if under == "ASGI":
            with serving(ASGI) as server:
                yield server.port
        else:
            with serving_wsgi("waitress", WSGI) as url:
                yield _port(url)

    return serve


def _port(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port


PATHS: Final[dict[str, str]] = {
    "django, async view, ASGI": "/direct/site",
    "django, view, ASGI": "/direct-sync/site",
    "django, view, WSGI": "/direct-sync/site",
}
"""Where the endpoint stands, if not at the root."""

ADAPTERS: Final[dict[str, Callable[[Site], AbstractContextManager[int]]]] = {
    "asgi": _asgi,
    "starlette": _starlette,
    "fastapi": _fastapi,
    "aiohttp": _aiohttp,
    "flask": _flask,
    "wsgi": _wsgi,
    **{name: _django(name.rpartition(" ")[2], path) for name, path in PATHS.items()},
}
