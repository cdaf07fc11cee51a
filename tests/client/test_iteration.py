"""Iterations that may be left at any point."""

from __future__ import annotations

import pytest

from streamguard.client.iteration import Iteration, SyncIteration, block_in, frame_itself, text_in
from streamguard.core.items import Block
from streamguard.core.receipt import AnswerFrame

IMAGE = Block("image", {"url": "a.png"})
FRAMES = [
    AnswerFrame(1, None, b'"a"', "a"),
    AnswerFrame(2, "block", b"{}", "", IMAGE),
    AnswerFrame(3, None, b'"b"', "b"),
]
PICKS = [(text_in, ["a", "b"]), (block_in, [IMAGE]), (frame_itself, FRAMES)]


@pytest.mark.parametrize(("pick", "picked"), PICKS)
def test_an_iteration_passes_over_what_is_not_picked(pick: object, picked: list[object]) -> None:
    frames = iter(FRAMES)
    assert list(SyncIteration(lambda: next(frames, None), pick)) == picked  # type: ignore[arg-type]


@pytest.mark.anyio
@pytest.mark.parametrize(("pick", "picked"), PICKS)
async def test_an_async_iteration_passes_over_what_is_not_picked(pick: object, picked: list[object]) -> None:
    frames = iter(FRAMES)

    async def following() -> AnswerFrame | None:
        return next(frames, None)

    assert [each async for each in Iteration(following, pick)] == picked  # type: ignore[arg-type]


def test_an_iteration_that_was_left_goes_on_where_it_was() -> None:
    frames = iter(FRAMES)
    texts = SyncIteration(lambda: next(frames, None), text_in)
    for text in texts:
        assert text == "a"
        break
    assert list(texts) == ["b"]
