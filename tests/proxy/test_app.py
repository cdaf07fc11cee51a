"""What the proxy adds to an upstream: streams that outlive their connections, and who may what."""

from __future__ import annotations

import gzip
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest
from starlette.routing import Route

from streamguard import client
from streamguard.adapters.starlette import SealMiddleware, guarded
from streamguard.core.receipt import Verdict
from streamguard.log.memory import MemoryLog
from streamguard.proxy.app import ProxySettings, proxy_app, who_by
from streamguard.proxy.upstream import Upstream
from streamguard.runtime.slots import Limits
from streamguard.testing.proxy import HEAD, FaultProxy, Plan
from tests.adapters.asgi_apps import exchange
from tests.adapters.logged_apps import wait_until
from tests.adapters.middleware_apps import DONE, EVENTS, chunk, events, streaming
from tests.adapters.servers import DEADLINE, Gate, serving
from tests.adapters.test_middleware_sockets import Site
from tests.asking import http
from tests.proxy.fronted import answered, fronted, in_front

SSE = {"accept": "text/event-stream"}
ASKS = {"json": {"stream": True}}
WHOLE = ["a", "b", None, "DONE"]


def contents(data: bytes) -> list[str | None]:
    """What each event of a chat says."""
    return [
        "DONE" if payload == "[DONE]" else json.loads(payload)["choices"][0]["delta"].get("content")
        for _, payload in events(data)
    ]


def test_a_client_that_is_cut_reads_the_rest_and_the_upstream_is_asked_once() -> None:
    made = Site()
    with fronted(made.app) as (proxy, _):
        with proxy.connect() as connection:
            connection.get("/waits", accept="text/event-stream")
            first = connection.until(b"\n\n")
        made.go.open()
        at = next(line[4:] for line in reversed(first.decode().split("\n")) if line.startswith("id: "))
        for path in ("waits", "streams"):
            again = http.get(f"{proxy.url}/{path}", headers={**SSE, "last-event-id": at})
            assert contents(again.content) == WHOLE[1:]
    assert made.starts == 1


@pytest.mark.parametrize(("form", "status"), [("warn", 200), ("buffer", 502), ("refuse", 426)])
def test_of_a_broken_answer_a_hop_of_http_1_0_never_gets_the_half_alone(form: Any, status: int) -> None:
    """nginx at its defaults asks so, and such a body's end is the connection's."""
    with fronted(streaming([chunk("a"), chunk("b")], ends=False), http10=form) as (proxy, _):
        answer = answered(proxy, b"POST /v1/chat/completions HTTP/1.0\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"[DONE]" not in answer
    assert (b'data: {"error"' in answer) == (form == "warn")


def test_our_client_comes_back_by_itself_and_has_a_receipt() -> None:
    made = Site()

    async def read(port: int) -> tuple[list[str], Any, int]:
        plan = Plan(cut_at=300, after=HEAD)
        async with FaultProxy("127.0.0.1", port, plan=lambda number: plan if number == 0 else Plan()) as cutting:
            async with client.stream("POST", f"{cutting.url}/good", content=b"a") as answer:
                found = [frame.data async for frame in answer.frames()]
            return found, answer.receipt, cutting.connections

    with fronted(made.app) as (proxy, _):
        found, receipt, connections = anyio.run(read, proxy.port)
    assert (len(found), receipt.verdict) == (3, Verdict.COMPLETE)  # the marker is the end itself
    assert (made.starts, connections) == (1, 2)


def test_the_same_key_is_asked_of_the_upstream_once() -> None:
    made = Site()
    with fronted(made.app) as (proxy, _):
        headers = {"idempotency-key": "k" * 22}
        answers = [http.post(f"{proxy.url}/good", content="a", headers=headers) for _ in range(2)]
        other = http.post(f"{proxy.url}/good", content="x", headers=headers)
        plain = [http.post(f"{proxy.url}/plain", content="a", headers=headers).json() for _ in range(2)]
    assert [contents(answer.content) for answer in answers] == [WHOLE, WHOLE]
    assert (made.starts, other.status_code, plain) == (1, 422, [{"body": "a"}] * 2)


def test_of_several_requests_with_one_key_at_one_moment_one_is_asked_of_the_upstream() -> None:
    made, asked, answers = Site(), threading.Semaphore(0), threading.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        """A model that says only after a while that it streams."""
        if scope["type"] == "http":
            asked.release()
            await anyio.to_thread.run_sync(answers.wait, DEADLINE)
        await made.app(scope, receive, send)

    with fronted(slow) as (proxy, _), ThreadPoolExecutor(4) as pool:
        headers = {"idempotency-key": "k" * 22}
        posts = [pool.submit(http.post, f"{proxy.url}/good", content="a", headers=headers) for _ in range(4)]
        assert asked.acquire(timeout=DEADLINE)
        several = asked.acquire(timeout=0.3)  # long enough for the others to come, where nobody holds them
        answers.set()
        found = [contents(post.result().content) for post in posts]
    assert not several
    assert (found, made.starts) == ([WHOLE] * 4, 1)


def test_a_key_with_an_empty_body_is_answered() -> None:
    with fronted(Site().app) as (proxy, _):
        headers = {"idempotency-key": "k" * 22, "content-type": "application/json"}
        answers = [http.post(f"{proxy.url}/good", content=b"", headers=headers, timeout=5) for _ in range(2)]
    assert [contents(answer.content) for answer in answers] == [WHOLE, WHOLE]


def test_a_cancel_stops_the_upstream() -> None:
    made = Site()
    with fronted(made.app) as (proxy, _), proxy.connect() as connection:
        connection.get("/waits", streamguard="v=1")
        connection.until(b"data:")
        head = connection.received.partition(b"\r\n\r\n")[0].decode()
        sid = head.partition('cursor="')[2].partition(".")[0]
        answer = http.delete(f"{proxy.url}/streams", headers={"streamguard-stream": sid})
        assert answer.status_code == 204
        made.closed.wait()
        connection.until(b".cancelled\n")


def test_an_upstream_that_falls_silent_is_stalled_and_is_left() -> None:
    made = Site()
    with fronted(made.app, stall=1.0) as (proxy, _):  # which the head of the answer keeps
        response = exchange(proxy.connect(), path="/waits")
        made.closed.wait()
    assert (response.clean, response.verdict, b"stalled" in response.body) == (False, Verdict.FAILED, True)


def test_signs_of_life_fill_the_silence_before_the_first_token() -> None:
    go = Gate()

    async def prefill() -> Any:
        await go
        for piece in (chunk("a"), chunk(reason="stop"), DONE):
            yield piece

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", EVENTS)]})
        async for piece in prefill():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    with fronted(app, heartbeat=0.02) as (proxy, _), proxy.connect() as connection:
        connection.get()
        connection.until(b": hb", 3)
        assert b"data:" not in connection.received
        go.open()
        connection.until(b"[DONE]")


def test_a_stream_is_its_principals_and_nobody_elses() -> None:
    """Also where a proxy in front let a header of the client's stand beside its own."""
    made = Site()
    ann, bob = {"x-user": "ann"}, {"x-user": "bob"}
    with fronted(made.app, principal_header="X-User") as (proxy, _):
        first = http.post(f"{proxy.url}/good", headers={**ann, "streamguard": "v=1"})
        at = first.headers["streamguard"].partition('cursor="')[2].partition('"')[0]
        found = {}
        for name, who in {"ann": ann, "bob": bob, "nobody": {}, "empty": {"x-user": ""}}.items():
            headers = [*who.items(), ("last-event-id", at), ("streamguard", "v=1")]
            found[name] = http.get(f"{proxy.url}/streams", headers=headers).status_code
        both = [("x-user", "bob"), ("x-user", "ann"), ("last-event-id", at), ("streamguard", "v=1")]
        found["both"] = http.get(f"{proxy.url}/good", headers=both).status_code
        found["cancels"] = http.delete(f"{proxy.url}/streams", headers={**bob, "last-event-id": at}).status_code
        unknown = at[:10] + ("A" if at[10] != "A" else "B") + at[11:]
        headers = [*ann.items(), ("last-event-id", unknown), ("streamguard", "v=1")]
        found["guessed"] = http.get(f"{proxy.url}/streams", headers=headers).status_code
        refused = http.post(f"{proxy.url}/good", **ASKS)
        plain = http.get(f"{proxy.url}/plain")
    assert found["ann"] == 200
    assert {name: status for name, status in found.items() if name != "ann"} == {
        "bob": 404, "nobody": 403, "empty": 403, "both": 403, "cancels": 404, "guessed": 404
    }  # fmt: skip
    assert (made.starts, refused.status_code, plain.status_code) == (1, 403, 200)


def test_who_asks_is_kept_as_a_digest() -> None:
    who = who_by("Authorization")
    found = who({"headers": [(b"authorization", b"Bearer secret")]}, "start")
    assert found == who({"headers": [(b"Authorization", b" Bearer secret ")]}, "read")
    assert found is not None
    assert "secret" not in found
    assert len(found) == 64


def test_a_request_that_has_no_room_is_refused_before_the_upstream_hears_of_it() -> None:
    made = Site()
    limits = Limits(max_streams=1, max_waiting=0)
    with fronted(made.app, limits=limits) as (proxy, _), proxy.connect() as connection:
        connection.request("POST", "/waits", body=b'{"stream": true}', content_type="application/json")
        connection.until(b"data:")
        assert http.post(f"{proxy.url}/good", **ASKS).status_code == 503
        assert http.post(f"{proxy.url}/plain", **ASKS).status_code == 503  # it asks for a stream
        assert http.post(f"{proxy.url}/plain", json={}).status_code == 200
        assert made.starts == 1
        made.go.open()
        connection.until(b"[DONE]")

        def freed() -> bool:
            return http.post(f"{proxy.url}/plain", **ASKS).status_code == 200

        wait_until(freed)
        # an answer that is no stream gave its slot back
        assert http.post(f"{proxy.url}/plain", **ASKS).status_code == 200
        assert http.post(f"{proxy.url}/good", **ASKS).status_code == 200
    assert made.starts == 2


def test_a_request_whose_body_is_not_looked_at_gets_its_slot_at_the_head_of_its_answer() -> None:
    made = Site()
    with fronted(made.app, limits=Limits(max_streams=1, max_waiting=0)) as (proxy, _), proxy.connect() as connection:
        connection.get("/waits")
        connection.until(b"data:")
        assert http.get(f"{proxy.url}/good").status_code == 503
        made.closed.wait()  # the upstream had begun, and was left


@pytest.mark.parametrize("compress", [True, False])
def test_a_reader_that_asks_for_it_has_its_stream_compressed(compress: bool) -> None:
    app = streaming([chunk("a"), chunk(reason="stop"), DONE])
    headers = {"streamguard": "v=1, compress=gzip", "accept-encoding": "gzip"}
    with fronted(app, compress=compress) as (proxy, _), http.stream("GET", proxy.url, headers=headers) as response:
        raw = b"".join(response.iter_raw())
    assert (response.headers.get("content-encoding") == "gzip") == compress
    assert contents(gzip.decompress(raw) if compress else raw)[-1] == "DONE"


def test_the_endpoints_stand_where_they_are_told_to_and_nowhere_else() -> None:
    made = Site()
    with fronted(made.app, path="/sg/streams", ready="/sg/ready") as (proxy, _):
        assert exchange(proxy.connect(), path="/sg/streams/selftest").verdict is Verdict.FAILED
        assert b"export" in http.get(f"{proxy.url}/sg/streams/streamguard.js").content
        assert http.get(f"{proxy.url}/sg/ready").status_code == 200
        for tail in ("..%2f..%2fetc%2fpasswd", "%2e%2e/passwd", "streamguard.js/..", "streamguard.d.ts", "x"):
            assert exchange(proxy.connect(), path=f"/sg/streams/{tail}").status in (400, 404)
        assert http.get(f"{proxy.url}/streams").status_code == 200  # the upstream's
    assert made.starts == 1


def test_a_cancel_passes_through_the_proxy_and_a_guarded_server_to_its_source() -> None:
    reached, closed = Gate(), Gate()

    @guarded
    async def story(request: Any) -> Any:
        try:
            yield "one "
            reached.open()
            await Gate()
        finally:
            closed.open()

    from starlette.applications import Starlette

    app = SealMiddleware(Starlette(routes=[Route("/story", story)]))
    with fronted(app) as (proxy, _):
        with proxy.connect() as connection:
            connection.get("/story", streamguard="v=1")
            connection.until(b"one ")
            assert b"dialect=native" in connection.received  # the server's own guard: it passes as it is
            reached.wait()
        closed.wait()


def test_where_an_upstream_has_its_own_streams_resumed_nothing_is_guarded() -> None:
    """A cursor there is the upstream's; anywhere else it is the proxy's, whose log has no such stream."""
    made, cursor = Site(), "AAAAAAAAAAAAAAAAAAAAAA.3.21.0badcafe"
    with fronted(made.app, path="/guarded", upstream_streams="/plain") as (proxy, _):
        found = {
            path: http.get(proxy.url + path, headers={"streamguard": "v=1", "last-event-id": cursor}).status_code
            for path in ("/plain", "/plain/x", "/plainer", "/guarded", "/good")
        }
    assert found == {"/plain": 200, "/plain/x": 404, "/plainer": 404, "/guarded": 404, "/good": 404}
    assert made.starts == 0


def test_a_proxy_behind_a_proxy_leaves_the_guard_to_the_inner_one() -> None:
    whole = [chunk("a"), chunk("b"), chunk(reason="stop"), DONE]
    with fronted(streaming(whole)) as (inner, _), in_front(inner.port) as outer:
        response = exchange(outer.connect(), path="/")
    assert (response.clean, response.verdict, contents(response.body)) == (True, Verdict.COMPLETE, WHOLE)


def test_a_process_that_is_told_to_go_refuses_streams_and_serves_the_rest() -> None:
    made = Site()
    with serving(made.app) as behind:
        app = proxy_app(Upstream.parse(behind.url), MemoryLog(), ProxySettings(ready="/ready", on_sigterm=False))
        guarding: Any = app.app
        with serving(app, lifespan="on") as proxy:
            proxy.call(guarding.draining.drain)
            assert http.get(f"{proxy.url}/ready").status_code == 503
            assert http.post(f"{proxy.url}/good", **ASKS).status_code == 503
            assert http.get(f"{proxy.url}/plain").status_code == 200
    assert made.starts == 0


def test_the_live_page_shows_the_proxys_streams_to_who_has_the_password_and_is_not_there_without_one() -> None:
    made = Site()
    at, password = "streams/dashboard", ("me", "correct horse battery")
    with fronted(made.app, dashboard=password[1]) as (proxy, _):
        with proxy.connect() as connection:
            connection.get("/waits", accept="text/event-stream", x_request_id="mine")
            connection.until(b"\n\n")
            asking = (None, ("me", "x"), password)
            answers = [http.get(f"{proxy.url}/{at}", auth=given).status_code for given in asking]
            with http.stream("GET", f"{proxy.url}/{at}/feed", auth=password) as feed:
                data = next(line for line in feed.iter_lines() if '"picture"' in line)
            made.go.open()
    rows = json.loads(data.removeprefix("data: "))["rows"].values()
    assert sorted((row[1], row[3]) for row in rows) == [("producer", "mine"), ("reader", "mine")]
    assert (answers, made.starts) == ([401, 401, 200], 1)
    with fronted(made.app) as (proxy, _):
        assert http.get(f"{proxy.url}/{at}", auth=password).status_code == 404
