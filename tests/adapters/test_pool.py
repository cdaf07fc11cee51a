"""A plain `def` is called in the pool, and what it sets of context variables is its caller's."""

from __future__ import annotations

import contextvars
import functools
import threading
from typing import Any

import pytest

from streamguard.adapters.pool import in_pool, is_function

pytestmark = pytest.mark.anyio

SET: contextvars.ContextVar[str] = contextvars.ContextVar("set", default="unset")
KEPT: contextvars.ContextVar[str] = contextvars.ContextVar("kept", default="unset")


async def test_what_it_sets_is_set_for_its_caller_and_the_rest_stays() -> None:
    KEPT.set("the caller's")

    def endpoint(text: str, *, more: str) -> tuple[str, int]:
        assert KEPT.get() == "the caller's"
        SET.set("the endpoint's")
        return text + more, threading.get_ident()

    result, thread = await in_pool(endpoint, "one ", more="two")
    assert (result, thread == threading.get_ident()) == ("one two", False)
    assert (SET.get(), KEPT.get()) == ("the endpoint's", "the caller's")


async def test_what_it_raises_is_raised() -> None:
    def endpoint() -> None:
        SET.set("lost")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await in_pool(endpoint)
    assert SET.get() == "unset"


class Callable:
    def __call__(self) -> None: ...

    def method(self) -> None: ...


@pytest.mark.parametrize(
    ("endpoint", "is_one"),
    [
        (in_pool, True),
        (len, True),
        (Callable().method, True),
        (functools.partial(functools.partial(in_pool, len), ()), True),
        (Callable(), False),
        (functools.partial(Callable()), False),
        (Callable, False),
        (None, False),
    ],
)
def test_functions_methods_and_partials_of_them_are_functions(endpoint: Any, is_one: bool) -> None:
    assert is_function(endpoint) is is_one
