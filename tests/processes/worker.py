"""A worker: the example of a takeover, served by uvicorn, over a log in a file or in Redis.

    python -m tests.processes.worker FILE         prints its port, and serves until it is killed
    python -m tests.processes.worker unix://…     the same, over Redis at this address

The environment says how it dies: `STREAMGUARD_CRASH`, as `streamguard.testing.crash` has it; and `SILENCE`: seconds for
which the model is silent in the middle of its story, so that the lease has to be renewed.

Beside the application's own, `GET /runs` says how many streams are generated here.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from types import ModuleType
from typing import Any

import anyio
import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamguard.log.base import StreamLog
from streamguard.log.redis import RedisLog
from streamguard.log.sqlite import SQLiteLog
from streamguard.testing import crash
from tests.modules import ROOT

__all__ = ["LENGTH", "TTL", "example", "text_of"]

TTL = 2.0  # seconds of a lease, of which a resumer has half: less is too little for a machine that is busy
LENGTH = 60  # words of a story
PACE = 0.01  # seconds a word


def example() -> ModuleType:
    """The example's module, under one name in every process."""
    name = "example_takeover"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / "takeover.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def text_of(story: int) -> str:
    """What an uninterrupted run says."""

    async def whole() -> str:
        return "".join([word async for word in example().Model(story, LENGTH, 0.0)])

    return anyio.run(whole)


def log_at(place: str) -> StreamLog:
    return RedisLog(place) if "://" in place else SQLiteLog(place)


def make_worker(place: str, silence: float) -> Any:
    module: Any = example()
    quick: Any = module.Model

    class Silent(quick):  # type: ignore[misc]
        """The model at a pace of its own, silent once where it has never been."""

        def __init__(self, story: int, state: dict[str, int] | None = None) -> None:
            super().__init__(story, LENGTH, PACE, state)

        async def __aiter__(self) -> Any:
            async for word in super().__aiter__():
                yield word
                if self.words == LENGTH // 2:
                    await anyio.sleep(silence)

    module.Model = Silent
    app = module.make_app(log_at(place), TTL)
    app.state.guard.max_takeovers = 20  # a worker that is not given its turn for so long loses a lease, and no text

    async def runs(request: Request) -> Response:
        return Response(str(len(app.state.guard.runs)))

    app.router.routes.append(Route("/runs", runs))
    return app


if __name__ == "__main__":
    crash.arm(os.environ)
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen(128)
    print(sock.getsockname()[1], flush=True)
    served = make_worker(sys.argv[1], float(os.environ.get("SILENCE", "0")))
    config = uvicorn.Config(served, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[sock])
