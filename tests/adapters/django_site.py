"""A Django project in one module: the contract's sources as views, behind GZipMiddleware, under ASGI and WSGI.

A process has one Django, so that this one serves every test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import django
from django.conf import settings
from django.http import HttpResponse, JsonResponse
from django.urls import path

from streamguard.adapters.django import StreamGuard, guarded
from streamguard.app import anyone_with_the_id
from streamguard.log.memory import MemoryLog
from streamguard.testing.adapter_sources import SOURCES, AdapterSources
from tests.adapters.contract_wsgi import pieces

__all__ = ["ASGI", "BOOKS", "DIRECT", "WSGI"]

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    MIDDLEWARE=["django.middleware.gzip.GZipMiddleware"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "file::memory:?cache=shared"}},
    LOGGING_CONFIG=None,
    USE_TZ=True,
)
django.setup(set_prefix=False)

BOOKS = AdapterSources()
DIRECT: dict[str, Any] = {}  # views that a test adds, by name

urlpatterns: list[Any] = []


def facts(request: Any, label: str) -> Any:
    return JsonResponse(BOOKS.facts(label))


async def direct(request: Any, name: str) -> Any:
    """A view that a test gave, of an async kind."""
    return await DIRECT[name](request)


def direct_sync(request: Any, name: str) -> Any:
    return DIRECT[name](request)


def page(request: Any) -> Any:
    return HttpResponse("a page " * 100)


def _add(name: str, guard: StreamGuard, prefix: str, *, asynchronous: bool) -> None:
    async def tokens(request: Any) -> AsyncIterator[Any]:
        async for item in BOOKS.open(name, request.GET["label"]):
            yield item.encode() if isinstance(item, str) else item  # as in `pieces`: under WSGI there is a buffer

    def sync_tokens(request: Any) -> Iterator[Any]:
        yield from pieces(BOOKS, name, request.GET["label"])

    view = tokens if asynchronous else sync_tokens
    options: Any = BOOKS.options(name)
    urlpatterns.append(path(f"{prefix}/{name}", guarded(**options)(view)))
    urlpatterns.append(path(f"{prefix}/logged/{name}", guard.stream(**options)(view)))


for prefix, asynchronous in (("async", True), ("sync", False)):
    guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id)
    for name in SOURCES:
        _add(name, guard, prefix, asynchronous=asynchronous)
    urlpatterns.append(path(f"{prefix}/facts/<label>", facts))
    guard.install(urlpatterns, f"/{prefix}/streams", close_log=False)
urlpatterns += [path("direct/<name>", direct), path("direct-sync/<name>", direct_sync), path("page", page)]

from django.core.asgi import get_asgi_application  # noqa: E402  # once it is set up
from django.core.wsgi import get_wsgi_application  # noqa: E402

ASGI = guard.seal(get_asgi_application(), close_log=False)
WSGI = get_wsgi_application()
