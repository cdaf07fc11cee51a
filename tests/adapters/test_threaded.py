"""What the adapters for threads share: when an endpoint is called, and what becomes of what it returned."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import pytest

from streamguard.adapters.blocking import Head
from streamguard.adapters.options import AnswerOptions, StreamOptions
from streamguard.adapters.shutdown import DRAIN
from streamguard.adapters.threaded import Guarding, Logging, ThreadGuard, drained
from streamguard.log.memory import MemoryLog
from streamguard.runtime.admission import Admission
from streamguard.runtime.blocking import BodyAborted
from streamguard.runtime.drain import Draining
from streamguard.runtime.slots import Limits
from tests.adapters.servers import DEADLINE
from tests.adapters.test_blocking import environ, fields, sent

CURSOR = "0000000000000000000000.1.5.00000000"
LIMITS = Limits(max_streams=1, max_wait=DEADLINE)


def chat() -> None: ...


def one(*args: Any) -> Iterator[str]:
    yield "one"


def a_guard(**more: Any) -> ThreadGuard:
    return ThreadGuard(MemoryLog(), authorize=lambda request, action: "ada", on_sigterm=False, **more)


def direct(dress: Callable[[Any], Any] = lambda source: source) -> Guarding:
    return Guarding(AnswerOptions(limits=Admission(LIMITS)), dress)


def logged(dress: Callable[[Any], Any] = lambda source: source) -> Guarding:
    return Logging(a_guard(limits=LIMITS), (StreamOptions(), AnswerOptions()), dress)


def answered(guarding: Guarding, endpoint: Callable[[], Any] = one, **more: Any) -> Any:
    """What a request is answered; texts pass as responses of the endpoint's own."""
    return guarding.answer(environ(**more), "the request", endpoint, chat, lambda result: isinstance(result, str))


both = pytest.mark.parametrize("make", [direct, logged])


@both
def test_an_endpoint_is_called_only_for_a_request_that_starts_a_stream(make: Callable[[], Guarding]) -> None:
    calls: list[int] = []

    def endpoint() -> Iterator[str]:
        calls.append(1)
        return one()

    guarding = make()
    refused = answered(guarding, endpoint, HTTP_LAST_EVENT_ID=CURSOR)
    assert (refused.status, calls) == (404, [])
    head = answered(guarding, endpoint)
    assert isinstance(head, Head)
    assert (sent(head).count(b"event: end\n"), calls) == (1, [1])


@both
def test_a_response_of_its_own_is_handed_on_and_its_slot_is_given_back(make: Callable[[], Guarding]) -> None:
    guarding = make()
    assert [answered(guarding, lambda: "a page") for _ in range(2)] == ["a page"] * 2
    assert b"one" in sent(answered(guarding))


def fail() -> Any:
    raise ZeroDivisionError


@both
@pytest.mark.parametrize(("endpoint", "error"), [(fail, ZeroDivisionError), (lambda: None, TypeError)])
def test_one_that_fails_or_returns_what_is_no_source_gives_its_slot_back(
    make: Callable[[], Guarding], endpoint: Any, error: type[Exception]
) -> None:
    guarding = make()
    for _ in range(2):
        with pytest.raises(error):
            answered(guarding, endpoint)
    assert b"one" in sent(answered(guarding))


@both
def test_a_source_is_dressed_and_a_response_is_not(make: Callable[[Any], Guarding]) -> None:
    dressed: list[Any] = []

    def dress(source: Any) -> Any:
        dressed.append(source)
        return ["in its ", "context"]

    guarding = make(dress)
    answered(guarding, lambda: "a page")
    assert dressed == []
    assert b"context" in sent(answered(guarding))
    assert len(dressed) == 1


def test_authorize_is_asked_on_the_requests_thread_with_the_request_and_may_be_async() -> None:
    seen: list[Any] = []

    def who(request: Any, action: str) -> str:
        seen.append((request, action, threading.get_ident()))
        return "ada"

    async def later(request: Any, action: str) -> str | None:
        return None

    guard = ThreadGuard(MemoryLog(), authorize=who, on_sigterm=False)
    sent(answered(Logging(guard, (StreamOptions(), AnswerOptions()))))
    assert seen == [("the request", "start", threading.get_ident())]
    refusing = ThreadGuard(MemoryLog(), authorize=later, on_sigterm=False)
    assert answered(Logging(refusing, (StreamOptions(), AnswerOptions()))).status == 403


def test_a_guard_that_is_closed_lets_go_of_its_streams() -> None:
    guard, closed = a_guard(), threading.Event()

    async def waiting() -> AsyncIterator[str]:
        try:
            yield "one"
            await anyio.sleep_forever()
        finally:
            closed.set()

    head = answered(Logging(guard, (StreamOptions(), AnswerOptions())), waiting, HTTP_STREAMGUARD="v=1")
    assert "streamguard" in fields(head)
    parts: Any = iter(head.body)
    while b"one" not in next(parts):
        pass
    guard.close()
    assert closed.wait(DEADLINE)
    with pytest.raises(BodyAborted):
        b"".join(parts)
    head.body.close()  # type: ignore[attr-defined]


def test_the_innermost_drain_is_told_of_by_the_outermost() -> None:
    seen: list[Any] = []

    def app(environ: Any, start_response: Any) -> list[bytes]:
        seen.append(environ[DRAIN])
        return []

    outer, inner = Draining(on_sigterm=False), Draining(on_sigterm=False)
    drained(drained(app, inner), outer)({}, None)
    drained(app, inner)({}, None)
    assert seen == [outer.draining, inner.draining]
