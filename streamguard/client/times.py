"""How long an answer took, and where: seconds, measured by whoever reads it. No clock."""

from __future__ import annotations

__all__ = ["Times"]


class Times:
    """The times of one answer whose request is sent at `now`, in monotonic seconds.

    `waited` is what reads of this connection took since a frame came: time between reads is the caller's own.
    """

    def __init__(self, now: float) -> None:
        self.waited = 0.0
        self.first_frame: float | None = None
        self.longest_gap: float | None = None
        self._began = self._last = now
        self._frames = 0
        self._before = 0.0  # what passed since a frame came, in connections before this one, and between them

    @property
    def duration(self) -> float:
        return self._last - self._began

    def read(self, began: float, now: float, frames: int) -> None:
        """A read that began at `began` is over; `frames` came in all."""
        self.waited += now - began
        self._last = now
        if frames == self._frames:
            return
        if self.first_frame is None:
            self.first_frame = now - self._began
        else:
            self.longest_gap = max(self.longest_gap or 0.0, self._before + self.waited)
        self._frames = frames
        self.waited = self._before = 0.0

    def apart(self, now: float) -> None:
        """Until now there was no connection."""
        self._before += self.waited + now - self._last
        self.waited = 0.0
        self._last = now
