"""One connection that reads a stream of a log, by itself: from where, with which head, and what it leaves behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import attrs
import pytest

from streamguard.adapters.asgi import request_facts
from streamguard.adapters.options import AnswerOptions
from streamguard.adapters.reading import ROOT, Reading, why_not
from streamguard.app import OWN, StreamGuard
from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.dialect import Raw
from streamguard.core.errors import SourceFailed
from streamguard.core.flush import EveryTokens
from streamguard.core.framing import FramedEncoder
from streamguard.core.receipt import Verdict
from streamguard.core.verify import StreamVerifier
from streamguard.log.base import (
    CursorMisfit,
    CursorTrimmed,
    LogError,
    LogLost,
    LogUnavailable,
    StreamInfo,
    UnknownStream,
)
from streamguard.log.memory import MemoryLog
from streamguard.runtime.producer import Producer
from streamguard.runtime.readers import Busy
from streamguard.runtime.source import TokenSource
from streamguard.runtime.timing import Timing
from tests.runtime.fakes import SID
from tests.runtime.logs import frames_in

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

WHO = "ada"


async def words() -> AsyncIterator[str]:
    for word in ("one ", "two ", "three"):
        yield word


async def failing() -> AsyncIterator[str]:
    yield "one "
    raise SourceFailed("overloaded", "later")


async def generated(source: Any = words, **info: Any) -> StreamGuard:
    """A guard whose log has a whole stream, SID, of WHO."""
    log = MemoryLog()
    lease = await log.create(StreamInfo(SID, principal=WHO, **info), 15.0)
    dialect = Raw("known") if info.get("dialect") == "raw" else "native"
    encoder = FramedEncoder(dialect, sid=SID)
    await Producer(TokenSource(source()), EveryTokens(1), encoder, log, lease, Timing()).run()
    return StreamGuard(log, authorize=lambda scope, action: WHO, on_sigterm=False)


@attrs.define
class Asked:
    """A request of one's own, and what it was answered."""

    reading: Reading
    messages: list[dict[str, Any]]

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.messages[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join([message.get("body", b"") for message in self.messages[1:]])

    @property
    def clean(self) -> bool:
        return not self.messages[-1].get("more_body", False)


def asked(guard: StreamGuard, method: str = "GET", *, options: AnswerOptions | None = None, **headers: str) -> Asked:
    messages: list[dict[str, Any]] = []
    fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope: dict[str, Any] = {
        "type": "http", "method": method, "path": "/", "query_string": b"", "http_version": "1.1", "headers": fields,
        ROOT: "/a b",
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: Any) -> None:
        messages.append(dict(message))

    return Asked(Reading(guard, options or AnswerOptions(timing=Timing(linger=0.0)), scope, receive, send), messages)


async def cursor_behind(guard: StreamGuard, number: int) -> Cursor:
    """The cursor of the frame with that number."""
    frame = (await frames_in(guard.log))[number - 1]  # type: ignore[arg-type]
    return Cursor(SID, frame.seq, frame.offset, frame.crc)


async def test_it_reads_from_the_start_or_behind_a_cursor_and_leaves_no_reader() -> None:
    guard = await generated()
    whole = asked(guard, streamguard="v=1")
    await whole.reading.begin(StreamInfo(SID, principal=WHO))
    rest = asked(guard, streamguard="v=1")
    await rest.reading.resume(await cursor_behind(guard, 2), WHO)
    assert [b'"one ' in answer.body for answer in (whole, rest)] == [True, False]
    assert [b'"three"' in answer.body for answer in (whole, rest)] == [True, True]
    assert whole.body.endswith(rest.body[rest.body.index(f"id: {await cursor_behind(guard, 3)}".encode()) :])
    assert (whole.clean, rest.clean, len(guard.readers)) == (True, True, 0)


async def test_a_failed_stream_is_read_to_its_terminal_and_aborted() -> None:
    guard = await generated(failing)
    answer = asked(guard, streamguard="v=1")
    await answer.reading.begin(StreamInfo(SID, principal=WHO))
    verifier = StreamVerifier()
    verifier.feed(answer.body)
    verifier.end(clean=answer.clean)
    assert (answer.status, answer.clean, verifier.verdict) == (200, False, Verdict.FAILED)


async def events() -> AsyncIterator[str]:
    for word in ("one", "two"):
        yield f"data: {word}\n\n"


async def nothing() -> AsyncIterator[str]:
    return
    yield


async def broken() -> AsyncIterator[str]:
    yield "data: one\n\n"
    raise SourceFailed("overloaded", "later")


EVENT_SOURCE: dict[str, Any] = {"accept": "text/event-stream", "cache_control": "no-cache"}


@pytest.mark.parametrize(
    ("headers", "status", "ends"),
    [
        (EVENT_SOURCE, 204, False),
        ({"accept": "text/event-stream"}, 200, True),
        ({**EVENT_SOURCE, "streamguard": "v=1"}, 200, True),
    ],
    ids=["EventSource", "fetch", "ours"],
)
async def test_an_end_that_is_a_comment_stops_who_cannot_see_it_and_reaches_who_can(
    headers: dict[str, Any], status: int, ends: bool
) -> None:
    guard = await generated(events, dialect="raw")
    answer = asked(guard, **headers)
    await answer.reading.resume(await cursor_behind(guard, 2), WHO)
    assert (answer.status, answer.clean) == (status, True)
    assert (b"\n: end " in answer.body, b"data:" in answer.body) == (ends, False)
    before = asked(guard, **headers)
    await before.reading.resume(await cursor_behind(guard, 1), WHO)
    assert b"data: two\n\n" in before.body


async def test_a_stream_without_an_event_stops_an_event_source_that_has_no_cursor() -> None:
    guard = await generated(nothing, dialect="raw")
    answer = asked(guard, **EVENT_SOURCE)
    await answer.reading.begin(StreamInfo(SID, "raw", principal=WHO))
    assert (answer.status, answer.body) == (204, b"")


async def test_an_end_that_is_an_event_reaches_an_event_source() -> None:
    guard = await generated(broken, dialect="raw")
    answer = asked(guard, **EVENT_SOURCE)
    await answer.reading.resume(await cursor_behind(guard, 1), WHO)
    assert (answer.status, answer.clean, b"event: error\n" in answer.body) == (200, False, True)


@pytest.mark.parametrize(("method", "headers", "status"), [("GET", {}, 204), ("POST", {"streamguard": "v=1"}, 204)])
async def test_who_has_it_all_is_told_that_there_is_no_more(method: str, headers: Any, status: int) -> None:
    guard = await generated()
    tail = (await guard.log.state(SID)).tail
    for cursor in tail, tail._replace(status=None):
        answer = asked(guard, method, **headers)
        await answer.reading.resume(cursor, WHO)
        assert (answer.status, answer.body) == (status, b"")


async def test_a_post_of_an_sdk_that_has_it_all_is_given_the_end_again() -> None:
    guard = await generated()
    answer = asked(guard, "POST")
    await answer.reading.resume((await guard.log.state(SID)).tail, WHO)
    assert (answer.status, answer.body.count(b"event: end"), b"three" in answer.body) == (200, 1, False)


async def test_a_request_that_is_another_than_its_key_was_used_for_is_refused() -> None:
    guard = await generated(fingerprint="the first")

    async def other() -> str:
        return "another"

    async def same() -> str:
        return "the first"

    cursor = await cursor_behind(guard, 1)
    refused, answered = asked(guard), asked(guard)
    await refused.reading.resume(cursor, WHO, other)
    await answered.reading.resume(cursor, WHO, same)
    assert (refused.status, answered.status) == (422, 200)
    assert b"key_reused" in refused.body


async def test_nobody_elses_stream_is_found() -> None:
    guard = await generated()
    answer = asked(guard)
    await answer.reading.resume(await cursor_behind(guard, 1), "bob")
    assert (answer.status, b"unknown_stream" in answer.body) == (404, True)


async def test_head_is_the_head_alone() -> None:
    guard = await generated()
    answer = asked(guard, "HEAD")
    await answer.reading.begin(StreamInfo(SID, principal=WHO), [("x-own", "1")], 201)
    assert (answer.status, answer.body, answer.headers["x-own"]) == (201, b"", "1")
    assert answer.headers["content-type"].startswith("text/event-stream")


async def test_a_head_says_where_to_come_back_to_percent_encoded() -> None:
    guard = await generated()
    guard.path = "/streams"
    answer = asked(guard, streamguard="v=1")
    await answer.reading.begin(StreamInfo(SID, principal=WHO), [("x-own", "1")])
    assert "/a%20b/streams" in answer.headers["streamguard"]
    assert str(cursor_zero(SID)) in answer.headers["streamguard"]
    assert "streamguard" in answer.headers["access-control-expose-headers"]
    assert answer.headers["x-own"] == "1"


async def test_while_a_process_goes_away_nothing_is_read_here() -> None:
    guard = await generated()
    guard.draining.begin(0.0)
    answer = asked(guard, streamguard="v=1")
    await answer.reading.begin(StreamInfo(SID, principal=WHO))
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")


async def test_an_exclusive_stream_that_somebody_reads_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = await generated(options={OWN: {"exclusive": True}})

    def busy(*args: Any, limit: int, exclusive: bool = False) -> None:
        assert exclusive
        raise Busy

    monkeypatch.setattr(guard.readers, "join", busy)
    answer = asked(guard, streamguard="v=1")
    await answer.reading.begin((await guard.log.state(SID)).info)
    assert (answer.status, b'"busy"' in answer.body) == (409, True)


async def test_a_stream_is_read_over_the_carrier_that_it_began_with_unless_by_an_event_source() -> None:
    guard = await generated(options={OWN: {"wire": "ndjson"}})
    info = (await guard.log.state(SID)).info
    ours, source = asked(guard, streamguard="v=1"), asked(guard, accept="text/event-stream")
    for answer, kind in (ours, "application/x-ndjson"), (source, "text/event-stream"):
        await answer.reading.begin(info)
        assert answer.headers["content-type"].startswith(kind)


async def test_a_confidential_stream_names_a_coding_and_is_in_none() -> None:
    guard = await generated(options={OWN: {"confidential": True}})
    options = AnswerOptions(compress="gzip", timing=Timing(linger=0.0))
    answer = asked(guard, options=options, streamguard="v=1, compress=gzip", accept_encoding="gzip")
    await answer.reading.begin((await guard.log.state(SID)).info)
    assert (answer.headers["content-encoding"], b"three" in answer.body) == ("identity", True)


@pytest.mark.parametrize(
    ("exc", "status", "code"),
    [
        (CursorTrimmed(cursor_zero(SID)), 410, "trimmed"),
        (LogLost(cursor_zero(SID)), 410, "log_lost"),
        (CursorMisfit(cursor_zero(SID)), 409, "misfit"),
        (UnknownStream(SID), 404, "unknown_stream"),
        (LogUnavailable("it is away"), 503, "log_unavailable"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, LogError) else "",
)
async def test_each_no_of_a_log_has_its_answer(exc: LogError, status: int, code: str) -> None:
    scope = {"method": "GET", "headers": [], "query_string": b"", "http_version": "1.1", "type": "http", "path": "/"}
    refused = why_not(request_facts(scope), cursor_zero(SID), exc)
    assert (refused.status, code.encode() in refused.body) == (status, True)
