"""What is said to who passes a wrong argument: its name, what it may be, and what it was."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

from streamguard.core.arguments import (
    did_you_mean,
    instance_of,
    is_number,
    number,
    one_line,
    one_of,
    require,
    require_callable,
    shown,
    whole_number,
    whole_number_from,
)


class Named:
    def __repr__(self) -> str:
        return "Named(…)"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "7"),
        ("x", "'x'"),
        (None, "None"),
        (Named, "the class Named"),
        (len, "the function len"),
        (Named(), "Named(…)"),
        ("y" * 500, "'" + "y" * 99 + "…"),
    ],
)
def test_what_was_given_is_shown_in_a_few_words(value: object, text: str) -> None:
    assert shown(value) == text


def test_an_object_that_cannot_be_shown_is_named_by_its_class() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert shown(Broken()) == "a Broken"


def test_an_argument_of_another_class_is_refused_with_an_example() -> None:
    require("stage", Named(), Named, "Named()")
    with pytest.raises(TypeError, match=r"^stage is a Named, for example Named\(\), not 7$"):
        require("stage", 7, Named, "Named()")
    with pytest.raises(TypeError, match=r"^stage is a Named, for example Named\(\), not the class Named$"):
        require("stage", Named, Named, "Named()")


def refuses(check: Any, value: object) -> str:
    """What a field called `size` with this validator says of `value`; empty if it takes it."""

    @attrs.frozen
    class Settings:
        size: Any = attrs.field(validator=check)

    try:
        Settings(value)
    except (TypeError, ValueError) as exc:
        return f"{type(exc).__name__}: {exc.args[0] if len(exc.args) == 1 else exc.args}"  # attrs' own is a tuple
    return ""


@pytest.mark.parametrize(
    ("check", "value", "said"),
    [
        (one_of("a", "b"), "a", ""),
        (one_of("a", "b"), "c", "ValueError: size is one of 'a', 'b', not 'c'"),
        (one_of("a", "b"), ["a"], "ValueError: size is one of 'a', 'b', not ['a']"),
        (instance_of(Named, "Named()"), Named, "TypeError: size is a Named, for example Named(), not the class Named"),
        (instance_of(Named, "Named()"), None, "TypeError: size is a Named, for example Named(), not None"),
        (whole_number, 1, ""),
        (whole_number, 0, "ValueError: size is a whole number of at least 1, not 0"),
        (whole_number, "x", "TypeError: size is a whole number of at least 1, not 'x'"),
        (whole_number, 1.5, "TypeError: size is a whole number of at least 1, not 1.5"),
        (whole_number, True, "TypeError: size is a whole number of at least 1, not True"),
        (whole_number_from(0), 0, ""),
        (whole_number_from(0), -1, "ValueError: size is a whole number of at least 0, not -1"),
        (whole_number_from(0), 1.0, "TypeError: size is a whole number of at least 0, not 1.0"),
        (whole_number_from(0), False, "TypeError: size is a whole number of at least 0, not False"),
    ],
)
def test_a_field_says_in_one_line_what_it_may_be(check: Any, value: object, said: str) -> None:
    assert refuses(check, value) == said


@pytest.mark.parametrize("value", [0, 1, -1.5, math.inf, math.nan])
def test_numbers_are_numbers(value: object) -> None:
    assert is_number(value)


@pytest.mark.parametrize("value", ["5", None, True, 1j, [5]])
def test_what_is_no_number_is_none(value: object) -> None:
    assert not is_number(value)


def none() -> None: ...
def one(outcome: object) -> None: ...
def two(outcome: object, other: object) -> None: ...
def named_only(*, outcome: object) -> None: ...
def any_number(*args: object, **kwargs: object) -> None: ...


class Called:
    def __call__(self, outcome: object) -> None: ...


@pytest.mark.parametrize("hook", [one, any_number, Called(), [].append, print, dict.fromkeys])
def test_a_hook_that_takes_its_argument_is_taken(hook: Callable[..., object]) -> None:
    require_callable("on_end", hook, "the Outcome")


@pytest.mark.parametrize("hook", [none, two, named_only, lambda: None])
def test_a_hook_that_does_not_take_its_argument_is_refused_when_it_is_given(hook: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match=r"^on_end is called with one argument, the Outcome, and .*does not take one$"):
        require_callable("on_end", hook, "the Outcome")


def test_a_hook_without_an_argument_is_refused_if_it_takes_one() -> None:
    require_callable("on_close", none)
    with pytest.raises(TypeError, match=r"^on_close is called without arguments, and .*needs some$"):
        require_callable("on_close", one)


def test_a_hook_that_cannot_be_looked_into_is_taken() -> None:
    class Opaque:
        __signature__ = "none"

        def __call__(self) -> None: ...

    require_callable("on_end", Opaque(), "the Outcome")
    require_callable("on_end", iter, "the Outcome")  # a builtin that shows no signature


@pytest.mark.parametrize("hook", [5, "log", None])
def test_what_cannot_be_called_is_no_hook(hook: Any) -> None:
    with pytest.raises(TypeError, match=f"^on_end is a function, not {hook!r}$"):
        require_callable("on_end", hook, "the Outcome")


def names() -> Iterator[str]:
    yield from ("flush", "dialect", "wire")


def test_a_name_that_nobody_knows_is_answered_with_the_one_that_was_meant() -> None:
    assert did_you_mean("flsh", names()) == ": did you mean 'flush'?"
    assert did_you_mean("zzzz", names()) == ""


def test_a_text_for_a_log_stays_on_its_line() -> None:
    assert one_line("plain, naïve, 答え") == "plain, naïve, 答え"
    assert one_line("bad\nstream ended\x1b[2J\u2028") == "bad\\nstream ended\\x1b[2J\\u2028"


@attrs.frozen
class Limits:
    """What takes numbers above and from a limit on."""

    above: Any = attrs.field(default=1, validator=number(above=0))
    least: Any = attrs.field(default=1, validator=number(least=0))
    more: Any = attrs.field(default=3, validator=number(above=2.5))


@pytest.mark.parametrize("value", [1, 0.001, 1e300, math.inf])
def test_a_number_above_a_limit_is_taken(value: float) -> None:
    assert Limits(value, value).above == value


def test_a_limit_is_its_own_least_number_where_it_is_not_to_be_above_it() -> None:
    assert Limits(least=0).least == 0


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"above": 0}, ValueError, "above is a number above zero, not 0"),
        ({"above": -1.5}, ValueError, "above is a number above zero, not -1.5"),
        ({"above": math.nan}, ValueError, "above is a number above zero, not nan"),
        ({"above": "5"}, TypeError, "above is a number above zero, not '5'"),
        ({"above": True}, TypeError, "above is a number above zero, not True"),
        ({"least": -1}, ValueError, "least is a number of zero or more, not -1"),
        ({"least": None}, TypeError, "least is a number of zero or more, not None"),
        ({"more": 2.5}, ValueError, "more is a number above 2.5, not 2.5"),
    ],
)
def test_any_other_is_refused_with_what_it_may_be(given: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error) as raised:
        Limits(**given)
    assert str(raised.value) == said
