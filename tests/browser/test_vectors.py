"""The same verdicts in JavaScript as in Python, on every single fault; and the files of these are what Python says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from streamguard.core.cursor import cursor_zero
from streamguard.core.dialect import Raw
from streamguard.core.negotiate import parse_answer
from tests.browser.damage import Damaged, cut_recordings, damaged, damaged_promise, in_json, in_python
from tests.clients.lines import Script
from tests.core.wire.streams import SID
from tests.vectors.files import FOLDER, WIRES, changes, document, forms, outcome_of

FILES = {wire: FOLDER / f"{wire}.json" for wire in WIRES}
STEP = 331  # cuts and changed bytes apart that are read again in Python, where `tests/core` has read them all


def written(wire: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILES[wire].read_text(encoding="utf-8"))
    return found


def test_node_comes_to_the_verdicts_of_the_vectors(node: Script) -> None:
    """All of them, but of the changed bytes every fifth: the others take twice as long, and are the proof's."""
    found = node.ask({"do": "vectors", "with": [[str(path) for path in FILES.values()], 5]})
    assert found["wrong"] == []
    assert found["tried"] > 40_000


def test_node_says_of_streams_with_several_faults_and_of_recordings_what_python_says(node: Script) -> None:
    rng = Random(7)
    streams = [*(damaged(rng) for _ in range(400)), *cut_recordings(rng)]
    found = node.ask({"do": "verdicts", "with": [[in_json(stream) for stream in streams]]})
    for stream, said in zip(streams, found, strict=True):
        assert said == in_python(stream), stream


def test_node_takes_for_a_code_what_python_does(node: Script) -> None:
    codes = ['"a.B-1:/x"', '"my diary"', '{"prompt": "my diary"}', "429", "0", "4.5", "true", '"\\u001b"', '"x\\n"']
    errors = [b'data: {"error": {"code": %b, "type": "t t"}}\n\n' % code.encode() for code in codes]
    errors.append(b'data: {"error": {"code": [], "type": "t"}}\n\n')
    streams = [Damaged(error, "sse", "openai") for error in errors]
    found = node.ask({"do": "verdicts", "with": [[in_json(stream) for stream in streams]]})
    assert found == [in_python(stream) for stream in streams]
    assert {said[6] for said in found} == {"a.B-1:/x", "429", "t", "upstream_error"}


def test_node_takes_for_an_error_what_python_does(node: Script) -> None:
    """A number of that name is a loss, say, and no error; where the event says that it is an error, it is one."""
    numbers = ["0.25", "7", "-1", "0", "1e400", "NaN", "-Infinity", "9" * 400]
    others = ["true", "false", "null", '""', '"no"', "{}", "[]", "[0]", '{"code": "c"}']
    shapes = ['{"error": %s}', '{"type": "error", "error": %s}', '{"choices": [{"delta": {}}], "error": %s}']
    events = [f"{name}data: {shape % value}\n\n" for value in numbers + others for shape in shapes
              for name in ("", "event: error\n", "event: eval\n")]  # fmt: skip
    streams = [Damaged(event.encode(), "sse", Raw(end="asgi")) for event in events]
    found = node.ask({"do": "verdicts", "with": [[in_json(stream) for stream in streams]]})
    assert found == [in_python(stream) for stream in streams]
    codes = dict(zip(events, (said[6] for said in found), strict=True))
    assert {codes[f'data: {{"error": {value}}}\n\n'] for value in numbers} == {None}
    assert {codes[f'data: {{"error": {value}}}\n\n'] for value in ("true", '"no"', "[0]")} == {"upstream_error"}
    assert {codes[f'event: error\ndata: {{"error": {value}}}\n\n'] for value in numbers} == {"upstream_error"}


def test_node_reads_in_a_header_what_python_reads(node: Script) -> None:
    rng = Random(11)
    headers = [damaged_promise(rng) for _ in range(2000)]
    promises = [parse_answer(header) for header in headers]
    said = [None if one is None else [str(one.cursor), one.dialect, one.wire, one.resume] for one in promises]
    assert said.count(None) in range(500, 1500)
    assert node.ask({"do": "promises", "with": [headers]}) == said


@pytest.mark.parametrize("wire", WIRES)
def test_the_vectors_are_what_python_says(wire: str) -> None:
    """`python -m tests.vectors` makes them anew."""
    found, made = written(wire), document(wire, sweep=False)
    assert [found[key] for key in ("wire", "sids", "words", "resumes")] == [
        made[key] for key in ("wire", "sids", "words", "resumes")
    ]
    for stream, fresh, (form, values) in zip(found["streams"], made["streams"], forms(wire), strict=True):
        assert cases_of(stream) == cases_of(fresh)
        assert {key: stream[key] for key in fresh if key not in ("cases", "outcomes")} == {
            key: value for key, value in fresh.items() if key not in ("cases", "outcomes")
        }
        data, zero = form.bytes(), {"zero": cursor_zero(SID)} if stream["zero"] else {}
        assert (len(stream["cuts"]), len(stream["lenient"])) == (len(data), len(data))
        assert len(stream["changed"]) == len(data) * len(values)
        names = dict(zip(names_of(stream), map(tuple, stream["outcomes"]), strict=True))
        for size in range(0, len(data), STEP):
            assert names[stream["cuts"][size]] == outcome_of(form.read(data[:size], **zero))
            assert names[stream["lenient"][size]] == outcome_of(form.read(data[:size], lenient=True, **zero))
        for number, changed in enumerate(changes(data, values)):
            if number % STEP == 0 and changed is not None:
                assert names[stream["changed"][number]] == outcome_of(form.read(changed, **zero))


def names_of(stream: Mapping[str, Any]) -> list[str]:
    return [chr(code) for code in (*range(48, 127), *range(161, 384)) if code != 92][: len(stream["outcomes"])]


def cases_of(stream: Mapping[str, Any]) -> list[Any]:
    """The cases, with their outcomes spelt out."""
    names = dict(zip(names_of(stream), stream["outcomes"], strict=True))
    return [[name, pieces, names[outcome], more] for name, pieces, outcome, more in stream["cases"]]


def test_the_vectors_are_small_enough_to_be_kept() -> None:
    assert sum(path.stat().st_size for path in FOLDER.glob("*.json")) <= 1_000_000
