"""Streams with several faults at once, drawn, and recorded ones that are cut: what two readers make of each.

    said, asked = in_python(stream), in_json(stream)

The same of the header that promises a stream.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from random import Random
from typing import Any, Final

import attrs

from streamguard.core.cursor import cursor_zero
from streamguard.core.dialect import Raw
from streamguard.core.negotiate import Answer, write_answer
from tests.core.test_recorded import ROWS, dialect, recorded
from tests.core.wire.streams import FAILURE, OTHER_SID, SID, Form, read
from tests.vectors.files import ALL_FORMS

__all__ = ["Damaged", "cut_recordings", "damaged", "damaged_promise", "in_json", "in_python"]

_FOREIGN: Final = (
    b"\n\n", b"\r\n", b"\r", b"data: x\n\n", b": hb x\n", b"event: error\ndata: {}\n\n", b"id: \n", b"retry: 5\n",
    b"data: [DONE]\n\n", b": sg x\n", b": bye x y\n", b"\xef\xbb\xbf", b'{"data":"\\ud800"}\n', b"event: open\n",
    b'{"hb":"x","blocked":true}\n', b"event: ping\n", b"event: end\n",
)  # fmt: skip
_PROMISES: Final = (
    write_answer(Answer(cursor_zero(SID), "native", "sse", resume='/a b"\\c', reader="x")),
    write_answer(Answer(cursor_zero(SID), "openai", "ndjson", flush="token", credit=(1, 2))),
    f'v=1;a=1.5;b, cursor="{cursor_zero(SID)}", dialect=x, wire=sse, x=(a "b" :YQ==:;q=?1), y=@123, z=%"a%c3%a9"',
)
_READERS: Final = (
    None, "native", "openai", "raw", "ui", "ag-ui", "anthropic", Raw(end="known"), Raw(end="asgi"),
    Raw(profile="transformers"),
)  # fmt: skip


@attrs.frozen
class Damaged:
    """Bytes over a carrier, and how they are read."""

    data: bytes
    wire: str
    dialect: Any
    clean: bool = True
    options: dict[str, Any] = attrs.field(factory=dict)


def damaged(rng: Random) -> Damaged:
    """A stream of any form with one to three faults."""
    form: Form = rng.choice(ALL_FORMS)
    fails = rng.random() < 0.2
    data = form.bytes(fail=FAILURE, status=rng.choice(["failed", "cancelled"])) if fails else form.bytes()
    for _ in range(rng.randint(1, 3)):
        data = _worse(data, rng)
    options: dict[str, Any] = {}
    if rng.random() < 0.2:
        options["zero"] = cursor_zero(rng.choice([SID, OTHER_SID]))
    if rng.random() < 0.2:
        options["lenient"] = True
    reader = form.reader if rng.random() < 0.8 else rng.choice(_READERS)
    return Damaged(data, form.wire.name, reader, rng.random() < 0.8, options)


def _worse(data: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    to = min(len(data), at + rng.randint(1, 40))
    other = rng.randrange(len(data) + 1)
    return rng.choice(
        (
            data[:at] + data[to:],
            data[:at] + data[other : other + 60] + data[at:],
            data[:at] + rng.randbytes(to - at) + data[to:],
            data[:at] + rng.choice(_FOREIGN) + data[at:],
            data[: max(at, other)],
            data[:at] + data[at:to].replace(b",", b", ") + data[to:],
        )
    )


def cut_recordings(rng: Random) -> Iterator[Damaged]:
    """Each recorded stream, whole and cut anywhere."""
    for row in ROWS:
        data = recorded(row)
        for size in (len(data), rng.randrange(len(data))):
            yield Damaged(data[:size], "sse", dialect(row), row["http_end"] == "clean")


def damaged_promise(rng: Random) -> str:
    """A value of the header `Streamguard` with up to two faults, or none."""
    text = rng.choice(_PROMISES)
    for _ in range(rng.randint(0, 2)):
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice((*' ,;="()?%:\\@aZ09v\t-.*', "")) + text[at + rng.randint(0, 1) :]
    return text


def in_python(stream: Damaged) -> list[Any]:
    """What the Python client makes of it."""
    answer = read(stream.data, wire=stream.wire, dialect=stream.dialect, clean=stream.clean, **stream.options)
    receipt = answer.receipt
    code = receipt.failure.code if receipt.failure else None
    said = [receipt.verdict.value, receipt.code, len(answer.frames), answer.text, receipt.proved_by]
    found: list[Any] = [*said, receipt.finish_reason, code, receipt.status, receipt.frames, receipt.crc]
    found.append([{"type": block.type, **block.fields} for frame in answer.frames for block in frame.blocks])
    return found


def in_json(stream: Damaged) -> dict[str, Any]:
    """The same stream for another reader."""
    named = stream.dialect
    if isinstance(named, Raw):
        named = {"name": "raw", "end": named.end, "profile": named.profile}
    options = {"wire": stream.wire, "dialect": named, **stream.options}
    if "zero" in options:
        options["zero"] = str(options["zero"])
    return {"data": b64encode(stream.data).decode(), "options": json.loads(json.dumps(options)), "clean": stream.clean}
