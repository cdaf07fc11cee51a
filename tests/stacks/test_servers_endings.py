"""Every ending from every kind of source on every server, over real sockets: a small part of `servers-matrix`.

Here one unmodified client reads each, and our own; an SDK reads the failures of one kind.
"""

from __future__ import annotations

import pytest

from tests.absence import require

for _library in ("aiohttp", "h2", "httpx", "httpx_sse", "openai"):
    require(_library, f"pip install {_library.replace('_', '-')}")
require("curl", "apt-get install curl")

from tests.adapters.endings import ENDINGS, FAILURES  # noqa: E402
from tests.adapters.readers import Reading  # noqa: E402
from tests.stacks.matrix import HANGS, Cell, Stream, ask  # noqa: E402
from tests.stacks.processes import Process  # noqa: E402
from tests.stacks.sources import KINDS  # noqa: E402

PATIENCE = 0.5  # seconds for which a client waits for an answer that stays open


@pytest.mark.parametrize("kind", KINDS)
def test_every_ending_is_known_to_its_reader_and_closes_its_source(process: Process, kind: str) -> None:
    cells, streams = ask(
        process, kinds=[kind], dialects=["native"], readers=["httpx", "streamguard"], patience=PATIENCE
    )
    assert len(cells) == 2 * len(ENDINGS)
    assert [cell for cell in cells if not cell.right] == []
    assert [stream for stream in streams if not stream.right] == []
    waited = [cell.reader for cell in cells if cell.waited]
    assert waited == (["httpx"] * len(FAILURES) if process.stack in HANGS else [])


def test_an_sdk_raises_at_the_terminal_whatever_the_server_makes_of_the_abort(process: Process) -> None:
    cells, streams = ask(
        process,
        kinds=["async-generator"],
        endings=["finished", "raises-3"],
        dialects=["openai"],
        patience=PATIENCE,
    )
    told = [cell for cell in cells if cell.reader.startswith("openai") and cell.ending == "raises-3"]
    assert [cell.reading.error for cell in told] == ["openai.APIError"] * 2
    assert [cell for cell in cells if not cell.right] == []
    assert [stream for stream in streams if not stream.right] == []


def test_a_clean_end_or_a_text_that_was_not_generated_would_be_found() -> None:
    """Else the tests above would show little."""

    def cell(stack: str, ending: str, text: str, error: str | None) -> Cell:
        return Cell(stack, "push", ending, "native", "httpx", Reading(text, error))

    assert not cell("granian-h1", "raises-3", "What was ", None).right
    assert not cell("granian-h1", "raises-3", "What else ", "httpx.ReadError").right
    assert not cell("granian-h1", "finished", "What was ", None).right
    assert not cell("granian-h1", "raises-3", "What was ", "httpx.ReadTimeout").right
    assert not cell("daphne", "finished", "What was ", "httpx.ReadTimeout").right
    whole = {"status": "failed", "closed": 1, "elsewhere": 0, "abandoned": False}
    assert Stream("daphne", "push", "raises-3", whole).right
    for wrong in ({"status": "complete"}, {"closed": 2}, {"elsewhere": 1}, {"abandoned": True}):
        assert not Stream("daphne", "push", "raises-3", {**whole, **wrong}).right
