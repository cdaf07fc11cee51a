"""What a guard is configured with, and what `authorize` answers: a slip is told in one line, with what to write."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from streamguard.app import StreamGuard, anyone_with_the_id
from streamguard.log.memory import MemoryLog
from streamguard.runtime.configured import principal_of


@attrs.frozen
class User:
    id: int


@pytest.mark.parametrize("answer", [True, False, "", 7, 0, User(7), b"ann"], ids=repr)
def test_an_answer_that_names_nobody_is_refused(answer: Any) -> None:
    with pytest.raises(TypeError) as caught:
        principal_of(answer)
    assert str(caught.value) == (
        f"authorize answers who asks, as a text, or None for no; it answered {answer!r}: every user would be one. "
        f"Return the user's id, for example str(user.id)"
    )


def test_a_user_nobody_and_anyone_are_answers() -> None:
    assert (principal_of("ann"), principal_of(None)) == ("ann", None)
    anyone = principal_of(anyone_with_the_id(None, "read"))
    assert (anyone, type(anyone)) == ("", str)


@pytest.mark.anyio
async def test_the_first_request_is_refused_by_either_kind_of_function() -> None:
    async def later(request: Any, action: str) -> Any:
        return True

    authorize: Any
    for authorize in (later, lambda request, action: True):
        with pytest.raises(TypeError, match="it answered True: every user would be one"):
            await StreamGuard(MemoryLog(), authorize=authorize).principal(None, "start")
    assert await StreamGuard(MemoryLog(), authorize=anyone_with_the_id).principal(None, "start") == ""
