"""What a monitoring system asks the proxy for, at an address of its own: `GET /metrics`, and nothing else.

Not a path of the proxy's own address: that is the public's, every path of it is the upstream's, which may have a
`/metrics` as vLLM does, and how many streams there are, and how they end, is nobody's business there. It is served by
threads, so that a page which is being made holds no stream up: by a few, and who connects beyond those is told 503.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

__all__ = ["AT_ONCE", "PATH", "Scraped"]

logger = logging.getLogger("streamguard")

PATH: Final = "/metrics"
_SLOWEST: Final = 5.0  # seconds that somebody may be silent who is connected: each has a thread
AT_ONCE: Final = 16  # who is connected; a scraper, a second one, and somebody who looks
_FULL: Final = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\nRetry-After: 5\r\n\r\n"


class Scraped(ThreadingHTTPServer):
    """Serves on `listening` from now on, in the background: `page` makes a page, of the type `kind`."""

    daemon_threads = True  # whoever is connected does not keep the process

    def __init__(self, listening: socket.socket, page: Callable[[], bytes], kind: str) -> None:
        super().__init__(listening.getsockname()[:2], _Asked, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.page, self.kind = page, kind
        self._places = threading.BoundedSemaphore(AT_ONCE)
        threading.Thread(target=self.serve_forever, name="streamguard metrics", daemon=True).start()

    def close(self) -> None:
        """Serve no more."""
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            with suppress(OSError):  # who asked has gone
                request.sendall(_FULL)  # it fits into what the system holds for a new connection, so nobody waits
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # there is no thread to be had
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

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
