"""Readers that leave in mid stream, and what is left of their streams. The test's and the proof's.

A source, of any kind, makes 10,000 tokens; its reader takes 20 and closes its socket while the stream is

    idle                 waiting for a source that is silent
    producing            at work on tokens that come one a millisecond
    flat out             at work on tokens that come without a suspension
    blocked on a write   waiting for a transport whose reader does not read

A source that the driver steps itself may make one more token after the server told that the reader is gone. One
that runs ahead of the driver (in a thread, in a task, pushed) is told by its buffer, and may take one more step
after that was closed.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
import types
import weakref
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import attrs

from streamguard.adapters.asgi import GuardedAnswer
from streamguard.adapters.seal import Message, Receive, Scope, Send
from streamguard.core.errors import StreamClosed
from streamguard.runtime.buffer import Buffer, HandOver
from streamguard.runtime.push import PushSource
from tests.adapters.asgi_apps import Ends
from tests.adapters.kinds import CloseOnly, CloseOnlyAsync, place, source_threads, start_engine
from tests.adapters.servers import DEADLINE, Gate, Server

__all__ = ["BLOCKED", "MODES", "Leavers", "Left", "Run", "settled"]

BLOCKED = "blocked on a write"
MODES = ["idle", "producing", "flat out", BLOCKED]
TOKENS = 10_000
TAKEN = 20
_BLOCKED = 0.02  # seconds after which a write that has not returned waits for its reader
_LARGE = "x" * 65_536  # a token that soon fills every buffer on the way
_STEP = 0.005  # seconds for which a thread's step goes on after the reader has left


@attrs.define(eq=False)
class Run:
    """One stream's books."""

    kind: str
    mode: str
    made: int = 0
    closed: int = 0
    at_disconnect: int | None = None
    """How many tokens were made when the server told that the reader is gone."""
    late: int = 0
    """How many tokens were begun after the buffer of a source that runs ahead was closed."""
    blocked: Gate = attrs.field(factory=Gate)
    """Opened once a write has waited for its transport."""
    told: Gate = attrs.field(factory=Gate)
    """Opened after the server told that the reader is gone: what blocks in a thread goes on then."""
    driven_in: object = None
    closed_in: object = None
    answer: GuardedAnswer | None = None
    """While it is served: it holds its source."""
    hand_over: weakref.ref[HandOver] | None = None
    """The buffer of a source that runs ahead; it may hold what ended the source, and with it all that is counted."""

    @property
    def after(self) -> int:
        """Tokens that were made after the source could know that its reader is gone."""
        if self.at_disconnect is None:
            return 10**6
        return self.made - self.at_disconnect if self._direct else self.late

    @property
    def closed_once(self) -> bool:
        """Closed, and where its steps were taken: what is pushed has no steps, and is told on the event loop."""
        on_loop = isinstance(self.closed_in, asyncio.Task)
        return self.closed == 1 and (on_loop if self.kind == "push" else self.closed_in == self.driven_in)

    @property
    def _direct(self) -> bool:
        return self.kind in ("async generator", "async iterator")

    @property
    def tokens(self) -> range:
        # Flat out, 10,000 tokens are over before a reader can leave.
        return range(10**8 if self.mode == "flat out" else TOKENS)

    @property
    def paced(self) -> bool:
        return self.mode in ("idle", "producing")

    def token(self, index: int) -> str:
        """The next token, counted."""
        self.made += 1
        return _LARGE if self.mode == BLOCKED else f"t{index} "

    def begin(self) -> None:
        """A step begins."""
        if self._direct:
            return
        if self.hand_over is None:
            assert self.answer is not None
            self.hand_over = weakref.ref(self.answer.source._iterator._hand_over)  # type: ignore[union-attr]
        hand_over = self.hand_over()
        self.late += hand_over is None or hand_over.closed

    def close(self) -> None:
        self.closed += 1
        self.closed_in = place()


async def _source(run: Run) -> AsyncIterator[str]:
    run.driven_in = place()
    try:
        for index in run.tokens:
            run.begin()
            if run.mode == "idle" and index == TAKEN:
                await asyncio.Event().wait()
            if run.paced:
                await asyncio.sleep(0.001)
            yield run.token(index)
    finally:
        run.close()


def _thread_source(run: Run) -> Iterator[str]:
    run.driven_in = place()
    try:
        for index in run.tokens:
            run.begin()
            if run.mode == "idle" and index == TAKEN:
                run.told.wait()  # a call that nothing can interrupt
            if run.paced:
                time.sleep(0.001)
            yield run.token(index)
    finally:
        run.close()


def _engine(run: Run, source: PushSource) -> None:
    try:
        for index in run.tokens:
            run.begin()
            if run.mode == "idle" and index == TAKEN:
                run.told.wait()
            if run.paced:
                time.sleep(0.001)
            if not source.put(run.token(index)) and not source.wait():
                return
    except StreamClosed:
        pass


def _push(run: Run) -> PushSource:
    source = PushSource(on_close=run.close)
    run.hand_over = weakref.ref(source._hand_over)
    start_engine(_engine, run, source)
    return source


_MAKE: dict[str, Any] = {
    "async generator": _source,
    "async iterator": lambda run: CloseOnlyAsync(_source(run)),
    "buffered": _source,
    "sync generator": _thread_source,
    "sync iterator": lambda run: CloseOnly(_thread_source(run)),
    "push": _push,
}


@attrs.frozen
class Left:
    """What there is of the kinds that could be left behind, at one moment."""

    tasks: int
    threads: int
    generators: int
    descriptors: int


class Leavers:
    """The application, and the books of all its streams. A request's path says kind and mode of its source."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.ends = Ends()

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind, mode = scope["path"][1:].replace("-", " ").split("/")
        run = Run(kind, mode)
        self.runs.append(run)

        async def noting() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                run.at_disconnect = run.made
                asyncio.get_running_loop().call_later(_STEP, run.told.open)
            return message

        async def watched(message: Message) -> None:
            waiting = asyncio.get_running_loop().call_later(_BLOCKED, run.blocked.open)
            await send(message)
            waiting.cancel()

        buffer = Buffer() if kind == "buffered" else None
        run.answer = GuardedAnswer(_MAKE[kind](run), buffer=buffer, on_end=self.ends)
        try:
            await run.answer(scope, noting, watched if mode == BLOCKED else send)
        finally:
            run.answer = None

    def leave(self, server: Server, mode: str, kind: str = "async generator") -> None:
        """Read 20 tokens (of those that fill the buffers: none) and close the socket."""
        with server.connect(receive_buffer=4096 if mode == BLOCKED else None) as connection:
            connection.get(f"/{kind}/{mode}".replace(" ", "-"))
            if mode == BLOCKED:
                connection.until(b"xxx")
                self.runs[-1].blocked.wait()
            else:
                # A source that runs ahead gives several tokens in one frame.
                connection.until(f"t{TAKEN - 1} ".encode())

    def left(self, server: Server, tasks: int) -> Left:
        """What is there now, after what is ending had its turns; `tasks` are there at least."""
        server.call(settled, tasks)
        for thread in source_threads():
            thread.join(DEADLINE)
        found = server.call(lambda: len(asyncio.all_tasks()))
        return Left(found, len(source_threads()), _generators(), descriptors())


async def settled(tasks: int) -> bool:
    """Whether no more than `tasks` tasks are left in this loop, after those that are ending had their turns."""
    for _ in range(1000):
        if len(asyncio.all_tasks()) <= tasks:
            return True
        await asyncio.sleep(0.005)
    return False


def _generators() -> int:
    """How many of the sources' generators are still alive."""
    gc.collect()
    return sum(
        (isinstance(thing, types.AsyncGeneratorType) and thing.ag_code is _source.__code__)
        or (isinstance(thing, types.GeneratorType) and thing.gi_code is _thread_source.__code__)
        for thing in gc.get_objects()
    )


def descriptors() -> int:
    """How many descriptors this process has open; 0 where the system does not tell."""
    folder = Path("/dev/fd")
    return len(os.listdir(folder)) if folder.is_dir() else 0
