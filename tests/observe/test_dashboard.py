"""The dashboard: what Grafana needs, and only metrics that exist."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

from streamguard.observe.dashboard import PANELS, dashboard
from streamguard.observe.metrics import METRICS
from tests.observe.test_alerts import check_names

MADE: dict[str, Any] = json.loads(dashboard())
GRAPHS = [panel for panel in MADE["panels"] if panel["type"] != "row"]


def test_the_dashboard_names_only_metrics_and_labels_that_exist() -> None:
    assert len(GRAPHS) == len(PANELS)
    for panel in GRAPHS:
        for target in panel["targets"]:
            check_names(target["expr"])
            by = re.search(r"sum by \((\w+)\)", target["expr"])
            if by is not None and by[1] != "le":
                assert target["legendFormat"] == f"{{{{{by[1]}}}}}"


def test_every_metric_is_on_it() -> None:
    text = dashboard()
    assert [metric.name for metric in METRICS.values() if metric.name not in text] == []


def test_no_two_panels_lie_on_each_other() -> None:
    def cells(panel: Any) -> set[tuple[int, int]]:
        at = panel["gridPos"]
        return set(itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])))

    taken: set[tuple[int, int]] = set()
    for panel in MADE["panels"]:
        assert not taken & cells(panel), panel["title"]
        taken |= cells(panel)
        assert max(x for x, _ in cells(panel)) < 24
    assert len({panel["id"] for panel in MADE["panels"]}) == len(MADE["panels"])


def test_queries_of_a_panel_have_names_of_their_own_and_ask_the_chosen_prometheus() -> None:
    (asked,) = MADE["__inputs"]
    for panel in GRAPHS:
        assert [target["refId"] for target in panel["targets"]] == ["A", "B", "C"][: len(panel["targets"])]
        assert panel["datasource"]["uid"] == f"${{{asked['name']}}}"
