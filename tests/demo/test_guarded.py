"""The guarded endpoint loses nothing under the lag that the unguarded one loses tails under."""

from __future__ import annotations

import anyio
import httpx
import pytest

from streamguard import client
from streamguard.core.receipt import Verdict
from streamguard.demo.guarded import Lagging, guarded_answer
from streamguard.demo.model import Answer, Entry, Generation
from tests.demo.asgi import sent

TOKENS = tuple(f"{number} " for number in range(10))


@pytest.mark.parametrize("delay", [0.0, 0.02])
@pytest.mark.parametrize("size", [1, 4, 100])
def test_the_whole_text_comes_whatever_the_lag(size: int, delay: float) -> None:
    entry = Entry()
    app = guarded_answer(Generation(Answer(TOKENS, (0.0,) * 11, 0.0), entry), size, delay)

    async def read() -> tuple[str, Verdict]:
        async with (
            httpx.AsyncClient(transport=httpx.ASGITransport(app)) as http,
            client.stream("GET", "http://lab/", client=http) as answer,
        ):
            return await answer.read(), answer.receipt.verdict

    assert anyio.run(read) == ("".join(TOKENS), Verdict.COMPLETE)
    assert entry.text == "".join(TOKENS)


def test_every_chunk_but_the_opening_is_late() -> None:
    times = []

    async def app(scope: object, receive: object, send: object) -> None:
        for body in (b"opening", b"one", b""):
            await send({"type": "http.response.body", "body": body})  # type: ignore[operator]
            times.append(anyio.current_time())

    async def run() -> None:
        times.append(anyio.current_time())
        await sent(Lagging(app, 0.05))

    anyio.run(run)
    assert times[2] - times[1] >= 0.05
    assert times[2] - times[0] < 5
