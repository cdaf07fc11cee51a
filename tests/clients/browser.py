"""One Chromium for the tests of a module, by playwright-core in a process of Node.

    with chromium() as browser, browser.page(url) as page:
        page.evaluate("async (url) => …", url)

Several commands may be under way at once, each in a thread of its own (`lines`).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.clients.lines import DEADLINE, Script, script

__all__ = ["DEADLINE", "Browser", "Page", "chromium"]

_NAMES = ("chromium", "chromium-browser", "google-chrome")


class Browser:
    """Chromium, as long as its script runs."""

    def __init__(self, process: Script) -> None:
        self._process = process
        self.version = process.version

    def tell(self, page: str, verb: str, *values: Any) -> Any:
        """Have it done, and wait for what it gives. Raises RuntimeError for what failed in the page."""
        return self._process.ask({"page": page, "do": verb, "with": values})

    @contextmanager
    def page(self, url: str) -> Iterator[Page]:
        """A page at `url`, in a context of its own: nothing is stored there yet."""
        page = Page(self, f"page {self._process.number()}")
        self.tell(page.name, "open", url)
        try:
            yield page
        finally:
            self.tell(page.name, "close")


class Page:
    """A page of a browser."""

    def __init__(self, browser: Browser, name: str) -> None:
        self.browser = browser
        self.name = name

    def evaluate(self, function: str, value: Any = None) -> Any:
        """What a function of the page, given as its source, answers to `value`."""
        return self.browser.tell(self.name, "evaluate", function, value)

    def reload(self) -> None:
        """Load it again, and wait until it is there."""
        self.browser.tell(self.name, "reload")

    def size(self, width: int, height: int) -> None:
        """Of what is seen of it, in pixels of CSS."""
        self.browser.tell(self.name, "size", width, height)

    def media(self, **features: str) -> None:
        """What it is shown to prefer: `colorScheme`, `reducedMotion`, `forcedColors`."""
        self.browser.tell(self.name, "media", features)

    def press(self, key: str) -> None:
        """A key, by its name: `Tab`, `Enter`."""
        self.browser.tell(self.name, "press", key)

    def picture(self, path: Path) -> None:
        """All of it, as a PNG."""
        self.browser.tell(self.name, "picture", str(path))


@contextmanager
def chromium() -> Iterator[Browser]:
    """A Chromium, while the block runs. Skips the test where it, or what drives it, is not there."""
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip("absent: chromium (install it with: apt-get install --no-install-recommends chromium)")
    with script("browser.cjs", path) as process:
        yield Browser(process)
