"""The scripted server notes what an application sends, and does to it what real servers and readers do."""

from __future__ import annotations

from typing import Any, Literal, get_args

import anyio
import anyio.abc
import attrs
import pytest

from streamguard.adapters.asgi import GuardedAnswer
from streamguard.core.receipt import Verdict
from streamguard.core.verify import StreamVerifier
from streamguard.testing.conduct import Conduct
from streamguard.testing.server import ScriptedServer
from streamguard.testing.source import FOREVER, RecordingSource

pytestmark = pytest.mark.anyio

PIECES = [b"one ", b"two ", b"three"]
BODY = b"".join(PIECES)


async def writing(send: Any, pieces: list[bytes], end: bool = True) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"X-A", b"1"), (b"X-A", b"2")]})
    for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    if end:
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def plain(scope: Any, receive: Any, send: Any) -> None:
    await writing(send, PIECES)


async def watching(scope: Any, receive: Any, send: Any) -> None:
    """Writes on until it hears that the reader is gone."""
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"token ", "more_body": True})
            await anyio.lowlevel.checkpoint()


@attrs.define
class Guarded:
    """A guarded endpoint over a recording source, and its outcome."""

    source: RecordingSource
    status: str | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        answer = GuardedAnswer(self.source)
        await answer(scope, receive, send)
        self.status = answer.outcome.status if answer.outcome is not None else None


def verdict(server: ScriptedServer) -> Verdict | None:
    verifier = StreamVerifier()
    verifier.feed(server.body)
    verifier.end(clean=server.ended == "complete" and not server.left)
    return verifier.verdict


async def test_an_answer_is_noted_whole() -> None:
    server = await ScriptedServer(plain).run()
    assert (server.ended, server.status, server.body, server.left) == ("complete", 200, BODY, False)
    assert (server.header("x-a"), server.header("x-b")) == ("1, 2", None)
    assert [sent.taken for sent in server.sent] == [0, 4, 4, 5, 0]
    assert len({sent.task for sent in server.sent}) == 1
    assert (server.overlaps, server.late, server.wrong, server.error) == (0, 0, [], None)


async def test_the_application_is_given_the_request() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend([scope, await receive()])

    options: dict[str, Any] = {"method": "POST", "headers": [("X-User", "ann")], "body": b"{}", "http_version": "1.0"}
    await ScriptedServer(app, path="/chat?a=b", scope={"state": 1}, **options).run()
    scope, message = seen
    assert (scope["method"], scope["path"], scope["query_string"], scope["state"]) == ("POST", "/chat", b"a=b", 1)
    assert (scope["headers"], scope["http_version"]) == ([(b"x-user", b"ann")], "1.0")
    assert message == {"type": "http.request", "body": b"{}", "more_body": False}


async def test_an_answer_without_its_last_message_is_unfinished() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await writing(send, PIECES, end=False)

    server = await ScriptedServer(app).run()
    assert (server.ended, server.body) == ("unfinished", BODY)


async def test_what_an_application_raises_is_kept() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await writing(send, PIECES)
        raise LookupError("mine")

    server = await ScriptedServer(app).run()
    assert server.ended == "raised"
    assert isinstance(server.error, LookupError)


@pytest.mark.parametrize("at", range(len(BODY) + 1))
async def test_a_reader_leaves_at_each_byte(at: int) -> None:
    server = await ScriptedServer(plain, conduct=Conduct(at_bytes=at)).run()
    assert server.body == BODY[:at]
    assert server.left
    assert server.status == 200
    assert server.ended == "complete"  # nobody told the application


@pytest.mark.parametrize("at", range(6))
async def test_a_reader_leaves_at_each_message(at: int) -> None:
    server = await ScriptedServer(plain, conduct=Conduct(at_messages=at)).run()
    assert server.body == b"".join(PIECES[: max(0, at - 1)])
    assert (server.status is None) is (at == 0)
    assert server.left is (at <= 5)
    assert [sent.taken is not None for sent in server.sent] == [True] * at + [False] * (5 - at)


@pytest.mark.parametrize("conduct", [{"at_bytes": 5}, {"at_messages": 2}])
async def test_a_send_fails_from_there_on(conduct: Any) -> None:
    server = await ScriptedServer(plain, conduct=Conduct(**conduct, sends="fail")).run()
    assert isinstance(server.error, OSError)
    assert server.body == (BODY[:5] if "at_bytes" in conduct else PIECES[0])
    custom = Conduct(**conduct, sends="fail", error=lambda: KeyError("x"))
    assert isinstance((await ScriptedServer(plain, conduct=custom).run()).error, KeyError)


@pytest.mark.parametrize("sends", ["hang", "stuck"])
async def test_a_send_hangs_until_the_reader_reads_on(sends: Literal["hang", "stuck"]) -> None:
    async with ScriptedServer(plain, conduct=Conduct(at_bytes=5, sends=sends)) as server:
        await server.until(bytes=5)
        await anyio.wait_all_tasks_blocked()
        assert (server.body, server.ended, server.left) == (BODY[:5], "open", False)
        assert server.sent[-1].pending
        server.release()
    assert (server.body, server.ended) == (BODY, "complete")
    assert [sent.taken for sent in server.sent] == [0, 4, 4, 5, 0]


@pytest.mark.parametrize(("sends", "woken"), [("hang", True), ("stuck", False)])
async def test_a_hanging_send_is_woken_by_a_reader_that_leaves_or_is_not(sends: Any, woken: bool) -> None:
    async with ScriptedServer(plain, conduct=Conduct(at_bytes=5, sends=sends)) as server:
        await server.until(bytes=5)
        server.leave()
        await anyio.wait_all_tasks_blocked()
        assert (server.ended == "complete") is woken
        server.release()
    assert (server.body, server.ended) == (BODY[:5], "complete")


@pytest.mark.parametrize("told", ["at once", "late", "never"])
async def test_a_reader_that_left_is_told_of_in_time_or_later_or_never(told: Any) -> None:
    async with ScriptedServer(watching, conduct=Conduct(at_bytes=12, told=told)) as server:
        await server.until(messages=100 if told != "at once" else 3)
        if told == "late":
            assert server.ended == "open"
            server.tell()
        elif told == "never":
            server.cancel()
        ended = await server.ending()
    assert server.body == b"token token "
    assert ended == ("raised" if told == "never" else "unfinished")
    assert (len(server.sent) < 10) is (told == "at once")


async def test_a_disconnect_comes_early() -> None:
    """Behind the request, before anything was sent, though the reader takes everything."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        types = [(await receive())["type"] for _ in range(3)]
        assert types == ["http.request", "http.disconnect", "http.disconnect"]
        await writing(send, PIECES)

    server = await ScriptedServer(app, conduct=Conduct(told="early")).run()
    assert (server.error, server.body, server.left) == (None, BODY, False)


async def test_an_answer_that_ended_is_told_of_as_a_disconnect() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await writing(send, PIECES)
        assert (await receive())["type"] == "http.disconnect"

    assert (await ScriptedServer(app).run()).ended == "complete"
    async with ScriptedServer(app, conduct=Conduct(told="never")) as server:
        await server.until(messages=5, received=2)
        await anyio.wait_all_tasks_blocked()
        assert server.ended == "open"
        server.tell()
        assert await server.ending() == "complete"


async def test_a_hidden_disconnect_is_the_request_again_and_an_endless_loop_is_found() -> None:
    async def looping(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive())["type"] != "http.disconnect":
            assert message["body"] == b"again"

    server = await ScriptedServer(looping, conduct=Conduct(told="hidden"), body=b"again").run()
    assert server.ended == "raised"
    assert server.wrong == ["receive was called again and again for a disconnect that does not come"]
    assert server.received == 1002


async def test_sends_that_overlap_are_noted_with_who_sent_them() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await writing(send, [], end=False)
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(send, {"type": "http.response.body", "body": b"x", "more_body": True})

    server = await ScriptedServer(app, conduct=Conduct(turns=2)).run()
    assert server.overlaps == 1
    assert [sent.overlaps for sent in server.sent].count(True) == 1
    assert len({sent.task for sent in server.sent}) == 3


async def test_one_send_after_the_other_does_not_overlap() -> None:
    server = await ScriptedServer(plain, conduct=Conduct(turns=3)).run()
    assert server.overlaps == 0
    assert server.body == BODY


BODY_MESSAGE = {"type": "http.response.body", "body": b"x", "more_body": False}
START = {"type": "http.response.start", "status": 200, "headers": []}


@pytest.mark.parametrize(
    ("messages", "wrong"),
    [
        ([BODY_MESSAGE], "'http.response.body' was sent before the start message"),
        ([START, START], "'http.response.start' was sent a second time"),
        ([START, BODY_MESSAGE, BODY_MESSAGE], "'http.response.body' was sent after the answer had ended"),
        ([{"type": "http.nonsense"}], "'http.nonsense' was sent, which is no message of an HTTP response"),
    ],
)
async def test_what_breaks_asgi_is_refused_as_a_server_does(messages: list[Any], wrong: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    server = await ScriptedServer(app).run()
    assert server.wrong == [wrong]
    assert isinstance(server.error, RuntimeError)
    assert server.late == ("after" in wrong)


async def test_waiting_for_what_never_comes_is_an_error() -> None:
    async with ScriptedServer(plain) as server:
        with pytest.raises(RuntimeError, match=r"the application ended \(complete\) after 5 messages, 13 bytes"):
            await server.until(messages=6)


async def test_an_error_in_the_block_ends_the_application_and_comes_out_as_it_is() -> None:
    with pytest.raises(LookupError, match="mine"):
        async with ScriptedServer(watching) as server:
            await server.until(messages=2)
            raise LookupError("mine")
    assert server.ended == "raised"


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_a_transport_can_be_closed_where_there_is_one(how: str) -> None:
    sizes = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        transport = receive.__self__.transport
        assert transport.get_extra_info("socket") is None

        async def killing() -> None:
            await anyio.wait_all_tasks_blocked()
            sizes.append(transport.get_write_buffer_size())
            getattr(transport, how)()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(killing)
            await writing(send, [bytes(100)], end=False)

    server = await ScriptedServer(app, conduct=Conduct(at_bytes=0, sends="stuck"), killable=True).run()
    assert (server.kills, sizes, server.left, server.ended) == ([how], [100], True, "unfinished")


@pytest.mark.parametrize(
    "wrong", [{"at_bytes": -1}, {"at_messages": -1}, {"turns": -1}, {"sends": "loud"}, {"told": "twice"}]
)
def test_an_impossible_conduct_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Conduct(**wrong)


# ---- a guarded answer on it -----------------------------------------------------------------------


async def test_a_guarded_answer_is_complete_and_one_task_sends_it() -> None:
    app = Guarded(RecordingSource("a", "b"))
    server = await ScriptedServer(app).run()
    assert (server.ended, app.status, verdict(server)) == ("complete", "complete", Verdict.COMPLETE)
    assert len({sent.task for sent in server.sent}) == 1


async def test_a_failed_source_leaves_the_answer_unfinished() -> None:
    app = Guarded(RecordingSource("a", ValueError()))
    server = ScriptedServer(app)
    async with server:
        await server.until(messages=3)
        server.tell()  # the reader hangs up on the error, as SDKs do
    assert (server.ended, app.status, verdict(server)) == ("unfinished", "failed", Verdict.FAILED)


@pytest.mark.parametrize("at", [0, 1, 40, 200])
@pytest.mark.parametrize("sends", get_args(Literal["silent", "fail"]))
async def test_a_guarded_source_is_closed_once_wherever_its_reader_leaves(at: int, sends: Any) -> None:
    app = Guarded(RecordingSource(*"abcdef", FOREVER))
    with anyio.fail_after(10):
        server = await ScriptedServer(app, conduct=Conduct(at_bytes=at, sends=sends)).run()
    assert app.source.in_one_task
    assert app.source.closes == (1 if app.source.notes else 0)  # a generator that never started never closes
    assert (server.overlaps, server.late, server.wrong) == (0, 0, [])
    assert (server.ended, app.status) == ("unfinished", "gone")
    assert verdict(server) is Verdict.TRUNCATED


@pytest.mark.parametrize("killable", [False, True])
async def test_a_guarded_answer_is_given_up_when_its_reader_leaves_a_write_that_hangs(killable: bool) -> None:
    """Told by `receive`, though the send itself is never woken."""
    app = Guarded(RecordingSource(*"abcdef"))
    conduct = Conduct(at_bytes=300, sends="stuck")
    with anyio.fail_after(10):
        async with ScriptedServer(app, conduct=conduct, killable=killable) as server:
            await server.until(bytes=300)
            server.leave()
    assert (server.ended, app.status, app.source.closes) == ("unfinished", "gone", 1)


async def test_a_guarded_answer_to_a_reader_that_pauses_is_whole() -> None:
    app = Guarded(RecordingSource(*"abcdef"))
    async with ScriptedServer(app, conduct=Conduct(at_bytes=300, sends="hang")) as server:
        await server.until(bytes=300)
        await anyio.wait_all_tasks_blocked()
        server.release()
    assert (server.ended, app.status, verdict(server)) == ("complete", "complete", Verdict.COMPLETE)


async def test_a_guarded_answer_that_is_never_told_writes_to_its_end() -> None:
    app = Guarded(RecordingSource(*"abcdef"))
    server = await ScriptedServer(app, conduct=Conduct(at_messages=3, told="never")).run()
    assert (app.source.closes, app.source.returns) == (1, 1)
    assert verdict(server) is Verdict.TRUNCATED


async def test_a_server_that_shuts_down_cancels_a_guarded_answer() -> None:
    app = Guarded(RecordingSource("a", FOREVER))
    async with ScriptedServer(app) as server:
        await server.until(messages=3)
        await anyio.wait_all_tasks_blocked()
        server.cancel()
    assert server.ended == "raised"
    assert (app.source.cancels, app.source.closes) == (1, 1)
