"""One Chromium for the tests of a module, by playwright-core in a process of Node.

    with chromium() as browser, browser.page(url) as page:
        page.evaluate("async (url) => …", url)

Commands are lines of JSON (`js/browser.cjs`). Several may be under way at once, each in a thread of its own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

from tests.clients.npm import node

__all__ = ["DEADLINE", "Browser", "Page", "chromium"]

DEADLINE = 60.0  # seconds after which a browser that says nothing has failed
_NAMES = ("chromium", "chromium-browser", "google-chrome")


class Browser:
    """Chromium, as long as `process` runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lock = threading.Lock()
        self._asked = 0
        self._answers: dict[int, Future[Any]] = {0: Future()}
        started = self._answers[0]
        threading.Thread(target=self._listen, name="chromium", daemon=True).start()
        self.version: str = started.result(DEADLINE)

    def tell(self, page: str, verb: str, *values: Any) -> Any:
        """Have it done, and wait for what it gives. Raises RuntimeError for what failed in the page."""
        answer: Future[Any] = Future()
        with self._lock:
            self._asked += 1
            self._answers[self._asked] = answer
            assert self._process.stdin is not None
            told = {"id": self._asked, "page": page, "do": verb, "with": values}
            self._process.stdin.write(json.dumps(told) + "\n")
            self._process.stdin.flush()
        return answer.result(DEADLINE)

    @contextmanager
    def page(self, url: str) -> Iterator[Page]:
        """A page at `url`, in a context of its own: nothing is stored there yet."""
        with self._lock:
            self._asked += 1
            page = Page(self, f"page {self._asked}")
        self.tell(page.name, "open", url)
        try:
            yield page
        finally:
            self.tell(page.name, "close")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            answer = self._answers.pop(said["id"])
            if "error" in said:
                answer.set_exception(RuntimeError(said["error"]))
            else:
                answer.set_result(said["value"])
        with self._lock:
            for answer in self._answers.values():
                answer.set_exception(RuntimeError("the browser is gone"))


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


@contextmanager
def chromium() -> Iterator[Browser]:
    """A Chromium, while the block runs. Skips the test where it, or what drives it, is not there."""
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip("absent: chromium (install it with: apt-get install --no-install-recommends chromium)")
    command, env = node("browser.cjs", path)
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=env, text=True, **pipes) as process:
        try:
            yield Browser(process)
            assert process.stdin is not None
            process.stdin.close()
            process.wait(DEADLINE)
        finally:
            process.kill()
