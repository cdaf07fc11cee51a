"""What an application configures a guard with, checked where it is given; and what `authorize` answers, as it does.

A slip here would show much later, in another request, or never: an `authorize` that answers True makes all users one.
So each check says which option it is, what it may be, and what to write instead.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

import attrs

from streamguard.core.arguments import shown
from streamguard.log.base import StreamLog
from streamguard.runtime.runs import Cancel, Detach, ReadOn

__all__ = ["ANYONE", "a_log", "a_policy", "an_authorize", "principal_of", "require_authorize"]


class _Anyone(str):
    """No principal, by decision: any other empty text is a user who could not be told."""

    __slots__ = ()


ANYONE: Final[str] = _Anyone()


def principal_of(answer: object) -> str | None:
    """Who asks, by what `authorize` answered. Raises TypeError for what is no principal."""
    if answer is None or (isinstance(answer, str) and answer):
        return answer
    if isinstance(answer, _Anyone):
        return ""
    raise TypeError(
        f"authorize answers who asks, as a text, or None for no; it answered {shown(answer)}: every user would be one. "
        f"Return the user's id, for example str(user.id)"
    )


def a_log(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """A validator for a log."""
    if isinstance(value, type) or not isinstance(value, StreamLog):
        example = 'MemoryLog() or SQLiteLog("streams.db")'
        raise TypeError(f"{attribute.name} is a log, for example {example}, not {shown(value)}")


def an_authorize(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """A validator for what is called with a request and an action."""
    require_authorize(attribute.name, value)


def require_authorize(name: str, value: object) -> None:
    """Raise TypeError for what cannot be called with a request and an action."""
    if isinstance(value, type) or not callable(value) or not _takes_two(value):
        raise TypeError(f"{name} is a function of (request, action), not {shown(value)}")


def a_policy(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """A validator for what a reader's leaving does."""
    if not isinstance(value, (Cancel, Detach, ReadOn)):
        raise TypeError(f"{attribute.name} is a Cancel(), Detach(grace=60) or ReadOn(seconds=60), not {shown(value)}")


def _takes_two(function: Any) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True  # it cannot be looked into: whether it can be called shows when it is
    try:
        signature.bind(None, None)
    except TypeError:
        return False
    return True
