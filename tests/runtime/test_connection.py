"""One connection: what may still happen on it after what has."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from streamguard.runtime.connection import Connection, Lost
from tests.runtime.fakes import Wire

pytestmark = pytest.mark.anyio


def connect(wire: Wire, opening: bytes = b"") -> Connection[bytes]:
    line: Connection[bytes] = Connection(wire, anyio.current_time)
    line.opening = opening
    return line


def refuse(*args: Any) -> None:
    raise OSError("broken pipe")


async def test_headers_and_opening_leave_together_and_are_timed() -> None:
    wire = Wire(slow=2.0)
    line = connect(wire, b"hello")
    assert not line.opened
    await line.open()
    assert wire.calls == ["start", "send"]
    assert line.first_byte == line.wrote == 2.0


async def test_nothing_to_open_with_is_nothing_to_send() -> None:
    wire = Wire()
    await connect(wire).open()
    assert wire.calls == ["start"]


async def test_a_refused_write_is_torn_and_lost() -> None:
    line = connect(Wire(on_send=refuse))
    await line.open()
    with pytest.raises(Lost) as caught:
        await line.send(b"x")
    assert isinstance(caught.value.__cause__, OSError)
    assert line.torn
    assert line.lost


async def test_refused_headers_are_torn_and_lost() -> None:
    line = connect(Wire(on_start=refuse))
    with pytest.raises(Lost):
        await line.open()
    assert line.torn


async def test_an_interrupted_write_is_torn_and_its_reader_still_there() -> None:
    line = connect(Wire(slow=10.0))
    await line.open()
    with anyio.move_on_after(1):
        await line.send(b"x")
    assert line.torn
    assert not line.lost


async def test_interrupted_headers_are_torn() -> None:
    line = connect(Wire(on_start=lambda: anyio.sleep(10)))
    with anyio.move_on_after(1):
        await line.open()
    assert line.torn


async def test_a_write_for_a_reader_that_leaves_is_given_up() -> None:
    line = connect(Wire(slow=anyio_forever))
    await line.open()

    async def leave() -> None:
        await anyio.sleep(1)
        line.leave()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(leave)
        with pytest.raises(Lost):
            await line.send(b"x")
    assert line.torn
    assert line.lost
    assert anyio.current_time() == 1


def anyio_forever(number: int, data: bytes) -> float:
    return 80_000.0


async def test_a_write_for_a_reader_that_left_is_not_begun() -> None:
    wire = Wire()
    line = connect(wire)
    await line.open()
    line.leave()
    with pytest.raises(Lost):
        await line.send(b"x")
    assert wire.calls == ["start"]
    assert not line.torn
    assert line.lost


async def test_a_connection_ends_once() -> None:
    wire = Wire()
    line = connect(wire)
    await line.open()
    await line.end()
    await line.abort()
    assert wire.calls == ["start", "end"]
    assert line.over


async def test_a_clean_end_that_is_refused_is_an_abort(caplog: Any) -> None:
    wire = Wire(on_end=refuse)
    line = connect(wire)
    await line.open()
    await line.end()
    assert wire.calls == ["start", "end", "abort"]
    assert line.over


async def test_a_clean_end_that_is_interrupted_can_still_be_an_abort() -> None:
    wire = Wire(on_end=lambda: anyio.sleep(10))
    line = connect(wire)
    await line.open()
    with anyio.move_on_after(1):
        await line.end()
    await line.abort()
    assert wire.calls == ["start", "end", "abort"]


@pytest.mark.parametrize(("error", "level"), [(RuntimeError, "WARNING"), (ConnectionResetError, "INFO")])
async def test_an_abort_that_is_refused_is_a_warning_unless_the_reader_had_gone(
    error: type[Exception], level: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A connection that is gone has no clean end any more."""

    def refuse_to_abort() -> None:
        raise error("it is closing")

    caplog.set_level("INFO", "streamguard")
    line = connect(Wire(on_abort=refuse_to_abort))
    await line.open()
    await line.abort()
    assert [(record.levelname, "it is closing" in record.getMessage()) for record in caplog.records] == [(level, True)]


async def test_nothing_is_aborted_before_the_headers() -> None:
    """A proxy may then try another server; the server's own error answer is the better one."""
    wire = Wire()
    await connect(wire).abort()
    assert wire.calls == []


async def test_who_waits_for_a_claim_goes_on_when_it_is_given_back() -> None:
    line = connect(Wire())
    order: list[str] = []

    async def other() -> None:
        with line.claim():
            await anyio.sleep(1)
            order.append("other")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        await anyio.lowlevel.checkpoint()
        await anyio.sleep(0.5)
        await line.settled()
        order.append("driver")
    assert order == ["other", "driver"]
    await line.settled()


async def test_a_claim_is_given_back_by_an_exception_too() -> None:
    line = connect(Wire())
    with pytest.raises(ValueError, match="no"), line.claim():
        raise ValueError("no")
    await line.settled()


async def test_a_write_is_hurried_that_waits_already_and_each_after_it() -> None:
    line = connect(Wire(slow=10.0))
    await line.open()

    async def hurry() -> None:
        await anyio.sleep(3.0)
        line.hurry(1.0)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hurry)
        with pytest.raises(Lost):
            await line.send(b"x")
    assert (anyio.current_time(), line.slow, line.limit) == (4.0, True, 1.0)


async def test_whoever_has_less_time_is_given_no_more() -> None:
    line: Connection[bytes] = Connection(Wire(slow=10.0), anyio.current_time, 0.5)
    line.hurry(1.0)
    await line.open()
    with pytest.raises(Lost):
        await line.send(b"x")
    assert anyio.current_time() == 0.5
