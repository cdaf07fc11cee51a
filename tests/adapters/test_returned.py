"""What an endpoint may return: a source, a response that does not stream; anything else is refused by its name."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from starlette.responses import JSONResponse, StreamingResponse

from streamguard.adapters.returned import guarded_twice, own_response, refuse_plain, streams_unguarded


def chat() -> None: ...


async def later() -> AsyncIterator[str]:
    yield "one"


def now() -> Iterator[str]:
    yield "one"


class Model(BaseModel):
    text: str = "one"


class Streaming(BaseModel):
    text: str = "one"

    def __iter__(self) -> Iterator[Any]:
        return iter(self.text)


class Called:
    def __call__(self) -> Iterator[str]:
        return now()


@pytest.mark.parametrize(
    "make",
    [now, later, lambda: ["one"], lambda: ("one",), lambda: iter("one"), lambda: now, Called, Streaming],
    ids=["generator", "async generator", "list", "tuple", "iterator", "function", "callable", "model that streams"],
)
def test_what_can_be_a_source_passes(make: Callable[[], Any]) -> None:
    refuse_plain(chat, make(), "")


async def coroutine() -> list[str]:
    return ["one"]


def test_so_does_what_is_to_be_awaited() -> None:
    found = coroutine()
    refuse_plain(chat, found, "")
    found.close()


@pytest.mark.parametrize("answer", ["text", b"bytes", bytearray(b"bytes"), {"a": 1}, 7, Model()], ids=repr)
def test_an_answer_that_does_not_stream_is_refused_with_what_to_return(answer: Any) -> None:
    with pytest.raises(TypeError, match=f"'chat' returned a {type(answer).__name__}: .*return jsonify"):
        refuse_plain(chat, answer, "jsonify(…)")


def test_none_is_a_return_that_was_forgotten() -> None:
    with pytest.raises(TypeError, match=r"'chat' returned None: did you forget `return`\?"):
        refuse_plain(chat, None, "")


def test_an_endpoint_without_a_name_is_told_by_its_kind() -> None:
    with pytest.raises(TypeError, match="endpoint 'partial' returned None"):
        refuse_plain(functools.partial(chat), None, "")


def test_a_response_of_its_own_passes_unless_it_would_stream() -> None:
    whole = JSONResponse({})
    assert own_response(whole) is whole
    with pytest.raises(TypeError, match="returned a StreamingResponse, which would stream unguarded"):
        own_response(StreamingResponse(iter(())))


def test_errors_name_what_to_change() -> None:
    assert "without `data:`" in str(streams_unguarded(object()))
    assert "'chat' under guard.stream" in str(guarded_twice(chat))
    assert "remove @guarded" in str(guarded_twice(chat))
