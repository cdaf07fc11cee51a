"""What a monitoring system asks the proxy for, at an address of its own: `GET /metrics`, and nothing else.

Not a path of the proxy's own address: that is the public's, every path of it is the upstream's, which may have a
`/metrics` as vLLM does, and how many streams there are, and how they end, is nobody's business there. It is served by
threads, so that a page which is being made holds no stream up.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

__all__ = ["PATH", "Scraped"]

logger = logging.getLogger("streamguard")

PATH: Final = "/metrics"
_SLOWEST: Final = 10.0  # seconds that somebody may be silent who is connected: each has a thread


class Scraped(ThreadingHTTPServer):
    """Serves on `listening` from now on, in the background: `page` makes a page, of the type `kind`."""

    daemon_threads = True  # whoever is connected does not keep the process

    def __init__(self, listening: socket.socket, page: Callable[[], bytes], kind: str) -> None:
        super().__init__(listening.getsockname()[:2], _Asked, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.page, self.kind = page, kind
        threading.Thread(target=self.serve_forever, name="streamguard metrics", daemon=True).start()

    def close(self) -> None:
        """Serve no more."""
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # that is, who asked has gone
            logger.exception("the metrics could not be given")


class _Asked(BaseHTTPRequestHandler):
    timeout = _SLOWEST
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != PATH:
            self.send_error(404)
            return
        server: Any = self.server  # a Scraped
        page = server.page()
        self.send_response(200)
        self.send_header("Content-Type", server.kind)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page)

    do_HEAD = do_GET

    def version_string(self) -> str:
        return "streamguard"

    def log_message(self, format: str, *args: object) -> None:
        """A line for each scrape is none that anybody reads."""
