"""A client of HTTP that waits for a busy machine: every request on its own connection, with a long time limit."""

from __future__ import annotations

from typing import Final

import httpx

__all__ = ["http"]

http: Final = httpx.Client(timeout=60.0, limits=httpx.Limits(max_keepalive_connections=0))
