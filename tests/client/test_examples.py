"""The client's examples, as commands, against a whole answer and one that is cut."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.server import LAST_CHUNK, Server, chunk, head, made

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
BODY = made("Hello", " world")


def run(example: str, data: bytes) -> subprocess.CompletedProcess[str]:
    with Server(lambda connection, request: connection.send(data)) as server:
        command = [sys.executable, "-W", "error", str(EXAMPLES / example), server.url, "Hi"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert server.requests[0].body.replace(b" ", b"") == b'{"text":"Hi"}'
        return done


@pytest.mark.parametrize("example", ["client_async.py", "client_sync.py"])
def test_an_example_tells_a_whole_answer_from_others(example: str) -> None:
    whole = run(example, BODY.head() + chunk(BODY.body) + LAST_CHUNK)
    assert (whole.returncode, whole.stderr) == (0, "")
    assert "COMPLETE, 3 frames" in whole.stdout
    cut = run(example, BODY.head() + chunk(BODY.body[:-5]) + LAST_CHUNK)
    assert cut.returncode == 1
    assert "not whole" in cut.stderr
    assert "Hello" in cut.stdout
    refused = run(example, head(401, "text/html", content_length=0))
    assert refused.returncode == 1
    assert "HTTP 401" in refused.stderr


@pytest.mark.parametrize("example", ["client_async.py", "client_sync.py"])
def test_an_example_without_an_address_says_how_it_is_called(example: str) -> None:
    done = subprocess.run([sys.executable, str(EXAMPLES / example)], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("usage: ")
    assert "URL [PROMPT]" in done.stderr
