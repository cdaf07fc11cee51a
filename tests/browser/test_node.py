"""The JavaScript client in Node, over sockets: what it asks for, what it makes of each answer, and when it gives up."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request as Asked
from starlette.routing import Route

from streamguard.adapters.starlette import guarded
from streamguard.browser import SCRIPT
from streamguard.core.cursor import cursor_zero
from streamguard.core.errors import SourceFailed
from streamguard.core.items import Block
from streamguard.core.negotiate import Answer, write_answer
from streamguard.core.wire import Binary, Ndjson, Sse
from streamguard.runtime.timing import Timing
from streamguard.testing.plan import HEAD, End, Plan, RandomCut
from tests.absence import require
from tests.adapters.logged_apps import Site
from tests.adapters.servers import Gate, serving
from tests.browser.conftest import Read
from tests.client.server import LAST_CHUNK, SID, Connection, Made, Request, Script, Server, chunk, head, made
from tests.clients.lines import Script as Lines
from tests.clients.site import through
from tests.core.wire.streams import chat_events
from tests.modules import ROOT

pytestmark = pytest.mark.usefixtures("at_once")

WORDS = [f"word {number} é\u2028\n " for number in range(60)]
TEXT = "".join(WORDS)
HELLO = made("Hello", " wor", "ld")
SOON = {"baseMs": 1}
NOW = {"baseMs": 0, "maxWaitMs": 0}  # whatever the server wishes
POST = {"method": "POST", "json": {"text": "hi"}}


def promised(body: Made, resume: str | None, **headers: str | int) -> bytes:
    promise = write_answer(Answer(cursor_zero(SID), "native", "sse", resume=resume))
    return head(200, body.content_type, streamguard=promise, **headers)


def left(connection: Connection) -> bool:
    """Nothing more comes on this connection, which Node would keep for seconds."""
    connection.finish()
    return False


def cut_after(frames: int, resume: str | None = "/streams") -> Script:
    """An answer that ends after so many frames, and its connection with it: as far as HTTP can tell that is an end.
    Of a body that breaks off `fetch` may drop what nobody has taken yet, and the frames would be fewer."""

    def script(connection: Connection, request: Request) -> bool:
        connection.send(promised(HELLO, resume, connection="close"))
        connection.send(b"".join([HELLO.opening, *HELLO.pushes[:frames]]))
        return left(connection)

    return script


def whole(from_frame: int = 0, resume: str | None = "/streams", end: bytes = LAST_CHUNK) -> Script:
    def script(connection: Connection, request: Request) -> bool:
        pieces = [HELLO.opening, *HELLO.pushes[from_frame:], HELLO.ending]
        connection.send(promised(HELLO, resume) + b"".join(map(chunk, pieces)) + end)
        return left(connection) if end else True

    return script


def saying(status: int, body: bytes = b"", kind: str = "application/problem+json", **headers: str | int) -> Script:
    """`Connection: close`, as Node would ask again on a connection that is about to be closed, and be told no more."""

    def script(connection: Connection, request: Request) -> bool:
        connection.send(head(status, kind, content_length=len(body), connection="close", **headers) + body)
        return left(connection)

    return script


# ---- whole and cut ------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", ["sse", "ndjson", "binary"])
@pytest.mark.parametrize("end", ["fin", "reset"])
def test_a_post_that_is_cut_at_random_bytes_comes_whole_and_is_generated_once(read: Read, end: End, wire: str) -> None:
    carrier = {"sse": Sse(), "ndjson": Ndjson(), "binary": Binary()}[wire]
    site = Site(*WORDS[:30], Block("image", {"url": "x"}), *WORDS[30:], wire=carrier)
    cuts = RandomCut(seed=3, low=1, high=900, base=Plan(after=HEAD, end=end))
    with serving(site.app) as server:
        found, proxy = through(
            server.port,
            lambda index: cuts(index) if index < 9 else Plan(),
            lambda url: read(f"{url}/tokens", resume={**SOON, "attempts": 20}, **POST),
        )
        again = read(f"{server.url}/tokens")
    cut = sum(passage.ended == "cut" for passage in proxy.history)
    assert (found["error"], found["text"], found["items"]) == (None, TEXT, [{"type": "image", "url": "x"}])
    receipt = found["receipt"]
    assert (receipt["verdict"], receipt["frames"], receipt["status"]) == ("complete", 62, "complete")
    assert cut >= 5
    assert receipt["resumes"] == cut
    assert receipt["line"].startswith("COMPLETE, 62 frames, crc ")
    assert receipt["line"].endswith(f", {cut} resumes")
    assert (again["text"], again["receipt"]["resumes"], again["receipt"]["finishReason"]) == (TEXT, 0, "stop")
    assert site.source.starts == 2


def test_a_cut_stream_that_cannot_be_resumed_is_truncated_whatever_the_ending(read: Read) -> None:
    @guarded
    async def tokens(request: Asked) -> Any:
        for word in WORDS:
            yield word

    app = Starlette(routes=[Route("/tokens", tokens, methods=["GET", "POST"])])
    with serving(app) as server:
        for plan in (Plan(after=HEAD, cut_at=700), Plan(after=HEAD, cut_at=700, end="reset")):
            found, _ = through(server.port, plan, lambda url: read(f"{url}/tokens", **POST))
            assert (found["error"]["name"], found["receipt"]["verdict"]) == ("TruncatedStream", "truncated")
            assert TEXT.startswith(found["text"])
            assert found["error"]["received"] == found["text"]
            assert found["error"]["cursor"] == found["receipt"]["cursor"]


def test_a_failed_stream_is_told_of_with_all_that_came(read: Read) -> None:
    site = Site("half ", SourceFailed("overloaded", "too much"))
    with serving(site.app) as server:
        found = read(f"{server.url}/tokens")
    error = found["error"]
    assert (error["name"], error["code"], error["status"], error["received"]) == (
        "FailedStream", "overloaded", "failed", "half ",
    )  # fmt: skip
    assert error["message"] == "the stream ended as 'failed': overloaded: too much"
    assert (found["text"], found["receipt"]["failure"]["code"]) == ("half ", "overloaded")


def test_a_silent_connection_is_left_for_another(read: Read) -> None:
    site = Site(*WORDS)
    with serving(site.app) as server:
        found, proxy = through(
            server.port,
            lambda index: Plan(after=HEAD, stall_at=900) if index == 0 else Plan(),
            lambda url: read(f"{url}/tokens", resume=SOON, limits={"livenessMs": 1000}, **POST),  # a loaded machine's
        )
    assert (found["error"], found["text"], found["receipt"]["resumes"]) == (None, TEXT, 1)
    assert len(proxy.history) == 2


def test_only_heartbeats_are_a_stall_and_not_resumed(read: Read) -> None:
    gate = Gate()
    site = Site("first ", gate, timing=Timing(heartbeat=0.02, linger=0.05))
    with serving(site.app) as server:
        found = read(f"{server.url}/tokens", limits={"stallMs": 500}, resume=SOON)
        gate.open()
    assert (found["error"]["name"], found["error"]["limit"], found["text"]) == ("LimitExceeded", "stallMs", "first ")
    assert found["receipt"]["resumes"] == 0


# ---- leaving ------------------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["close", "break", "abort"])
def test_a_reader_that_leaves_ends_its_source(node: Lines, then: str) -> None:
    @guarded(timing=Timing(heartbeat=0.05))
    async def tokens(request: Asked) -> Any:
        try:
            yield "first "
            await anyio.sleep_forever()
        finally:
            closed.open()

    closed = Gate()
    with serving(Starlette(routes=[Route("/tokens", tokens)])) as server:
        found = node.ask({"do": "read", "with": [f"{server.url}/tokens", {"after": 1, "then": then}]})
        closed.wait()
        node.ask({"do": "drop", "with": []})
    name = {"close": "StreamClosed", "break": None, "abort": "AbortError"}[then]
    assert (found["text"], (found["error"] or {"name": None})["name"]) == ("first ", name)


def test_a_cancel_ends_the_stream_for_all(read: Read) -> None:
    site = Site("first ", Gate(), timing=Timing(linger=0.05))
    with serving(site.app) as server:
        found = read(f"{server.url}/tokens", after=1, then="cancel", headers={"user": "ann"}, **POST)
        site.source.wait_closed()
    assert (found["cancelled"], found["text"]) == (True, "first ")
    assert (found["error"]["name"], found["error"]["status"]) == ("FailedStream", "cancelled")
    assert site.asked[-1] == ("cancel", "Request")


def test_a_stream_without_an_address_cannot_be_cancelled(read: Read) -> None:
    with Server(whole(resume=None)) as server:
        found = read(server.url, after=1, then="cancel")
    assert found["error"]["name"] == "LocalProtocolError"


def test_a_second_loop_is_not_handed_the_rest_of_the_first(read: Read) -> None:
    with Server(whole()) as server:
        found = read(server.url, after=1, then="again")
    assert (found["text"], found["error"]["name"]) == ("Hello", "StreamClosed")


# ---- what is asked, and what is no stream -------------------------------------------------------


def test_what_is_asked_for_is_verification_and_nothing_compressed(read: Read) -> None:
    with Server(whole()) as server:
        found = read(server.url, headers={"authorization": "Bearer x", "idempotency-key": "k"}, **POST)
    [asked] = server.requests
    assert (asked.method, json.loads(asked.body)) == ("POST", {"text": "hi"})
    wanted = {"streamguard": "v=1", "content-type": "application/json", "authorization": "Bearer x"}
    assert wanted.items() <= asked.headers.items()
    assert asked.headers["accept"].startswith("text/event-stream")
    assert asked.headers["accept-encoding"] == "identity"
    assert (found["error"], found["text"]) == (None, "Hello world")


def test_a_resume_is_a_get_behind_the_last_frame_with_the_credentials_and_without_the_body(read: Read) -> None:
    with Server(cut_after(2), whole(2)) as server:
        found = read(server.url, headers={"authorization": "x", "idempotency-key": "k"}, resume=NOW, **POST)
    first, again = server.requests
    assert (found["error"], found["text"], found["receipt"]["resumes"]) == (None, "Hello world", 1)
    assert (again.method, again.path, again.body) == ("GET", "/streams", b"")
    assert again.headers["last-event-id"].startswith(f"{SID}.2.")
    assert again.headers["authorization"] == "x"
    assert not {"content-type", "content-length", "idempotency-key"} & again.headers.keys()
    assert first.method == "POST"


def test_a_cookie_that_the_caller_set_goes_along_on_a_resume_and_on_a_cancel(read: Read) -> None:
    with Server(cut_after(2), whole(2)) as server:
        found = read(server.url, headers={"cookie": "session=ann"}, resume=NOW)
    assert (found["error"], [asked.headers.get("cookie") for asked in server.requests]) == (None, ["session=ann"] * 2)
    with Server(whole(end=b""), saying(200)) as server:
        found = read(server.url, after=1, then="cancel", headers={"cookie": "session=ann"})
    assert found["cancelled"] is True
    assert [(asked.method, asked.headers.get("cookie")) for asked in server.requests] == [
        ("GET", "session=ann"), ("DELETE", "session=ann"),
    ]  # fmt: skip


def test_credentials_are_not_brought_back_to_where_another_origin_redirected(read: Read) -> None:
    """`fetch` itself took them out of the redirected request."""
    secrets = {"cookie": "session=ann", "authorization": "Bearer x"}
    with Server(cut_after(2), whole(2)) as other, Server(saying(307, location=f"{other.url}/there")) as first:
        found = read(first.url, headers={**secrets, "x-own": "1"}, resume=NOW)
    assert (found["error"], found["receipt"]["resumes"]) == (None, 1)
    assert secrets.items() <= first.requests[0].headers.items()
    assert [asked.headers.get("x-own") for asked in other.requests] == ["1", "1"]
    assert not [asked for asked in other.requests if secrets.keys() & asked.headers.keys()]


def test_the_example_of_the_how_to_reads_with_its_header(tmp_path: Path) -> None:
    require("node", "apt-get install nodejs")
    page = (ROOT / "docs/how-to/read-a-stream-in-the-browser.md").read_text(encoding="utf-8")
    found = re.search(r"^```js\n// node_reader.mjs.*?\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    (tmp_path / "node_reader.mjs").write_text(found[1], encoding="utf-8")
    package = tmp_path / "node_modules" / "streamguard"
    package.parent.mkdir()
    copytree(SCRIPT.parent, package, ignore=ignore_patterns("__pycache__"))  # what npm makes of a folder
    with Server(whole()) as server:
        environment = {**os.environ, "BASE_URL": server.url, "API_KEY": "key"}
        out = subprocess.run(
            ["node", "node_reader.mjs"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )
    assert (out.returncode, out.stderr) == (0, "")
    assert re.fullmatch(r"Hello world\nCOMPLETE, 4 frames, crc [0-9a-f]{8}\n", out.stdout)
    [asked] = server.requests
    assert (asked.method, asked.path, asked.headers["authorization"]) == ("POST", "/chat", "Bearer key")


def test_frames_that_come_again_are_dropped_and_counted(read: Read) -> None:
    with Server(cut_after(3), whole(1)) as server:
        found = read(server.url, resume=NOW)
    assert (found["text"], found["receipt"]["duplicates"], found["error"]) == ("Hello world", 2, None)


@pytest.mark.parametrize(
    ("resume", "address", "method", "requests"),
    [(None, None, "GET", 1), (True, None, "GET", 2), (True, None, "POST", 1), (False, "/streams", "GET", 1),
     (None, "http://other.test/streams", "GET", 1), (True, "http://other.test/streams", "GET", 1)],
)  # fmt: skip
def test_a_stream_goes_on_where_it_may_and_nowhere_else(
    read: Read, resume: Any, address: str | None, method: str, requests: int
) -> None:
    own = NOW if resume is True else resume
    with Server(cut_after(1, address), whole(1)) as server:
        found = read(server.url, resume=own, method=method)
    assert len(server.requests) == requests
    assert found["receipt"]["verdict"] == ("complete" if requests == 2 else "truncated")


def test_attempts_that_bring_nothing_new_come_to_an_end_and_a_new_frame_gives_them_back(read: Read) -> None:
    nothing = saying(503)
    with Server(cut_after(1), cut_after(1), cut_after(2), nothing) as server:
        found = read(server.url, resume={**NOW, "attempts": 2})
    assert len(server.requests) == 5
    error = found["error"]
    assert (error["name"], error["cause"], found["text"]) == ("TruncatedStream", "UnexpectedResponse", "Hello wor")
    assert "2 attempts to resume it brought no new frame" in error["message"]


def nothing_more(connection: Connection, request: Request) -> bool:
    connection.send(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
    return left(connection)


def problem(code: str) -> bytes:
    return json.dumps({"code": code, "detail": "it is\nso"}).encode()


@pytest.mark.parametrize(
    ("answer", "name", "code", "said"),
    [
        (saying(404, problem("unknown_stream")), "StreamGap", "unknown_stream", "(HTTP 404): it is so"),
        (saying(410, problem("trimmed")), "StreamGap", "trimmed", "(HTTP 410)"),
        (saying(409), "StreamGap", "misfit", "(HTTP 409)"),
        (saying(403), "TruncatedStream", None, "the server did not resume it: no stream (HTTP 403)"),
        (saying(302, location="http://other.test/"), "TruncatedStream", None, "attempt"),
        (saying(429, retry_after="3600"), "TruncatedStream", None, "wants to be left alone for 3600 s"),
        (nothing_more, "TruncatedStream", None,
         "nothing follows, and there was no terminal"),
    ],
)  # fmt: skip
def test_what_does_not_go_on_says_why(read: Read, answer: Script, name: str, code: str | None, said: str) -> None:
    with Server(cut_after(2), answer) as server:
        found = read(server.url, resume={**NOW, "attempts": 1})
    assert (found["error"]["name"], found["error"]["code"], found["text"]) == (name, code, "Hello wor")
    assert said in found["error"]["message"]
    assert found["receipt"]["verdict"] == {"StreamGap": "gap", "TruncatedStream": "truncated"}[name]


OTHER = made("Hullo", " wor", "ld")


@pytest.mark.parametrize(
    ("again", "name", "said"),
    [
        (HELLO.opening + b"".join(OTHER.pushes), "CorruptStream", "frame 2 came again, and is another one"),
        (HELLO.opening.replace(SID.encode(), b"B" * 22), "CorruptStream", f"the opening names stream {'B' * 22}"),
        (HELLO.opening + f": bye {cursor_zero(SID)} replaced\n".encode(), "TruncatedStream",
         "another reader took this one's place"),
    ],
    ids=["another frame", "another stream", "replaced"],
)  # fmt: skip
def test_what_comes_in_the_place_of_the_rest_is_refused(read: Read, again: bytes, name: str, said: str) -> None:
    answers = iter([HELLO.opening + b"".join(HELLO.pushes[:2]), again])

    async def app(scope: Any, receive: Any, send: Any) -> None:
        promise = write_answer(Answer(cursor_zero(SID), "native", "sse", resume="/streams"))
        headers = [(b"content-type", b"text/event-stream"), (b"streamguard", promise.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": next(answers), "more_body": True})

    with serving(app) as server:
        found = read(server.url, resume=NOW)
    assert (found["error"]["name"], found["text"]) == (name, "Hello wor")
    assert said in found["error"]["message"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (saying(404, b"nothing here", "text/plain"), 'no stream: HTTP 404, text/plain, beginning "nothing here"'),
        (saying(503, retry_after="2"), "HTTP 503"),
        (saying(200, b"{}", "application/json"), "the content type is that of no stream"),
        (saying(200, b"text", "text/plain"), "plain text proves no end"),
        (saying(200, b"", "application/x-ndjson", streamguard=HELLO.header), "promises 'sse', and this is 'ndjson'"),
        (saying(206, b"", "text/event-stream"), "HTTP 206"),
    ],
)
def test_an_answer_that_is_no_stream_is_told_as_what_it_is(read: Read, answer: Script, said: str) -> None:
    with Server(answer) as server:
        found = read(server.url)
    assert found["error"]["name"] == "UnexpectedResponse"
    assert said in found["error"]["message"]
    assert (found["error"]["retryAfterMs"] == 2000) is ("503" in said)


def sending(body: bytes, end: bytes = LAST_CHUNK, **headers: str | int) -> Script:
    def script(connection: Connection, request: Request) -> bool:
        connection.send(head(**headers) + chunk(body) + end)  # type: ignore[arg-type]
        return left(connection)

    return script


def test_a_stream_that_nobody_guards_is_unverified_only_with_its_providers_end(read: Read) -> None:
    for body, name, verdict in (
        (chat_events(), None, "unverified"),
        (chat_events(done=False), "TruncatedStream", "truncated"),
        (chat_events(reason=None), "FailedStream", "failed"),
    ):
        with Server(sending(body)) as server:
            found = read(server.url)
        assert ((found["error"] or {"name": None})["name"], found["receipt"]["verdict"]) == (name, verdict)
        assert found["text"] == "Hello"
    with Server(sending(b"data: x\n\n")) as server:
        assert "does not say that it guards" in read(server.url)["error"]["message"]


def test_a_guard_that_was_promised_and_stripped_is_corrupt(read: Read) -> None:
    with Server(sending(chat_events(), streamguard=HELLO.header)) as server:
        found = read(server.url)
    assert (found["error"]["name"], found["error"]["code"], found["text"]) == ("CorruptStream", "guard_stripped", "")


def test_what_follows_the_terminal_is_a_fault_and_an_open_connection_after_it_is_not(read: Read) -> None:
    more = chunk(HELLO.pushes[0])
    with Server(whole(end=more + LAST_CHUNK), whole(end=b"")) as server:
        trailing = read(server.url)
        found = read(server.url)
    assert (trailing["error"]["code"], trailing["text"]) == ("seq", "Hello world")
    assert (found["error"], found["receipt"]["verdict"]) == (None, "complete")


def test_an_answer_that_does_not_come_is_given_up(read: Read) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    with serving(app) as server:
        found = read(server.url, limits={"firstByteMs": 100})
    assert (found["error"]["name"], found["error"]["limit"]) == ("LimitExceeded", "firstByteMs")


def test_only_so_much_text_is_kept(read: Read) -> None:
    with Server(whole()) as server:
        found = read(server.url, limits={"maxReceived": 5})
    assert found["error"]["message"] == "`received` is another text"
    assert found["text"] == "Hello world"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dialect": "xml"}, "unknown dialect 'xml'; known: native"), ({"dialect": "text"}, "proves no end"),
        ({"limits": {"liveness": 45}}, "limits has no 'liveness'; there are: firstByteMs"),
        ({"limits": {"livenessMs": 0}}, "livenessMs is above 0"),
        ({"resume": {"attempts": 0}}, "attempts is a whole number"),
        ({"resume": 5}, "resume is true, false, or"), ({"maxFrame": 1.5}, "maxFrame is a whole number"),
        ({"headers": {"Last-Event-ID": f"{SID}.1.3.00000000"}}, "verifies from the start"),
    ],
)  # fmt: skip
def test_what_is_asked_wrongly_is_refused_before_anything_is_sent(read: Read, options: Any, said: str) -> None:
    found = read("http://127.0.0.1:9/", **options)
    assert said in found["error"]["message"]


