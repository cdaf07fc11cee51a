"""An address that says whether new streams are taken here."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Route

from streamguard import anyone_with_the_id
from streamguard.adapters.readiness import Readiness
from streamguard.adapters.seal import SealMiddleware
from streamguard.adapters.starlette import StreamGuard
from streamguard.log.memory import MemoryLog
from tests.adapters.asgi_apps import exchange
from tests.adapters.servers import serving


@pytest.mark.parametrize("kind", [Starlette, FastAPI])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_it_says_so_until_a_drain_begins(kind: Any, method: str) -> None:
    guard = StreamGuard(MemoryLog(), authorize=lambda request, action: None)  # nobody may anything, save this
    app = kind()
    guard.install(app, ready="/ready")
    with serving(app) as server:
        assert exchange(server.connect(), method, "/ready").status == 200
        guard.drain()
        answer = exchange(server.connect(), method, "/ready")
    assert (answer.status, answer.header("cache-control")) == (503, "no-store, no-transform")


def test_an_application_without_a_guard_has_that_of_its_seal() -> None:
    app = Starlette(routes=[Route("/ready", Readiness())])
    seal = SealMiddleware(app)
    with serving(seal) as server:
        assert exchange(server.connect(), "GET", "/ready").status == 200
        seal.draining.drain()
        assert exchange(server.connect(), "GET", "/ready").status == 503


def test_one_that_was_not_asked_for_is_not_there() -> None:
    guard, app = StreamGuard(MemoryLog(), authorize=anyone_with_the_id), Starlette()
    guard.install(app)
    with serving(app) as server:
        assert exchange(server.connect(), "GET", "/ready").status == 404
