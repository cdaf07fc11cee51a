"""A real uvicorn on a free loopback port, in a thread, so that a test can look into the application it serves.

    with serving(app, http="httptools", loop="uvloop") as server:
        httpx.get(server.url)

Nothing here waits for luck: the socket listens before the thread starts, and what a test and the server
must agree on passes through a `Gate`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import attrs
import pytest
import uvicorn

from tests.absence import absent

__all__ = ["DEADLINE", "STACKS", "Connection", "Gate", "Server", "serving", "stack_params"]

T = TypeVar("T")

DEADLINE = 30.0  # seconds after which a test that waits has failed: more than a busy machine takes
STACKS = [(http, loop) for http in ("h11", "httptools") for loop in ("asyncio", "uvloop")]


def stack_params() -> list[Any]:
    """The four stacks as parameters of a test; those that are not installed here are skipped."""
    return [
        pytest.param(
            (http, loop),
            id=f"{http}+{loop}",
            marks=[
                pytest.mark.skipif(absent(tool), reason=f"absent: {tool} (install it with: pip install {tool})")
                for tool in (http, loop)
                if tool != "asyncio"
            ],
        )
        for http, loop in STACKS
    ]


class Gate:
    """Opened once, from any thread; waited for in the server's loop (`await gate`) or in a test (`gate.wait()`)."""

    def __init__(self) -> None:
        self._future: concurrent.futures.Future[None] = concurrent.futures.Future()

    def open(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    @property
    def opened(self) -> bool:
        return self._future.done()

    def wait(self, seconds: float = DEADLINE) -> None:
        self._future.result(seconds)

    def __await__(self) -> Any:
        # Shielded: a cancelled waiter must not cancel the gate for everybody else.
        return asyncio.shield(asyncio.wrap_future(self._future)).__await__()


class Connection:
    """A client that speaks bytes, for what no HTTP library does."""

    def __init__(self, port: int, *, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(DEADLINE)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect(("127.0.0.1", port))
        self.received = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def get(self, path: str = "/", version: str = "1.1", **headers: str) -> None:
        self.request("GET", path, version, **headers)

    def request(self, method: str, path: str, version: str = "1.1", body: bytes = b"", **headers: str) -> None:
        fields = {"host": "test", **{name.replace("_", "-"): value for name, value in headers.items()}}
        if body:
            fields["content-length"] = str(len(body))
        lines = [f"{method} {path} HTTP/{version}", *[f"{name}: {value}" for name, value in fields.items()]]
        self.send(("\r\n".join(lines) + "\r\n\r\n").encode() + body)

    def until(self, mark: bytes, times: int = 1) -> bytes:
        """Read until `mark` has come `times` times; all that came so far."""
        while self.received.count(mark) < times:
            piece = self.socket.recv(65536)
            assert piece, f"the connection ended before {mark!r} came {times} times: {self.received!r}"
            self.received += piece
        return self.received

    def rest(self) -> bytes:
        """Read to the end of the connection."""
        while piece := self.socket.recv(65536):
            self.received += piece
        return self.received

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@attrs.define(eq=False)
class Server:
    """A server that runs. `call` runs a function in its event loop."""

    port: int
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def call(self, function: Callable[..., T | Awaitable[T]], *args: Any) -> T:
        async def run() -> T:
            result = function(*args)
            return await result if inspect.isawaitable(result) else result  # type: ignore[return-value]

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(DEADLINE)

    def connect(self, **options: Any) -> Connection:
        return Connection(self.port, **options)

    def status(self, request: bytes) -> int:
        """The status that the server answers to a request's bytes."""
        with self.connect() as connection:
            connection.send(request)
            return int(connection.until(b"\r\n\r\n").split(b" ", 2)[1])


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.running: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        self.stopping = Gate()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.running.set_result(asyncio.get_running_loop())

    async def main_loop(self) -> None:
        # uvicorn's own looks ten times a second whether it is to stop, which each test would wait for.
        await self.on_tick(0)
        await self.stopping


@contextmanager
def serving(app: Any, *, http: str = "h11", loop: str = "asyncio", **config: Any) -> Iterator[Server]:
    """Serve `app` (an ASGI application) while the block runs. `config` is uvicorn's."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", 0))
    listening.listen(1024)
    options = {
        "interface": "asgi3",
        "lifespan": "off",
        "log_config": None,
        "access_log": False,
        "timeout_graceful_shutdown": 1,
        **config,
    }
    server = _Uvicorn(uvicorn.Config(app, http=http, loop=loop, **options))  # type: ignore[arg-type]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="uvicorn", daemon=True)
    thread.start()
    try:
        yield Server(listening.getsockname()[1], server.running.result(DEADLINE))
    finally:
        server.should_exit = True
        server.stopping.open()
        thread.join(DEADLINE)
        listening.close()
        assert not thread.is_alive(), "uvicorn did not stop"
