"""A carrier's records as messages of a WebSocket: one message a record, in text (NDJSON) or in binary.

What an encoder writes is a concatenation; `messages` takes it apart again. `parting_word` reads the last message of a
connection, for the code that it is closed with. Nothing is judged: what is taken apart here was written here.
"""

from __future__ import annotations

import json
import struct
from typing import Final, Literal

from streamguard.core.cursor import Cursor
from streamguard.core.states import FINAL_STATUSES
from streamguard.core.wire.binary import MAGIC

__all__ = ["messages", "parting_word"]

_NAME_LENGTH_AT: Final = 17  # behind kind, seq and offset
_TAIL: Final = struct.Struct(">BI")  # status, data length
_U32: Final = struct.Struct(">I")
_PREAMBLE: Final = len(MAGIC) + 22
_BYE: Final = 2

Parting = tuple[Literal["bye", "end", ""], str]


def messages(data: bytes, *, binary: bool) -> list[bytes]:
    """What the encoder of carrier `binary`, or `ndjson`, wrote in one or several calls, record by record."""
    if not binary:
        return data.split(b"\n")[:-1]
    found, at = [], 0
    while at < len(data):
        size = _size(data, at)
        found.append(data[at : at + size])
        at += size
    return found


def parting_word(message: bytes, *, binary: bool) -> Parting:
    """What a connection's last message says of its end: a bye's reason, or a terminal's status."""
    if not binary:
        fields = json.loads(message)
        if "bye" in fields:
            return "bye", fields["reason"]
        status = Cursor.parse(fields["id"]).status if "id" in fields else None
        return ("end", status) if status is not None else ("", "")
    if message.startswith(MAGIC):
        return "", ""
    at = _NAME_LENGTH_AT + 1 + message[_NAME_LENGTH_AT]
    if message[0] == _BYE:
        return "bye", message[_NAME_LENGTH_AT + 1 : at].decode()
    status, _ = _TAIL.unpack_from(message, at)
    return ("end", FINAL_STATUSES[status - 1]) if status else ("", "")


def _size(data: bytes, at: int) -> int:
    if data.startswith(MAGIC, at):  # no record begins so: "S" is no kind
        return _PREAMBLE
    tail = at + _NAME_LENGTH_AT + 1 + data[at + _NAME_LENGTH_AT]
    status, length = _TAIL.unpack_from(data, tail)
    size: int = tail + _TAIL.size + 4 + length + 4 - at
    if status:
        size += 4 + int(_U32.unpack_from(data, at + size)[0])
    return size
