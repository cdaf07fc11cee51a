"""A script that is asked by lines of JSON: several questions may be under way at once, each in its own thread.

    with script("sdk.cjs") as process:
        process.ask({"do": "chat", "with": [url]})

The first line that it says is its answer to question 0: what it is.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from tests.clients.npm import node

__all__ = ["DEADLINE", "Script", "asked", "script"]

DEADLINE = 180.0  # seconds after which one that says nothing has failed: a busy machine takes 45 for all vectors


class Script:
    """A script, as long as `process` runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lock = threading.Lock()
        self._asked = 0
        self._answers: dict[int, Future[Any]] = {0: Future()}
        started = self._answers[0]
        threading.Thread(target=self._listen, name="script", daemon=True).start()
        self.version: str = started.result(DEADLINE)

    def ask(self, told: Mapping[str, Any]) -> Any:
        """Have it done, and wait for what it gives. Raises RuntimeError for what failed there."""
        answer: Future[Any] = Future()
        with self._lock:
            self._asked += 1
            self._answers[self._asked] = answer
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"id": self._asked, **told}) + "\n")
            self._process.stdin.flush()
        return answer.result(DEADLINE)

    def number(self) -> int:
        """One that nobody had before."""
        with self._lock:
            self._asked += 1
            return self._asked

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
                answer.set_exception(RuntimeError("the script is gone"))


@contextmanager
def asked(command: Sequence[str], env: Mapping[str, str]) -> Iterator[Script]:
    """What a command starts, while the block runs."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=dict(env), text=True, **pipes) as process:
        try:
            yield Script(process)
            assert process.stdin is not None
            process.stdin.close()
            process.wait(DEADLINE)
        finally:
            process.kill()


@contextmanager
def script(name: str, *arguments: str) -> Iterator[Script]:
    """A script of `js/`, while the block runs. Skips the test where Node or the packages are not there."""
    with asked(*node(name, *arguments)) as process:
        yield process
