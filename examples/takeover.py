"""An answer that goes on when the process that writes it is killed: `uvicorn takeover:app --workers 2`.

    curl -N -H 'streamguard: v=1' -X POST localhost:8000/stories/7        # then: kill -9 the worker that answers
    curl -N -H 'streamguard: v=1' -H 'last-event-id: <the last id>' localhost:8000/streams

The model is a toy, and like a real one: each word depends on all that came before it, and on a generator of random
numbers. What it could go on from is a small state, which a checkpoint puts into the log every few words. Whoever reads
a stream whose process is gone takes it over: the resumer makes a model of the last checkpoint, and what that says is
compared with what was sent already, so that a reader gets one text, or is told that there is none.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from streamguard import CheckpointEvery, Orphan, Replay, anyone_with_the_id
from streamguard.adapters.starlette import StreamGuard
from streamguard.log.base import StreamLog
from streamguard.log.sqlite import SQLiteLog

SYLLABLES = ("ba", "de", "ki", "lo", "mu", "na", "re", "sho", "ti", "vu")


class Model:
    """Tells the story of a number. `state` is where another one stood, which this one goes on from."""

    def __init__(self, story: int, length: int = 60, pace: float = 0.05, state: dict[str, int] | None = None) -> None:
        state = {"random": story * 2654435761 % 2**32, "words": 0} if state is None else state
        self.random, self.words = state["random"], state["words"]
        self.length, self.pace = length, pace

    def state(self) -> dict[str, int]:
        return {"random": self.random, "words": self.words}

    async def __aiter__(self) -> AsyncIterator[str]:
        while self.words < self.length:
            await asyncio.sleep(self.pace)  # the next word is computed
            word = ""
            for _ in range(1 + self.random % 3):
                self.random = (self.random * 1664525 + 1013904223) % 2**32
                word += SYLLABLES[(self.random >> 16) % len(SYLLABLES)]
            self.words += 1
            yield word + " "


def told(model: Model) -> Any:
    """The model as a source, with its checkpoints."""
    return CheckpointEvery(items=5).over(model)


def resume(orphan: Orphan) -> Replay:
    """Go on with a story whose process is gone. Its name is the number; the prompt is in your own database."""
    return Replay(told(Model(int(orphan.info.name or 0), state=orphan.checkpoint)), from_checkpoint=True)


def make_app(log: StreamLog, ttl: float = 15.0) -> Starlette:
    guard = StreamGuard(log, authorize=anyone_with_the_id, ttl=ttl)

    @guard.stream(name=lambda request: str(request.path_params["story"]), resumer=resume)
    async def story(request: Request) -> Any:
        return told(Model(request.path_params["story"]))

    app = Starlette(routes=[Route("/stories/{story:int}", story, methods=["POST"])])
    app.state.guard = guard
    guard.install(app, "/streams")
    return app


app = make_app(SQLiteLog(os.environ.get("STREAMS", "streams.db")))  # or RedisLog("redis://…"), on several machines
