"""The demo page over real sockets: its files, its two endpoints, and what the relay does to them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import attrs
import pytest

from streamguard import cli, client
from streamguard.browser import SCRIPT, style_of
from streamguard.demo.web import PAGE, TEXT, demo_page
from tests.adapters.servers import Gate, Server, serving
from tests.asking import http

FIRST, REST = ("Yes, ", "delete it. "), ("But ", "not today.")
SOON = client.ResumePolicy(max_wait=0.02)
PAGE_FILES = {"": "text/html", "demo.css": "text/css", "demo.js": "text/javascript", "icon.svg": "image/svg+xml"}


@attrs.define
class Standing:
    """The page's server, whose answers stand behind their first tokens until `gate` is opened."""

    server: Server
    gate: Gate
    closed: list[str]
    """Of the answers that were let go of, all that they had given."""

    def fault(self, do: str, run: str = "r") -> Any:
        return http.post(f"{self.server.url}/fault", params={"run": run, "do": do}).json()


@pytest.fixture
def standing() -> Iterator[Standing]:
    gate, closed = Gate(), []

    async def tokens(run: str) -> AsyncIterator[str]:
        given = ""
        try:
            for token in FIRST:
                given += token
                yield token
            await gate
            for token in REST:
                given += token
                yield token
        finally:
            closed.append(given)

    with serving(demo_page(tokens)) as server:
        yield Standing(server, gate, closed)
        gate.open()


def texts(lines: Iterator[str]) -> Iterator[str]:
    return (json.loads(line[6:]) for line in lines if line.startswith("data: "))


def test_the_page_is_served_from_the_package_and_allows_nothing_inline_and_no_other_host(standing: Standing) -> None:
    for name, kind in PAGE_FILES.items():
        answer = http.get(f"{standing.server.url}/{name}")
        assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, kind)
        file = PAGE / (name or "index.html")
        assert answer.content == (style_of(file) if name == "demo.css" else file.read_bytes())
        assert answer.headers["x-content-type-options"] == "nosniff"
        policy = dict(part.split(maxsplit=1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy.pop("default-src") == "'none'"
        assert set(policy.values()) == {"'self'", "'none'"}
        assert {"script-src", "style-src", "base-uri", "form-action", "frame-ancestors"} <= policy.keys()
    assert http.get(f"{standing.server.url}/streams/streamguard.js").content == SCRIPT.read_bytes()
    for path in ("demo.py", "../web.py", "%2e%2e/web.py", "page/demo.js"):
        assert http.get(f"{standing.server.url}/{path}").status_code == 404
    assert http.get(f"{standing.server.url}/fault").status_code == 405


def test_what_a_model_says_never_becomes_markup_and_the_page_needs_nothing_inline() -> None:
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"""<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)|javascript:""", page)
    assert set(re.findall(r'(?:src|href)="([^"]*)"', page)) == {"/icon.svg", "/demo.css", "/demo.js"}
    script, style = (PAGE / "demo.js").read_text(encoding="utf-8"), style_of(PAGE / "demo.css").decode()
    assert not re.search(r"HTML|\.write|eval|Function\(|https?:|\.style\b", script)
    assert not re.search(r"url\(|@import|https?:", style)


def test_both_endpoints_give_the_same_answer(standing: Standing) -> None:
    standing.gate.open()
    plain = http.post(f"{standing.server.url}/unguarded", headers={"demo-run": "r"}).text
    with client.stream_sync("POST", f"{standing.server.url}/guarded", headers={"demo-run": "r"}) as answer:
        assert answer.read() == "".join(texts(iter(plain.splitlines()))) == "".join(FIRST + REST)
    assert answer.receipt.verdict.value == "complete"


def test_a_cut_ends_the_unguarded_answer_cleanly_and_the_guarded_one_goes_on(standing: Standing) -> None:
    url, headers = standing.server.url, {"demo-run": "r"}
    with http.stream("POST", f"{url}/unguarded", headers=headers) as plain:
        lines = texts(plain.iter_lines())
        got = [next(lines), next(lines)]
        assert standing.fault("cut", "another") == {"streams": 0}
        with client.stream_sync("POST", f"{url}/guarded", headers=headers, resume=SOON) as answer:
            handed = answer.text()
            assert (next(handed), next(handed)) == FIRST
            assert standing.fault("cut") == {"streams": 2}
            assert [*got, *lines] == list(FIRST)  # and no error: httpx takes it for whole
            standing.gate.open()
            assert "".join(handed) == "".join(REST)
    assert (answer.receipt.verdict.value, answer.receipt.resumes) == ("complete", 1)
    assert sorted(standing.closed) == ["".join(FIRST), "".join(FIRST + REST)]


def test_nothing_passes_a_stall_until_it_is_cut(standing: Standing) -> None:
    with http.stream("POST", f"{standing.server.url}/unguarded", headers={"demo-run": "r"}) as plain:
        lines = texts(plain.iter_lines())
        got = [next(lines), next(lines)]
        assert standing.fault("stall") == {"streams": 1}
        standing.gate.open()
        while not standing.closed:  # all was generated, and sent as far as the server knows
            http.get(f"{standing.server.url}/demo.css")
        assert standing.fault("cut") == {"streams": 1}
        assert [*got, *lines] == list(FIRST)
    assert standing.closed == ["".join(FIRST + REST)]


@pytest.mark.parametrize("query", ["", "?run=r", "?do=cut", "?run=r&do=burn"])
def test_a_fault_that_is_none_is_refused(standing: Standing, query: str) -> None:
    assert http.post(f"{standing.server.url}/fault{query}").status_code == 400


@pytest.fixture
def shown() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command as a user starts it, and the address that it prints."""
    command = [sys.executable, "-m", "streamguard.cli", "demo", "--web", "--port", "0", "--open"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={**os.environ, "BROWSER": "echo opened %s"}, **pipes) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            match = re.fullmatch(r"(http://127\.0\.0\.1:\d+/)  \(Ctrl-C ends it\)\n", line)
            assert match is not None, line
            assert process.stdout.readline() == f"opened {match[1]}\n"
            yield process, match[1]
        finally:
            process.kill()


def test_the_command_serves_the_page_until_an_interrupt_which_waits_for_no_stalled_answer(
    shown: tuple[subprocess.Popen[str], str],
) -> None:
    process, url = shown
    assert "<h1>One answer, streamed twice</h1>" in http.get(url).text
    with http.stream("POST", f"{url}unguarded", headers={"demo-run": "r"}) as plain:
        lines = texts(plain.iter_lines())  # kept: httpx closes a stream whose iterator is dropped
        assert TEXT.startswith(next(lines))
        assert http.post(f"{url}fault?run=r&do=stall").json() == {"streams": 1}
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == cli.INTERRUPTED
    assert process.stderr is not None
    assert process.stderr.read() == ""
