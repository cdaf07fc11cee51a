"""A body of bytes cut short, cut into other pieces, or with its frames dropped, doubled and swapped.

    for prefix in prefixes(body): ...                     # a reader of any of them must not say "complete"
    for name, chunks in rechunkings(body, seed=1): ...    # a reader must make the same of all of them
    for name, damaged in split(body).damages(): ...       # a verifying reader must notice every one

Every function takes the same thing for the same arguments; what is random is drawn from a seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

import attrs

from streamguard.core.wire import Wire, wire_named

__all__ = ["Frames", "byte_by_byte", "cut", "cuts", "prefixes", "random_sizes", "rechunkings", "sized", "split"]

Sliced = TypeVar("Sliced", str, bytes)


def prefixes(body: bytes) -> Iterator[bytes]:
    """Every proper prefix, the empty one first: what has come when a connection is cut at each byte."""
    for at in range(len(body)):
        yield body[:at]


def cuts(body: bytes) -> Iterator[list[bytes]]:
    """The body in two pieces, cut at every byte; one of them is empty at both ends."""
    for at in range(len(body) + 1):
        yield [body[:at], body[at:]]


def cut(value: Sliced, places: Iterable[int]) -> list[Sliced]:
    """`value`, text or bytes, cut at `places` in any order. Where two are the same, the piece between is empty."""
    edges = [0, *sorted(places), len(value)]
    return [value[start:stop] for start, stop in pairwise(edges)]


def sized(body: bytes, sizes: Iterable[int]) -> list[bytes]:
    """The body in pieces of these sizes, and the rest of it in one."""
    pieces = []
    at = 0
    for size in sizes:
        pieces.append(body[at : at + size])
        at += size
    return [*pieces, body[at:]]


def byte_by_byte(body: bytes) -> list[bytes]:
    """The body in pieces of one byte."""
    return [body[at : at + 1] for at in range(len(body))]


def random_sizes(body: bytes, seed: int, low: int = 1, high: int = 64) -> list[bytes]:
    """The body in pieces of `low` to `high` bytes, drawn evenly. Raises ValueError unless 0 < low <= high."""
    if not 0 < low <= high:
        raise ValueError(f"pieces of {low} to {high} bytes: 0 < low <= high is needed")
    draw = random.Random(seed)
    pieces = []
    at = 0
    while at < len(body):
        size = draw.randint(low, high)
        pieces.append(body[at : at + size])
        at += size
    return pieces


def rechunkings(
    body: bytes, *, seed: int = 0, rounds: int = 4, at: Sequence[int] = ()
) -> Iterator[tuple[str, list[bytes]]]:
    """The body whole, byte by byte, in random sizes `rounds` times, and cut at each of `at`; each with its name."""
    yield "whole", [body]
    yield "byte by byte", byte_by_byte(body)
    for number in range(rounds):
        high = (4, 64, 1024, 16384)[number % 4]
        yield f"up to {high} bytes, seed {seed + number}", random_sizes(body, seed + number, 1, high)
    for place in at:
        yield f"cut at {place}", cut(body, [place])


@attrs.frozen
class Frames:
    """A guarded body taken apart. Joined, `head`, `frames` and `rest` are the body."""

    head: bytes
    """The opening, before the first frame."""
    frames: list[bytes]
    """Each with what stands before it, a heartbeat for example; the last is the terminal, if it came."""
    rest: bytes = b""
    """What is behind the last whole frame."""

    def body(self, frames: Iterable[bytes]) -> bytes:
        """A body of other frames."""
        return b"".join([self.head, *frames, self.rest])

    def dropped(self, index: int) -> bytes:
        """The body without a frame."""
        return self.body(self.frames[:index] + self.frames[index + 1 :])

    def doubled(self, index: int) -> bytes:
        """The body with a frame twice."""
        return self.body(self.frames[: index + 1] + self.frames[index:])

    def swapped(self, one: int, other: int) -> bytes:
        """The body with two frames in each other's place."""
        frames = list(self.frames)
        frames[one], frames[other] = frames[other], frames[one]
        return self.body(frames)

    def damages(self) -> Iterator[tuple[str, bytes]]:
        """Each frame dropped, each doubled, each two neighbours swapped; with what was done."""
        for index in range(len(self.frames)):
            yield f"frame {index} dropped", self.dropped(index)
            yield f"frame {index} doubled", self.doubled(index)
            if index:
                yield f"frames {index - 1} and {index} swapped", self.swapped(index - 1, index)


def split(body: bytes, wire: str | Wire = "sse") -> Frames:
    """A guarded body taken apart at its frames by its carrier's own reader. Raises WireError for what that refuses."""
    reader = wire_named(wire).reader(own_ids=None)
    head = b""
    frames: list[bytes] = []
    start = 0
    for at in range(len(body)):
        kinds = {record.kind for record in reader.feed(body[at : at + 1])}
        if "frame" in kinds:
            frames.append(body[start : at + 1])
            start = at + 1
        elif "opening" in kinds and not frames:
            head = body[: at + 1]
            start = at + 1
    return Frames(head, frames, body[start:])
