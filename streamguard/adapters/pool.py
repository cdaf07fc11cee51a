"""Calling a plain `def` endpoint where frameworks call one: in their pool of threads."""

from __future__ import annotations

import contextvars
import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

import anyio.to_thread

__all__ = ["in_pool", "is_function"]

_UNSET: Final = object()


def is_function(endpoint: Any) -> bool:
    """Whether it is one, or a partial of one."""
    while isinstance(endpoint, functools.partial):
        endpoint = endpoint.func
    return inspect.isroutine(endpoint)


async def in_pool(endpoint: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call it in the pool. What it set of context variables is set here too, for its source."""

    def call() -> tuple[Any, list[tuple[contextvars.ContextVar[Any], Any]]]:
        before = contextvars.copy_context()
        result = endpoint(*args, **kwargs)
        after = contextvars.copy_context()
        return result, [(name, value) for name, value in after.items() if before.get(name, _UNSET) is not value]

    result, changed = await anyio.to_thread.run_sync(call)
    for name, value in changed:
        name.set(value)
    return result
