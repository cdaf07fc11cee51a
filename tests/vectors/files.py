"""The files of vectors, as `tests.vectors` tells their form: what the Python client makes of each fault."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from streamguard.core.cursor import cursor_zero
from streamguard.core.dialect import AgUi, Anthropic, Native, OpenAIResponses, Raw, Ui
from streamguard.core.items import Finish
from streamguard.core.verify import StreamVerifier
from streamguard.core.wire import Binary, Ndjson, Sse
from tests.core.test_verify import SHORT
from tests.core.wire.streams import FORMS, OTHER_SID, SID, Answer, Form
from tests.vectors.faults import Case, Pieces, cases
from tests.vectors.joints import Connection, Joined, joints

__all__ = ["ALL_FORMS", "FOLDER", "WIRES", "changes", "document", "forms", "outcome_of", "written_out"]

FOLDER: Final = Path(__file__).parent
WIRES: Final = ("sse", "ndjson", "binary")
_SAYING: Final = ("é", Finish("length", {"n": 2}))
_MORE: Final = (
    Form("responses", OpenAIResponses(id="r", created=1), Sse(), _SAYING, "openai-responses", text="é"),
    Form("anthropic", Anthropic(id="m"), Sse(), _SAYING, "anthropic", text="é"),
    Form("ui", Ui(message_id="m"), Sse(), ("Hé", "\nllo", Finish("length")), "ui"),
    Form("ag-ui", AgUi(thread_id="t", run_id="r"), Sse(), ("Hé", "\nllo", Finish("length", {"n": 2})), "ag-ui"),
    Form("ui-ndjson", Ui(message_id="m"), Ndjson(), ("Hé", "\nllo", Finish("length")), "ui"),
    Form("ag-ui-binary", AgUi(thread_id="t", run_id="r"), Binary(), ("Hé", "\nllo"), "ag-ui"),
)
ALL_FORMS: Final = (*FORMS, *_MORE)
# Each bit by itself; of short streams also what has a meaning in a carrier.
_BITS: Final = tuple(f"^{1 << bit}" for bit in range(8))
_MEANING: Final = tuple(f"={byte}" for byte in b'\n\r\0 :"')
# Of those that differ from another one in little, and of the dialects over a carrier that is tried with others.
_SOME: Final = ("^1", "^8", "=10")
_FEW: Final = {"native-sse-named": (), "native-ping": (), "openai-id": _SOME, "raw-id": _SOME}


def forms(wire: str) -> list[tuple[Form, Sequence[str]]]:
    """The streams of a file, and what their bytes are changed to."""
    every = (*_BITS, *_MEANING)
    short = [(attrs.evolve(form, name=f"short-{form.name}"), every) for form in SHORT]
    whole = [(form, _FEW.get(form.name, _BITS)) for form in FORMS]
    more = [(form, _SOME) for form in _MORE]
    return [(form, values) for form, values in (*short, *whole, *more) if form.wire.name == wire]


class _Outcomes:
    """Outcomes, each under a character."""

    _ALL: Final = [chr(code) for code in (*range(48, 127), *range(161, 384)) if chr(code) != "\\"]

    def __init__(self) -> None:
        self.found: dict[tuple[str, str | None, int], str] = {}

    def name(self, outcome: tuple[str, str | None, int]) -> str:
        return self.found.setdefault(outcome, self._ALL[len(self.found)])


def outcome_of(answer: Answer) -> tuple[str, str | None, int]:
    return answer.verdict.value, answer.code, len(answer.frames)


def changes(data: bytes, values: Sequence[str]) -> Iterator[bytes | None]:
    """The stream with each byte changed to each value; None where it is that already."""
    for at, old in enumerate(data):
        for value in values:
            new = old ^ int(value[1:]) if value[0] == "^" else int(value[1:])
            yield None if new == old else data[:at] + bytes([new]) + data[at + 1 :]


def _reader(form: Form) -> Any:
    """The dialect that a reader names, as JSON has it."""
    reader = form.reader
    return {"name": "raw", "end": "asgi"} if isinstance(reader, Raw) else reader


def _promised(form: Form) -> dict[str, Any]:
    # Where the end rule would let a clean end before the first byte pass.
    return {"zero": cursor_zero(SID)} if "asgi" in form.name else {}


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def _pieces(pieces: Pieces) -> list[int | str]:
    return [piece if isinstance(piece, int) else _base64(piece) for piece in pieces]


def _stream_of(form: Form, values: Sequence[str], *, sweep: bool = True) -> dict[str, Any]:
    """A stream of a file. `sweep`: with what takes long, its cuts and its changed bytes."""
    data, parts, promised, outcomes = form.bytes(), form.blocks(), _promised(form), _Outcomes()
    good = form.read(data)
    receipt = good.receipt
    found: dict[str, Any] = {
        "name": form.name,
        "dialect": _reader(form),
        "zero": str(cursor_zero(SID)) if promised else None,
        "parts": [_base64(part) for part in parts],
        "frames": [[frame.name, frame.data, frame.text] for frame in good.frames],
        "receipt": {
            "status": receipt.status, "frames": receipt.frames, "bytes": receipt.bytes, "crc": receipt.crc,
            "finish_reason": receipt.finish_reason, "usage": receipt.usage,
        },
        "values": list(values),
        "cases": [_case(form, parts, case, outcomes) for case in cases(form, every=len(values) >= 8)],
    }  # fmt: skip
    if sweep:
        for key, lenient in (("cuts", False), ("lenient", True)):
            reads = (form.read(data[:size], lenient=lenient, **promised) for size in range(len(data)))
            found[key] = "".join([outcomes.name(outcome_of(answer)) for answer in reads])
        found["changed"] = "".join(
            [
                "." if changed is None else outcomes.name(outcome_of(form.read(changed, **promised)))
                for changed in changes(data, values)
            ]
        )
    found["outcomes"] = [list(outcome) for outcome in outcomes.found]
    return found


def _case(form: Form, parts: Sequence[bytes], case: Case, outcomes: _Outcomes) -> list[Any]:
    data = b"".join([parts[piece] if isinstance(piece, int) else piece for piece in case.pieces])
    answer = form.read(data, **case.options)
    more: dict[str, Any] = {"text": answer.text}
    for key, value in case.options.items():
        more[key] = str(value) if key == "zero" else value
    if answer.receipt.status is not None:
        more["status"] = answer.receipt.status
    if answer.receipt.failure is not None:
        more["failure"] = answer.receipt.failure.code
    return [case.name, _pieces(case.pieces), outcomes.name(outcome_of(answer)), more]


def _joined(joint: Joined, parts: Mapping[str, Sequence[bytes]]) -> list[Any]:
    connections = [[one.wire, _pieces(one.pieces), one.zero] for one in joint.connections]
    return [joint.name, connections, _read_on(joint.connections, parts)]


def _read_on(connections: Sequence[Connection], parts: Mapping[str, Sequence[bytes]]) -> dict[str, Any]:
    """What the Python client makes of a stream over several connections."""
    first, *others = connections
    verifier, text = StreamVerifier(wire=first.wire, dialect=Native()), ""

    def read(connection: Connection) -> None:
        nonlocal text
        for piece in connection.pieces:
            frames = verifier.feed(parts[connection.wire][piece] if isinstance(piece, int) else piece)
            text += "".join([frame.text for frame in frames])
        text += "".join([frame.text for frame in verifier.end(clean=False)])

    read(first)
    for connection in others:
        verifier.resume(connection.wire, None if connection.zero is None else cursor_zero(connection.zero))
        read(connection)
    receipt = verifier.receipt
    return {
        "verdict": receipt.verdict.value, "code": receipt.code, "text": text,
        "resumes": receipt.resumes, "duplicates": receipt.duplicates,
    }  # fmt: skip


def document(wire: str, *, sweep: bool = True) -> dict[str, Any]:
    """A file."""
    streams = [_stream_of(form, values, sweep=sweep) for form, values in forms(wire)]
    parts, joined = joints(wire)
    return {
        "about": "Made by `python -m tests.vectors`; what it holds is told in tests/vectors/__init__.py.",
        "wire": wire,
        "sids": [SID, OTHER_SID],
        "streams": streams,
        "words": {name: [_base64(part) for part in own] for name, own in parts.items()},
        "resumes": [_joined(joint, parts) for joint in joined],
    }


def written_out(found: Mapping[str, Any]) -> str:
    """A file's text, with a line for each case, so that a change shows where it is."""
    return _lines(found) + "\n"


def _lines(value: Any, depth: int = 0) -> str:
    """JSON whose lists of lists and of objects have a line for each."""
    if isinstance(value, Mapping):
        fields = [f"{json.dumps(key)}:{_lines(part, depth + 1)}" for key, part in value.items()]
        return "{" + (",\n" if depth < 3 else ",").join(fields) + "}"
    if isinstance(value, list) and value and depth < 4 and isinstance(value[0], (list, Mapping)):
        return "[\n" + ",\n".join([_lines(part, depth + 1) for part in value]) + "\n]"
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
