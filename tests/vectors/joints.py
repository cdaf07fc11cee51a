"""Streams over several connections: where the joint holds, and where it does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from streamguard.core.cursor import cursor_zero
from streamguard.core.dialect import Native
from streamguard.core.items import Finish
from streamguard.core.wire import Binary, Ndjson, Sse, Wire
from tests.core.wire.streams import OTHER_SID, SID, Form
from tests.vectors.faults import Pieces, bye, frames_of

__all__ = ["Connection", "Joined", "joints"]

_WIRES: Final[Mapping[str, Wire]] = {"sse": Sse(), "ndjson": Ndjson(), "binary": Binary()}
_WORDS: Final = ("one ", "two ", "three ", "four", Finish("stop"))


@attrs.frozen
class Connection:
    """What came in one connection, over `wire`; `zero` is the stream that its header named."""

    wire: str
    pieces: Pieces
    zero: str | None = None


@attrs.frozen
class Joined:
    """A stream over several connections."""

    name: str
    connections: Sequence[Connection]


def joints(wire: str) -> tuple[dict[str, list[bytes]], list[Joined]]:
    """The words in each carrier, opening first, and the streams that begin in `wire`."""
    forms = {name: Form(name, Native(), carrier, _WORDS, "native") for name, carrier in _WIRES.items()}
    frames = frames_of(forms[wire])
    encoder = _WIRES[wire].encoder(cursor_zero(SID), own_ids=True)
    other = _WIRES[wire].encoder(cursor_zero(OTHER_SID), own_ids=True)
    end = len(frames)
    found = []

    def add(name: str, *connections: Sequence[int | bytes] | Connection) -> None:
        whole = [one if isinstance(one, Connection) else Connection(wire, one) for one in connections]
        found.append(Joined(name, whole))

    for at in range(1, end):
        rest = list(range(at, end + 1))
        for name in forms:
            add(f"cut before part {at}, on in {name}", range(at), Connection(name, [0, *rest]))
        for begin in range(1, at):
            add(f"cut before part {at}, again from {begin}", range(at), [0, *range(begin, end + 1)])
            broken = [0, *range(begin, at - 1), *rest]
            add(f"cut before part {at}, from {begin} again and broken off", range(at), broken)
        add(f"cut before part {at}, a part is missing", range(at), [0, *rest[1:]])
        if wire != "binary":
            add(f"cut before part {at}, no opening", range(at), rest)
    add("three cuts", [0, 1], [0], [0, 1, 2], [0, 2, 3], [0, 3, 4, 5])
    add("the header names another stream", [0, 1, 2], Connection(wire, [0, 3, 4, 5], OTHER_SID))
    add("the header names it", [0, 1, 2], Connection(wire, [0, 3, 4, 5], SID))
    add("the opening is another stream's", [0, 1, 2], [other.opening(), 3, 4, 5])
    for which, wrong in ((1, {"offset": 999}), (2, {"crc": 7}), (2, {"data": b'"TWO "'}), (2, {"status": "complete"})):
        changed = encoder.frame(attrs.evolve(frames[which - 1], **wrong))
        again: list[int | bytes] = [0, 1, 2, 3, 4, 5]
        again[which] = changed
        add(f"part {which} came again with another {next(iter(wrong))}", [0, 1, 2], again)
    add("cut, and nothing more", [0, 1, 2], [])
    add("cut, and a heartbeat", [0, 1, 2], [0, encoder.heartbeat(cursor_zero(SID))])
    add("a bye, and on", [0, 1, bye(encoder)], [0, 2, 3, 4, 5])
    return {name: form.blocks() for name, form in forms.items()}, found
