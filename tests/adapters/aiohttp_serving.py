"""A real aiohttp server on a free loopback port, in a thread, so that a test can look into what it serves."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from tests.adapters.servers import DEADLINE, Server

__all__ = ["serving_aiohttp"]


@contextmanager
def serving_aiohttp(app: web.Application, *, loop: str = "asyncio", **runner: Any) -> Iterator[Server]:
    """Serve `app` while the block runs. `runner` is what an AppRunner takes."""
    started: concurrent.futures.Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = (
        concurrent.futures.Future()
    )

    async def serve() -> None:
        options = {"access_log": None, "shutdown_timeout": 1.0, **runner}
        running = web.AppRunner(app, **options)
        stop = asyncio.Event()
        try:
            await running.setup()
            site = web.TCPSite(running, "127.0.0.1", 0)
            await site.start()
            assert site._server is not None
            started.set_result((site._server.sockets[0].getsockname()[1], asyncio.get_running_loop(), stop))  # type: ignore[attr-defined]
            await stop.wait()
        except Exception as exc:
            started.set_exception(exc)  # the test raises it
        finally:
            await running.cleanup()

    def run() -> None:
        if loop == "uvloop":
            import uvloop

            uvloop.run(serve())
        else:
            asyncio.run(serve())

    thread = threading.Thread(target=run, name="aiohttp", daemon=True)
    thread.start()
    port, events, stop = started.result(DEADLINE)
    try:
        yield Server(port, events)
    finally:
        events.call_soon_threadsafe(stop.set)
        thread.join(DEADLINE)
        assert not thread.is_alive(), "aiohttp did not stop"
