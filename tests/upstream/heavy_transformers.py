"""`transformers serve` as a process of its own, for the tests marked `heavy`, and what it tells of itself.

    with serve_that_is("bare") as server:
        last_made(server)
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests.absence import require
from tests.upstream.heavy import UP, Server, started

__all__ = ["last_made", "serve_that_is"]


@contextmanager
def serve_that_is(kind: str) -> Iterator[Server]:
    """`bare`, under a `guard`, or under one with a `log`."""
    require("fastapi", "pip install 'transformers[serving]'")
    with started([sys.executable, "-m", "tests.upstream.guarded_serve", kind, "serve", "--device", "cpu"]) as server:
        yield server


def last_made(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{server.url}/made", timeout=UP).json()
    return found
