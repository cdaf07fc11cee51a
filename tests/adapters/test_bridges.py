"""The two servers of ASGI applications that are none: for a thread, and for an async iterator."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest

from streamguard.adapters.bridge import Bridge
from streamguard.adapters.environ import facts_of, gone_by, scope_of
from streamguard.adapters.loop_bridge import SEND, LoopBridge
from streamguard.adapters.transport import Transport, transport_of
from streamguard.runtime.blocking import BodyAborted
from tests.adapters.servers import DEADLINE, Gate

START: dict[str, Any] = {"type": "http.response.start", "status": 200, "headers": [(b"x-a", b"1")]}


def part(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


def sending(*messages: Any) -> Any:
    """An application that sends these, then waits for its reader to leave."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["body"] == b"asked"
        for message in messages:
            await send(message)
        assert (await receive())["type"] == "http.disconnect"

    return app


def environ() -> dict[str, Any]:
    return {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/caf\xc3\xa9",
        "SCRIPT_NAME": "/base",
        "CONTENT_TYPE": "text/plain",
        "CONTENT_LENGTH": "5",
        "wsgi.input": io.BufferedReader(io.BytesIO(b"asked, and more")),  # type: ignore[arg-type]
    }


def test_a_request_is_told_as_asgi_tells_it() -> None:
    facts = facts_of(environ())
    scope = scope_of(environ(), facts)
    assert (scope["path"], scope["root_path"], scope["http_version"]) == ("/base/café", "/base", "1.1")
    assert (b"content-type", b"text/plain") in scope["headers"]
    assert gone_by(environ()) is None


async def failing(scope: Any, receive: Any, send: Any) -> None:
    raise ZeroDivisionError


async def silent(scope: Any, receive: Any, send: Any) -> None:
    pass


async def broken(scope: Any, receive: Any, send: Any) -> None:
    await send(START)
    await send(part(b"one"))
    raise ZeroDivisionError


def leaving(taken: Gate, sent: Gate, unsent: list[int]) -> Any:
    """An application with a part that nobody takes, since its reader leaves; notes what it thinks is unsent then."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(START)
        await send(part(b"one"))
        await taken
        await send(part(b"two"))
        found = transport_of(scope, receive)
        assert found is not None
        unsent.append(found.unsent() or 0)
        sent.open()
        assert (await receive())["type"] == "http.disconnect"
        unsent.append(found.unsent() or 0)

    return app


class TestThread:
    def test_it_takes_all_that_waits_and_ends_as_the_application_does(self) -> None:
        large = b"x" * 70_000  # more than waits at once: the application goes on when it was taken
        asked = environ()
        head = Bridge(sending(START, part(large), part(large), part(b"", more=False)), asked).begin({})
        assert (head.status, head.headers) == (200, [("x-a", "1")])
        assert b"".join(head.body) == 2 * large
        head.body.close()  # type: ignore[attr-defined]

    def test_an_answer_that_is_not_ended_is_cut(self, caplog: Any) -> None:
        head = Bridge(broken, environ()).begin({})
        with pytest.raises(BodyAborted):
            list(head.body)
        assert "an application failed after its answer had begun" in caplog.text

    def test_what_fails_before_an_answer_is_raised(self) -> None:
        with pytest.raises(ZeroDivisionError):
            Bridge(failing, environ()).begin({})
        with pytest.raises(RuntimeError, match="answered nothing"):
            Bridge(silent, environ()).begin({})

    def test_who_closes_an_answer_tells_the_application(self) -> None:
        large = b"x" * 70_000
        bridge = Bridge(sending(START, part(large), part(large)), environ())
        head = bridge.begin({})
        head.body.close()  # type: ignore[attr-defined]
        assert bridge._task is not None
        bridge._task.result(DEADLINE)

    def test_of_a_reader_that_left_nothing_is_unsent_that_a_stream_would_wait_for(self) -> None:
        taken, sent, unsent = Gate(), Gate(), list[int]()
        bridge = Bridge(leaving(taken, sent, unsent), environ())
        head = bridge.begin({})
        assert next(iter(head.body)) == b"one"
        taken.open()
        sent.wait()
        head.body.close()  # type: ignore[attr-defined]
        assert bridge._task is not None
        bridge._task.result(DEADLINE)
        assert unsent == [3, 0]


class TestLoop:
    def run(self, app: Any, scope: Any = None) -> tuple[Any, bytes]:
        async def run() -> tuple[Any, bytes]:
            head = await LoopBridge(app, {} if scope is None else scope, b"asked").begin()
            return head, b"".join([data async for data in head.body])

        return asyncio.run(asyncio.wait_for(run(), DEADLINE))

    def test_it_takes_all_that_waits_and_ends_as_the_application_does(self) -> None:
        large = b"x" * 70_000
        head, body = self.run(sending(START, part(large), part(large), part(b"", more=False)))
        assert (head.status, head.headers, body) == (200, [("x-a", "1")], 2 * large)

    def test_what_is_not_ended_or_fails_is_raised(self) -> None:
        for app, error in (broken, ZeroDivisionError), (failing, ZeroDivisionError), (silent, RuntimeError):
            with pytest.raises(error):
                self.run(app)

    def test_a_transport_is_closed_only_behind_what_was_sent(self) -> None:
        steps: list[str] = []
        transport = Transport(unsent=lambda: 0, close=lambda: steps.append("closed"), abort=lambda: None)

        async def closing(scope: Any, receive: Any, send: Any) -> None:
            await send(START)
            await send(part(b"one"))
            found = transport_of(scope, receive)
            assert found is not None
            found.close()

        async def run() -> None:
            head = await LoopBridge(closing, {"streamguard.transport": transport}).begin()
            await asyncio.sleep(0)
            steps.append("begun")
            async for data in head.body:
                steps.append(data.decode())

        with pytest.raises(BodyAborted):
            asyncio.run(run())
        assert steps == ["begun", "one", "closed"]

    def test_of_a_reader_that_left_nothing_is_unsent_that_a_stream_would_wait_for(self) -> None:
        taken, sent, unsent = Gate(), Gate(), list[int]()

        async def run() -> None:
            head = await LoopBridge(leaving(taken, sent, unsent), {}).begin()
            parts: Any = head.body.__aiter__()
            assert await anext(parts) == b"one"
            taken.open()
            await sent
            await parts.aclose()  # which waits for the application

        asyncio.run(asyncio.wait_for(run(), DEADLINE))
        assert unsent == [3, 0]

    def test_parts_go_straight_where_nothing_waits(self) -> None:
        went: list[bytes] = []
        asked = asyncio.Event()

        async def send(message: Any) -> None:
            went.append(message["body"])

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send(START)
            await asked.wait()
            await send(part(b"one"))
            await send(part(b"", more=False))

        async def run() -> list[bytes]:
            head = await LoopBridge(app, {SEND: send}).begin()
            body = head.body.straight()
            asked.set()
            return [data async for data in body]

        assert asyncio.run(run()) == []
        assert went == [b"one"]
