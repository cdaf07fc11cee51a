"""Flask: contexts of sources, views of every kind, and what passes a guarded view."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from flask import Flask, Response, g, has_app_context, jsonify, request, session

from streamguard.adapters.flask import GuardedResponse, StreamGuard, guarded
from streamguard.core.errors import SourceFailed
from streamguard.log.memory import MemoryLog
from streamguard.observe.hooks import Outcome
from streamguard.runtime.blocking import BodyAborted
from tests.adapters.servers import Connection
from tests.adapters.wsgi_calls import called, calling
from tests.adapters.wsgi_servers import serving_wsgi


@pytest.fixture
def app() -> Flask:
    app = Flask(__name__)
    app.secret_key = "of a test"
    return app


def two() -> Iterator[str]:
    yield "one "
    yield "two"


def test_a_view_that_yields_has_its_request_and_a_context_that_lasts_as_long_as_it_streams(app: Flask) -> None:
    stream_in_a_context(app, {})


def test_so_has_one_on_the_servers_thread(app: Flask) -> None:
    stream_in_a_context(app, {"own_thread": False})
    assert not has_app_context()  # what it pushed there is its own


def stream_in_a_context(app: Flask, options: Any) -> None:
    torn: list[str] = []
    closed: list[str] = []

    @app.teardown_appcontext
    def teardown(exc: Any) -> None:
        torn.append(g.pop("resource", "nothing"))

    @app.post("/")
    @guarded(**options)
    def chat() -> Iterator[str]:
        g.resource = "a session"
        try:
            yield f"{request.json['prompt']} {session.get('user', 'nobody')}"
            assert torn == ["nothing"]  # the view's own context is over, and this one is not
            yield g.resource
        finally:
            closed.append(request.path)

    body = b'{"prompt": "hello"}'
    more = {"CONTENT_TYPE": "application/json"}
    answer = called(app, method="POST", body=body, **more)
    assert b'data: "hello nobody' in answer.body
    assert b"a session" in answer.body
    assert (torn, closed) == (["nothing", "a session"], ["/"])
    with serving_wsgi("werkzeug", app) as url, Connection(int(url.rpartition(":")[2])) as connection:
        connection.request("POST", "/", body=body, content_type="application/json")
        assert b"event: end" in connection.rest()


@pytest.mark.parametrize("kind", ["yields", "returns", "yields later", "returns later", "a response"])
def test_views_of_every_kind_are_guarded(app: Flask, kind: str) -> None:
    def returning() -> Iterator[str]:
        return two()

    async def yielding_later() -> AsyncIterator[str]:
        yield request.path
        yield "two"

    async def returning_later() -> Any:
        return yielding_later()

    def response() -> Any:
        return GuardedResponse(two(), 201, {"x-own": "kept"})

    ends: list[Outcome] = []
    views = {
        "yields": two,
        "returns": returning,
        "yields later": yielding_later,
        "returns later": returning_later,
        "a response": response,
    }
    view = views[kind]
    app.add_url_rule("/", "view", view if kind == "a response" else guarded(on_end=ends.append)(view))
    answer = called(app)
    assert answer.cut is None
    assert answer.body.count(b"event: end\n") == 1
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    if kind == "a response":
        assert (answer.status, answer.headers["x-own"]) == (201, "kept")
    else:
        assert [(end.status, end.items) for end in ends] == [("complete", 2)]
    head = called(app, method="HEAD")
    assert (head.body, head.headers.get("content-length")) == (b"", None)


def test_a_decorator_above_the_route_s_is_told_in_the_log_once(app: Flask, caplog: pytest.LogCaptureFixture) -> None:
    @guarded
    @app.get("/above")
    def chat() -> Iterator[str]:
        yield from two()

    @app.get("/below")
    @guarded
    def right() -> Iterator[str]:
        yield from two()

    for path in ("/below", "/nowhere", "/above", "/above"):
        called(app, path)
    (said,) = [record.getMessage() for record in caplog.records if record.name == "streamguard"]
    assert "chat' was answered unguarded" in said
    assert "put @guarded below the route's decorator" in said


def test_a_failure_cuts_the_body_and_what_was_to_be_done_at_its_close_is_done(app: Flask) -> None:
    done: list[str] = []

    def failing() -> Iterator[str]:
        yield "one"
        raise SourceFailed("overloaded", "come back later")

    @app.get("/")
    def view() -> Response:
        response = GuardedResponse(failing())
        response.call_on_close(lambda: done.append(str(response.outcome and response.outcome.status)))
        return response

    @app.after_request
    def after(response: Response) -> Response:
        assert response.mimetype == "text/event-stream"
        response.headers["x-after"] = "1"
        return response

    with calling(app) as answer:
        answer.read()
    assert isinstance(answer.cut, BodyAborted)
    assert answer.headers["x-after"] == "1"
    assert done == ["failed"]


def test_a_response_of_the_views_own_passes_unless_it_would_stream(app: Flask) -> None:
    @app.get("/plain")
    @guarded
    def plain() -> Any:
        return jsonify(ok=True)

    @app.get("/streams")
    @guarded
    def streams() -> Any:
        return Response(two())

    @app.get("/guarded")
    @guarded
    def other() -> Any:
        return GuardedResponse(two(), dialect="openai")

    assert called(app, "/plain").body == b'{"ok":true}\n'
    assert b"[DONE]" in called(app, "/guarded").body
    app.testing = True
    with app.test_request_context(), pytest.raises(TypeError, match=r"return jsonify\(…\)"):
        guarded(lambda: {"a": 1})()
    with pytest.raises(TypeError, match="would stream unguarded"):
        called(app, "/streams")


def test_streams_in_a_log_are_the_applications_own_routes(app: Flask) -> None:
    asked: list[tuple[str, int]] = []

    def who(asking: Any, action: str) -> str | None:
        asked.append((action, threading.get_ident()))
        return session.get("user", asking.headers.get("user"))

    guard = StreamGuard(MemoryLog(), authorize=who)

    @app.get("/chat/<name>")
    @guard.stream(name=lambda asking: asking.view_args["name"])
    def chat(name: str) -> Iterator[str]:
        yield f"{name} {request.path}"

    @app.get("/other")
    def other() -> Response:
        return guard.response(two(), headers={"x-own": "kept"})

    guard.install(app, "/streams", close_log=False)
    hooks: list[str] = []
    app.before_request(lambda: hooks.append(request.path))
    ada = {"HTTP_USER": "ada", "HTTP_STREAMGUARD": "v=1"}
    answer = called(app, "/chat/c1", **ada)
    assert b'data: "c1 /chat/c1"' in answer.body
    assert called(app, "/streams?name=c1", **ada).body == answer.body
    cursor = answer.headers["streamguard"].split('"')[1]
    status = called(app, "/streams/status", HTTP_LAST_EVENT_ID=cursor, **ada)
    assert b'"status": "complete"' in status.body
    assert called(app, "/chat/c1").status == 403
    assert called(app, "/other", **ada).headers["x-own"] == "kept"
    assert {thread for _, thread in asked} == {threading.get_ident()}
    assert hooks[1] == "/streams"
    with pytest.raises(TypeError, match="is a Flask application"):
        StreamGuard(MemoryLog(), authorize=who).install(object())  # type: ignore[arg-type]
    guard.close()


def test_a_source_that_is_never_begun_is_closed(app: Flask) -> None:
    class Opened:
        closed = 0

        def __iter__(self) -> Iterator[str]:
            raise AssertionError

        def close(self) -> None:
            self.closed += 1

    class Later:
        closed = 0

        async def __aiter__(self) -> AsyncIterator[str]:
            raise AssertionError
            yield

        async def aclose(self) -> None:
            self.closed += 1

    for source in (Opened(), Later()):
        with app.test_request_context():
            response = GuardedResponse(source)
        assert called(response, method="HEAD").status == 200
        assert source.closed
