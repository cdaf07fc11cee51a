"""What is printed: figures, words as they are, JSON, and the answer while it runs."""

from __future__ import annotations

import io
import json
import re

from rich.console import Console

from streamguard.check.diagnosis import diagnose
from streamguard.check.evidence import Evidence, Leave, Probe
from streamguard.check.observation import Observation
from streamguard.check.report import as_json, live, outcome, print_report
from streamguard.check.request import Request
from tests.check.seen import END, SSE, evidence, paced, seen


def printed(seen: Evidence, width: int = 100, *, terminal: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, force_terminal=terminal)
    print_report(seen, diagnose(seen), console)
    return out.getvalue()


def test_figures_come_before_what_they_mean() -> None:
    run = seen(*paced(), headers={**SSE, "server": "nginx/1.22.1"})
    found = evidence(run, probe=Probe(0.1, 0.12), leave=Leave("by its gauge", 1.2, 2.0, 0.05))
    shown = re.sub(" +", " ", printed(found))
    for words in (
        "GET http://host/chat", "200, HTTP/1.1, OpenAI chat completions", "server: nginx/1.22.1",
        "to the first token 0.050 s", "24, 24 arrivals", "clean; end marker", "answered after 0.020 s",
        "noticed after 0.05 s of 1.20 (by its gauge)", "up to 100 ms █", "not seen (nothing names one)",
        "note: unguarded", " change: @guarded on the endpoint", "In order.",
        " see: tutorial/first-stream.md, in streamguard's documentation",
    ):  # fmt: skip
        assert words in shown, words


def test_an_answer_that_runs_to_its_end_was_not_stopped_by_its_readers_leaving() -> None:
    """It read "noticed after 3.12 s of 3.07"."""
    for resumable, words in (
        (False, "a reader that leaves not noticed: the answer ran on for 3.12 s of 3.07, to its end (by its gauge)"),
        (True, "a reader that leaves the answer ran on for 3.12 s, as for one that comes back (by its gauge)"),
    ):
        leave = Leave("by its gauge", 3.07, 4.0, 3.12, resumable=resumable)
        assert words in re.sub(" +", " ", printed(evidence(seen(*paced()), leave=leave)))


def test_where_it_is_no_terminal_nothing_is_wrapped_or_padded() -> None:
    """What reads it is grep: half a field is in no line."""
    long = {**SSE, "server": "nginx/1.22.1", "via": "1.1 " + "a" * 90, "cache-control": "no-store, no-transform"}
    found = evidence(seen(*paced(), headers=long))
    lines = printed(found, width=80).splitlines()
    assert any("via: 1.1 aaa" in line and line.endswith("cache-control: no-store, no-transform") for line in lines)
    assert [line for line in lines if line != line.rstrip()] == []
    assert any(re.fullmatch(r" *up to 100 ms █+ 2[34]", line) for line in lines)
    wrapped = printed(found, width=80, terminal=True).splitlines()
    assert max(map(len, wrapped[:20])) <= 80


def test_faults_are_counted_and_their_settings_are_not_cut_to_a_column() -> None:
    torn = seen(*paced()[:-1], clean=False, why="peer closed [the] connection")
    shown = printed(evidence(torn, leave=Leave("by its gauge", 1.2, 3.0), selftest=seen((0.1, END))))
    assert "cut: peer closed [the] connection" in shown
    assert "\n  change: the server's log; a limit on whole answers on the way (Envoy: timeout: 0s)\n" in shown
    assert "not noticed in 3.0 s" in shown
    assert "a clean end: it looks whole" in shown
    assert shown.endswith("3 faults.\n")
    assert "1 fault.\n" in printed(evidence(torn))


def test_several_answers_have_a_median_and_a_range() -> None:
    shown = printed(evidence(seen(*paced(start=0.1)), seen(*paced(20, start=0.3)), probe=Probe(0.1, None)))
    assert "0.200 s (0.100 to 0.300)" in shown
    assert "20 to 24, 20 to 24 arrivals" in shown
    assert "not answered" in shown


def test_a_stream_of_nothing_has_no_times() -> None:
    shown = re.sub(" +", " ", printed(evidence(seen(end=0.2))))
    assert "to the first token -" in shown
    assert "time between tokens" not in shown
    assert "fault: missing_terminal" in shown


def test_what_is_no_stream_is_shown_as_it_came() -> None:
    refused = evidence(seen((0.1, b'{"error": "[key]"}'), status=401))
    shown = printed(refused)
    assert "There was no stream to check: the answer's status is 401." in shown
    assert '{"error": "[key]"}' in shown
    assert outcome(refused, diagnose(refused)) == "no stream"
    assert "nothing was asked" in printed(Evidence(Request("GET", "http://host/")))


def test_an_answer_that_stopped_before_its_head_is_a_fault_that_is_told() -> None:
    shown = printed(evidence(seen(head=None, end=60.0, clean=False, why="disconnected")))
    assert "fault: idle_cut" in shown
    assert "1 fault." in shown


def test_what_a_server_says_moves_no_cursor() -> None:
    trick = "\x1b[2J\x07"
    headers = {**SSE, "server": trick}
    for found in (
        evidence(seen((0.1, f"oops {trick}\nsecond\r\n".encode()), status=500, headers=headers)),
        evidence(seen((0.1, f'data: {{"error": {{"message": "{trick}"}}}}\n\n'.encode()), headers=headers)),
        evidence(seen(clean=False, why=trick, headers=headers)),
        evidence(seen(headers={**headers, "content-type": trick})),
    ):
        shown = printed(found)
        assert "\x1b" not in shown
        assert "\\x1b[2J" in shown


def test_json_has_all_of_it() -> None:
    found = evidence(seen(*paced()), selftest=seen((0.1, END)), plain=seen(*paced()), leave=Leave("g", 1.0, 2.0, 0.1))
    fields = json.loads(as_json(found, diagnose(found)))
    assert fields["verdict"] == "fault"
    assert [finding["code"] for finding in fields["findings"]] == ["abort_lost", "unguarded"]
    assert set(fields["findings"][0]) == {"code", "severity", "words", "setting", "page"}
    assert fields["answers"][0] == fields["without_compression"]
    assert sum(fields["answers"][0]["gaps"]["counts"]) == 23
    assert (fields["leave"]["told"], fields["leave"]["stopped"], fields["beside"]) == (True, 0.1, None)


def test_an_answer_is_shown_while_it_runs_and_only_on_a_terminal() -> None:
    quiet, loud = io.StringIO(), io.StringIO()
    with live(Console(file=quiet)) as stage:
        stage("the answer", Observation(0.0))
    assert quiet.getvalue() == ""
    run = seen(*paced())
    with live(Console(file=loud, force_terminal=True, width=100)) as stage:
        stage("the answer", seen())
        stage("the answer", run)
    assert "the answer" in loud.getvalue()
    assert "24 tokens" in loud.getvalue()
    assert "up to 100 ms" in loud.getvalue()
