"""Very large events, and the limits that keep them finite."""

from __future__ import annotations

import pytest
from typing_extensions import Buffer

from streamguard.core.dialect import Native
from streamguard.core.errors import FrameTooLarge, ItemTooLarge, failure_from
from streamguard.core.flush import Immediate
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.items import Block
from streamguard.core.pipeline import Pipeline
from streamguard.core.receipt import Verdict
from streamguard.core.wire import Binary, Ndjson, Sse, SseDecoder, Wire
from tests.scenarios.stacks import pipeline, read, rechunked, write

KB, MB = 1024, 1024 * 1024
CARRIERS = pytest.mark.parametrize("wire", [Sse(), Ndjson(), Binary()], ids=lambda wire: wire.name)


@CARRIERS
def test_a_frame_above_the_readers_limit_is_an_error_with_sizes(wire: Wire) -> None:
    blob = Block("image", {"data": "x" * MB})
    reading = read(write(["before ", blob, "after"], wire=wire), wire=wire, max_frame=64 * KB)
    assert isinstance(reading.error, FrameTooLarge)
    assert reading.error.limit == 64 * KB
    assert reading.error.size > 64 * KB
    assert reading.text == "before "


def test_a_long_line_in_small_reads_is_read_whole_and_handled_once() -> None:
    """The work per byte must not grow: the reader keeps pieces and joins them once."""
    payload = "x" * (600 * KB)
    (chunk,) = [chunk for chunk in write([Block("image", {"data": payload})]) if b"xxxx" in chunk]
    decoder = SseDecoder()
    events = [event for piece in rechunked(chunk, [8 * KB] * 80) for event in decoder.feed(piece)]
    assert len(events) == 1
    assert payload in events[0].data


def test_the_reader_joins_a_long_line_once() -> None:
    class Counted(bytes):
        joins = 0

        def __radd__(self, other: bytes) -> bytes:
            Counted.joins += 1
            return other + bytes(self)

        def __add__(self, other: Buffer) -> bytes:
            Counted.joins += 1
            return bytes(self) + bytes(other)

    decoder = SseDecoder()
    decoder.feed(b"data: ")
    for _ in range(75):
        decoder.feed(Counted(b"x" * 8 * KB))
    (event,) = decoder.feed(Counted(b"\n\n"))
    assert len(event.data) == 600 * KB
    assert Counted.joins == 0


@CARRIERS
@pytest.mark.parametrize("size", [64 * KB + 1, 4 * MB])
def test_large_events_work_by_default(wire: Wire, size: int) -> None:
    blob = Block("image", {"data": "x" * size})
    body = b"".join(write([blob], wire=wire))
    reading = read(rechunked(body, [64 * KB] * (len(body) // (64 * KB))), wire=wire)
    assert reading.parts == [blob]
    assert reading.complete


@CARRIERS
def test_large_text_is_split_into_frames(wire: Wire) -> None:
    text = "é" * (2 * MB)
    reading = read(write([text], wire=wire), wire=wire)
    assert reading.text == text
    assert len(reading.parts) > 1
    assert reading.complete


def test_a_block_above_the_servers_limit_names_it() -> None:
    pipe = Pipeline(Immediate(), FramedEncoder(Native(), max_block=MB), CompletionGuard(Sse()))
    body = pipe.open() + pipe.push("before ", 0.0)
    with pytest.raises(ItemTooLarge, match=str(MB)) as refused:
        pipe.push(Block("image", {"data": "x" * (2 * MB)}), 0.0)
    reading = read([body, pipe.fail(failure_from(refused.value), 0.0)])
    assert reading.verdict is Verdict.FAILED
    assert reading.receipt is not None
    assert reading.receipt.code == "item_too_large"


@CARRIERS
def test_a_stream_with_a_frame_above_the_limit_is_never_complete(wire: Wire) -> None:
    blob = Block("image", {"data": "x" * (2 * MB)})
    chunks = write(["a", blob], wire=wire)
    for pieces in (chunks, [b"".join(chunks)], rechunked(b"".join(chunks), [4096] * 800)):
        reading = read(pieces, wire=wire, max_frame=MB)
        assert not reading.complete
        assert isinstance(reading.error, FrameTooLarge)


def test_what_is_held_never_passes_a_bound() -> None:
    class Never:
        """A policy that lets nothing leave."""

        def push(self, piece: str, held: int, now: float) -> int:
            return 0

        def tick(self, held: int, now: float) -> int:
            return 0

        def deadline(self) -> float | None:
            return None

    pipe = pipeline(Never())
    pipe.open()
    sent = sum(len(pipe.push("x" * KB, 0.0)) for _ in range(3 * KB))
    assert sent > 2 * MB
