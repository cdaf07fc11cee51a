"""A compressed stage: the same bytes behind a decoder, in the order in which they were made."""

from __future__ import annotations

import tracemalloc
import zlib
from typing import Any

import pytest

from streamguard.core.compress import Gzip, GzipBody
from streamguard.core.cursor import cursor_zero
from streamguard.core.errors import Failure
from streamguard.core.flush import EveryTokens, Immediate, Within
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.items import Finish
from streamguard.core.pipeline import Pipeline
from streamguard.runtime.compressed import CompressedStage
from streamguard.runtime.reader import ReplayStage
from tests.runtime.fakes import SID

LIMITS = {9: 20_000, 12: 36_000, 15: 160_000}  # bytes that one body may hold, by its window


def pipeline(flush: Any = None) -> Pipeline:
    return Pipeline(flush or Immediate(), FramedEncoder("native", sid=SID), CompletionGuard("sse"))


@pytest.mark.parametrize("end", ["finish", "fail"])
@pytest.mark.parametrize("flush", [Immediate(), EveryTokens(3), Within(2.0)], ids=lambda flush: type(flush).__name__)
def test_each_answer_is_that_of_its_stage_behind_a_decoder(flush: Any, end: str) -> None:
    plain, body, decoder = pipeline(flush), Gzip().body(), zlib.decompressobj(16 + zlib.MAX_WBITS)
    stage = CompressedStage(pipeline(flush), body)

    def last(of: Any) -> bytes:
        made: bytes = of.finish(9.0) if end == "finish" else of.fail(Failure("slow", "slow"), 9.0, "slow")
        return made

    steps: list[Any] = [lambda of: of.open(), *[lambda of, n=n: of.push(f"t{n} ", float(n)) for n in range(6)]]
    steps += [lambda of: of.tick(8.5), lambda of: of.heartbeat(), lambda of: of.push(Finish("stop"), 9.0), last]
    sent = 0
    for step in steps:
        expected, made = step(plain), step(stage)
        sent += len(made)
        assert decoder.decompress(made) == expected
        assert bool(made) is bool(expected)
        assert (stage.cursor, stage.status, stage.items) == (plain.cursor, plain.status, plain.items)
        assert (stage.timed, stage.deadline(), stage.sent) == (plain.timed, plain.deadline(), sent)
    assert stage.ending == plain.ending
    assert not decoder.eof
    decoder.decompress(body.end())
    assert decoder.eof


def test_it_is_the_part_of_a_stream_that_its_stage_is() -> None:
    reader = ReplayStage(CompletionGuard("sse"), cursor_zero(SID), own_ids=False, resume=None)
    assert CompressedStage(reader, Gzip().body()).part == "reader"
    assert CompressedStage(pipeline(), Gzip().body()).part == ""


@pytest.mark.skipif("ng" in zlib.ZLIB_RUNTIME_VERSION, reason="zlib-ng has tables of its own sizes")
@pytest.mark.parametrize("window", LIMITS)
def test_what_a_stream_holds_is_bounded_by_its_window_whatever_passes(window: int) -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        bodies: list[GzipBody] = [Gzip(window=window).body() for _ in range(5)]
        for body in bodies:
            for number in range(200):
                body.write(b"%d " % number * 500)
        held = (tracemalloc.get_traced_memory()[0] - before) / len(bodies)
    finally:
        tracemalloc.stop()
    assert 1_000 < held < LIMITS[window]
