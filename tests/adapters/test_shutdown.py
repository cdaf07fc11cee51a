"""Learning that the process is told to go: a handler that stands is called as well, and none is made up."""

from __future__ import annotations

import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from types import FrameType
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from streamguard.adapters import shutdown
from streamguard.adapters.logged import LoggedAnswer
from streamguard.adapters.seal import SealMiddleware
from streamguard.adapters.shutdown import DRAIN, drain_of, forget, learn
from streamguard.app import StreamGuard
from streamguard.log.memory import MemoryLog
from streamguard.runtime.drain import Drain
from tests.stacks.drain import asked

Handler = Callable[[int, FrameType | None], Any]


@pytest.fixture(autouse=True)
def standing() -> Iterator[list[int]]:
    """The signals that a server's own handler was given, which stands while a test runs."""
    given: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: given.append(number))
    others = set(shutdown._drains)
    shutdown._drains.clear()
    yield given
    signal.signal(signal.SIGTERM, before)
    shutdown._drains.clear()
    shutdown._drains.update(others)


def test_the_handler_that_stands_is_called_after_the_drain_has_begun() -> None:
    drain, order = Drain(), list[bool]()
    signal.signal(signal.SIGTERM, lambda number, frame: order.append(drain.ready))
    learn(drain)
    learn(drain)
    signal.raise_signal(signal.SIGTERM)
    assert (order, drain.ready) == ([False], False)


def test_all_applications_of_a_process_learn_of_it(standing: list[int]) -> None:
    drains = [Drain(), Drain()]
    for drain in drains:
        learn(drain)
    signal.raise_signal(signal.SIGTERM)
    assert ([drain.ready for drain in drains], standing) == ([False, False], [signal.SIGTERM])


def test_a_handler_that_was_set_later_is_chained_too(standing: list[int]) -> None:
    """As by a server that sets its own once the application was loaded; and it may call ours itself."""
    drain, later = Drain(), list[int]()
    learn(drain)
    ours: Any = signal.getsignal(signal.SIGTERM)

    def other(number: int, frame: FrameType | None) -> None:
        later.append(number)
        ours(number, frame)

    signal.signal(signal.SIGTERM, other)
    learn(drain)
    signal.raise_signal(signal.SIGTERM)
    assert (later, standing, drain.ready) == ([signal.SIGTERM], [signal.SIGTERM], False)


@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN])
def test_where_nobody_handles_it_nobody_does_afterwards(handler: Any) -> None:
    """A process that a signal ends would otherwise outlive it."""
    signal.signal(signal.SIGTERM, handler)
    learn(Drain())
    assert signal.getsignal(signal.SIGTERM) is handler


def test_the_handler_is_put_back_behind_the_last_application() -> None:
    before = signal.getsignal(signal.SIGTERM)
    first, second = Drain(), Drain()
    learn(first)
    learn(second)
    forget(first)
    assert signal.getsignal(signal.SIGTERM) is not before
    signal.raise_signal(signal.SIGTERM)
    assert (first.ready, second.ready) == (True, False)
    forget(second)
    assert signal.getsignal(signal.SIGTERM) is before


def test_another_handler_that_took_its_place_is_left_alone() -> None:
    drain = Drain()
    learn(drain)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    forget(drain)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_beside_the_main_thread_nothing_is_done() -> None:
    before, drain = signal.getsignal(signal.SIGTERM), Drain()
    for call in (learn, forget):
        thread = threading.Thread(target=call, args=(drain,))
        thread.start()
        thread.join()
    assert signal.getsignal(signal.SIGTERM) is before
    signal.raise_signal(signal.SIGTERM)
    assert drain.ready


def test_a_drain_that_is_gone_is_not_kept() -> None:
    learn(Drain())
    assert not len(shutdown._drains)


def test_a_request_has_the_drain_of_its_application_or_one_that_learns_too() -> None:
    drain = Drain()
    assert drain_of({DRAIN: drain}) is drain
    shared = drain_of({})
    assert shared is drain_of({})
    assert shared in shutdown._drains


@pytest.mark.parametrize("on_sigterm", [True, False])
@pytest.mark.parametrize("kind", ["answer", "seal"])
def test_an_application_learns_of_it_by_its_first_request_unless_it_is_told_not_to(kind: str, on_sigterm: bool) -> None:
    async def tokens() -> AsyncIterator[str]:
        yield "t0 "

    def own(request: Any, action: str) -> str:
        return "ann"

    guard = StreamGuard(MemoryLog(), authorize=own, on_sigterm=on_sigterm)
    seal = SealMiddleware(LoggedAnswer(guard, tokens()), on_sigterm=on_sigterm)
    ready = guard if kind == "answer" else seal.draining
    assert anyio.run(asked, seal, "/").startswith("200")
    signal.raise_signal(signal.SIGTERM)
    assert ready.ready is not on_sigterm


WORKER = """
async def serve(learned):
    await learned()

def worker(run, learned, shutdown_event):
    run(serve, learned)
"""


class Event:
    """What hypercorn's processes share."""

    told = False

    def is_set(self) -> bool:
        return self.told


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_event_of_hypercorns_workers_is_looked_at(backend: str) -> None:
    """In a module of that name, below the loop on the stack; `tests/stacks` has the server itself."""
    event, drain = Event(), Drain(0.0)

    async def application() -> None:
        stopped = anyio.Event()
        with drain.joined(stopped.set):
            learn(drain)
            await anyio.lowlevel.checkpoint()
            assert drain.ready
            event.told = True
            with anyio.fail_after(10):
                await stopped.wait()

    module: dict[str, Any] = {"__name__": "hypercorn.asyncio.run"}
    exec(WORKER, module)
    module["worker"](lambda *args: anyio.run(*args, backend=backend), application, event)
    assert not drain.ready


def test_it_is_looked_at_also_where_an_application_learns_as_it_is_loaded_before_the_loop_runs() -> None:
    event, drain = Event(), Drain(0.0)

    def load_and_run(*args: Any) -> None:
        learn(drain)  # as `guard.install` does in a module of Django's
        anyio.run(*args)

    async def application() -> None:
        stopped = anyio.Event()
        with drain.joined(stopped.set):
            learn(drain)  # as at each request
            event.told = True
            with anyio.fail_after(10):
                await stopped.wait()

    module: dict[str, Any] = {"__name__": "hypercorn.asyncio.run"}
    exec(WORKER, module)
    module["worker"](load_and_run, application, event)
    assert not drain.ready


def test_another_server_has_no_such_event() -> None:
    event, drain = Event(), Drain()
    event.told = True

    async def application() -> None:
        learn(drain)
        await anyio.sleep(0.15)

    module: dict[str, Any] = {"__name__": "uvicorn.server"}
    exec(WORKER, module)
    module["worker"](anyio.run, application, event)
    assert drain.ready
