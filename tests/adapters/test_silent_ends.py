"""No client takes a stream that did not complete for a whole one: a small part of the proof `no-silent-end`.

The proof asks on every server and under every layer; here the rows of the documentation are compared with
what the same clients report on one.
"""

from __future__ import annotations

import pytest

from tests.absence import require

for _library in ("aiohttp", "httpx", "httpx_sse", "openai"):
    require(_library, f"pip install {_library.replace('_', '-')}")
require("curl", "apt-get install curl")

from streamguard.core.errors import SourceFailed  # noqa: E402
from tests.adapters.asgi_apps import answering  # noqa: E402
from tests.adapters.endings import ENDINGS, FAILURES, LAYERS  # noqa: E402
from tests.adapters.readers import BODY, READERS  # noqa: E402
from tests.adapters.servers import STACKS, serving, stack_params  # noqa: E402
from tests.proofs import silent_ends  # noqa: E402
from tests.proofs.registry import Table  # noqa: E402

LINGER = 0.05


@pytest.fixture(scope="module")
def asked() -> list[silent_ends.Asked]:
    return silent_ends.ask("bare", STACKS[0], ENDINGS, ["openai"], linger=LINGER)


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_client_knows_how_the_stream_ended(ending: str, asked: list[silent_ends.Asked]) -> None:
    found = [one for one in asked if one.ending == ending]
    assert [one.reader for one in found] == list(READERS)
    assert [one for one in found if not one.right] == []


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer != "bare"])
def test_and_under_every_layer(layer: str) -> None:
    asked = silent_ends.ask(layer, STACKS[-1], ["finished", "raises-3"], linger=LINGER)
    assert len(asked) == 20
    assert [one for one in asked if not one.right] == []


@pytest.mark.parametrize("stack", stack_params())
def test_and_on_every_server(stack: tuple[str, str]) -> None:
    asked = silent_ends.ask(silent_ends.SEALED, stack, ["finished", "raises-last"], ["native"], linger=LINGER)
    assert [one for one in asked if not one.right] == []


def test_nobody_notices_the_same_failure_unguarded_under_middleware() -> None:
    """Else the tests above would show little: the clients must be able to report success."""
    asked = silent_ends.ask(silent_ends.SEALED, STACKS[0], ["unguarded"], ["openai"], linger=LINGER)
    assert [one.reading.error for one in asked] == [None] * len(READERS)


def test_an_sdk_raises_with_the_code_and_message_that_the_source_chose() -> None:
    import openai

    async def overloaded() -> None:
        raise SourceFailed("overloaded", "come back later")

    with serving(answering(overloaded, dialect="openai")) as server:
        client = openai.OpenAI(api_key="k", base_url=server.url, max_retries=0)
        with pytest.raises(openai.APIError, match="come back later") as caught:
            list(client.chat.completions.create(**BODY))  # type: ignore[call-overload]
        client.close()
    assert caught.value.code == "overloaded"


def _documented(title: str) -> list[list[str]]:
    """The rows of a table of the page, its head first."""
    page = silent_ends.PAGE.read_text(encoding="utf-8")
    lines = page.partition(f"**{title}**\n\n")[2].partition("\n\n")[0].split("\n")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [rows[0], *rows[2:]]


def _rows(table: Table) -> list[list[str]]:
    return [[str(cell) for cell in row] for row in [table.columns, *table.rows]]


def test_the_page_says_what_the_clients_report(asked: list[silent_ends.Asked]) -> None:
    table = silent_ends.reports_table(asked)
    assert _documented(table.title) == _rows(table)
    assert len(table.rows) == len(FAILURES) + 1


def test_the_page_says_what_they_report_without_streamguard() -> None:
    table = silent_ends.unguarded_table(LINGER)
    assert _documented(table.title) == _rows(table)


def test_the_page_says_what_is_left_behind_http_1_0() -> None:
    table = silent_ends.http10_table(LINGER)
    assert _documented(table.title) == _rows(table)
