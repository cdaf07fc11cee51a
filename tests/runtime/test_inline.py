"""A plain iterable on the thread that asks: its steps, its context, its end, its close."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from streamguard.core.errors import SourceFailed
from streamguard.runtime.inline import InlineSteps

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


def steps(iterable: Any) -> InlineSteps:
    return InlineSteps(iterable, contextvars.copy_context())


def test_each_step_and_the_close_are_taken_on_the_callers_thread_in_one_context() -> None:
    seen: list[Any] = []

    def source() -> Iterator[str]:
        try:
            for number in range(3):
                seen.append((threading.get_ident(), WHO.get()))
                WHO.set(f"step {number}")
                yield str(number)
        finally:
            seen.append((threading.get_ident(), WHO.get()))

    taken = steps(source())
    assert [taken.next(), taken.next(0.0)] == ["0", "1"]
    taken.close()
    here = threading.get_ident()
    assert seen == [(here, "nobody"), (here, "step 0"), (here, "step 1")]
    assert WHO.get() == "nobody"  # what it sets is its own


def test_the_end_comes_again_also_of_what_would_begin_anew() -> None:
    class Anew:
        def __init__(self) -> None:
            self.calls = 0

        def __iter__(self) -> Anew:
            return self

        def __next__(self) -> str:
            self.calls += 1
            if self.calls % 2 == 0:
                raise StopIteration
            return "item"

    taken = steps(Anew())
    assert taken.next() == "item"
    for _ in range(2):
        with pytest.raises(StopAsyncIteration):
            taken.next()


def raising(exc: BaseException) -> Iterator[str]:
    yield "one"
    raise exc


def test_what_it_raises_is_raised_once() -> None:
    taken = steps(raising(SourceFailed("overloaded", "later")))
    taken.next()
    with pytest.raises(SourceFailed):
        taken.next()
    with pytest.raises(StopAsyncIteration):
        taken.next()


@pytest.mark.parametrize("exc", [StopAsyncIteration(), GeneratorExit(), BaseException()], ids=repr)
def test_what_would_pass_for_an_end_is_a_failure(exc: BaseException) -> None:
    taken = steps(raising(exc))
    taken.next()
    with pytest.raises(RuntimeError, match=f"the source raised {type(exc).__name__}"):
        taken.next()


@pytest.mark.parametrize("exc", [SystemExit(1), KeyboardInterrupt()], ids=repr)
def test_what_ends_the_program_is_a_signals_and_passes(exc: BaseException) -> None:
    taken = steps(raising(exc))
    taken.next()
    with pytest.raises(type(exc)):
        taken.next()


class Held:
    """An iterable with an iterator of its own; both may be closed."""

    def __init__(self, close: Callable[[str], object]) -> None:
        self._close = close

    def __iter__(self) -> Any:
        close = self._close

        class Each:
            def __iter__(self) -> Each:
                return self

            def __next__(self) -> str:
                return "item"

            def close(self) -> None:
                close("iterator")

        return Each()

    def close(self) -> None:
        self._close("iterable")


def test_the_iterator_is_closed_before_the_iterable_and_what_never_began_has_none() -> None:
    closed: list[str] = []
    taken = steps(Held(closed.append))
    taken.next()
    taken.close()
    assert closed == ["iterator", "iterable"]
    with pytest.raises(StopAsyncIteration):
        taken.next()
    del closed[:]
    steps(Held(closed.append)).close()
    assert closed == ["iterable"]


def test_what_a_close_raises_is_logged_and_hinders_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(part: str) -> None:
        raise GeneratorExit if part == "iterator" else ValueError(part)

    taken = steps(Held(fail))
    taken.next()
    with caplog.at_level(logging.WARNING, "streamguard"):
        taken.close()
    assert [record.getMessage() for record in caplog.records] == [
        "closing a source raised GeneratorExit()", "closing a source raised ValueError('iterable')"
    ]


def test_a_close_that_is_told_to_end_the_program_does() -> None:
    def leave(part: str) -> None:
        raise SystemExit(part)

    with pytest.raises(SystemExit):
        steps(Held(leave)).close()
