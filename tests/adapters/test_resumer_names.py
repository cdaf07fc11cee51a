"""Two processes over one log, of one version of a program or of two: which resumer goes on with the other's stream."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from streamguard import Cancel, Continue, Detach, Orphan, anyone_with_the_id
from streamguard.adapters.starlette import StreamGuard
from streamguard.log.base import StreamState
from streamguard.log.memory import MemoryLog
from tests.adapters.servers import DEADLINE
from tests.runtime.logs import text_in

pytestmark = pytest.mark.anyio


async def model(prompt: str) -> AsyncIterator[str]:
    yield prompt
    if prompt == "ann":  # whose process will die
        await anyio.sleep_forever()


def on(orphan: Orphan) -> Continue:
    return Continue([" and on"])


class Answers:
    def __init__(self, prompt: str) -> None:
        self.prompt = prompt

    def __call__(self, orphan: Orphan) -> Continue:
        return Continue([f" and {self.prompt}"])


def closure(prompt: str) -> Any:
    def resume(orphan: Orphan) -> Continue:
        return Continue([f" and {prompt}"])

    return resume


def of_prompt(prompt: str, orphan: Orphan) -> Continue:
    return Continue([f" and {prompt}"])


def an_app(log: MemoryLog, make: Callable[[str], Any]) -> tuple[StreamGuard, Starlette]:
    """A process whose endpoint makes its answer, and its resumer, of the request."""
    guard = StreamGuard(log, authorize=anyone_with_the_id)

    async def chat(request: Request) -> Any:
        prompt = request.query_params["prompt"]
        return guard.response(request, model(prompt), resumer=make(prompt), name=prompt)

    return guard, Starlette(routes=[Route("/chat", chat)])


async def asked(app: Starlette, prompt: str) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
        with contextlib.suppress(Exception):  # an answer that its process leaves is aborted
            await client.get("/chat", params={"prompt": prompt})


async def state_of(log: MemoryLog, name: str) -> StreamState:
    """The state of the stream of that name, once it has text."""
    while True:
        info = await log.find(name, "")
        if info is not None and (state := await log.state(info.sid)).tail.seq:
            return state
        await anyio.sleep(0.002)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (closure, None),
        (Answers, None),
        (lambda prompt: Answers(prompt).__call__, None),
        (lambda prompt: functools.partial(of_prompt, prompt), None),
        (lambda prompt: lambda orphan: of_prompt(prompt, orphan), None),
        (lambda prompt: on, " and on"),
    ],
    ids=["closure", "object", "method", "partial", "lambda", "a module's function"],
)
async def test_an_answer_is_never_ended_with_another_requests_text(make: Any, text: str | None) -> None:
    log = MemoryLog()
    (dying, one), (living, other) = an_app(log, make), an_app(log, make)
    with anyio.fail_after(DEADLINE):
        await asked(other, "bob")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asked, one, "ann")
            await state_of(log, "ann")
            tasks.cancel_scope.cancel()
        await dying.aclose(close_log=False)
        state = await state_of(log, "ann")
        sid = state.info.sid
        await living.lost(state)
        if (run := living.runs.get(sid)) is not None:
            await run.over.wait()
    status = "failed" if text is None else "complete"
    assert await text_in(log, sid) == (['"ann"'] + ([] if text is None else [f'"{text}"']), status)


def a_version(*endpoints: str) -> StreamGuard:
    """A program that has these endpoints, in this order, each with a lambda of one place."""
    guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id)
    for name in endpoints:

        async def source(request: Request) -> AsyncIterator[str]:
            yield "x"

        source.__qualname__ = name
        guard.stream(resumer=lambda orphan, name=name: Continue([name]))(source)
    return guard


def test_a_name_is_of_its_endpoint_whatever_endpoints_stand_before_it() -> None:
    """During a deployment two versions go on with each other's streams."""
    old, new = a_version("chat"), a_version("summary", "chat")
    (name,) = old.resumers
    assert name == f"{__name__}.chat in native"
    orphan: Any = None
    assert new.resumers[name].resumer(orphan) == Continue(["chat"])
    assert list(a_version("chat", "summary").resumers) == list(reversed(new.resumers))


def test_two_endpoints_of_one_name_are_refused_until_they_are_given_names() -> None:
    with pytest.raises(ValueError, match="resumer_name="):
        a_version("chat", "chat")
    guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id)
    for name in ("one", "two"):
        guard.stream(resumer=Answers(name), resumer_name=name)(lambda request: model("x"))
    assert list(guard.resumers) == ["one", "two"]
    with pytest.raises(ValueError, match="resumer_name="):
        guard.stream(resumer=on)(lambda request: model("x"))


def test_two_endpoints_with_one_resumer_keep_their_options() -> None:
    guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id)

    def chat_billed(outcome: Any) -> None: ...

    def story_billed(outcome: Any) -> None: ...

    @guard.stream(resumer=on, on_end=chat_billed, on_disconnect=Detach(600))
    async def chat(request: Request) -> AsyncIterator[str]:
        yield "x"

    @guard.stream(resumer=on, on_end=story_billed, on_disconnect=Cancel())
    async def story(request: Request) -> AsyncIterator[str]:
        yield "x"

    ends = [(found.on_end, found.on_disconnect) for found in guard.resumers.values()]
    assert ends == [(chat_billed, Detach(600)), (story_billed, Cancel())]
