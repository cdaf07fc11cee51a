"""The reader leaves: the source stops within one token, whatever it and the driver were doing.

"Within one token" is counted, not timed: a layer round the answer notes how many tokens the source had made
when the server said that the reader is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest

from streamguard.adapters.asgi import GuardedAnswer
from streamguard.adapters.seal import Message, Receive, Scope, Send
from streamguard.runtime.timing import Timing
from tests.adapters.asgi_apps import Ends, answering, exchange, tokens
from tests.adapters.kinds import KINDS
from tests.adapters.leaving import BLOCKED, MODES, Leavers
from tests.adapters.servers import Gate, serving, stack_params


@pytest.mark.parametrize("stack", stack_params())
@pytest.mark.parametrize("mode", MODES)
def test_the_source_stops_within_one_token(mode: str, stack: tuple[str, str]) -> None:
    leaves(mode, "async generator", stack)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "async generator"])
@pytest.mark.parametrize("mode", MODES)
def test_a_source_of_any_other_kind_stops_within_one_token_too(mode: str, kind: str) -> None:
    leaves(mode, kind, ("h11", "asyncio"))


def leaves(mode: str, kind: str, stack: tuple[str, str]) -> None:
    leavers = Leavers()
    with serving(leavers.app, http=stack[0], loop=stack[1]) as server:
        leavers.leave(server, mode, kind)
        outcome = leavers.ends.wait()
    run = leavers.runs[0]
    assert (outcome.status, outcome.delivered, outcome.abandoned) == ("gone", "no", False)
    assert run.made >= (20 if mode != BLOCKED else 1)
    assert run.at_disconnect is not None
    assert run.after <= 1
    assert run.closed_once, (run.closed, run.closed_in, run.driven_in)


@pytest.mark.parametrize("kind", KINDS)
def test_leaving_readers_leave_nothing_behind(kind: str) -> None:
    leavers = Leavers()
    with serving(leavers.app) as server:
        tasks = server.call(lambda: len(asyncio.all_tasks()))
        leavers.leave(server, "producing", kind)  # what is made once is there from now on
        leavers.ends.wait(1)
        before = leavers.left(server, tasks)
        for index in range(24):
            leavers.leave(server, MODES[index % len(MODES)], kind)
        leavers.ends.wait(25)
        assert leavers.left(server, tasks) == before
    assert (before.tasks, before.threads, before.generators) == (tasks, 0, 0)
    assert [run.closed for run in leavers.runs] == [1] * 25


def test_only_the_streams_that_were_left_are_cancelled() -> None:
    """Of 110 streams 10 are left early; the others run to their ends by themselves."""
    cut_short = []

    async def source() -> AsyncIterator[str]:
        try:
            for index in range(5):
                yield f"t{index} "
            await (gate if len(started) % 11 == 0 else asyncio.sleep(0))
        except BaseException as exc:
            cut_short.append(type(exc).__name__)
            raise

    started: list[int] = []
    gate = Gate()
    ends = Ends()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        started.append(1)
        await GuardedAnswer(source(), on_end=ends)(scope, receive, send)

    with serving(app) as server:
        for index in range(1, 111):
            if index % 11 == 0:
                with server.connect() as connection:
                    connection.get()
                    connection.until(b"t4 ")
                ends.wait(index)
            else:
                exchange(server.connect())
    assert len(cut_short) == 10
    assert [outcome.status for outcome in ends.outcomes].count("complete") == 100


def test_one_reader_leaving_does_not_stop_another() -> None:
    gate = Gate()
    ends = Ends()

    async def source() -> AsyncIterator[str]:
        yield "t0 "
        await gate
        yield "t1 "

    with serving(answering(source, on_end=ends)) as server, server.connect() as stays:
        stays.get()
        stays.until(b"t0 ")
        with server.connect() as leaves:
            leaves.get()
            leaves.until(b"t0 ")
        assert ends.wait(1).status == "gone"
        gate.open()
        assert b"t1 " in stays.until(b"event: end")
        assert ends.wait(2).status == "complete"


def test_the_next_stream_of_a_session_sees_nothing_of_the_one_that_was_left() -> None:
    """One session key, streams one right after the other: no abort and no token crosses over."""
    sessions: dict[str, int] = {}

    async def source(turn: int) -> AsyncIterator[str]:
        for index in range(3):
            yield f"turn{turn}-{index} "
        if turn % 2 == 0:
            await asyncio.Event().wait()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        turn = sessions["key"] = sessions.get("key", -1) + 1
        await GuardedAnswer(source(turn))(scope, receive, send)

    with serving(app) as server:
        for turn in range(0, 100, 2):
            left = server.connect()
            left.get()
            left.until(f"turn{turn}-0".encode())
            left.close()
            response = exchange(server.connect())
            verifier = response.verified()
            assert verifier.receipt.frames == 4
            assert f"turn{turn}-".encode() not in response.body


@attrs.define
class Wire:
    """A transport whose writes fail, or succeed for ever, after so many."""

    good: int
    quiet: bool
    sent: int = 0
    gone: asyncio.Event = attrs.field(factory=asyncio.Event)

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent += 1
        if self.sent > self.good:
            self.gone.set()
            if not self.quiet:
                raise OSError("the transport is closed")


@pytest.mark.parametrize("quiet", [False, True], ids=["raises", "returns"])
def test_a_closed_transport_is_found_whether_it_raises_or_returns(quiet: bool) -> None:
    made = []

    async def source() -> AsyncIterator[str]:
        for index in range(1000):
            made.append(index)
            yield f"t{index} "
            await asyncio.sleep(0)

    async def run() -> Any:
        wire = Wire(5, quiet)
        answer = GuardedAnswer(source())
        scope = {"type": "http", "method": "GET", "headers": [], "query_string": b"", "http_version": "1.1"}
        await answer(scope, wire.receive, wire.send)
        return answer.outcome

    outcome = asyncio.run(run())
    assert (outcome.status, outcome.delivered) == ("gone", "no")
    assert len(made) < 10


def test_a_send_that_fails_at_the_terminal_frees_the_stream() -> None:
    """The source raises after five tokens, and so does the send that would say so; another stream is served."""
    ends = Ends()

    async def source() -> AsyncIterator[str]:
        for index in range(5):
            yield f"t{index} "
        raise RuntimeError("the model broke")

    async def run() -> None:
        scope = {"type": "http", "method": "GET", "headers": [], "query_string": b"", "http_version": "1.1"}
        wire = Wire(7, quiet=False)  # the start, the opening, five tokens
        await GuardedAnswer(source(), on_end=ends)(scope, wire.receive, wire.send)
        good = Wire(1000, quiet=False)
        await GuardedAnswer(tokens(), on_end=ends)(scope, good.receive, good.send)

    asyncio.run(run())
    assert [outcome.delivered for outcome in ends.outcomes] == ["no", "unknown"]
    assert ends.outcomes[1].status == "complete"


def test_the_messages_of_an_answer_are_one_start_bodies_and_one_end() -> None:
    sent: list[Message] = []

    async def run() -> None:
        never = asyncio.Event()

        async def receive() -> Message:
            await never.wait()
            raise AssertionError

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "headers": [], "query_string": b"", "http_version": "1.1"}
        await GuardedAnswer(tokens(3))(scope, receive, send)

    asyncio.run(run())
    assert [message["type"] for message in sent] == ["http.response.start"] + ["http.response.body"] * 6
    assert [message["more_body"] for message in sent[1:]] == [True] * 5 + [False]
    assert sent[-1]["body"] == b""


def test_a_source_that_swallows_its_cancellation_is_abandoned_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    released = Gate()
    ends = Ends()

    async def stubborn() -> AsyncIterator[str]:
        yield "t0 "
        while not released.opened:
            try:
                await asyncio.shield(asyncio.wrap_future(released._future))
            except asyncio.CancelledError:
                pass

    with serving(answering(stubborn, timing=Timing(close=0.05), on_end=ends)) as server:
        with server.connect() as connection:
            connection.get()
            connection.until(b"t0 ")
        outcome = ends.wait()
        released.open()
    assert (outcome.status, outcome.abandoned) == ("gone", True)
    assert "abandoned" in caplog.text


def test_closing_in_mid_stream_leaves_no_complaint_behind(caplog: pytest.LogCaptureFixture) -> None:
    """`Task exception was never retrieved` and its like come from the loop's own logger."""
    ends = Ends()

    async def nested() -> AsyncIterator[str]:
        async for token in tokens(1_000_000):
            await asyncio.sleep(0)
            yield token

    with serving(answering(nested, on_end=ends)) as server:
        for number in range(1, 6):
            with server.connect() as connection:
                connection.get()
                connection.until(b"t3 ")
            ends.wait(number)
    assert [record.name for record in caplog.records if record.name == "asyncio"] == []
