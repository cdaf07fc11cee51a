"""The lab's servers: real uvicorn processes on loopback, one without streamguard and one with it.

Processes, not threads: a server that shares an interpreter with the reader would measure their fight over
it. Each prints its port on one line and stops when its standard input ends, so that none is left behind
whatever becomes of the lab.

    GET /answer?id=&seed=&number=&chunk=&delay=&pace=    the answer; `&flush=1`, `&sse=1` where unguarded
    GET /made                                            what was generated since the last such request
"""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

import attrs
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from streamguard.adapters.asgi import SealMiddleware
from streamguard.adapters.starlette import StreamGuard
from streamguard.app import anyone_with_the_id
from streamguard.demo.guarded import guarded_answer
from streamguard.demo.model import Generation, Ledger, answer, long_answer
from streamguard.demo.unguarded import UnguardedAnswer
from streamguard.log.base import StreamLog
from streamguard.log.memory import MemoryLog

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

__all__ = ["Asked", "LabError", "guarded_app", "listening", "resumable_app", "serve", "serving", "unguarded_app"]


class LabError(RuntimeError):
    """The lab itself did not work: a server did not start, or did not answer what it was asked."""


@attrs.frozen
class Asked:
    """One request's parameters, as both servers read them."""

    id: str
    seed: int
    number: int
    chunk: int
    delay: float
    pace: float = 1.0
    flush: bool = False
    sse: bool = False

    def params(self) -> dict[str, str]:
        """As a query string's members."""
        return {
            name: str(int(value) if isinstance(value, bool) else value) for name, value in attrs.asdict(self).items()
        }

    @classmethod
    def of(cls, params: Mapping[str, str]) -> Asked:
        return cls(
            params["id"],
            int(params["seed"]),
            int(params["number"]),
            int(params["chunk"]),
            float(params["delay"]),
            float(params["pace"]),
            params["flush"] == "1",
            params["sse"] == "1",
        )

    def begin(self, ledger: Ledger) -> Generation:
        return Generation(answer(self.seed, self.number), ledger.open(self.id), self.pace)


def _made(ledger: Ledger) -> Route:
    async def made(request: Request) -> Response:
        return JSONResponse({key: attrs.asdict(entry) for key, entry in ledger.take().items()})

    return Route("/made", made)


def unguarded_app() -> Starlette:
    ledger = Ledger()

    async def respond(request: Request) -> ASGIApp:
        asked = Asked.of(request.query_params)
        return UnguardedAnswer(asked.begin(ledger), asked.chunk, asked.delay, asked.flush, asked.sse)

    return Starlette(routes=[Route("/answer", respond), _made(ledger)])


def guarded_app() -> Starlette:
    ledger = Ledger()

    async def respond(request: Request) -> ASGIApp:
        asked = Asked.of(request.query_params)
        return guarded_answer(asked.begin(ledger), asked.chunk, asked.delay)

    app = Starlette(routes=[Route("/answer", respond), _made(ledger)])
    app.add_middleware(SealMiddleware)
    return app


def resumable_app(where: str) -> Starlette:
    """An endpoint whose streams are kept in a log: `memory:`, `sqlite:PATH` or `redis:URL`."""
    kind, _, address = where.partition(":")
    log: StreamLog
    if kind == "sqlite":
        from streamguard.log.sqlite import SQLiteLog

        log = SQLiteLog(address)
    elif kind == "redis":
        from streamguard.log.redis import RedisLog

        log = RedisLog(address)
    else:
        log = MemoryLog()
    guard = StreamGuard(log, authorize=anyone_with_the_id)

    async def respond(request: Request) -> ASGIApp:
        seed, number = int(request.query_params["seed"]), int(request.query_params["number"])
        ledger = Ledger()
        generation = Generation(long_answer(seed, number), ledger.open("answer"), 1.0)
        return guard.response(request, generation.tokens())

    app = Starlette(routes=[Route("/answer", respond)])
    guard.install(app, "/streams")
    return app


APPS: Final[dict[str, Callable[..., Starlette]]] = {
    "unguarded": unguarded_app,
    "guarded": guarded_app,
    "resumable": resumable_app,
}


@contextmanager
def serving(*names: str, argument: str | None = None) -> Iterator[dict[str, str]]:
    """Server processes for some of `APPS`, with an `argument` for those that take one: their base addresses by name.
    Raises LabError if one does not start."""
    with ExitStack() as stack:
        processes = {name: stack.enter_context(_process(name, argument)) for name in names}
        yield {name: _address(name, process) for name, process in processes.items()}


@contextmanager
def _process(name: str, argument: str | None) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "streamguard.demo.servers", name, *([] if argument is None else [argument])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:  # pragma: no cover  (a server that does not stop)
                process.kill()


def _address(name: str, process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("http://"):
        raise LabError(f"the {name} server of the lab did not start (exit code {process.wait(10)})")
    return line.strip()


def listening(host: str, port: int) -> socket.socket:
    """A listener on a port, 0 for a free one. Raises OSError."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    # The protocol by name: asyncio switches Nagle's algorithm off only where it reads "TCP", and with it on,
    # the first token waits 40 ms for the acknowledgement of the head.
    listener = socket.socket(family, kind, socket.IPPROTO_TCP)
    try:
        if sys.platform != "win32":  # where it means that anybody may have the port too
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else not soon after it was stopped
        listener.bind(address)
        listener.listen(512)
    except BaseException:
        listener.close()
        raise
    return listener


def serve(name: str, *arguments: str) -> None:
    """The server process: until its standard input ends."""
    # What uvicorn runs on when nothing else is installed: the same timers and the same framing everywhere.
    config = uvicorn.Config(APPS[name](*arguments), log_level="error", loop="asyncio", http="h11", lifespan="off")
    server = uvicorn.Server(config)
    # Its warning about HTTP/1.0, which one of the experiments asks for.
    logging.getLogger("streamguard").setLevel(logging.ERROR)
    listener = listening("127.0.0.1", 0)

    def stop() -> None:
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=stop, daemon=True).start()
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    server.run(sockets=[listener])


if __name__ == "__main__":
    serve(*sys.argv[1:])
