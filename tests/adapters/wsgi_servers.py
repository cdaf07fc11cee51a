"""WSGI servers on free loopback ports: waitress and werkzeug in a thread, gunicorn as the processes that it is.

    with serving_wsgi("waitress", app) as url: ...
    with gunicorn("tests.adapters.contract_wsgi:wsgi", "gthread") as url: ...
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from waitress.server import create_server
from werkzeug.serving import make_server

from tests.adapters.servers import DEADLINE
from tests.modules import ROOT

__all__ = ["gunicorn", "serving_wsgi"]

_LISTENING = re.compile(r"Listening at: (http://[\d.]+:\d+)")


@contextmanager
def serving_wsgi(server: str, app: Any) -> Iterator[str]:
    """Serve `app` on a server of this process while the block runs; its address."""
    with (_waitress if server == "waitress" else _werkzeug)(app) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def _werkzeug(app: Any) -> Iterator[int]:
    server = make_server("127.0.0.1", 0, app, threaded=True)
    server.daemon_threads = True
    server.log = lambda *args, **kwargs: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="werkzeug", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(DEADLINE)


@contextmanager
def _waitress(app: Any) -> Iterator[int]:
    server = create_server(app, map={}, listen="127.0.0.1:0", threads=8, clear_untrusted_proxy_headers=True)
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            server.asyncore.loop(timeout=1, map=server._map, count=1)

    thread = threading.Thread(target=serve, name="waitress", daemon=True)
    thread.start()
    try:
        yield server.effective_port
    finally:
        over.set()
        server.trigger.pull_trigger()
        thread.join(DEADLINE)
        server.task_dispatcher.shutdown(timeout=1)
        for channel in list(server._map.values()):
            channel.close()


@contextmanager
def gunicorn(app: str, worker: str) -> Iterator[str]:
    """Serve the application of that name, in one worker process, while the block runs; its address."""
    command = [sys.executable, "-m", "gunicorn", app, "-k", worker, "-b", "127.0.0.1:0", "--graceful-timeout", "1"]
    command += ["--threads", "8"] if worker == "gthread" else []
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        yield next(found[1] for line in process.stderr if (found := _LISTENING.search(line)))
        process.terminate()
        process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE)
