"""Checks of what a caller passes: refused where it was written, in one line that says what to write instead.

Without them a wrong argument is kept, and the first request fails by the name of something inside. A message
names the argument, what it may be, and what was given. TypeError is for a value of another kind, ValueError
for one of the right kind that is out of range.

    shown, one_line, is_number        parts of messages
    require, require_callable, …      for arguments of functions
    instance_of, one_of, number, …    for fields, as `validator=`
    setting_named, no_setting, …      a setting by its name, and what to say of what stands in its place
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any, Final, TypeVar

import attrs

__all__ = [
    "did_you_mean",
    "instance_of",
    "is_number",
    "no_setting",
    "number",
    "one_line",
    "one_of",
    "require",
    "require_callable",
    "require_whole_number",
    "setting_named",
    "shown",
    "whole_number",
    "whole_number_from",
]

T = TypeVar("T")

_SHOWN: Final = 100  # characters of a value; a message is one line

Check = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def shown(value: object) -> str:
    """`value` as a message shows it. Never raises."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if inspect.isroutine(value):
        return f"the function {value.__name__}"
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def one_line(text: str) -> str:
    """`text` without control characters, which would begin a line of their own in a log, or move a terminal's cursor:
    each is written as its escape."""
    if text.isprintable():
        return text
    return "".join([char if char.isprintable() else char.encode("unicode_escape").decode() for char in text])


def is_number(value: object) -> bool:
    """Whether `value` is a real number. A bool is none: it was meant for a switch."""
    return isinstance(value, Real) and not isinstance(value, bool)


def require(name: str, value: object, kind: type, example: str) -> None:
    """Raise TypeError unless `value` is a `kind`; `example` is one that may be written instead."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} is a {kind.__name__}, for example {example}, not {shown(value)}")


def require_callable(name: str, value: object, argument: str | None = None) -> None:
    """Raise TypeError unless `value` can be called with one argument, which is `argument`, or with none.

    One that cannot be looked into is taken: whether it can be called shows when it is.
    """
    if not callable(value):
        raise TypeError(f"{name} is a function, not {shown(value)}")
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*([] if argument is None else [argument]))
    except TypeError:
        if argument is None:
            raise TypeError(f"{name} is called without arguments, and {shown(value)} needs some") from None
        raise TypeError(
            f"{name} is called with one argument, {argument}, and {shown(value)} does not take one"
        ) from None


def instance_of(kind: type, example: str) -> Check:
    """A validator for a field that holds a `kind`."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        require(attribute.name, value, kind, example)

    return check


def one_of(*words: str) -> Check:
    """A validator for a field that holds one of `words`."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if value not in words:
            raise ValueError(f"{attribute.name} is one of {_listed(words)}, not {shown(value)}")

    return check


def number(*, above: float | None = None, least: float | None = None) -> Check:
    """A validator for a field that holds a number `above` zero, say, or of `least` zero; NaN is neither."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        good = is_number(value)
        if above is not None and not (good and value > above):  # type: ignore[operator]  # what is `good` is a number
            limit = f"above {_in_words(above)}"
        elif least is not None and not (good and value >= least):  # type: ignore[operator]
            limit = f"of {_in_words(least)} or more"
        else:
            return
        raise (ValueError if good else TypeError)(f"{attribute.name} is a number {limit}, not {shown(value)}")

    return check


def whole_number(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """A validator for a field that holds an int from 1 on."""
    require_whole_number(attribute.name, value)


def whole_number_from(least: int) -> Check:
    """A validator for a field that holds an int from `least` on."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        require_whole_number(attribute.name, value, least)

    return check


def require_whole_number(name: str, value: object, least: int = 1) -> None:
    """Raise TypeError unless `value` is an int, ValueError if it is below `least`."""
    good = isinstance(value, int) and not isinstance(value, bool)
    if not good or value < least:  # type: ignore[operator]  # what is `good` is an int
        raise (ValueError if good else TypeError)(f"{name} is a whole number of at least {least}, not {shown(value)}")


def setting_named(name: str, value: Any, known: Mapping[str, T], kind: Any, example: str, *, word: str) -> T:
    """The one of `known` that has the name `value`; a `kind` is returned as it is. `word` is what one is called.

    Raises ValueError for a name that nobody knows, TypeError for anything else, a setting's class included.
    """
    if not isinstance(value, str):
        if isinstance(value, type) or not isinstance(value, kind):
            raise no_setting(name, value, known, example)
        return value  # type: ignore[no-any-return]  # whatever its kind is: a protocol has no type to be given
    try:
        return known[value]
    except KeyError:
        raise ValueError(f"unknown {word} {value!r}; known: {', '.join(known)}") from None


def no_setting(name: str, value: object, known: Iterable[str], example: str) -> TypeError:
    """The error for what is neither a known name nor a setting, a setting's class included."""
    if isinstance(value, type):
        return TypeError(f"{name} is the class {value.__name__}: give an instance, {value.__name__}()")
    return TypeError(f"{name} is {_listed(known)}, or an instance such as {example}, not {shown(value)}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`: did you mean 'flush'?`, or nothing if no known name is close."""
    from difflib import get_close_matches  # a mistake's business: nothing else should wait for it to load

    close = get_close_matches(name, list(known), 1)
    return f": did you mean {close[0]!r}?" if close else ""


def _in_words(limit: float) -> str:
    return f"{limit:g}" if limit else "zero"


def _listed(words: Iterable[str]) -> str:
    return ", ".join(map(repr, words))
