"""One Chromium, one Node for each module that asks for it, and servers that ask for a quick return."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamguard.browser import SCRIPT
from tests.absence import require
from tests.clients.browser import Browser, chromium
from tests.clients.lines import Script, asked

HERE = Path(__file__).parent
Read = Callable[..., dict[str, Any]]
"""What a stream at an address comes to, with the options of `reading.mjs`."""


@pytest.fixture(scope="module")
def node() -> Iterator[Script]:
    """The client in Node."""
    require("node", "apt-get install nodejs")
    with asked(["node", str(HERE / "node.mjs"), str(SCRIPT)], os.environ) as process:
        yield process


@pytest.fixture
def read(node: Script) -> Read:
    def read(url: str, **options: Any) -> dict[str, Any]:
        found: dict[str, Any] = node.ask({"do": "read", "with": [url, options]})
        node.ask({"do": "drop", "with": []})
        return found

    return read


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that was cut comes back after 10 ms, where servers say 2 s."""
    monkeypatch.setattr("streamguard.core.wire.sse._RETRY_MS", 10)
