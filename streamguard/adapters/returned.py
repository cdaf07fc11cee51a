"""What a guarded endpoint returned: a source, a response of its own, or a slip that is refused by the endpoint's name.

A dict, a text or None would be refused by the source that is made of it, in words about sources; whoever returned one
meant an answer that does not stream, or forgot the `return`. A Pydantic model is worse: it can be iterated, by its
fields, and the slip would only show as a failed stream.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Iterable, Mapping
from typing import Any, Final, TypeVar

__all__ = [
    "GUARDED",
    "NotGuarded",
    "guarded_twice",
    "own_response",
    "refuse_plain",
    "registered_before",
    "streams_unguarded",
]

GUARDED: Final = "__streamguard__"  # an attribute of what `@guarded` made, whatever is wrapped round that

T = TypeVar("T")


class NotGuarded(TypeError):
    """What an endpoint returned cannot be guarded, and is not sent unguarded."""


def own_response(result: T) -> T:
    """A response of the endpoint's own, which passes. Raises TypeError for one that would stream, unguarded."""
    if hasattr(result, "body_iterator"):
        raise streams_unguarded(result)
    return result


def streams_unguarded(result: Any) -> NotGuarded:
    """The error for a response of the endpoint's own that would stream, unguarded."""
    return NotGuarded(
        f"a guarded endpoint returned a {type(result).__name__}, which would stream unguarded: return its "
        f"generator instead, and let that yield bare text, without `data:`"
    )


def guarded_twice(endpoint: Any) -> NotGuarded:
    """The error for a guarded answer where a guard's log was to have the stream: it would not be in there, and a
    request that is repeated under its key would generate once more."""
    return NotGuarded(
        f"endpoint {_name(endpoint)!r} under guard.stream answers with a guarded response of its own: remove @guarded, "
        f"and return the source"
    )


def registered_before(endpoint: Any, decorator: str) -> NotGuarded:
    """The error for a decorator that stands above the route's: it guards what no route calls."""
    return NotGuarded(
        f"endpoint {_name(endpoint)!r} was registered before it was guarded, and would be answered unguarded: put "
        f"{decorator} below the route's decorator, directly above the function"
    )


def refuse_plain(endpoint: Any, result: Any, whole: str) -> None:
    """Raise TypeError for what `endpoint` returned, where that is no source but an answer that does not stream; `whole`
    is what to return then, in its framework's words."""
    name = _name(endpoint)
    if result is None:
        raise NotGuarded(f"endpoint {name!r} returned None: did you forget `return`?")
    if _is_plain(result):
        kind = type(result).__name__
        raise NotGuarded(f"endpoint {name!r} returned a {kind}: for an answer that does not stream return {whole}")


def _name(endpoint: Any) -> str:
    return getattr(endpoint, "__name__", None) or type(endpoint).__name__


def _is_plain(result: Any) -> bool:
    if isinstance(result, AsyncIterable) or inspect.isawaitable(result) or callable(result):
        return False
    if isinstance(result, (str, bytes, bytearray, Mapping)) or not isinstance(result, Iterable):
        return True
    # A model that has an `__iter__` of its own may be a source.
    return str(getattr(type(result).__iter__, "__module__", "")).startswith("pydantic")
