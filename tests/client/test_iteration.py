"""Iterations that may be left at any point."""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Any

import pytest

from streamguard.client import stream, stream_sync
from streamguard.client.iteration import (
    Iteration,
    Iterations,
    Spread,
    SyncIteration,
    SyncIterations,
    SyncSpread,
    blocks_in,
    frame_itself,
    text_in,
)
from streamguard.core.items import Block
from streamguard.core.receipt import AnswerFrame

IMAGE = Block("image", {"url": "a.png"})
FRAMES = [
    AnswerFrame(1, None, b'"a"', "a"),
    AnswerFrame(2, "block", b"{}", "", IMAGE, blocks=(IMAGE, IMAGE)),
    AnswerFrame(3, None, b'"b"', "b"),
]
PICKS = [(text_in, ["a", "b"]), (blocks_in, [(IMAGE, IMAGE)]), (frame_itself, FRAMES)]


@pytest.mark.parametrize(("pick", "picked"), PICKS)
def test_an_iteration_passes_over_what_is_not_picked(pick: object, picked: list[object]) -> None:
    frames = iter(FRAMES)
    assert list(SyncIteration(lambda had: next(frames, None), pick)) == picked  # type: ignore[arg-type]


@pytest.mark.anyio
@pytest.mark.parametrize(("pick", "picked"), PICKS)
async def test_an_async_iteration_passes_over_what_is_not_picked(pick: object, picked: list[object]) -> None:
    frames = iter(FRAMES)

    async def following(had: int) -> AnswerFrame | None:
        return next(frames, None)

    assert [each async for each in Iteration(following, pick)] == picked  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_a_spread_hands_out_all_that_each_frame_has() -> None:
    frames, sync_frames = iter(FRAMES), iter(FRAMES)

    async def following(had: int) -> AnswerFrame | None:
        return next(frames, None)

    assert [block async for block in Spread(following, blocks_in)] == [IMAGE, IMAGE]
    assert list(SyncSpread(lambda had: next(sync_frames, None), blocks_in)) == [IMAGE, IMAGE]


def test_an_iteration_says_how_many_frames_it_has_had() -> None:
    """So that the answer can refuse to give it what follows frames that went to another one."""
    frames, had = iter(FRAMES), []

    def following(count: int) -> AnswerFrame | None:
        had.append(count)
        return next(frames, None)

    assert list(SyncIteration(following, text_in)) == ["a", "b"]
    assert had == [0, 1, 2, 3]


@pytest.mark.anyio
async def test_an_async_iteration_says_how_many_frames_it_has_had() -> None:
    frames, had = iter(FRAMES), []

    async def following(count: int) -> AnswerFrame | None:
        had.append(count)
        return next(frames, None)

    assert [text async for text in Iteration(following, text_in)] == ["a", "b"]
    assert had == [0, 1, 2, 3]


def test_an_iteration_that_was_left_goes_on_where_it_was() -> None:
    frames = iter(FRAMES)
    texts = SyncIteration(lambda had: next(frames, None), text_in)
    for text in texts:
        assert text == "a"
        break
    assert list(texts) == ["b"]


# ---- the wrong way to hold one ------------------------------------------------------------------


ITERATE = r"^iterate answer\.text\(\), answer\.frames\(\) or answer\.blocks\(\), by "


def nobody(*had: int) -> Any:
    raise AssertionError("a frame was asked for")


@pytest.mark.anyio
async def test_an_async_iteration_says_how_it_is_read() -> None:
    wrong: Any = Iteration(nobody, text_in)
    said = r"^an answer is read with `async for`.* or as a whole: `await answer\.read\(\)`$"
    with pytest.raises(TypeError, match=said):
        iter(wrong)
    with pytest.raises(TypeError, match=said):
        await wrong


def test_an_iteration_is_of_one_kind_where_it_is_a_source() -> None:
    """A relay gives it to a server, which asks for the asynchronous kind first."""
    assert isinstance(Iteration(nobody, text_in), AsyncIterable)
    assert not isinstance(SyncIteration(nobody, text_in), AsyncIterable)


@pytest.mark.anyio
async def test_an_answer_itself_says_what_of_it_is_iterated() -> None:
    class Asynchronous(Iterations):
        _next = nobody

    class Synchronous(SyncIterations):
        _next = nobody

    wrong: Any = Asynchronous()
    with pytest.raises(TypeError, match=f"{ITERATE}`async for`$"):
        async for _ in wrong:
            pass
    with pytest.raises(TypeError, match=f"{ITERATE}`async for`$"):
        iter(wrong)
    wrong = Synchronous()
    with pytest.raises(TypeError, match=f"{ITERATE}`for`$"):
        iter(wrong)


ENTER = r"^write `async with stream\(…\) as answer`"
ENTER_SYNC = r"^write `with stream_sync\(…\) as answer`"


@pytest.mark.anyio
async def test_an_asynchronous_context_says_that_it_is_entered_first() -> None:
    opening: Any = stream("GET", "http://nowhere")
    with pytest.raises(TypeError, match=ENTER):
        await opening
    with pytest.raises(TypeError, match=ENTER):
        async for _ in opening:
            pass
    with pytest.raises(TypeError, match=ENTER):
        iter(opening)
    for name in ("text", "read", "frames", "receipt"):
        with pytest.raises(AttributeError, match=f"{ENTER}: {name!r} is the answer's$"):
            getattr(opening, name)
    assert not hasattr(opening, "_private")
    with pytest.raises(TypeError, match="`stream` is asynchronous: write `async with`, or use `stream_sync`"):
        with opening:
            pass


@pytest.mark.anyio
async def test_a_context_without_await_says_so_to_async_with() -> None:
    opening: Any = stream_sync("GET", "http://nowhere")
    with pytest.raises(TypeError, match="`stream_sync` is not asynchronous: write `with`, or use `stream`"):
        async with opening:
            pass
    with pytest.raises(TypeError, match=ENTER_SYNC):
        await opening
    with pytest.raises(TypeError, match=ENTER_SYNC):
        iter(opening)
    with pytest.raises(AttributeError, match=f"{ENTER_SYNC}: 'text' is the answer's$"):
        opening.text  # noqa: B018
