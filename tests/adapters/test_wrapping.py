"""What becomes of an endpoint of each kind, by a framework that notes what it is asked."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import attrs
import pytest

from streamguard.adapters.wrapping import Called, found, wrap

pytestmark = pytest.mark.anyio


@attrs.define
class Claimed:
    """What a request may have."""

    starts: bool = True
    releases: int = 0

    def let_go(self) -> None:
        self.releases += 1


@attrs.define
class Framework:
    """A Guarding. Its requests are texts; a response is a number."""

    logs: bool = False
    starts: bool = True
    claim: Any = None
    fails: bool = False
    decorator: str = "guarded"
    whole: str = "a number"
    asked: list[str] = attrs.field(factory=list)

    def called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Called:
        hidden = kwargs.pop("hidden", None)
        return Called(hidden or found(str, args, kwargs), hidden is None)

    async def read(self, request: Any) -> None:
        self.asked.append(f"read {request}")

    def runs(self, request: Any) -> bool:
        self.asked.append(f"runs {request}")
        return self.starts

    async def look(self, request: Any) -> Any:
        return self.claim

    def is_response(self, result: Any) -> bool:
        return isinstance(result, int)

    async def passed(self, endpoint: Any, result: Any, claim: Any) -> Any:
        return f"passed {result}"

    async def answered(self, source: Any, called: Called, claim: Any) -> Any:
        if self.fails:
            raise ZeroDivisionError
        self.asked.append("answered")
        return source


async def yields_later(request: str) -> AsyncIterator[str]:
    yield request


def yields(request: str) -> Iterator[str]:
    yield request


async def returns_later(request: str) -> Any:
    return yields_later(request)


def returns(request: str) -> Any:
    return yields(request)


@pytest.mark.parametrize("endpoint", [yields_later, yields])
async def test_one_that_yields_is_answered_with_and_may_read_its_request(endpoint: Any) -> None:
    framework = Framework(starts=False)  # nothing runs before the answer asks for it
    source = await wrap(endpoint, framework)("asked")
    assert framework.asked == ["read asked", "answered"]
    assert inspect.isgenerator(source) or inspect.isasyncgen(source)
    framework = Framework()
    await wrap(yields, framework)(request="asked", hidden="another's")
    assert framework.asked == ["answered"]  # the endpoint does not have it, and cannot read


@pytest.mark.parametrize("endpoint", [returns_later, returns])
async def test_one_that_returns_is_called_for_a_request_that_starts_a_stream_only(endpoint: Any) -> None:
    framework = Framework()
    source = await wrap(endpoint, framework)("asked")
    assert inspect.isgenerator(source) or inspect.isasyncgen(source)
    for other in Framework(starts=False), Framework(claim=Claimed(starts=False)):
        source = await wrap(endpoint, other)("asked")
        with pytest.raises(AssertionError, match="starts nothing"):
            source()


async def test_a_response_passes_and_what_is_neither_is_refused_with_its_slot_let_go() -> None:
    async def responds(request: Any) -> Any:
        return request

    claim = Claimed()
    wrapped = wrap(responds, Framework(claim=claim))
    assert (await wrapped(7), claim.releases) == ("passed 7", 0)
    with pytest.raises(TypeError, match="'responds' returned"):
        await wrapped(None)
    assert claim.releases == 1
    with pytest.raises(ZeroDivisionError):
        await wrap(returns, Framework(claim=claim, fails=True))("asked")
    assert claim.releases == 2


def test_it_has_the_endpoints_name_and_signature_in_words_but_not_itself() -> None:
    wrapped = wrap(yields, Framework())
    assert (wrapped.__name__, wrapped.__annotations__) == (yields.__name__, yields.__annotations__)
    assert not hasattr(wrapped, "__wrapped__")  # else FastAPI finds a generator, and answers with nothing
    assert inspect.iscoroutinefunction(wrapped)


def test_what_is_no_function_is_refused_and_so_is_a_guarded_one_that_would_hide_from_a_log() -> None:
    with pytest.raises(TypeError, match="guarded"):
        wrap(7, Framework())  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        wrap(wrap(yields, Framework()), Framework(logs=True))
