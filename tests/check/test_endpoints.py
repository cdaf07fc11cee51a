"""Each thing that goes wrong is named rightly, over real sockets and behind real proxies, by the command itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import attrs
import pytest

from streamguard import cli
from tests.absence import require
from tests.adapters.servers import Server, serving
from tests.check.faulty import COUNT, Faulty
from tests.stacks.proxies import INSTALL, Program, certificate, haproxy, nginx

Front = Callable[[int], AbstractContextManager[Any]]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(Faulty()) as running:
        yield running


@attrs.frozen
class Case:
    """`faults` are the codes of the findings that are faults, in order; `says` stands in the first one's words or
    setting; `program` is what stands in front, started by `front`."""

    path: str
    faults: tuple[str, ...]
    says: str = ""
    arguments: tuple[str, ...] = ()
    program: Program | None = None
    front: Front | None = None

    @property
    def id(self) -> str:
        return f"{self.path} {self.program or ''} {' '.join(self.arguments)}".strip()


CASES = [
    Case("quick", ()),
    Case("crashed", ("tail_lost",), "the server broke off", (), "nginx", lambda port: nginx(port, http10=True)),
    Case("bare", ("http10",), "nginx: proxy_http_version 1.1", (), "nginx", lambda port: nginx(port, http10=True)),
    Case("bare", (), "", (), "nginx", nginx),
    Case("quick", (), "", ("-k",), "haproxy", lambda port: haproxy(port, http2_front=True)),
    Case("unflushed", ("tail_lost",), "so it looks whole"),
    Case("short", ("tail_lost",), "stop where another goes on", ("--repeat", "4")),
    Case("unmarked", ("missing_terminal",), "its end marker never came"),
    Case("events", ("missing_terminal",), "in the stream says that it is over"),
    Case("error-done", ("done_after_error",), "out of memory"),
    Case("error", ("failed",), "out of memory"),
    Case("done", ("done_without_reason",), "without any finish reason"),
    Case("blocking", ("blocking",), "answered nobody"),
    Case("gzip", ("held_by_compression",), "does not flush"),
    Case("deaf", ("leave_ignored",), "count of what runs", ("--leave",)),
    Case(
        "whole", ("held_back",), "nginx: either proxy_buffering off", (),
        "nginx", lambda port: nginx(port, http10=True),
    ),
    Case("text", ("missing_terminal",), "plain text has no place for an end"),
    Case(
        "text", ("missing_terminal", "held_back"), "plain text has no place for an end", (),
        "nginx", lambda port: nginx(port, http10=True),
    ),
    Case(
        "idle", ("idle_cut",), "proxy_read_timeout", (),
        "nginx", lambda port: nginx(port, directives="proxy_read_timeout 1s;"),
    ),
    Case(
        "brief", ("abort_lost",), "nginx: proxy_http_version 1.1 (before", (),
        "nginx", lambda port: nginx(port, http10=True),
    ),
    Case(
        "brief", ("abort_lost",), "HAProxy: alpn http/1.1", ("--cacert",),
        "haproxy", lambda port: haproxy(port, http2_front=True),
    ),
]  # fmt: skip


def checked(capsys: pytest.CaptureFixture[str], url: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the JSON of one check."""
    code = cli.main(["check", url, "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_fault_is_named_with_its_setting_and_its_page(
    server: Server, case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    if case.program is not None:
        require(case.program, INSTALL[case.program])
    arguments = list(case.arguments)
    if "--cacert" in arguments:
        arguments.append(certificate().authority)
    with nullcontext(server) if case.front is None else case.front(server.port) as front:
        code, found = checked(capsys, f"{front.url}/{case.path}", *arguments)
    faults = [finding for finding in found["findings"] if finding["severity"] == "fault"]
    assert tuple(fault["code"] for fault in faults) == case.faults, found
    assert code == (cli.BROKEN if case.faults else 0)
    if case.faults:
        assert case.says in faults[0]["words"] + faults[0]["setting"]
        assert faults[0]["setting"]
        assert faults[0]["page"].startswith("docs/")


def test_where_everything_is_in_order_nothing_is_found(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = checked(capsys, f"{server.url}/guarded", "--leave", "-H", "X-User: me")
    assert (code, found["verdict"], found["findings"]) == (0, "ok", [])
    [answer] = found["answers"]
    assert (answer["api"], answer["guarded"], answer["clean"]) == ("OpenAI chat completions", True, True)
    assert (answer["tokens"], answer["receipt"][:8]) == (COUNT, "COMPLETE")
    assert answer["bursts"] > COUNT / 2
    assert found["abort"].startswith("an error")
    assert found["leave"]["told"]
    assert found["leave"]["stopped"] < found["leave"]["rest"]


@pytest.mark.parametrize(("path", "why"), [("/nowhere", "404"), ("/json", "application/json")])
def test_what_is_no_stream_is_said_to_be_none(
    server: Server, path: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = checked(capsys, f"{server.url}{path}")
    assert (code, found["verdict"], found["findings"]) == (cli.FAILED, "no stream", [])
    assert why in found["why"]


def test_no_connection_is_no_result(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = checked(capsys, "http://127.0.0.1:1/")
    assert (code, found["verdict"]) == (cli.FAILED, "no stream")
    assert found["why"].startswith("no connection to http://127.0.0.1:1/")
    assert cli.main(["check", "http://127.0.0.1:1/"]) == cli.FAILED
    assert "no connection to http://127.0.0.1:1/" in capsys.readouterr().out


def test_an_answer_that_takes_too_long_is_left(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = checked(capsys, f"{server.url}/idle", "--max-time", "0.5")
    assert (code, found["answers"][0]["broke"]) == (0, "it was left after 0.5 s")


def test_an_answer_that_falls_silent_is_given_up(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = checked(capsys, f"{server.url}/idle", "--timeout", "0.6")
    assert code == cli.BROKEN
    assert found["findings"][0]["code"] == "stalled"
