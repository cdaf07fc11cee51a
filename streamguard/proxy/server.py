"""uvicorn under the proxy: one process, which says where it listens once it does.

What uvicorn would do to a message is turned off: no headers of its own, since the upstream has some; no protocol but
HTTP; nothing believed of who asks. Its parser is h11, whose buffer for a request's head is bounded: httptools would
collect headers as long as somebody sends some.
"""

from __future__ import annotations

import asyncio
import logging
import logging.config
import math
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import uvicorn

from streamguard.adapters.quiet import quiet_server_logs
from streamguard.observe.record import LOGGER, JsonLines

__all__ = ["bound", "log_as", "log_plainly", "log_records", "serve"]

_CLOSING: Final = 8.0  # seconds behind the grace, in which streams end that are told to
_BACKLOG: Final = 2048


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises OSError."""
    with _named(f"{host}, port {port}"):
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
            made.listen(_BACKLOG)
        except OSError:
            made.close()
            raise
    return made


@contextmanager
def _named(where: str) -> Iterator[None]:
    """What the system refuses does not say where."""
    try:
        yield
    except OSError as exc:
        raise OSError(f"it cannot listen at {where}: {exc.strerror or exc}") from exc


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, listens: Callable[[], object], ends: Callable[[], object]) -> None:
        super().__init__(config)
        self._listens = listens
        self._ends = ends

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            with _named(f"{self.config.uds}"):  # a given socket listens already
                await super().startup(sockets)
        except OSError:
            await self.lifespan.shutdown()  # else the application is cancelled in it, which uvicorn logs as a fault
            raise
        if self.started:
            self._listens()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        # Here, since the process ends by its signal behind this, and runs nothing that was left for its exit.
        await asyncio.to_thread(self._ends)


def log_plainly() -> None:
    """Lines on standard error, each with its time, without what uvicorn says of itself."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s: %(message)s")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def log_records() -> None:
    """The records of abnormal streams on standard output, one JSON object a line, and nowhere else."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonLines())
    records = logging.getLogger(LOGGER)
    records.addHandler(handler)
    records.propagate = False


def log_as(config: Mapping[str, Any]) -> None:
    """Log as `dictConfig` has it. Raises ValueError for what it cannot make anything of."""
    try:
        logging.config.dictConfig(dict(config))
    except (ValueError, TypeError, AttributeError, LookupError) as exc:
        why = exc if exc.__cause__ is None else exc.__cause__
        raise ValueError(f"--log-config does not configure Python's logging: {why}") from exc


def serve(
    app: Any,
    *,
    listening: socket.socket | None,
    uds: str | None = None,
    max_head: int,
    grace: float,
    access_log: bool,
    listens: Callable[[], object],
    ends: Callable[[], object],
) -> bool:
    """Serve on the socket, or at `uds`, until the process is told to go; `listens` is called once it does, `ends` once
    all is over. Answers whether it ever did."""
    quiet_server_logs()
    config = uvicorn.Config(
        app,
        uds=uds,
        interface="asgi3",
        http="h11",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=access_log,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        backlog=_BACKLOG,
        h11_max_incomplete_event_size=max_head,
        timeout_graceful_shutdown=None if math.isinf(grace) else math.ceil(grace + _CLOSING),
    )
    server = _Server(config, listens, ends)
    server.run(sockets=None if listening is None else [listening])
    return server.started
