"""What a resumer is called: the same in every process and version, and never what another request brought."""

from __future__ import annotations

import functools
from typing import Any

import anyio
import pytest

from streamguard import Continue, Orphan, anyone_with_the_id
from streamguard.app import Endpoint, StreamGuard
from streamguard.core.cursor import cursor_zero
from streamguard.core.dialect import dialect_named
from streamguard.core.flush import Immediate
from streamguard.log.memory import MemoryLog
from streamguard.runtime.resumers import LEFT
from streamguard.runtime.runs import Cancel, Detach
from streamguard.runtime.source import TokenSource
from streamguard.runtime.timing import Timing
from tests.runtime.fakes import Script
from tests.runtime.logs import Store, frames_in


def on(orphan: Orphan) -> Continue:
    return Continue(["on"])


def hook(outcome: Any) -> None: ...


class Answering:
    def method(self, orphan: Orphan) -> Continue:
        return on(orphan)

    def __call__(self, orphan: Orphan) -> Continue:
        return on(orphan)


def closure(prompt: str = "") -> Any:
    def resume(orphan: Orphan) -> Continue:
        return Continue(Script(prompt))  # of no thread, which a virtual clock would not wait for

    return resume


def endpoint(resumer: Any = on, on_end: Any = None, on_disconnect: Any = None, dialect: str = "native") -> Endpoint:
    return Endpoint(resumer, dialect_named(dialect), Immediate(), Timing(), on_end, on_disconnect)


def a_guard(log: MemoryLog | None = None) -> StreamGuard:
    return StreamGuard(log or MemoryLog(), authorize=anyone_with_the_id)


OF_ONE_REQUEST = {
    "closure": closure,
    "lambda": lambda: lambda orphan: Continue([orphan.text]),
    "partial": lambda: functools.partial(on),
    "method": lambda: Answering().method,
    "object": Answering,
}


@pytest.mark.parametrize("kind", OF_ONE_REQUEST)
def test_what_a_request_made_is_no_other_requests(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its prompt, and its user, are in it: under one name the last request's would end everybody's answers."""
    resumers, make = a_guard().resumers, OF_ONE_REQUEST[kind]
    assert [resumers.of_request(endpoint(make())) for _ in range(3)] == [None] * 3
    assert not resumers
    assert caplog.text.count("guard.register(") == 1
    assert "`producer_lost`" in caplog.text


def test_a_function_of_a_module_is_the_same_for_every_request(caplog: pytest.LogCaptureFixture) -> None:
    guard = a_guard()
    name = guard.resumers.of_request(endpoint())
    assert name == f"{__name__}.on in native"
    assert guard.resumers.of_request(endpoint()) == name
    assert guard.resumers.of_request(endpoint(dialect="openai")) == f"{__name__}.on in openai"
    assert not caplog.text
    assert guard.register(endpoint(on_end=hook)) == name  # which says what is to hold from now on
    assert guard.resumers.of_request(endpoint(on_end=closure())) == name
    assert [found.on_end for found in guard.resumers.values()][:1] == [hook]


def test_one_resumer_of_two_endpoints_keeps_their_ends_apart() -> None:
    resumers = a_guard().resumers
    ways = [endpoint(), endpoint(on_end=hook), endpoint(on_disconnect=Cancel()), endpoint(on_disconnect=Detach(9.0))]
    names = [resumers.of_request(way) for way in (*ways, *ways)]
    assert names[:4] == names[4:]
    assert [resumers[name] for name in names[:4] if name is not None] == ways
    assert resumers.of_request(endpoint(on_end=closure())) is None


@pytest.mark.parametrize("kind", OF_ONE_REQUEST)
def test_what_was_registered_is_known_by_its_name_when_a_request_brings_it(kind: str) -> None:
    guard, resumer = a_guard(), OF_ONE_REQUEST[kind]()
    assert guard.register(endpoint(resumer), name="chat") == "chat"
    assert guard.resumers.of_request(endpoint(resumer), "chat") == "chat"
    assert guard.resumers.of_request(endpoint(OF_ONE_REQUEST[kind]()), "chat") is None
    assert list(guard.resumers) == ["chat"]


@pytest.mark.parametrize("kind", ["lambda", "partial"])
def test_what_has_no_name_is_refused_without_one(kind: str) -> None:
    with pytest.raises(ValueError, match=r"guard\.register\(…, name=…\)"):
        a_guard().register(endpoint(OF_ONE_REQUEST[kind]()))


@pytest.mark.parametrize("other", [endpoint(closure()), endpoint(on_end=hook)])
def test_two_of_one_name_are_refused(other: Endpoint) -> None:
    guard = a_guard()
    assert guard.register(endpoint(), name="chat") == guard.register(endpoint(), name="chat")
    with pytest.raises(ValueError, match="resumer_name="):
        guard.register(other, name="chat")


@pytest.mark.anyio
async def test_what_a_request_brought_goes_on_with_its_own_stream_in_this_process() -> None:
    log = Store()
    here, elsewhere = a_guard(log), a_guard(log)
    run = await here.start(
        TokenSource(Script("a", anyio.Event())), principal="", resumer=endpoint(closure("ann")), timing=Timing()
    )
    other = await here.start(TokenSource(Script("b")), principal="", resumer=endpoint(closure("bob")))
    await other.over.wait()
    assert list(here.resumers.of_streams) == [run.sid]  # the other's has its end
    assert not elsewhere.resumers.of_streams
    await anyio.wait_all_tasks_blocked()
    run.producer.sink.leave("it was too slow")
    await run.over.wait()
    await log.release(run.producer.lease)
    await here.lost(await log.state(run.sid))
    with anyio.fail_after(50):
        async for _ in here.pages(cursor_zero(run.sid)):
            pass
        if (again := here.runs.get(run.sid)) is not None:
            await again.over.wait()
    assert [frame.data for frame in await frames_in(log, run.sid)][:-1] == [b'"a"', b'"ann"']
    assert not here.resumers.of_streams
    await here.aclose()


def test_of_streams_that_were_left_without_an_end_so_many_are_kept() -> None:
    resumers = a_guard().resumers
    for number in range(LEFT + 5):
        resumers.keep(str(number), endpoint(closure()))
        resumers.over(str(number), sealed=False)
    assert list(resumers.of_streams) == [str(number) for number in range(5, LEFT + 5)]
