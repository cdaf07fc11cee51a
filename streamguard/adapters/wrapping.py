"""An endpoint of any framework's, guarded: what is called when, and what becomes of what it returns.

An endpoint yields, or returns its source; it is `async def`, or `def`. A plain `def` that yields is called, which runs
nothing, and steps on a thread of its own. One that returns its source may block before it does: it runs in a pool of
threads, where frameworks run a plain `def`, and only for as long as it takes to return. One that returns its source is
not called at all for a request that starts nothing; a response that it returns passes, unless it streams.

What a framework's request and response are is its `Guarding`'s business.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

import attrs

from streamguard.adapters.logged import Claim
from streamguard.adapters.options import no_endpoint
from streamguard.adapters.pool import in_pool, is_function
from streamguard.adapters.returned import GUARDED, guarded_twice, refuse_plain
from streamguard.adapters.seal import remember_guarded, remember_unguarded

__all__ = ["Called", "Guarding", "found", "let_go", "near", "wrap"]

T = TypeVar("T")


@attrs.frozen
class Called:
    """What an endpoint is called with: the request, if that is known; whether the endpoint itself has it (`own`); and a
    response that others may write to."""

    request: Any = None
    own: bool = True
    given: Any = None


class Guarding(Protocol):
    """What `wrap` makes of a source, in one framework."""

    decorator: str
    """What the application wrote."""
    whole: str
    """What to return for an answer that does not stream."""
    logs: bool
    """Whether it goes into a guard's log: then no other guarded answer may take its place."""

    def called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Called:
        """What these arguments hold. Those that are not the endpoint's own are taken out of `kwargs`."""
        ...

    async def read(self, request: Any) -> None:
        """Read the request's body, for an endpoint that asks for it inside its generator."""

    def runs(self, request: Any) -> bool:
        """Whether an endpoint that returns its source is called for this request."""
        ...

    async def look(self, request: Any) -> Claim | None:
        """Called before such an endpoint: what the request may have, where that is known. A slot of it is the caller's,
        until a response has it."""

    def is_response(self, result: Any) -> bool:
        """Whether an endpoint answered by itself."""
        ...

    async def passed(self, endpoint: Any, result: Any, claim: Claim | None) -> Any:
        """The answer, where it did. Raises TypeError for one that may not take a stream's place."""
        ...

    async def answered(self, source: Any, called: Called, claim: Claim | None) -> Any:
        """The guarded answer."""
        ...


def wrap(endpoint: Callable[..., Any], guarding: Guarding) -> Callable[..., Awaitable[Any]]:
    """An async function that calls `endpoint` and guards what it yields or returns, as `guarding` does.

    It shows no `__wrapped__`: FastAPI follows it, finds a generator function and answers 200 with an
    empty body. Raises TypeError for what is no function, and for a guarded one that would hide from a log.
    """
    if guarding.logs and getattr(endpoint, GUARDED, False):
        raise guarded_twice(endpoint)
    if inspect.isasyncgenfunction(endpoint) or inspect.isgeneratorfunction(endpoint):

        async def guarded_endpoint(*args: Any, **kwargs: Any) -> Any:
            called = guarding.called(args, kwargs)
            if called.request is not None and called.own:
                await guarding.read(called.request)
            return await guarding.answered(endpoint(*args, **kwargs), called, None)

    elif inspect.iscoroutinefunction(endpoint) or is_function(endpoint):
        call = endpoint if inspect.iscoroutinefunction(endpoint) else functools.partial(in_pool, endpoint)

        async def guarded_endpoint(*args: Any, **kwargs: Any) -> Any:
            called = guarding.called(args, kwargs)
            claim = await guarding.look(called.request)
            runs = claim.starts if claim is not None else called.request is None or guarding.runs(called.request)
            try:
                result = await call(*args, **kwargs) if runs else _nothing
                if guarding.is_response(result):
                    return await guarding.passed(endpoint, result, claim)
                refuse_plain(endpoint, result, guarding.whole)
                return await guarding.answered(result, called, claim)
            except BaseException:
                let_go(claim)  # no response has its slot, or none that is ever sent
                raise

    else:
        raise TypeError(no_endpoint(endpoint, guarding.decorator))
    functools.update_wrapper(guarded_endpoint, endpoint)
    del guarded_endpoint.__wrapped__  # type: ignore[attr-defined]
    setattr(guarded_endpoint, GUARDED, not guarding.logs)
    remember_unguarded(endpoint, guarding.decorator)
    remember_guarded(guarded_endpoint)
    return guarded_endpoint


def let_go(claim: Claim | None) -> None:
    """Release the slot of a claim that no answer has."""
    if claim is not None:
        claim.let_go()


def found(kind: type[T], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> T | None:
    """The first of the arguments that is a `kind`."""
    return next((value for value in (*args, *kwargs.values()) if isinstance(value, kind)), None)


def near(function: Any, kind: type[T]) -> list[T]:
    """What there is of a `kind` where `function` is defined: in its module, and in the function that makes it now."""
    names: Mapping[str, Any] = getattr(function, "__globals__", {})
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals is not names:
        frame = frame.f_back  # type: ignore[assignment]
    local = {} if frame is None else frame.f_locals
    return [value for value in (*local.values(), *names.values()) if isinstance(value, kind)]


def _nothing() -> AsyncIterator[str]:
    raise AssertionError("the source of an answer that starts nothing was asked for")
