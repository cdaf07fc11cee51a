"""The reference page, and the command that makes it."""

from __future__ import annotations

from typing import Any

import pytest

from streamguard.observe.__main__ import main
from streamguard.observe.alerts import ALERTS, rules
from streamguard.observe.dashboard import dashboard
from streamguard.observe.metrics import METRICS
from streamguard.observe.reference import reference
from tests.modules import ROOT


def test_the_page_in_the_docs_is_the_one_that_the_command_makes() -> None:
    page = ROOT / "docs" / "reference" / "metrics.md"
    assert page.read_text(encoding="utf-8") == reference(), "python -m streamguard.observe reference > " + str(page)


def test_every_metric_and_alert_has_a_row() -> None:
    rows = [line for line in reference().splitlines() if line.startswith("| `")]
    for name in [metric.name for metric in METRICS.values()] + [alert.name for alert in ALERTS]:
        assert any(row.startswith(f"| `{name}` |") for row in rows), name
    assert all(len(row.replace("\\|", "").split("|")) in (4, 6) for row in rows)


@pytest.mark.parametrize(("what", "made"), [("rules", rules), ("dashboard", dashboard), ("reference", reference)])
def test_the_command_prints_what_is_asked_for(what: str, made: Any, capsys: Any) -> None:
    assert main([what]) == 0
    assert capsys.readouterr().out == made()


def test_anything_else_is_refused(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main(["anything"])
    assert "rules" in capsys.readouterr().err
