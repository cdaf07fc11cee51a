"""Pages of another origin resume: what an application lets them read in its first answer is kept with the stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamguard.adapters.cors import cors_of
from streamguard.adapters.middleware import GuardMiddleware
from streamguard.adapters.seal import ASGIApp, Receive, Scope, Send
from streamguard.app import OWN, StreamGuard
from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.log.base import StreamInfo, StreamLog
from streamguard.log.memory import MemoryLog
from streamguard.log.sqlite import SQLiteLog
from tests.adapters.middleware_apps import QUICK, Sent, called, http, streaming

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

ORIGIN = "https://page.example"
ALLOWS = [
    (b"Access-Control-Allow-Origin", ORIGIN.encode()),
    (b"access-control-allow-credentials", b"true"),
    (b"access-control-expose-headers", b"X-Own"),
    (b"access-control-max-age", b"9"),
]
EVENT_SOURCE = {"accept": "text/event-stream", "cache-control": "no-cache"}
OURS = {"streamguard": "v=1"}


class Application:
    """Events, whose head says who may read them; `asked` are the methods and paths that got through to it."""

    def __init__(self, *headers: tuple[bytes, bytes]) -> None:
        self.asked: list[tuple[str, str]] = []
        self._events = streaming([b"data: a\n\n", b"data: b\n\n"], headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.append((scope["method"], scope["path"]))
        if scope["method"] == "GET":
            await self._events(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 299, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def guarded(app: ASGIApp, log: StreamLog | None = None) -> GuardMiddleware:
    def who(scope: Any, action: str) -> str:
        return next((value.decode() for name, value in scope["headers"] if name == b"user"), "ann")

    guard = StreamGuard(log or MemoryLog(), authorize=who, on_sigterm=False)
    return GuardMiddleware(app, guard, "guard", timing=QUICK)


def readable(sent: Sent) -> dict[str, list[str]]:
    """What an answer says to pages of other origins."""
    found: dict[str, list[str]] = {}
    for name, value in sent.messages[0]["headers"]:
        if name.startswith(b"access-control"):
            found.setdefault(name.decode().removeprefix("access-control-"), []).append(value.decode())
    return found


def allowed(sent: Sent) -> bool:
    said = readable(sent)
    names = ", ".join(said.get("expose-headers", ["X-Own"])).lower()
    return (said.get("allow-origin"), said.get("allow-credentials")) == ([ORIGIN], ["true"]) and "x-own" in names


async def begun(middleware: GuardMiddleware, **headers: str) -> tuple[Sent, str, str]:
    """The first answer, the cursor of its first event, and the one before its end."""
    sent = await called(middleware, http(path="/story", **EVENT_SOURCE, **headers))
    first, last = [line[4:] for line in sent.body.decode().split("\n") if line.startswith("id: ")]
    return sent, first, last


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_whatever_answers_for_a_stream_is_as_readable_as_its_first_answer(kind: str, tmp_path: Path) -> None:
    log: StreamLog = MemoryLog() if kind == "memory" else SQLiteLog(tmp_path / "streams.db")
    middleware = guarded(Application(*ALLOWS), log)
    first, at, last = await begun(middleware)
    sid = Cursor.parse(at).sid
    misfit = str(Cursor.parse(at)._replace(crc=1))
    asked = {
        200: [
            http(path="/story", last_event_id=at, **EVENT_SOURCE),
            http(path=f"/streams?after={at}", **EVENT_SOURCE),
            http(path=f"/streams/{sid}", **EVENT_SOURCE),
            http("HEAD", "/streams", last_event_id=at, **EVENT_SOURCE),
            http(path="/streams/status", last_event_id=at),
        ],
        204: [http(path=path, last_event_id=last, **EVENT_SOURCE) for path in ("/story", "/streams")],
        409: [http(path="/story", last_event_id=misfit, **OURS), http("DELETE", "/streams", last_event_id=at)],
    }
    answers = {status: [await called(middleware, scope) for scope in scopes] for status, scopes in asked.items()}
    await log.aclose()
    assert all(sent.status == status for status, all_sent in answers.items() for sent in all_sent)
    assert all(allowed(sent) for sent in [first, *answers[200], *answers[204], *answers[409]])
    assert all("Origin" in (sent.header("vary") or "") for sent in [*answers[200], *answers[204], *answers[409]])
    assert set(readable(answers[200][0])) == {"allow-origin", "allow-credentials", "expose-headers"}


async def test_our_own_header_is_exposed_beside_the_applications() -> None:
    first, _, _ = await begun(guarded(Application(*ALLOWS)))
    assert sorted(readable(first)["expose-headers"]) == ["X-Own", "streamguard"]


async def test_a_repeated_key_is_as_readable() -> None:
    middleware = guarded(Application(*ALLOWS))
    await begun(middleware, idempotency_key="k")
    again = await called(middleware, http(path="/story", idempotency_key="k", **EVENT_SOURCE))
    assert allowed(again)
    assert again.body.count(b"data: ") == 2


async def test_nothing_is_said_of_a_stream_that_is_not_the_askers() -> None:
    middleware = guarded(Application(*ALLOWS))
    _, at, _ = await begun(middleware)
    for path in ("/story", "/streams"):
        sent = await called(middleware, http(path=path, last_event_id=at, user="eve", **OURS))
        assert (sent.status, readable(sent)) == (404, {})


async def test_an_application_that_says_nothing_is_not_spoken_for() -> None:
    middleware = guarded(Application((b"access-control-expose-headers", b"X-Own")))
    _, at, last = await begun(middleware)
    rest = await called(middleware, http(path="/story", last_event_id=at, **EVENT_SOURCE))
    end = await called(middleware, http(path="/story", last_event_id=last, **EVENT_SOURCE))
    assert (readable(rest), readable(end)) == ({"expose-headers": ["streamguard"]}, {})


@pytest.mark.parametrize(("size", "kept"), [(4095, 2), (4096, 0)])
async def test_what_is_kept_is_bounded_and_kept_whole_or_not_at_all(size: int, kept: int) -> None:
    fields = [("Access-Control-Allow-Origin", "*"), ("access-control-expose-headers", "x" * size), ("x-own", "1")]
    assert len(cors_of(fields)) == kept


@pytest.mark.parametrize("options", [{}, {OWN: {"wire": "sse"}}], ids=["none", "without"])
async def test_a_stream_that_was_kept_before_there_were_any_is_read(options: dict[str, Any]) -> None:
    log = MemoryLog()
    zero = cursor_zero("s" * 22)
    await log.create(StreamInfo(zero.sid, "raw", principal="ann", options=options), 15.0)
    sent = await called(guarded(Application(), log), http(path="/streams/status", last_event_id=str(zero)))
    assert (sent.status, readable(sent)) == (200, {})


@pytest.mark.parametrize("path", ["/story", "/streams", "/streams/status", f"/story?after={cursor_zero('s' * 22)}"])
async def test_a_preflight_is_the_applications_to_answer(path: str) -> None:
    app = Application(*ALLOWS)
    sent = await called(guarded(app), http("OPTIONS", path, origin=ORIGIN, access_control_request_method="GET"))
    assert (sent.status, app.asked) == (299, [("OPTIONS", path.partition("?")[0])])


async def test_what_the_endpoints_allow_is_theirs_to_say() -> None:
    app = Application()
    sent = await called(guarded(app), http("OPTIONS", "/streams"))
    assert (sent.status, sent.header("allow"), app.asked) == (204, "GET, HEAD, POST, DELETE, OPTIONS", [])
