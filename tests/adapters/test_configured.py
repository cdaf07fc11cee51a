"""Slips in how streams are made resumable, over Starlette and FastAPI: each is told where it shows first."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse

from streamguard import anyone_with_the_id
from streamguard.adapters import fastapi, starlette
from streamguard.log.memory import MemoryLog

pytestmark = pytest.mark.anyio

FRAMEWORKS = pytest.mark.parametrize("framework", [starlette, fastapi], ids=["starlette", "fastapi"])
TWICE = (
    "endpoint 'chat' under guard.stream answers with a guarded response of its own: remove @guarded, "
    "and return the source"
)


async def words() -> AsyncIterator[str]:
    yield "t0 "


def a_guard(framework: Any = starlette, **options: Any) -> Any:
    return framework.StreamGuard(MemoryLog(), **{"authorize": anyone_with_the_id, **options})


def a_request() -> Request:
    return Request({"type": "http", "method": "POST", "path": "/", "headers": [], "query_string": b""})


# ---- guarded twice ----------------------------------------------------------------------------------


@FRAMEWORKS
def test_a_guarded_function_is_refused_when_decorating(framework: Any) -> None:
    @framework.guarded
    async def chat(request: Request) -> AsyncIterator[str]:
        yield "t0 "

    @functools.wraps(chat)
    async def wrapped(request: Request) -> Any:
        return await chat(request)

    guard = a_guard(framework)
    for endpoint in (chat, wrapped):
        for decorate in (guard.stream, guard.stream(name="n")):
            with pytest.raises(TypeError) as caught:
                decorate(endpoint)
            assert str(caught.value) == TWICE


@FRAMEWORKS
async def test_a_guarded_response_is_refused_at_the_first_answer(framework: Any) -> None:
    async def chat(request: Request) -> Any:
        return framework.GuardedResponse(words())

    with pytest.raises(TypeError) as caught:
        await a_guard(framework).stream(chat)(a_request())
    assert str(caught.value) == TWICE


@FRAMEWORKS
async def test_a_plain_response_and_a_logged_one_pass(framework: Any) -> None:
    guard = a_guard(framework)

    async def no(request: Request) -> Any:
        return JSONResponse({"error": "no"}, 422)

    async def logged(request: Request) -> Any:
        return guard.response(request, words())

    assert (await guard.stream(no)(a_request())).status_code == 422
    assert isinstance(await guard.stream(logged)(a_request()), framework.ResumableResponse)
