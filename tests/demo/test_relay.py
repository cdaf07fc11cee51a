"""The relay: what a reader and an application see of a cut and of a stall. Without sockets."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from streamguard.demo.relay import Relay


def head(kind: bytes) -> dict[str, Any]:
    return {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}


START, PLAIN = head(b"text/event-stream"), head(b"text/plain")


def body(data: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


class Request:
    """A request of a run, through a relay, to an application that does what the test says."""

    def __init__(self, app: Any, run: bytes | None = b"r") -> None:
        self.relay = Relay(app)
        self.scope = {"type": "http", "headers": [] if run is None else [(b"demo-run", run)]}
        self.sent: list[Any] = []
        self.gone = anyio.Event()

    async def receive(self) -> Any:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def ask(self) -> None:
        await self.relay(self.scope, self.receive, self.send)


@pytest.mark.anyio
async def test_a_cut_is_a_clean_end_for_the_reader_and_a_reader_that_left_for_the_application() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send(body(b"a"))
        assert (await request.relay.cut("other"), await request.relay.cut("r")) == (0, 1)
        try:
            await send(body(b"b"))
        except OSError as exc:
            seen.append(str(exc))
            raise

    request = Request(app)
    await request.ask()
    assert request.sent == [START, body(b"a"), body(b"", more=False)]
    assert seen == ["the relay has cut this connection"]
    assert await request.relay.cut("r") == 0


@pytest.mark.anyio
async def test_nothing_passes_a_stall_and_the_answer_is_open_until_the_reader_leaves() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        assert (await request.relay.stall("r"), await request.relay.stall("r")) == (1, 0)
        await send(body(b"a"))
        await send(body(b"", more=False))
        over.set()

    over = anyio.Event()
    request = Request(app)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(request.ask)
        await over.wait()
        await anyio.wait_all_tasks_blocked()
        assert tasks.cancel_scope.cancel_called is False
        assert request.sent == [START]
        assert await request.relay.cut("r") == 1
        request.gone.set()
    assert request.sent == [START, body(b"", more=False)]
    assert await request.relay.stall("r") == 0


@pytest.mark.anyio
@pytest.mark.parametrize(("start", "run"), [(PLAIN, b"r"), (START, None)], ids=["no stream", "no run"])
async def test_what_is_no_stream_or_of_no_run_passes_untouched(start: dict[str, Any], run: bytes | None) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert await request.relay.cut("r") == 0
        await send(start)
        assert (await request.relay.cut("r"), await request.relay.stall("r")) == (0, 0)
        await send(body(b"a", more=False))

    request = Request(app, run)
    await request.ask()
    assert request.sent == [start, body(b"a", more=False)]


@pytest.mark.anyio
async def test_what_an_application_raises_by_itself_is_raised() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await Request(app).ask()
