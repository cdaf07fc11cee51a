"""The live page's endpoints: off unless enabled, who may see them, and the guarded stream that feeds the page."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import flask
import pytest
from aiohttp import web
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount, Route

from streamguard import anyone_with_the_id, client
from streamguard.adapters.aiohttp import StreamGuard as AiohttpGuard
from streamguard.adapters.dashboard import Dashboard, dashboard_of
from streamguard.adapters.endpoints import Endpoints
from streamguard.adapters.flask import StreamGuard as FlaskGuard
from streamguard.adapters.seal import SealMiddleware
from streamguard.adapters.starlette import StreamGuard, guarded
from streamguard.app import StreamGuard as BaseGuard
from streamguard.browser import style_of
from streamguard.core.receipt import Verdict
from streamguard.log.memory import MemoryLog
from streamguard.observe.live import PAGE, Live
from tests.adapters.aiohttp_serving import serving_aiohttp
from tests.adapters.servers import Gate, Server, serving
from tests.adapters.wsgi_servers import serving_wsgi
from tests.asking import http
from tests.observe.noted import Noted
from tests.observe.test_live import Clock

PASSWORD = "correct horse battery"
BASIC = {"authorization": "Basic " + base64.b64encode(f"me:{PASSWORD}".encode()).decode()}
FILES = ("", "/live.css", "/live.js", "/feed")


def made(*observers: Any) -> Any:
    """What a guard is made with."""
    return {"log": MemoryLog(), "authorize": anyone_with_the_id, "observe": observers}


def starlette_app(*observers: Any, **routes: Any) -> tuple[Starlette, StreamGuard]:
    guard, app = StreamGuard(**made(*observers)), Starlette(routes=[Route(f"/{n}", r) for n, r in routes.items()])
    guard.install(app, "/streams")
    return app, guard


@contextmanager
def on_starlette(live: Live) -> Iterator[str]:
    with serving(starlette_app(live)[0]) as server:
        yield server.url


@contextmanager
def on_plain_asgi(live: Live) -> Iterator[str]:
    with serving(SealMiddleware(Endpoints(BaseGuard(**made(live)), "/streams"))) as server:
        yield server.url


@contextmanager
def on_aiohttp(live: Live) -> Iterator[str]:
    app, guard = web.Application(), AiohttpGuard(**made(live))
    guard.install(app, "/streams")
    with serving_aiohttp(app) as server:
        yield server.url


@contextmanager
def on_flask(live: Live) -> Iterator[str]:
    app, guard = flask.Flask("pages"), FlaskGuard(**made(live))
    guard.install(app, "/streams")
    with serving_wsgi("waitress", app) as url:
        yield url


def pictures(url: str, count: int, headers: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """The first of a feed."""
    found: list[dict[str, Any]] = []
    with client.stream_sync("GET", f"{url}/streams/dashboard/feed", headers=BASIC | (headers or {})) as answer:
        for frame in answer.frames():
            found.append(json.loads(frame.data))
            if len(found) == count:
                break
    return found


@pytest.mark.parametrize("site", [on_starlette, on_plain_asgi, on_aiohttp, on_flask])
def test_whoever_gives_the_password_has_the_page_and_its_feed_and_nobody_else(site: Callable[[Live], Any]) -> None:
    with site(Live(password=PASSWORD, period=0.05)) as url:
        at = f"{url}/streams/dashboard"
        for file in FILES:
            for wrong in ({}, {"authorization": "Basic !"}, {"authorization": BASIC["authorization"] + "eA=="}):
                refused = http.get(at + file, headers=wrong)
                assert (refused.status_code, refused.json()["code"]) == (401, "forbidden")
                assert refused.headers["www-authenticate"].startswith("Basic realm=")
        page, style, script = (http.get(at + file, headers=BASIC) for file in FILES[:3])
        assert (page.status_code, page.content) == (200, (PAGE / "live.html").read_bytes())
        assert [each.headers["content-type"].partition(";")[0] for each in (page, style, script)] == [
            "text/html", "text/css", "text/javascript"
        ]  # fmt: skip
        assert style.content == style_of(PAGE / "live.css")
        assert "default-src 'none'; script-src 'self'" in page.headers["content-security-policy"]
        assert http.get(f"{at}/other", headers=BASIC).status_code == 404
        assert [each["number"] for each in pictures(url, 2)] == [1, 2]


def test_without_a_live_there_is_nothing_at_its_address() -> None:
    app, _ = starlette_app(Noted())
    with serving(app) as server:
        for file in FILES:
            assert http.get(f"{server.url}/streams/dashboard{file}", headers=BASIC).json()["code"] == "no_such_endpoint"


def test_authorize_is_asked_with_the_request_and_the_action_and_the_guards_own_is_not() -> None:
    asked: list[Any] = []

    async def authorize(request: Request, action: str) -> str | None:
        asked.append((type(request), action))
        return request.headers.get("x-operator")

    def own(request: Request, action: str) -> str:
        raise AssertionError(action)

    guard, app = StreamGuard(MemoryLog(), authorize=own, observe=Live(authorize=authorize)), Starlette()
    guard.install(app, "/streams")
    with serving(app) as server:
        at = f"{server.url}/streams/dashboard"
        assert [http.get(at, headers=given).status_code for given in ({}, BASIC, {"x-operator": "ann"})] == [
            403, 403, 200
        ]  # fmt: skip
    assert asked == [(Request, "dashboard")] * 3


@pytest.mark.parametrize(
    ("lives", "words"),
    [
        ([Live(authorize=anyone_with_the_id)], "to everybody"),
        ([Live(authorize=lambda request: "me")], r"function of \(request, action\)"),
        ([Live(password=PASSWORD), Live(password=PASSWORD)], "one live page"),
    ],
)
def test_a_page_that_all_could_see_or_that_is_there_twice_is_refused_at_the_start(lives: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        starlette_app(*lives)


def test_the_feed_and_the_first_question_of_a_browser_are_not_in_the_picture_and_a_wrong_password_is() -> None:
    noted, gate = Noted(), Gate()
    live = Live(password=PASSWORD, period=0.05)

    @guarded(observe=live)
    async def waits(request: Request) -> AsyncIterator[str]:
        yield "a"
        await gate

    app, _ = starlette_app(live, noted, waits=waits)
    with serving(app) as server, server.connect() as connection:
        connection.get("/waits")
        connection.until(b'"a"')
        http.get(f"{server.url}/streams/dashboard")
        http.get(f"{server.url}/streams/dashboard", headers={"authorization": "Basic eA=="})
        head = pictures(server.url, 3)[-1]["head"]
        gate.open()
        connection.until(b"0\r\n\r\n")
    assert (head["open"]["direct"], head["opened"], head["refused"], head["items"]) == (1, 1, 1, 1)
    assert noted.names() == ["refused"]


def feed_of(live: Live) -> tuple[BaseGuard, Any]:
    guard = BaseGuard(**made(live))
    page = dashboard_of(guard)
    assert isinstance(page, Dashboard)
    return guard, page._pictures()


def test_a_reader_that_missed_pictures_gets_the_newest_whole_and_one_that_did_not_the_difference() -> None:
    clock = Clock()
    live = Live(password=PASSWORD, period=0.05, clock=clock)

    async def main() -> list[tuple[int, bool]]:
        (_, quick), (_, slow) = feed_of(live), feed_of(live)
        found: list[tuple[int, bool]] = []
        await anext(slow)
        for _ in range(4):
            block = await anext(quick)
            found.append((block.fields["number"], block.fields["whole"]))
            clock.now += 0.05
        block = await anext(slow)
        found.append((block.fields["number"], block.fields["whole"]))
        return found

    assert anyio.run(main) == [(1, True), (2, False), (3, False), (4, False), (5, True)]


def test_a_feed_is_whole_when_the_process_is_told_to_go_and_does_not_hold_it_up() -> None:
    live = Live(password=PASSWORD, period=0.05)
    app, guard = starlette_app(live)
    with serving(app) as server:
        with client.stream_sync("GET", f"{server.url}/streams/dashboard/feed", headers=BASIC) as answer:
            for number, _ in enumerate(answer.frames()):
                if number == 1:
                    guard.drain(60.0)
        assert answer.receipt.verdict is Verdict.COMPLETE


def test_a_page_is_asked_again_who_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamguard.adapters.dashboard._ASKED_AGAIN", 0.2)
    with on_starlette(Live(password=PASSWORD, period=0.05)) as url:
        with client.stream_sync("GET", f"{url}/streams/dashboard/feed", headers=BASIC) as answer:
            numbers = [json.loads(frame.data)["number"] for frame in answer.frames()]
        assert answer.receipt.verdict is Verdict.COMPLETE
    assert numbers == sorted(numbers)


def test_its_addresses_hold_where_the_application_is_mounted_and_with_a_slash_behind() -> None:
    def asked(server: Server, path: str) -> str:
        return http.get(f"{server.url}{path}", headers=BASIC, follow_redirects=True).url.path

    inner, _ = starlette_app(Live(password=PASSWORD))
    with serving(Starlette(routes=[Mount("/below", inner)])) as server:
        assert asked(server, "/below/streams/dashboard/") == "/below/streams/dashboard"
        assert http.get(f"{server.url}/below/streams/dashboard/live.js", headers=BASIC).status_code == 200
        head = http.head(f"{server.url}/below/streams/dashboard", headers=BASIC)
        assert (head.status_code, head.content) == (200, b"")
        assert int(head.headers["content-length"]) == len((PAGE / "live.html").read_bytes())
        assert http.head(f"{server.url}/below/streams/dashboard/feed", headers=BASIC).status_code == 200
