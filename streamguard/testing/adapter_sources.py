"""The sources that the test application of an adapter serves, by name, and the books that are kept of them.

    sources = AdapterSources()

    @app.get("/{source}")                                   # one guarded endpoint a source
    async def serve(source, label):
        return GuardedResponse(sources.open(source, label), **sources.options(source))

    @app.get("/facts/{label}")
    async def facts(label):
        return sources.facts(label)

    whole         text that is complete after a while
    blocks        text, an image, text, a tool call, text
    fails-first   raises before its first item, which is waited for: an HTTP status says so
    fails-later   raises after its third item
    waits         is silent until `opens` is asked for under its label, then complete
    opens         lets what waits go on
    endless       an item every two milliseconds

`label` stands in the query, and as `X-Request-ID`, which the stream's Outcome has: whoever asks finds its own stream by
it in the books.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, TypedDict

import anyio
import attrs

from streamguard.core.errors import SourceFailed
from streamguard.core.items import Block, tool_call
from streamguard.observe.hooks import OnEnd, Outcome
from streamguard.runtime.timing import Timing

__all__ = ["BLOCKS", "FAILURE", "SOURCES", "WORDS", "AdapterSources", "SourceOptions"]

SOURCES: Final = ("whole", "blocks", "fails-first", "fails-later", "waits", "opens", "endless")
WORDS: Final = 4 * ("What ", "was ", "generated ", "is ", "what ", "was ", "delivered, ", "或者 ", "both ", "know — ")
"""What `whole` yields; the others yield of it what they come to."""
BLOCKS: Final[tuple[Any, ...]] = (
    "an image: ",
    Block("image", {"url": "https://example.org/a.png"}),
    " and a call: ",
    tool_call("call-1", "weather", '{"city": "Zürich"}'),
    "that is all",
)
FAILURE: Final = ("overloaded", "come back later")
"""Code and message of what the failing ones raise."""

_PACE: Final = 0.002  # seconds between two items of `endless`
_PATIENCE: Final = 2.0  # seconds after which `waits` goes on unasked: a server with one thread hears nobody meanwhile
_LOOK: Final = 0.005


class SourceOptions(TypedDict):
    """Options of the guarded endpoint of one source, as every adapter takes them."""

    timing: Timing
    on_end: OnEnd


@attrs.define
class _Books:
    opened: int = 0
    steps: int = 0
    closes: int = 0
    ends: list[str] = attrs.field(factory=list)


class AdapterSources:
    """All sources of one test application. From any thread."""

    def __init__(self) -> None:
        self._books: dict[str, _Books] = {}
        self._released: set[str] = set()
        self._lock = threading.Lock()

    def options(self, name: str) -> SourceOptions:
        """The options of the endpoint of a source."""
        peek = 5.0 if name == "fails-first" else 0.0
        heartbeat = 0.05 if name == "waits" else 15.0

        def ended(outcome: Outcome) -> None:
            with self._lock:
                self._of(outcome.request_id or "").ends.append(outcome.status)

        return {"timing": Timing(heartbeat=heartbeat, peek=peek, linger=0.02), "on_end": ended}

    def facts(self, label: str) -> dict[str, Any]:
        """What became of the streams of a label: `opened`, `steps` (items made), `closes`, and how each ended."""
        with self._lock:
            books = self._of(label)
            return {**attrs.asdict(books), "ends": list(books.ends)}

    def open(self, name: str, label: str) -> AsyncIterator[Any]:
        """A new source: an async generator."""
        return self._async(_script(name), label)

    def open_sync(self, name: str, label: str) -> Iterator[Any]:
        """The same as a plain generator, for an adapter without an event loop."""
        return self._sync(_script(name), label)

    async def _async(self, script: Iterator[Any], label: str) -> AsyncIterator[Any]:
        self._note(label, "opened")
        try:
            for act in script:
                if act is _WAIT:
                    with anyio.move_on_after(_PATIENCE):
                        while label not in self._released:  # noqa: ASYNC110  # set in any thread, which wakes nobody
                            await anyio.sleep(_LOOK)
                elif isinstance(act, float):
                    await anyio.sleep(act)
                else:
                    yield self._made(act, label)
        finally:
            self._note(label, "closes")

    def _sync(self, script: Iterator[Any], label: str) -> Iterator[Any]:
        self._note(label, "opened")
        try:
            for act in script:
                if act is _WAIT:
                    until = time.monotonic() + _PATIENCE
                    while label not in self._released and time.monotonic() < until:
                        time.sleep(_LOOK)
                elif isinstance(act, float):
                    time.sleep(act)
                else:
                    yield self._made(act, label)
        finally:
            self._note(label, "closes")

    def _made(self, act: Any, label: str) -> Any:
        if act is _RELEASE:
            self._released.add(label)
            act = "released"
        self._note(label, "steps")
        return act

    def _note(self, label: str, what: str) -> None:
        with self._lock:
            books = self._of(label)
            setattr(books, what, getattr(books, what) + 1)

    def _of(self, label: str) -> _Books:
        return self._books.setdefault(label, _Books())


_WAIT: Final = object()
_RELEASE: Final = object()


def _script(name: str) -> Iterator[Any]:
    """What a source does: items, seconds to sleep, a wait. Raises KeyError for a name that is none."""
    if name not in SOURCES:
        raise KeyError(name)
    return _acts(name)


def _acts(name: str) -> Iterator[Any]:
    if name in ("fails-first", "fails-later"):
        if name == "fails-later":
            yield from WORDS[:3]
        raise SourceFailed(*FAILURE, retryable=True)
    if name == "blocks":
        yield from BLOCKS
    elif name == "opens":
        yield _RELEASE
    elif name == "endless":
        while True:
            yield from (WORDS[0], _PACE)
    else:
        if name == "waits":
            yield _WAIT
        yield from WORDS
