"""What is asked, in which order, and what is made of what does not answer: over a transport that plays a script,
in virtual time."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs
import pytest

from streamguard.check.evidence import Evidence
from streamguard.check.request import Request, request_from
from streamguard.check.run import Plan, examine
from streamguard.check.transport import Broken, Silent, Unreachable
from streamguard.core.cursor import cursor_zero
from streamguard.core.negotiate import Answer as Promise
from streamguard.core.negotiate import write_answer
from tests.check.faulty import chunk
from tests.check.seen import END, SSE
from tests.core.wire.streams import SID
from tests.runtime import virtual

WHOLE = (chunk("a").encode(), END)
TEXT = {"content-type": "text/plain"}


@attrs.frozen
class Said:
    """An answer: pieces, pauses between them in seconds, and at last an exception, if one is raised."""

    body: tuple[Any, ...] = WHOLE
    status: int = 200
    headers: dict[str, str] = SSE
    version: str = "HTTP/1.1"

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        for piece in self.body:
            if isinstance(piece, Exception):
                raise piece
            if isinstance(piece, float):
                await anyio.sleep(piece)
            else:
                yield piece


class Script:
    """Answers by path, in order; the last one of each again and again. An exception in an answer's place is raised
    before its head."""

    http2 = True
    silence = 9.0

    def __init__(self, **answers: Any) -> None:
        self.answers = {f"/{path}": list(said) if isinstance(said, tuple) else [said] for path, said in answers.items()}
        self.asked: list[Request] = []

    @asynccontextmanager
    async def ask(self, request: Request, leaving: Callable[[], object] = bool) -> AsyncIterator[Said]:
        self.asked.append(request)
        leaving()
        path = request.url.removeprefix("http://host")
        if request.method == "OPTIONS":
            path = "/options"
        left = self.answers.get(path, [Said(status=404)])
        said = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(said, float):  # seconds until its head
            await anyio.sleep(said)
            said = Said()
        if isinstance(said, Exception):
            raise said
        yield said

    def paths(self) -> list[str]:
        return [request.url.removeprefix("http://host") for request in self.asked if request.method != "OPTIONS"]


def run(script: Script, *headers: str, backend: str = "asyncio", **plan: Any) -> Evidence:
    evidence = Evidence(request_from("http://host/chat", headers=headers))
    stages: list[str] = []
    virtual.run(backend, lambda: examine(evidence, Plan(**plan), script, lambda title, run: stages.append(title)))
    assert stages
    return evidence


def guarded(resume: str | None) -> dict[str, str]:
    return {**SSE, "streamguard": write_answer(Promise(cursor_zero(SID), "openai", "sse", resume=resume))}


def gauge(count: int, name: str = "vllm:num_requests_running") -> Said:
    return Said((f"{name} {count}\n".encode(),), headers=TEXT)


SLOW = (chunk("a").encode(), 3.5, END)


@pytest.mark.parametrize("backend", virtual.BACKENDS)
def test_it_asks_as_often_as_it_is_told_and_once_beside(backend: str) -> None:
    script = Script(chat=Said(), options=Said(status=405))
    evidence = run(script, backend=backend, repeat=3)
    assert script.paths() == ["/chat"] * 3
    assert [request.method for request in script.asked].count("OPTIONS") == 1
    assert evidence.probe is not None
    assert evidence.probe.answered is not None
    assert len(evidence.streams) == 3
    assert "names no stream" in evidence.untried


def test_without_a_connection_there_is_nothing_and_later_it_is_one_answer_that_is_lacking() -> None:
    nobody = Script(chat=Unreachable("no"))
    assert run(nobody, repeat=2).nothing == "no"
    assert len(nobody.asked) == 1
    evidence = run(Script(chat=(Said(), Unreachable("no connection"), Said())), repeat=3)
    assert [each.refusal for each in evidence.runs] == ["", "no connection", ""]


def test_what_is_no_stream_is_not_asked_for_again() -> None:
    script = Script(chat=Said(status=500), options=Said())
    assert run(script, repeat=3, leave=True).nothing == "the answer's status is 500"
    assert script.paths() == ["/chat"]
    assert len(script.asked) == 1  # nor is anything else


@pytest.mark.parametrize(
    ("end", "why", "silent"),
    [(Broken("reset"), "reset", False), (Silent(), "nothing came for 9 s", True)],
)
def test_an_answer_that_breaks_off_says_how(end: Exception, why: str, silent: bool) -> None:
    for said in (Said((chunk("a").encode(), end)), end):
        [answer] = run(Script(chat=said)).runs
        assert (answer.clean, answer.why, answer.silent) == (False, why, silent)


@pytest.mark.parametrize("nothing", [Broken("reset"), Silent(), Unreachable("no")])
def test_a_server_that_answers_nothing_else_is_no_reason_to_stop(nothing: Exception) -> None:
    evidence = run(Script(chat=Said(SLOW), options=nothing))
    assert evidence.streams
    assert evidence.probe is not None
    assert not evidence.blocked


@pytest.mark.parametrize("backend", virtual.BACKENDS)
@pytest.mark.parametrize(
    ("answers", "blocked", "alone"),
    [
        ((2.0, 0.5, 0.1, 0.3), False, 0.1),  # before the answer's end
        ((3.5, 0.5, 0.1, 0.3), True, 0.1),
        ((3.5, 1.0, 1.0, 1.0), False, 1.0),  # it is slow at any time
        ((60.0, 0.1), True, 0.1),
        ((60.0,), False, None),  # it never answers
        ((0.1,), False, None),  # nobody asks again
    ],
)
def test_a_server_that_serves_others_behind_the_answer_only_blocks(
    backend: str, answers: tuple[float, ...], blocked: bool, alone: float | None
) -> None:
    evidence = run(Script(chat=Said(SLOW), options=answers), backend=backend)
    assert evidence.blocked == blocked
    assert evidence.probe is not None
    assert evidence.probe.alone == pytest.approx(alone)


def test_an_answer_that_takes_longer_than_it_may_is_left() -> None:
    [answer] = run(Script(chat=Said(SLOW)), limit=2.0).runs
    assert (answer.left, answer.ended, answer.why) == (True, 2.0, "it was left after 2 s")


def test_the_limit_of_an_answer_begins_when_its_request_leaves() -> None:
    class Loading(Script):
        @asynccontextmanager
        async def ask(self, request: Request, leaving: Callable[[], object] = bool) -> AsyncIterator[Said]:
            await anyio.sleep(1.5)  # as while a library is loaded
            async with super().ask(request, leaving) as said:
                yield said

    [answer] = run(Loading(chat=Said(SLOW)), limit=2.0).runs
    assert (answer.left, answer.ended) == (True, 2.0)


def test_the_stream_that_fails_on_purpose_is_where_the_server_says_or_the_caller() -> None:
    failing = Said((chunk("a").encode(), Broken("reset")))
    script = Script(chat=Said(headers=guarded("/streams")), **{"streams/selftest": failing, "mine": failing})
    evidence = run(script, "Authorization: key")
    assert evidence.selftest is not None
    assert (evidence.selftest.why, script.asked[-1].header("authorization")) == ("reset", "key")
    assert run(script, selftest="/mine").selftest is not None
    assert script.paths()[-1] == "/mine"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (Script(chat=Said(headers=guarded("//other/streams"))), "names no stream"),
        (Script(chat=Said(headers=guarded("/streams"))), "/streams/selftest: the answer's status is 404"),
        (Script(chat=Said(headers=guarded("/s")), **{"s/selftest": Unreachable("gone")}), "gone"),
        (Script(chat=Said(headers=guarded("/s")), **{"s/selftest": Broken("shut")}), "/s/selftest: shut"),
    ],
)
def test_where_there_is_none_it_says_why(script: Script, why: str) -> None:
    assert why in run(script).untried


def test_compressed_lumps_are_asked_for_again_without_compression() -> None:
    lump = Said((0.45, b"".join(chunk(str(number)).encode() for number in range(20)) + END))
    coded = attrs.evolve(lump, headers={**SSE, "content-encoding": "identity"})
    assert run(Script(chat=coded)).plain is None  # nothing compresses it
    body = (0.45, gzip.compress(lump.body[1]))
    script = Script(chat=(Said(body, headers={**SSE, "content-encoding": "gzip"}), Said()))
    assert run(script).plain is not None
    assert [request.header("accept-encoding") for request in script.asked if request.method == "GET"] == [
        "gzip, deflate", "identity",
    ]  # fmt: skip


def left(script: Script, *headers: str, **plan: Any) -> Any:
    leave = run(script, *headers, leave=True, **plan).leave
    assert leave is not None
    return leave


def test_a_reader_that_leaves_looks_at_what_the_server_counts() -> None:
    stops = left(Script(chat=Said(SLOW), metrics=(gauge(1), gauge(2), gauge(1))))
    assert (stops.told, stops.ignored, stops.by) == (True, False, "by the server's count of what runs")
    goes_on = left(Script(chat=Said(SLOW), metrics=(gauge(0), gauge(1))))
    assert goes_on.ignored
    assert goes_on.waited >= goes_on.rest
    named = left(Script(chat=Said(SLOW), mine=(gauge(0, "own"), gauge(1, "own"), gauge(0, "own"))), gauge="/mine#own")
    assert named.stopped is not None


def test_a_page_that_fails_meanwhile_is_looked_at_again() -> None:
    assert left(Script(chat=Said(SLOW), metrics=(gauge(0), gauge(1), Broken("x"), gauge(0)))).stopped is not None


@pytest.mark.parametrize(
    ("metrics", "why"),
    [
        (Said(status=404), "no page counts what runs (known are the metrics of vllm, sglang, tgi, llamacpp)"),
        (Said((b"x" * (5 << 20),), headers=TEXT), "no page counts"),
        (Silent(), "no page counts"),
        (gauge(1), "the gauge did not rise with the answer"),
    ],
)
def test_where_nothing_tells_it_says_so(metrics: object, why: str) -> None:
    leave = left(Script(chat=Said(SLOW), metrics=metrics))
    assert not leave.told
    assert leave.why_not.startswith(why)


def test_how_long_it_would_have_gone_on_is_known_from_an_answer_that_came() -> None:
    metrics = (gauge(0), gauge(1), gauge(0))
    assert left(Script(chat=(Said(SLOW), Said(status=503), Said(SLOW)), metrics=metrics), repeat=2).rest == 3.5


def test_an_answer_that_does_not_come_cannot_be_left() -> None:
    assert "(reset)" in left(Script(chat=(Said(), Broken("reset")))).why_not


def status(generated: object) -> Said:
    return Said((json.dumps({"generated": generated}).encode(),), headers=TEXT)


def test_the_streams_own_status_tells_first() -> None:
    script = Script(chat=Said(SLOW, headers=guarded("/s")), **{"s/status": (status(True), status(False))})
    leave = left(script)
    assert (leave.by, leave.resumable, leave.ignored) == ("by the stream's own status", False, False)
    assert script.asked[-1].header("streamguard-stream") == SID
    script = Script(chat=Said(SLOW, headers=guarded("/s")), **{"s/status": status(True)})
    assert left(script, "Accept: text/event-stream").resumable


def test_a_stream_that_was_stopped_before_the_first_look_was_stopped() -> None:
    """The server is quicker than the question."""
    page = Said((json.dumps({"generated": False, "status": "cancelled"}).encode(),), headers=TEXT)
    leave = left(Script(chat=Said(SLOW, headers=guarded("/s")), **{"s/status": page}))
    assert (leave.by, leave.ignored, leave.why_not) == ("by the stream's own status", False, "")
    assert leave.stopped == 0


def test_the_first_look_is_while_the_answer_is_still_read() -> None:
    order: list[str] = []

    class Read(Said):
        async def pieces(self) -> AsyncGenerator[bytes, None]:
            try:
                async for piece in super().pieces():
                    yield piece
            finally:
                order.append("left")

    class Asked(Script):
        @asynccontextmanager
        async def ask(self, request: Request, leaving: Callable[[], object] = bool) -> AsyncIterator[Said]:
            order.append(request.url.rpartition("/")[2])
            async with super().ask(request, leaving) as said:
                yield said

    script = Asked(
        chat=Read(SLOW, headers=guarded("/s")), **{"s/status": (status(True), status(False)), "metrics": Said()}
    )
    assert left(script).stopped is not None
    assert order[-5:] == ["metrics", "chat", "status", "left", "status"]


@pytest.mark.parametrize("page", [Said((b"no json",), headers=TEXT), Said((b"[]",), headers=TEXT), status(False)])
def test_a_status_that_says_nothing_leaves_it_to_the_gauge(page: Said) -> None:
    script = Script(
        chat=Said(SLOW, headers=guarded("/s")), **{"s/status": page, "metrics": (gauge(0), gauge(1), gauge(0))}
    )
    assert left(script).by == "by the server's count of what runs"
