"""What is taken for a code, and what is not."""

from __future__ import annotations

from typing import Any

import pytest

from streamguard.core.codes import code_in, recorded


@pytest.mark.parametrize("value", ["rate_limit", "a.B-1:/x", "x" * 64, 429])
def test_a_word_and_a_whole_number_are_codes(value: Any) -> None:
    assert code_in(value) == str(value)
    assert recorded(str(value)) == str(value)


@pytest.mark.parametrize(
    "value",
    [
        *(None, "", 0, True, 4.5, {"prompt": "my diary"}, ["x"], "my diary", "x\n", "\x1b", "é", "x" * 65),
        pytest.param(10**5000, id="a number that is not written"),
    ],
)
def test_nothing_else_is(value: Any) -> None:
    assert code_in(value) == "upstream_error"
    assert code_in(value, "server_error") == "server_error"


def test_a_text_of_the_applications_own_is_recorded_as_one() -> None:
    assert [recorded(text) for text in ("my diary", "a\nb", "x" * 65, "")] == ["own"] * 4
