"""A process that dies, or is stopped, at a step of its work that has a name.

    crash_at("between-append-and-delivery", number=3)          # kill -9, the third time that this step is reached
    crash_at("before-append", then=stop)                       # SIGSTOP
    arm(os.environ)                                            # STREAMGUARD_CRASH=before-append:3:stop

The steps, each in the process that generates a stream:

    before-first-frame            the first append of a stream is about to be made
    before-append                 an append is; every check before it is done
    between-append-and-delivery   the log has acknowledged frames that no reader was given yet
    inside-group-commit           a transaction of several streams is written and not committed (SQLiteLog)
    between-content-and-terminal  all content is in the log, and the append with the terminal is about to be made
    in-lease-renewal              a lease is about to be renewed, because nothing was appended for a third of it
    in-takeover                   the lease of a lost stream was taken, and nobody generates it yet

A step costs one comparison where nobody wants it: the hook of `log.base` is None.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Final

from streamguard.log import base

__all__ = ["POINTS", "VARIABLE", "arm", "crash_at", "disarm", "kill", "stop"]

POINTS: Final = (
    "before-first-frame",
    "before-append",
    "between-append-and-delivery",
    "inside-group-commit",
    "between-content-and-terminal",
    "in-lease-renewal",
    "in-takeover",
)
VARIABLE: Final = "STREAMGUARD_CRASH"


def kill() -> None:
    """End this process with no chance to tidy up."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    """Stop this process until somebody sends it SIGCONT."""
    # To this thread: sent to the process, the signal may take effect after this thread has gone on.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def crash_at(point: str, *, number: int = 1, then: Callable[[], object] = kill) -> None:
    """Call `then` the `number`th time that a step is reached, from now on; once, in the thread that reaches it.

    A step that was armed before is forgotten. Raises ValueError for a step that there is not.
    """
    if point not in POINTS:
        raise ValueError(f"there is no step {point!r}; there are {', '.join(POINTS)}")
    left = number

    def reached(step: str) -> None:
        nonlocal left
        if step == point:
            left -= 1
            if left == 0:
                then()

    base.crash = reached


def disarm() -> None:
    """No step is of interest any more."""
    base.crash = None


def arm(environment: Mapping[str, str]) -> None:
    """Do what `STREAMGUARD_CRASH` says, if it is there: `<step>`, `<step>:<number>` or `<step>:<number>:stop`.

    For the first lines of a process that a test starts. Raises ValueError for what says nothing of that kind.
    """
    wish = environment.get(VARIABLE)
    if not wish:
        return
    point, _, rest = wish.partition(":")
    number, _, how = rest.partition(":")
    if how not in ("", "kill", "stop"):
        raise ValueError(f"{VARIABLE} ends with kill or stop, not {how!r}")
    crash_at(point, number=int(number or 1), then=stop if how == "stop" else kill)
