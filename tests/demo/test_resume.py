"""The lab's third experiment: cut again and again, and whole at the end; and it can fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from rich.console import Console

from streamguard.demo import report, resume
from streamguard.demo.model import Answer, long_answer
from streamguard.demo.resume import LOGS, ResumeResult, ResumeRow


def started(title: str, total: int) -> Callable[[], object]:
    return lambda: None


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cuts: a client waits two seconds before it comes back."""
    monkeypatch.setattr(resume, "CUTS", 2)
    monkeypatch.setattr(resume, "LOGS", ("memory", "sqlite"))


async def experiment() -> ResumeResult:
    return await resume.run(1, 1, start=started)


def test_every_cut_is_resumed_and_the_text_is_the_one_that_was_generated(few: None) -> None:
    result = anyio.run(experiment)
    assert [(row.log, row.identical, row.cuts, row.resumes) for row in result.rows] == [
        ("memory", 1, 2, 2),
        ("sqlite", 1, 2, 2),
    ]
    assert result.kept


def test_another_text_is_found(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(seed: int, number: int) -> Answer:
        answer = long_answer(seed, number)
        return Answer((*answer.tokens[:-1], "other"), answer.gaps, answer.store)

    monkeypatch.setattr(resume, "long_answer", other)
    assert not anyio.run(experiment).kept


@pytest.mark.parametrize("log", LOGS)
def test_a_log_that_is_not_here_says_what_to_install(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "find_spec", lambda name: None)
    why_not = resume.installed(log)
    assert (why_not is None) is (log != "redis")
    if why_not is not None:
        assert "streamguard-io[redis]" in why_not


def test_a_log_without_its_server_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "find_spec", lambda name: object())
    monkeypatch.setattr(resume.shutil, "which", lambda name: None)
    assert resume.installed("redis") == "no redis-server on the path"


RESULT = ResumeResult(1, [ResumeRow("memory", 5, 5, 50, 50, 2, 22.0), ResumeRow("redis", why_not="not installed")])


def test_the_report_has_a_row_for_each_log() -> None:
    console = Console(record=True, width=120)
    report.print_resumes(RESULT, console)
    text = console.export_text()
    assert "5 of 5" in text
    assert "not installed" in text
    assert "Nothing was lost" in text


def test_what_to_install_for_a_log_that_is_not_here_stands_whole_below_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resume, "find_spec", lambda name: None)
    console = Console(record=True, width=60)
    why_not = resume.installed("redis")
    report.print_resumes(ResumeResult(1, [RESULT.rows[0], ResumeRow("redis", why_not=why_not)]), console)
    lines = console.export_text().splitlines()
    assert f"redis was not tried: {why_not}" in lines
    assert "streamguard-io[redis]" in str(why_not)
    assert lines.index(f"redis was not tried: {why_not}") > next(n for n, line in enumerate(lines) if "5 of 5" in line)


def test_the_json_has_what_was_counted() -> None:
    found: dict[str, Any] = json.loads(report.resume_json(RESULT))
    assert found["kept"] is True
    assert [row["duplicates"] for row in found["rows"]] == [2, 0]
