"""Decoding and verifying, against httpx-sse and `json.loads`.

Both read the same guarded answer from the same httpx response, cut in the same chunks, and end with the same
text. The other decodes events and parses each one's data; ours checks every frame's place and checksum
besides. For orientation the other also reads the answer as it would be without cursors, which is shorter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import httpx
from httpx_sse import EventSource

from streamguard.core.dialect import dialect_named
from streamguard.core.flush import Immediate
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.pipeline import Pipeline
from streamguard.core.receipt import Verdict
from streamguard.core.verify import StreamVerifier
from streamguard.core.wire import Sse
from tests.benchmarks.paths import WORDS
from tests.proofs.measure import Ratio, cpu_seconds, ratio
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["CUTS", "DIALECTS", "decoding_and_verifying"]

COUNT: Final = 10_000  # tokens of an answer
PAIRS: Final = 7
CHUNK: Final = 4096  # bytes
MOST: Final = 1.0
AIM: Final = 0.5
DIALECTS: Final = ("native", "openai")
CUTS: Final = ("one frame a chunk", "4 kB chunks")

_CURSORS: Final = re.compile(rb"^(?:id: |: )[^\n]*\n", re.MULTILINE)


def _answer(dialect: str) -> list[bytes]:
    """A guarded answer, one frame a part."""
    pipeline = Pipeline(Immediate(), FramedEncoder(dialect_named(dialect)), CompletionGuard(Sse()))
    parts = [pipeline.open()]
    parts += [pipeline.push(WORDS[index % len(WORDS)], 0.0) for index in range(COUNT)]
    return [*parts, pipeline.finish(0.0)]


def _chunks(parts: list[bytes], cut: str) -> list[bytes]:
    if cut == CUTS[0]:
        return parts
    body = b"".join(parts)
    return [body[at : at + CHUNK] for at in range(0, len(body), CHUNK)]


class _Body(httpx.SyncByteStream):
    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._chunks)


def _response(chunks: list[bytes]) -> httpx.Response:
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=_Body(chunks))


def _ours(chunks: list[bytes], dialect: str) -> str:
    verifier = StreamVerifier(dialect=dialect)
    texts = [frame.text for chunk in _response(chunks).iter_bytes() for frame in verifier.feed(chunk)]
    verifier.end()
    assert verifier.verdict is Verdict.COMPLETE
    return "".join(texts)


def _theirs(chunks: list[bytes], dialect: str) -> str:
    texts = []
    for event in EventSource(_response(chunks)).iter_sse():
        if event.event in ("open", "end") or event.data == "[DONE]":
            continue
        payload: Any = json.loads(event.data)
        texts.append(payload if dialect == "native" else payload["choices"][0]["delta"].get("content", ""))
    return "".join(texts)


def _microseconds(read: Callable[[list[bytes], str], str], chunks: list[bytes], dialect: str) -> Callable[[], float]:
    right = "".join(WORDS[index % len(WORDS)] for index in range(COUNT))

    def measure() -> float:
        found: list[str] = []
        seconds = cpu_seconds(lambda: found.append(read(chunks, dialect)))
        assert found == [right]
        return seconds / COUNT * 1e6

    return measure


@proof(claim="Decoding and verifying a frame costs at most what httpx-sse and json.loads cost without it.", minutes=3)
def decoding_and_verifying(run: Run) -> Result:
    columns = ("dialect", "cut", "frames", "µs a frame", "µs of the other", "ratio", "of the pairs", "at most", "aim")
    same: list[tuple[object, ...]] = []
    bare: list[tuple[object, ...]] = []
    shown = True
    for dialect in DIALECTS:
        parts = _answer(dialect)
        for cut in CUTS:
            run.say(f"{dialect}, {cut}")
            ours = _microseconds(_ours, _chunks(parts, cut), dialect)
            theirs = _microseconds(_theirs, _chunks(parts, cut), dialect)
            found = ratio(ours, theirs, pairs=PAIRS, say=run.say)
            shown = shown and found.median <= MOST
            same.append((dialect, cut, COUNT, *_figures(found), MOST, AIM))
            without = [part for part in (_CURSORS.sub(b"", part) for part in parts) if part]
            against_bare = ratio(
                ours, _microseconds(_theirs, _chunks(without, cut), dialect), pairs=PAIRS, say=run.say
            )
            bare.append((dialect, cut, COUNT, *_figures(against_bare)))
    return Result(
        shown,
        [
            Table(columns, same, "Both read the guarded answer"),
            Table(columns[:-2], bare, "The other reads the answer without its cursors (for orientation)"),
        ],
        ["CPU time from an httpx response to the text, for the whole answer, divided by its frames."],
        ["httpx", "httpx-sse"],
    )


def _figures(found: Ratio) -> tuple[object, ...]:
    return found.subject, found.reference, found.median, f"{found.low:.3f} to {found.high:.3f}"
