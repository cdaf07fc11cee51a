"""No client takes a failed guarded stream for a whole one: a small part of the proof `nobody-silent`.

The proof makes an environment for each client and version. Here are the newest that are installed for the tests.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import metadata

import pytest

from tests.absence import require
from tests.clients.lines import Script, asked
from tests.clients.npm import node
from tests.modules import ROOT
from tests.proofs.nobody_silent import COLUMNS, ENVIRONMENTS, PYTHON_SCRIPT, Environment, rows_of
from tests.proofs.registry import Run

PAGES = ["README.md", "docs/explanation/who-notices.md"]
RUN = Run(1, lambda line: None)


def on_python() -> tuple[Environment, AbstractContextManager[Script]]:
    clients = ("openai", "anthropic")
    for name in clients:
        require(name, f"pip install {name}")
    return Environment("Python", (), clients), asked([sys.executable, str(PYTHON_SCRIPT)], os.environ)


def on_node() -> tuple[Environment, AbstractContextManager[Script]]:
    clients = ("openai", "@anthropic-ai/sdk", "ai", "@ag-ui/client", "eventsource")
    return Environment("Node", (), clients), asked(*node("read.cjs"))


def documented(page: str) -> list[list[str]]:
    """The rows of the table of a page, its head first."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = text.partition("<!-- begin: python -m tests.proofs nobody-silent -->\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in found.split("\n")]
    return [rows[0], *rows[2:]]


def named(rows: Sequence[Sequence[str]]) -> Mapping[str, Sequence[str]]:
    """Rows by the client's name, without its version."""
    return {re.sub(r" [\d.]+ ", " ", row[0]): row[1:] for row in reversed(rows)}  # of two, the newest


@pytest.mark.parametrize("where", [on_python, on_node], ids=["python", "node"])
def test_clients_notice_a_failure_and_read_a_whole_stream_as_unguarded(
    where: Callable[[], tuple[Environment, AbstractContextManager[Script]]],
) -> None:
    environment, started = where()
    versions = dict.fromkeys(environment.clients, "0")
    if environment.language == "Python":
        versions = {name: metadata.version(name) for name in environment.clients}
    with started as script:
        rows, shown = rows_of(environment, script, versions, RUN, linger=0.05)
    assert shown, rows
    for client, found in named(rows).items():
        # Else it would show little: under a BaseHTTPMiddleware they must be able to take half for all.
        assert found[1] == ("reconnects" if client.startswith("eventsource") else "nothing")
        assert found[1:] == named(documented(PAGES[1])[1:])[client][1:], client


@pytest.mark.parametrize("page", PAGES)
def test_the_documented_table_has_every_client_and_none_that_is_silent(page: str) -> None:
    head, *rows = documented(page)
    assert tuple(head) == COLUMNS
    told = [re.sub(r" [\d.]+ ", " ", row[0]) for row in rows]
    assert told == [f"{client} ({one.language})" for one in ENVIRONMENTS for client in one.clients]
    assert [row for row in rows if row[3] == "nothing" or row[4] != "the same"] == []
