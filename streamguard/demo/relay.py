"""A relay that loses its server on request: what a proxy in front does to a streamed answer, as an ASGI layer.

    relay = Relay(app)
    await relay.cut("run")        # every stream of that run ends for its reader, who sees a whole body
    await relay.stall("run")      # nothing more of it passes, and the connection stays open

A request says by its header `Demo-Run` which run it belongs to; one without it passes untouched. A cut is what a proxy
that asks by HTTP/1.0 makes of a server that went away: no length was told, so the end of the bytes is the end of the
answer, and it goes to the reader as a clean one. To the server it is a reader that left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import anyio
import attrs

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["RUN", "Relay"]

RUN: Final = "demo-run"


@attrs.define(eq=False)
class _Passing:
    """One streamed answer on its way."""

    receive: Receive
    to_reader: Send
    state: Literal["before", "open", "stalled", "cut"] = "before"
    """`before` its head, or no stream: then nothing is done to it."""
    _writing: anyio.Lock = attrs.field(factory=anyio.Lock)

    async def send(self, message: Message) -> None:
        """What the application sends. Raises OSError once the reader is gone."""
        async with self._writing:  # a cut must not end the body between two halves of a write
            if self.state == "cut":
                raise ConnectionResetError("the relay has cut this connection")
            if self.state == "stalled":
                return  # as into a network that lost its way: neither side is told
            if message["type"] == "http.response.start" and _is_stream(message):
                self.state = "open"
            await self.to_reader(message)

    async def cut(self) -> None:
        async with self._writing:
            self.state = "cut"
            await self.to_reader({"type": "http.response.body", "body": b"", "more_body": False})

    async def left(self) -> None:
        """Wait until the reader has left: a server that returns from a stalled answer would end it."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


@attrs.define(eq=False)
class Relay:
    """The layer, outermost around `app`."""

    app: ASGIApp
    _runs: dict[str, list[_Passing]] = attrs.field(factory=dict)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        run = _run_of(scope) if scope["type"] == "http" else None
        if run is None:
            await self.app(scope, receive, send)
            return
        passing = _Passing(receive, send)
        passings = self._runs.setdefault(run, [])
        passings.append(passing)
        try:
            await self.app(scope, receive, passing.send)
        except Exception:
            if passing.state != "cut":  # what an application makes of a reader that is gone is its own affair
                raise
        else:
            if passing.state == "stalled":
                await passing.left()
        finally:
            passings.remove(passing)
            if not passings:
                self._runs.pop(run, None)

    async def cut(self, run: str) -> int:
        """End every stream of the run for its reader; how many there were."""
        found = self._of(run, "open", "stalled")
        for passing in found:
            await passing.cut()
        return len(found)

    async def stall(self, run: str) -> int:
        """Let nothing more of the run's streams pass; how many there were."""
        found = self._of(run, "open")
        for passing in found:
            passing.state = "stalled"
        return len(found)

    def _of(self, run: str, *states: str) -> list[_Passing]:
        return [passing for passing in self._runs.get(run, ()) if passing.state in states]


def _run_of(scope: Scope) -> str | None:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == RUN.encode()), None)


def _is_stream(message: Message) -> bool:
    kinds = [value for name, value in message["headers"] if name.lower() == b"content-type"]
    return any(kind.startswith(b"text/event-stream") for kind in kinds)
