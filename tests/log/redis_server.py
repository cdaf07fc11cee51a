"""A redis-server of a test's own: in a folder of its own, on a unix socket, or on a free port for a proxy's sake.

    with redis_server(tmp_path) as server:
        log = RedisLog(server.url)

Skips the test where there is none. It may be killed and started again, with the files that it left behind or without.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import attrs
import redis

from tests.absence import require
from tests.ports import free_port

__all__ = ["INSTALL", "RedisServer", "Standing", "redis_server", "stalling_proxy"]

INSTALL = "apt-get install --no-install-recommends redis-server"


@attrs.define(eq=False)
class RedisServer:
    """One server. `settings` are lines of its configuration; a change of them holds from the next start."""

    folder: Path
    settings: dict[str, str] = attrs.field(factory=dict)
    port: int = 0  # none: a unix socket only
    process: subprocess.Popen[bytes] | None = None
    # A socket's path may have 107 bytes, which a test's own folder may be longer than.
    socket_folder: str = attrs.field(factory=lambda: tempfile.mkdtemp(prefix="sg-redis-"))

    @property
    def path(self) -> str:
        return f"{self.socket_folder}/s"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}" if self.port else f"unix://{self.path}"

    def client(self) -> redis.Redis:
        """A client of the test's own. Close it."""
        return redis.Redis(unix_socket_path=self.path, password=self.settings.get("requirepass"), protocol=2)

    def start(self) -> None:
        """And wait until it answers."""
        settings = {
            "bind": "127.0.0.1", "port": str(self.port), "unixsocket": self.path, "dir": str(self.folder),
            "save": '""', "appendonly": "no", "daemonize": "no", "logfile": str(self.folder / "redis.log"),
            **self.settings,
        }  # fmt: skip
        config = self.folder / "redis.conf"
        config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()), encoding="utf-8")
        self.process = subprocess.Popen(["redis-server", str(config)], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while True:
            try:
                with contextlib.closing(self.client()) as client:
                    client.ping()
                return
            except (redis.ConnectionError, redis.exceptions.BusyLoadingError):
                assert self.process.poll() is None, (self.folder / "redis.log").read_text()
                assert time.monotonic() < deadline, "redis-server does not answer"
                time.sleep(0.01)

    def kill(self) -> None:
        """With no chance to write anything."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """It takes connections and bytes meanwhile, and answers nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.socket_folder)


@contextlib.contextmanager
def redis_server(folder: Path, *, tcp: bool = False, **settings: str) -> Iterator[RedisServer]:
    """A server that runs; with `tcp` also on a port. Underscores in names of settings are hyphens."""
    require("redis-server", INSTALL)
    server = RedisServer(folder, {name.replace("_", "-"): value for name, value in settings.items()})
    if tcp:
        server.port = free_port()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@attrs.define
class Standing:
    """A proxy's switches: while `all` is set nothing comes back, while `woken` is, nothing that was published."""

    url: str = ""
    all: bool = False
    woken: bool = False


@contextlib.asynccontextmanager
async def stalling_proxy(port: int) -> AsyncIterator[Standing]:
    """A proxy before the server on a port, with switches. What does not come back is lost; the connections stay."""
    switches = Standing()
    writers: list[asyncio.StreamWriter] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", port)
        writers.extend((writer, forth))
        listens = False

        async def up() -> None:
            nonlocal listens
            while data := await reader.read(65536):
                listens = listens or b"SUBSCRIBE" in data
                forth.write(data)
            forth.close()

        async def down() -> None:
            while data := await back.read(65536):
                if not switches.all and not (switches.woken and listens):
                    writer.write(data)
            writer.close()

        await asyncio.gather(up(), down(), return_exceptions=True)

    proxy = await asyncio.start_server(connected, "127.0.0.1", 0)
    switches.url = f"redis://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    try:
        yield switches
    finally:
        proxy.close()
        for writer in writers:
            writer.close()
