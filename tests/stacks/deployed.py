"""The application of a deploy, over a file that its processes share.

    GET /short/<name>   a stream that goes on until its process drains, and a little longer
    GET /long/<name>    one that takes longer than the grace

STREAMGUARD_TEST_LOG is the file, STREAMGUARD_TEST_GRACE the grace in seconds; with STREAMGUARD_TEST_RESUMER=1 there is
somebody who can go on with a stream.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any, Final

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from streamguard.adapters.starlette import StreamGuard
from streamguard.log.sqlite import SQLiteLog
from streamguard.runtime.takeover import Orphan, Replay

__all__ = ["WORDS", "app", "text_of"]

WORDS: Final = 200  # of a long stream
_PACE: Final = 0.05  # seconds a word, where nobody waits for what is known already

guard = StreamGuard(
    SQLiteLog(os.environ.get("STREAMGUARD_TEST_LOG", "streams.db")),
    authorize=lambda request, action: "ann",
    grace=float(os.environ.get("STREAMGUARD_TEST_GRACE", "1")),
)


def text_of(kind: str) -> str:
    """What a whole stream says."""
    return "begin end " if kind == "short" else "".join(f"{number} " for number in range(WORDS))


async def count(pace: float) -> AsyncIterator[str]:
    for number in range(WORDS):
        yield f"{number} "
        await anyio.sleep(pace)


def resume(orphan: Orphan) -> Replay:
    return Replay(count(0.0))


async def long(request: Request) -> Any:
    return count(_PACE)


@guard.stream
async def short(request: Request) -> AsyncIterator[str]:
    yield "begin "
    while guard.ready:  # noqa: ASYNC110  # the signal wakes nobody here
        await anyio.sleep(0.01)
    await anyio.sleep(0.1)
    yield "end "


resumer = resume if os.environ.get("STREAMGUARD_TEST_RESUMER") == "1" else None
app = Starlette(routes=[Route("/short/{name}", short), Route("/long/{name}", guard.stream(resumer=resumer)(long))])
guard.install(app, "/streams", ready="/ready")
