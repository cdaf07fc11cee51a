"""What a process does now, as far as an observer of it can say."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import attrs

from streamguard.observe.hooks import Closed, Frames, Opened, Part

__all__ = ["Surroundings", "System", "resident_bytes"]


@attrs.frozen
class System:
    """One look. `open` counts by part; `lag`, how late the event loop was, and `log_latency`, of one append, are the
    newest that a stream told; `resident` is the memory of the process in bytes. None for what nobody can say."""

    open: dict[Part, int]
    waiting: int
    detached: int
    draining: bool
    lag: float | None
    log_latency: float | None
    resident: int | None


class Surroundings:
    """Keeps what is needed for a look, of the streams that one observer is told of. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[Part, int] = {"direct": 0, "producer": 0, "reader": 0}
        self._sources: dict[int, Any] = {}  # each once, though it is given again with every request
        self._lag: float | None = None
        self._latency: float | None = None

    def attached(self, source: Any) -> None:
        self._sources[id(source)] = source

    def opened(self, event: Opened) -> None:
        with self._lock:
            self._open[event.stream.part] += 1

    def closed(self, event: Closed) -> None:
        with self._lock:
            self._open[event.stream.part] -= 1
        self.noted(event)

    def noted(self, event: Frames | Closed) -> None:
        """Note what an event says of the process."""
        self._lag = self._lag if event.lag is None else event.lag
        self._latency = self._latency if event.log_latency is None else event.log_latency

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return self._summed("waiting")

    @property
    def detached(self) -> int:
        """Streams that run on without a reader."""
        return self._summed("detached")

    @property
    def draining(self) -> bool:
        """Whether the process is told to go."""
        return not all(getattr(source, "ready", True) for source in list(self._sources.values()))

    def _summed(self, name: str) -> int:
        return sum(getattr(source, name, 0) for source in list(self._sources.values()))

    def look(self) -> System:
        return System(
            dict(self._open), self.waiting, self.detached, self.draining, self._lag, self._latency, resident_bytes()
        )


def resident_bytes() -> int | None:
    """The memory that this process has in use; None where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
