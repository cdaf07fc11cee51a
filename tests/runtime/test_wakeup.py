"""Calls into a loop come on its own thread, whichever loop it is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest
import trio

from streamguard.runtime.wakeup import LoopCaller, in_loop
from tests.conftest import LOOPS


@pytest.fixture(params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


def call_from_thread(call: LoopCaller, function: Callable[[], object]) -> None:
    thread = threading.Thread(target=call, args=(function,))
    thread.start()
    thread.join(10)


@pytest.mark.anyio
async def test_a_call_from_a_thread_runs_on_the_loops_own() -> None:
    called, event = [], anyio.Event()

    def function() -> None:
        called.append(threading.get_ident())
        event.set()

    call = LoopCaller()
    call_from_thread(call, function)
    assert called == []
    await event.wait()
    call(function)
    assert called == [threading.get_ident()] * 2
    assert in_loop()
    assert await anyio.to_thread.run_sync(in_loop) is False


def test_where_no_loop_runs_there_is_none_to_call() -> None:
    assert not in_loop()
    with pytest.raises(RuntimeError):
        LoopCaller()


def test_a_guest_trio_is_called_and_not_its_host() -> None:
    async def guest() -> str:
        event = trio.Event()
        call_from_thread(LoopCaller(), event.set)  # on the host's turn this would be no trio task's business
        await event.wait()
        return "woken"

    async def host() -> Any:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        trio.lowlevel.start_guest_run(
            guest,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            done_callback=done.set_result,
        )
        return (await done).unwrap()

    assert asyncio.run(host()) == "woken"
