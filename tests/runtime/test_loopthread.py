"""One event loop for threads that have none: what is awaited there is answered here, whoever gives up first."""

from __future__ import annotations

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
from typing import Any

import pytest

from streamguard.runtime.loopthread import _waiting, loop_thread, on_caller
from tests.adapters.servers import DEADLINE, Gate
from tests.modules import ROOT

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


async def where() -> tuple[str, str]:
    return threading.current_thread().name, VARIABLE.get()


async def failing() -> None:
    raise ZeroDivisionError


async def cancelled() -> None:
    raise asyncio.CancelledError


def here(what: str) -> tuple[str, int]:
    return what, threading.get_ident()


def test_a_function_runs_there_with_the_callers_context() -> None:
    def call() -> tuple[str, str]:
        VARIABLE.set("the caller's")
        return loop_thread().wait(where)

    assert contextvars.copy_context().run(call) == ("streamguard-loop", "the caller's")


def test_what_it_raises_is_raised_where_it_is_waited_for() -> None:
    with pytest.raises(ZeroDivisionError):
        loop_thread().wait(failing)
    with pytest.raises(asyncio.CancelledError):
        loop_thread().wait(cancelled)
    assert loop_thread().wait(where)[0] == "streamguard-loop"  # which goes on


def test_a_future_that_is_cancelled_cancels_its_task() -> None:
    began, over = Gate(), Gate()

    async def waits() -> None:
        began.open()
        try:
            await asyncio.Event().wait()
        finally:
            over.open()

    future = loop_thread().start(waits)
    began.wait()
    assert future.cancel()
    over.wait()


def test_so_is_one_whose_waiting_thread_is_interrupted() -> None:
    began, over = Gate(), Gate()

    def interrupted() -> None:
        began.wait()
        raise KeyboardInterrupt

    async def waits() -> None:
        began.open()
        try:
            await asyncio.Event().wait()
        finally:
            over.open()

    async def asks() -> None:
        _waiting.get().put(interrupted)  # type: ignore[union-attr]  # as a signal's handler raises in the waiting thread
        await waits()

    with pytest.raises(KeyboardInterrupt):
        loop_thread().wait(asks)
    over.wait()


def test_a_function_of_the_callers_is_called_on_the_thread_that_waits() -> None:
    async def asks() -> Any:
        with pytest.raises(ZeroDivisionError):
            await on_caller(lambda: 1 / 0)
        return await on_caller(here, "one"), await on_caller(here, "two")

    assert loop_thread().wait(asks) == (("one", threading.get_ident()), ("two", threading.get_ident()))


def test_where_no_thread_waits_it_is_called_in_the_pool() -> None:
    async def asks() -> Any:
        return await on_caller(here, "one")

    what, thread = loop_thread().start(asks).result(DEADLINE)
    assert what == "one"
    assert thread not in (threading.get_ident(), loop_thread().wait(_ident))


async def _ident() -> int:
    return threading.get_ident()


def test_an_answer_that_nobody_awaits_any_more_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    called = []

    async def asks() -> str:
        task = asyncio.ensure_future(on_caller(called.append, "late"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        return await on_caller(lambda: "asked")

    assert loop_thread().wait(asks) == "asked"
    assert called == ["late"]
    assert not caplog.records  # asyncio logs what a callback of its loop raises


FORKED = """
import os, sys
from streamguard.runtime.blocking_source import BlockingSource, Quiet
from streamguard.runtime.loopthread import loop_thread
from streamguard.runtime.source import TokenSource

async def pid():
    return os.getpid()

async def waits():
    yield b"one"
    import asyncio
    await asyncio.Event().wait()

def serve():
    source = BlockingSource(TokenSource(waits()), None)
    source.start()
    assert source.next(20.0) == b"one"
    try:
        source.next(None)
    except Quiet:
        return source.close(20.0) and loop_thread().wait(pid) == os.getpid()

if not serve():
    sys.exit(3)
child = os.fork()
if child == 0:
    os._exit(0 if serve() else 4)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="absent: os.fork (it is of POSIX systems)")
def test_a_forked_process_has_a_loop_and_a_clock_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
