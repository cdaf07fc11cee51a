"""Calling into an event loop from outside of it: from another thread, or from another loop."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["LoopCaller", "in_loop", "running_trio"]


class LoopCaller:
    """Calls a function on the event loop in which it was made, from any thread; at once on that loop's own."""

    __slots__ = ("_call", "_thread")

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        trio = running_trio()
        self._call: Callable[[Callable[[], object]], object] = (
            asyncio.get_running_loop().call_soon_threadsafe if trio is None else trio.current_trio_token().run_sync_soon
        )

    def __call__(self, function: Callable[[], object]) -> None:
        try:
            if threading.get_ident() == self._thread:
                function()  # on the loop already: no pipe to write to
            else:
                self._call(function)
        except RuntimeError:
            pass  # the loop is closed, and with it went whoever would have been woken

    def later(self, function: Callable[[], object]) -> None:
        """The same, but never at once."""
        try:
            self._call(function)
        except RuntimeError:
            pass


def in_loop() -> bool:
    """Whether the caller's thread runs an event loop just now, so that blocking it would stop that loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return running_trio() is not None
    return True


def running_trio() -> Any:
    """The `trio.lowlevel` of the trio that runs in this thread, or None. Asked first: trio may be a guest of asyncio's
    loop.

    Where trio runs, somebody has imported it; importing it here would make it a dependency.
    """
    lowlevel = sys.modules.get("trio.lowlevel")
    if lowlevel is None:
        return None
    try:
        lowlevel.current_trio_token()
    except RuntimeError:
        return None
    return lowlevel
