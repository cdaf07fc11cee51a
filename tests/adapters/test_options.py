"""Options are checked where they are given, and a message says what to write instead."""

from __future__ import annotations

import re
from typing import Any

import pytest

from streamguard.adapters.asgi import GuardedAnswer
from streamguard.adapters.fastapi import guarded as guarded_fastapi
from streamguard.adapters.options import AnswerOptions
from streamguard.adapters.starlette import GuardedResponse
from streamguard.adapters.starlette import guarded as guarded_starlette
from streamguard.core.compress import Gzip
from streamguard.core.dialect import OpenAI
from streamguard.core.flush import EveryTokens
from streamguard.core.wire import Sse
from streamguard.runtime.timing import Timing
from tests.adapters.asgi_apps import tokens

KNOWN = (
    "known: flush, dialect, wire, timing, buffer, abort, http10, unsealed, on_end, observe, limits, compress, "
    "token_flush, window, own_thread"
)
DIALECTS = (
    "'native', 'openai', 'openai-responses', 'anthropic', 'ui', 'ag-ui', 'raw', 'text', "
    "or an instance such as OpenAI(model='m')"
)
WIRES = "'sse', 'ndjson', 'binary', 'plain', or an instance such as Sse()"


def hook() -> None: ...


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"dialect": OpenAI}, "dialect is the class OpenAI: give an instance, OpenAI()"),
    ({"wire": Sse}, "wire is the class Sse: give an instance, Sse()"),
    ({"dialect": 7}, f"dialect is {DIALECTS}, not 7"),
    ({"dialect": None}, f"dialect is {DIALECTS}, not None"),
    ({"wire": 7}, f"wire is {WIRES}, not 7"),
    ({"flsh": 1}, f"unknown option 'flsh': did you mean 'flush'? {KNOWN}"),
    ({"zzz": 1}, f"unknown option 'zzz'; {KNOWN}"),
    ({"timeout": 5}, f"unknown option 'timeout': write timing=Timing(stall=…); {KNOWN}"),
    ({"stall": 5}, f"unknown option 'stall': write timing=Timing(stall=…); {KNOWN}"),
    ({"max_items": 5}, f"unknown option 'max_items': write buffer=Buffer(max_items=…); {KNOWN}"),
    ({"model": "m"}, f"unknown option 'model': write dialect=OpenAI(model=…); {KNOWN}"),
    ({"heartbeat": 15}, f"unknown option 'heartbeat': write timing=Timing(heartbeat=…); {KNOWN}"),
    ({"ids": "id"}, f"unknown option 'ids': write wire=Sse(ids=…); {KNOWN}"),
    ({"gzip": True}, f"unknown option 'gzip': write compress='gzip'; {KNOWN}"),
    ({"compress": True}, "compress is 'gzip', or an instance such as Gzip(level=1), not True"),
    ({"own_thread": 0}, "own_thread is a bool, for example own_thread=False, not 0"),
    ({"token_flush": 1}, "token_flush is a bool, for example token_flush=True, not 1"),
    ({"timing": 5}, "timing is a Timing, for example Timing(stall=60), not 5"),
    ({"buffer": 5}, "buffer is a Buffer, for example Buffer(max_items=100), not 5"),
    ({"on_end": 5}, "on_end is a function, not 5"),
    ({"limits": 5}, "limits are for example Limits(max_streams=200), or an Admission to share; not 5"),
    ({"max_streams": 5}, f"unknown option 'max_streams': write limits=Limits(max_streams=…); {KNOWN}"),
    ({"on_end": hook}, "on_end is called with one argument, the Outcome, and the function hook does not take one"),
]


@pytest.mark.parametrize("guarded", [guarded_starlette, guarded_fastapi], ids=["starlette", "fastapi"])
@pytest.mark.parametrize(("options", "said"), MISTAKES, ids=lambda value: str(value)[:30])
def test_a_mistake_is_refused_when_decorating(guarded: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError) as caught:
        guarded(**options)
    assert str(caught.value) == said


@pytest.mark.parametrize("guarded", [guarded_starlette, guarded_fastapi], ids=["starlette", "fastapi"])
@pytest.mark.parametrize(
    ("given", "option"),
    [("openai", "dialect='openai'"), ("ndjson", "wire='ndjson'"), (OpenAI(model="m", id="i", created=1), "dialect=O"),
     (Gzip(level=1), "compress=Gzip("), (Timing(stall=5), "timing=Timing("), (EveryTokens(8), "flush=EveryTokens(")],
)  # fmt: skip
def test_an_option_without_its_name_is_told_the_name(guarded: Any, given: Any, option: str) -> None:
    with pytest.raises(TypeError) as caught:
        guarded(given)
    assert str(caught.value).startswith(f"options are given by name: write @guarded({option}")


@pytest.mark.parametrize("name", ["status_code", "headers", "background"])
def test_what_a_response_takes_is_sent_there(name: str) -> None:
    guarded: Any = guarded_starlette
    said = f"unknown option '{name}': return GuardedResponse(source, {name}=…); {KNOWN}"
    with pytest.raises(TypeError, match=f"^{re.escape(said)}$"):
        guarded(**{name: 1})


def test_a_response_refuses_the_same() -> None:
    make: Any
    for make in (GuardedResponse, GuardedAnswer):
        with pytest.raises(TypeError, match="unknown option 'flsh': did you mean 'flush'"):
            make(tokens, flsh=EveryTokens(8))
        with pytest.raises(TypeError, match=r"^options is an AnswerOptions\(…\), not \{'flush': 1\}$"):
            make(tokens, options={"flush": 1})


def test_good_options_are_taken_together() -> None:
    shared = AnswerOptions(timing=Timing(stall=5))
    assert AnswerOptions.of(shared, {}) is shared  # each request of an endpoint has these very ones
    assert AnswerOptions.of(shared, {"dialect": "raw", "wire": None}).timing.stall == 5
    assert AnswerOptions.of(None, {"on_end": print}).on_end is print
    assert AnswerOptions.of(None, {"on_end": None}).on_end is None
