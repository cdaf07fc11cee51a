"""How an application learns that its process is told to go. No server says so while streams are open.

uvicorn, granian and daphne have a handler of their own for SIGTERM. It is *chained*: a handler of ours stands in its
place, which begins the drains and calls it. The chain is looked after at each request, since a server may set its own
after the application was loaded; it is taken down at the application's shutdown. Where nobody handles the signal it
ends the process at once, as it did, and where the application runs beside the main thread no handler can be set:
`guard.drain()` is for both.

hypercorn's workers are not sent the signal: their parent gets it, and sets an event that they share, which each looks
at ten times a second. It stands among the variables of the function that runs the worker, below everything else on the
stack, and is looked at here as well. Nothing of it is changed; where it is not found, as with `--workers 0`, there is a
signal.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, MutableMapping
from types import FrameType
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

import anyio

from streamguard.runtime.background import Background
from streamguard.runtime.drain import Drain
from streamguard.runtime.wakeup import in_loop

__all__ = ["DRAIN", "GOING_AWAY", "drain_of", "forget", "learn", "process_drain"]

DRAIN: Final = "streamguard.drain"  # in the scope: the drain of the application that is outermost
GOING_AWAY: Final = ("shutdown", "the server is going away")  # a refusal's code, and what it says

_LOOK: Final = 0.1  # seconds between two looks at hypercorn's event, as its own

_drains: Final[WeakSet[Drain]] = WeakSet()
_looked: Final[WeakSet[Drain]] = WeakSet()  # those for which hypercorn's event was looked for
_looking: Final[WeakKeyDictionary[Drain, Background]] = WeakKeyDictionary()
_unsealed: Final = Drain()  # of answers under no seal


class _Link:
    """A handler for a signal that begins the drains, and calls the one that stood there."""

    def __init__(self, previous: Callable[[int, FrameType | None], Any]) -> None:
        self.previous = previous

    def __call__(self, number: int, frame: FrameType | None) -> None:
        for drain in list(_drains):
            drain.begin()
        self.previous(number, frame)


def drain_of(scope: MutableMapping[str, Any]) -> Drain:
    """The drain that a request belongs to: its application's, else one that all share that have none."""
    drain: Drain | None = scope.get(DRAIN)
    return process_drain() if drain is None else drain


def process_drain() -> Drain:
    """The one that all share that have none of their own."""
    learn(_unsealed)
    return _unsealed


def learn(drain: Drain) -> None:
    """Begin `drain` when this process is told to go. To be called often, on the event loop's thread; it may be called
    where an application is loaded too, before there is a loop."""
    if threading.current_thread() is not threading.main_thread():
        return
    _drains.add(drain)
    if drain not in _looked and in_loop():  # a server may load an application before its loop runs: then at a request
        _looked.add(drain)
        _learn_of_hypercorn(drain)
    standing = signal.getsignal(signal.SIGTERM)
    if callable(standing) and not isinstance(standing, _Link):
        signal.signal(signal.SIGTERM, _Link(standing))


def forget(drain: Drain) -> None:
    """Learn nothing more for `drain`; the last one takes the handler down."""
    _drains.discard(drain)
    _looked.discard(drain)
    if _drains or threading.current_thread() is not threading.main_thread():
        return
    standing = signal.getsignal(signal.SIGTERM)
    if isinstance(standing, _Link):
        signal.signal(signal.SIGTERM, standing.previous)


def _learn_of_hypercorn(drain: Drain) -> None:
    told = _hypercorn(sys._getframe(1))
    if told is None:
        return

    async def look() -> None:
        while not told():  # noqa: ASYNC110  # set in another process, which wakes nobody
            await anyio.sleep(_LOOK)
        drain.begin()

    _looking[drain] = background = Background()
    background.start(look, "streamguard shutdown")


def _hypercorn(frame: FrameType | None) -> Callable[[], bool] | None:
    """What answers whether hypercorn's parent process was told to go; None elsewhere."""
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("hypercorn."):
            told = getattr(frame.f_locals.get("shutdown_event"), "is_set", None)
            if callable(told):
                return told  # type: ignore[no-any-return]
        frame = frame.f_back
    return None
