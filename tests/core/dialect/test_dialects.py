"""Which dialect, by name."""

from __future__ import annotations

import re
from typing import Any

import pytest

from streamguard.core.dialect import (
    AgUi,
    Anthropic,
    Dialect,
    Native,
    OpenAI,
    OpenAIResponses,
    Raw,
    Text,
    Ui,
    dialect_named,
)
from streamguard.core.dialect.base import has_abort_part
from streamguard.core.wire import Sse


@pytest.mark.parametrize(
    ("name", "kind", "own_ids", "takes_text"),
    [
        ("native", Native, True, True),
        ("openai", OpenAI, False, True),
        ("openai-responses", OpenAIResponses, False, True),
        ("anthropic", Anthropic, False, True),
        ("ui", Ui, False, True),
        ("ag-ui", AgUi, False, True),
        ("raw", Raw, False, False),
        ("text", Text, False, True),
    ],
)
def test_a_dialect_has_a_name(name: str, kind: type[Dialect], own_ids: bool, takes_text: bool) -> None:
    dialect = dialect_named(name)
    assert type(dialect) is kind
    assert (dialect.name, dialect.own_ids, dialect.takes_text) == (name, own_ids, takes_text)


def test_only_the_ui_stream_has_a_part_that_says_cancelled_and_is_no_error() -> None:
    names = ("native", "openai", "openai-responses", "anthropic", "ui", "ag-ui", "raw", "text")
    assert [name for name in names if has_abort_part(dialect_named(name))] == ["ui"]


def test_a_setting_is_returned_as_it_is() -> None:
    dialect = OpenAI(model="m")
    assert dialect_named(dialect) is dialect


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown dialect 'xml'; known: native, openai, .*, ag-ui, raw, text$"):
        dialect_named("xml")


KNOWN = (
    "dialect is 'native', 'openai', 'openai-responses', 'anthropic', 'ui', 'ag-ui', 'raw', 'text', "
    "or an instance such as OpenAI(model='m'), not "
)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (OpenAI, "dialect is the class OpenAI: give an instance, OpenAI()"),
        (7, KNOWN + "7"),
        (None, KNOWN + "None"),
        (Sse(), KNOWN + "Sse(ids='comment', heartbeat='comment')"),
    ],
)
def test_what_is_no_dialect_is_refused_with_what_is_one(wrong: Any, said: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(said)}$"):
        dialect_named(wrong)
