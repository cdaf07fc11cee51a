"""Readers that leave in mid stream, and what is left of their streams. The test's and the proof's.

A source makes 10,000 tokens; its reader takes 20 and closes its socket while the driver is

    idle                 waiting for a source that is silent
    producing            at work on tokens that come one a millisecond
    flat out             at work on tokens that come without a suspension
    blocked on a write   waiting for a transport whose reader does not read
"""

from __future__ import annotations

import asyncio
import gc
import types
from collections.abc import AsyncIterator

import attrs

from streamguard.adapters.asgi import GuardedAnswer
from streamguard.adapters.seal import Message, Receive, Scope, Send
from tests.adapters.asgi_apps import Ends
from tests.adapters.servers import Gate, Server

__all__ = ["BLOCKED", "MODES", "Leavers", "Run"]

BLOCKED = "blocked on a write"
MODES = ["idle", "producing", "flat out", BLOCKED]
TOKENS = 10_000
TAKEN = 20
_BLOCKED = 0.02  # seconds after which a write that has not returned waits for its reader
_LARGE = "x" * 65_536  # a token that soon fills every buffer on the way


@attrs.define(eq=False)
class Run:
    """One stream's books."""

    made: int = 0
    closed: int = 0
    at_disconnect: int | None = None
    """How many tokens were made when the server told that the reader is gone."""
    blocked: Gate = attrs.field(factory=Gate)
    """Opened once a write has waited for its transport."""
    driven_in: object = None
    closed_in: object = None


async def _source(run: Run, mode: str) -> AsyncIterator[str]:
    run.driven_in = asyncio.current_task()
    try:
        # Flat out, 10,000 tokens are over before a reader can leave.
        for index in range(10**8 if mode == "flat out" else TOKENS):
            if mode == "idle" and index == TAKEN:
                await asyncio.Event().wait()
            if mode in ("idle", "producing"):
                await asyncio.sleep(0.001)
            run.made += 1
            yield _LARGE if mode == BLOCKED else f"t{index} "
    finally:
        run.closed += 1
        run.closed_in = asyncio.current_task()


class Leavers:
    """The application, and the books of all its streams."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.ends = Ends()

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        run = Run()
        self.runs.append(run)

        async def noting() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                run.at_disconnect = run.made
            return message

        async def watched(message: Message) -> None:
            waiting = asyncio.get_running_loop().call_later(_BLOCKED, run.blocked.open)
            await send(message)
            waiting.cancel()

        mode = scope["path"][1:].replace("-", " ")
        sending = watched if mode == BLOCKED else send
        await GuardedAnswer(_source(run, mode), on_end=self.ends)(scope, noting, sending)

    def leave(self, server: Server, mode: str) -> None:
        """Read 20 tokens (of those that fill the buffers: none) and close the socket."""
        with server.connect(receive_buffer=4096 if mode == BLOCKED else None) as connection:
            connection.get(f"/{mode.replace(' ', '-')}")
            if mode == BLOCKED:
                connection.until(b"xxx")
                self.runs[-1].blocked.wait()
            else:
                connection.until(f"t{TAKEN - 1} ".encode())

    async def settled(self, tasks: int) -> bool:
        """Whether no more than `tasks` tasks are left in this loop, after those that are ending had their turns."""
        for _ in range(1000):
            if len(asyncio.all_tasks()) <= tasks:
                return True
            await asyncio.sleep(0.005)
        return False

    def generators(self) -> int:
        """How many of the sources' generators are still alive."""
        gc.collect()
        return sum(
            isinstance(thing, types.AsyncGeneratorType) and thing.ag_code is _source.__code__
            for thing in gc.get_objects()
        )
