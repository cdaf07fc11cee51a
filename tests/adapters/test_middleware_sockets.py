"""GuardMiddleware on uvicorn: aborts on the wire, readers that leave, and streams that outlive their connections."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from streamguard.adapters import starlette
from streamguard.adapters.middleware import GuardMiddleware
from streamguard.app import StreamGuard, anyone_with_the_id
from streamguard.core.receipt import Verdict
from streamguard.log.memory import MemoryLog
from streamguard.runtime.runs import Detach
from streamguard.runtime.timing import Timing
from tests.adapters.asgi_apps import exchange
from tests.adapters.logged_apps import cursors
from tests.adapters.middleware_apps import DONE, chunk, events
from tests.adapters.servers import Gate, Server, serving, stack_params

TIMING = Timing(linger=0.05)
SSE = {"accept": "text/event-stream"}


class Site:
    """An application of Starlette's that streams already, under a middleware of its own, and its books."""

    def __init__(self) -> None:
        self.reached, self.go, self.closed, self.behind = Gate(), Gate(), Gate(), Gate()
        self.starts = 0
        routes = [
            Route(path, endpoint, methods=["GET", "POST"])
            for path, endpoint in (
                ("/plain", self.plain), ("/{how}", self.chat), ("/{how}/chat/completions", self.chat)
            )
        ]
        self.app = Starlette(routes=routes)

    async def plain(self, request: Request) -> JSONResponse:
        return JSONResponse({"body": (await request.body()).decode()})

    async def chat(self, request: Request) -> StreamingResponse:
        asked = (await request.body()).decode() or "a"
        return StreamingResponse(
            self.tokens(request.path_params["how"], asked),
            media_type="text/event-stream",
            background=BackgroundTask(self.behind.open),
        )

    async def tokens(self, how: str, asked: str) -> AsyncIterator[bytes]:
        self.starts += 1
        try:
            yield chunk(asked)
            if how == "raises":
                raise RuntimeError("the model broke")
            if how == "waits":
                self.reached.open()
                await self.go
            if how != "cut":
                yield chunk("b")
                yield chunk(reason="stop")
                yield DONE
        finally:
            self.closed.open()


@contextmanager
def site(limit: float = 1, **options: Any) -> Iterator[tuple[Site, Server, GuardMiddleware]]:
    made = Site()
    middleware = GuardMiddleware(made.app, mode="guard", on_sigterm=False, timing=TIMING, **options)
    with serving(middleware, lifespan="on", timeout_graceful_shutdown=limit) as server:
        yield made, server, middleware


@pytest.mark.parametrize("stack", stack_params()[::3])  # h11 on asyncio, httptools on uvloop
def test_a_cut_answer_is_aborted_and_a_whole_one_is_not(stack: tuple[str, str]) -> None:
    middleware = GuardMiddleware(Site().app, mode="guard", on_sigterm=False, timing=TIMING)
    with serving(middleware, http=stack[0], loop=stack[1]) as server:
        for how, clean, verdict in (
            ("good", True, Verdict.COMPLETE), ("cut", False, Verdict.FAILED), ("raises", False, Verdict.FAILED)
        ):  # fmt: skip
            response = exchange(server.connect(), path=f"/{how}")
            assert (response.clean, response.verdict) == (clean, verdict)
        plain = exchange(server.connect(), "POST", "/plain", body=b"asked")
    assert (plain.status, plain.body) == (200, b'{"body":"asked"}')
    assert middleware.report.endpoints == {"GET /{how}": [3, 2]}
    assert middleware.report.codes == {"unproven_end": 1, "source_error": 1}


def test_an_sdk_gets_the_whole_and_raises_on_a_cut() -> None:
    found: dict[str, str] = {}
    with site() as (_, server, _middleware):
        for how in ("good", "cut", "raises"):
            sdk = openai.OpenAI(api_key="k", base_url=f"{server.url}/{how}", max_retries=0)
            answer = sdk.chat.completions.create(model="m", stream=True, messages=[{"role": "user", "content": "hi"}])
            try:
                found[how] = (list(answer)[1].choices[0].delta.content or "") + ", whole"
            except openai.APIError as exc:
                found[how] = str(exc)
    assert found == {
        "good": "b, whole", "cut": "the provider's stream ended without its end marker", "raises": "RuntimeError"
    }  # fmt: skip


def test_a_reader_that_leaves_stops_the_generator_and_what_runs_behind_it_runs() -> None:
    with site() as (made, server, middleware):
        with server.connect() as connection:
            connection.get("/waits")
            connection.until(b"data:")
            made.reached.wait()
        made.closed.wait()
        made.behind.wait()
        exchange(server.connect(), path="/good")
    assert (middleware.report.left, middleware.report.complete) == (1, 1)


def guard(**options: Any) -> StreamGuard:
    return StreamGuard(MemoryLog(), authorize=anyone_with_the_id, on_sigterm=False, **options)


def test_a_cut_connection_goes_on_where_it_was() -> None:
    """The application is asked once, and does not learn of the cut."""
    with site(guard=guard(on_disconnect=Detach(grace=30))) as (made, server, _):
        with server.connect() as connection:
            connection.get("/waits", accept="text/event-stream")
            first = connection.until(b"\n\n")
        made.go.open()
        at = next(line[4:] for line in reversed(first.decode().split("\n")) if line.startswith("id: "))
        answers = [
            httpx.get(f"{server.url}/{path}", headers={**SSE, "last-event-id": at}) for path in ("waits", "streams")
        ]
    for answer in answers:
        assert [data for _, data in events(answer.content)][-1] == "[DONE]"
        assert len(events(answer.content)) == 3
    assert made.starts == 1


def test_a_stream_in_a_log_ends_where_its_request_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    """As uvicorn does at its shutdown, to whatever has not ended."""
    with site(0.05, guard=guard(on_disconnect=Detach(grace=30))) as (made, server, middleware):
        connection = server.connect()
        connection.get("/waits", accept="text/event-stream")
        connection.until(b"\n\n")
    connection.close()
    assert (made.closed.opened, middleware.report.streams, middleware.report.complete) == (True, 1, 0)


def test_the_same_key_is_one_generation_and_the_application_reads_its_body() -> None:
    with site(guard=guard()) as (made, server, _):
        headers = {"idempotency-key": "k" * 22}
        answers = [httpx.post(f"{server.url}/good", content="asked", headers=headers) for _ in range(2)]
        other = httpx.post(f"{server.url}/good", content="other", headers=headers)
        plain = httpx.post(f"{server.url}/plain", content="asked", headers={"idempotency-key": "short"})
        weak = httpx.post(f"{server.url}/good", content="asked", headers={"idempotency-key": "short"})
    texts = [json.loads(events(answer.content)[0][1])["choices"][0]["delta"]["content"] for answer in answers]
    assert (texts, made.starts, other.status_code) == (["asked"] * 2, 1, 422)
    assert plain.json() == {"body": "asked"}  # the key is the application's own business there
    assert (weak.status_code, weak.json()["code"]) == (400, "weak_key")


def test_a_stream_that_nobody_may_start_is_refused_and_the_generator_does_not_begin() -> None:
    refusing = StreamGuard(MemoryLog(), authorize=lambda request, action: None, on_sigterm=False)
    with site(guard=refusing) as (made, server, _):
        assert httpx.get(f"{server.url}/good").status_code == 403
        assert httpx.get(f"{server.url}/plain").status_code == 200
    assert made.starts == 0


def test_a_guard_that_the_application_installed_is_asked_with_its_own_requests() -> None:
    asked: list[Any] = []

    def who(request: Request, action: str) -> str:
        asked.append((type(request), action))
        return "ann"

    own = starlette.StreamGuard(MemoryLog(), authorize=who, on_sigterm=False)
    made = Site()
    own.install(made.app, "/kept")
    middleware = GuardMiddleware(made.app, own, "guard", timing=TIMING)
    with serving(middleware, lifespan="on") as server:
        first = httpx.get(f"{server.url}/good", headers=SSE)
        last = str(cursors(first.content)[-1])
        again = httpx.get(f"{server.url}/kept", headers={**SSE, "last-event-id": last})
    assert 'resume="/kept"' in first.headers["streamguard"]
    assert asked[0] == (Request, "start")
    assert again.status_code == 204
