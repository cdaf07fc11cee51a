"""The definitions of metrics: names that Prometheus asks for, and labels with an end."""

from __future__ import annotations

import re

import pytest

from streamguard.observe.metrics import CAUSES, LEVELS, METRICS, OWN, PREFIX, REFUSALS, Metric, bounded
from tests.modules import ROOT

EACH = [pytest.param(metric, id=name) for name, metric in METRICS.items()]


@pytest.mark.parametrize("metric", EACH)
def test_a_name_says_its_kind_and_its_unit(metric: Metric) -> None:
    assert re.fullmatch(PREFIX + "[a-z_]+", metric.name)
    assert metric.name.endswith("_total") is (metric.kind == "counter")
    assert metric.unit in metric.name
    assert (metric.kind == "gauge") is (metric.across is not None)
    assert (metric.kind == "histogram") is bool(metric.buckets)
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert metric.level in LEVELS
    assert metric.help.endswith(".")


@pytest.mark.parametrize("metric", EACH)
def test_no_label_can_grow_without_end(metric: Metric) -> None:
    series = 1
    for values in metric.labels.values():
        assert len(set(values)) == len(values)
        series *= len(values)
    assert series <= 1000
    assert len(set(metric.initial)) == len(metric.initial) <= 100  # those are there from the start
    for values in metric.initial:
        assert all(value in known for value, known in zip(values, metric.labels.values(), strict=True))


def test_a_value_that_nobody_knows_beforehand_is_one_of_all_others() -> None:
    assert bounded("stalled", CAUSES) == "stalled"
    assert bounded("a text of the application's", CAUSES) == OWN


def test_every_code_that_the_reference_names_is_a_cause() -> None:
    text = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    tables = text.partition("## Codes in a failed terminal")[2].partition("## Codes of refusals")[0]
    cells = [line.split("|")[1] for line in tables.splitlines() if line.startswith("| ")]
    named = {code for cell in cells for code in re.findall(r"`([a-z_]+)`", cell)}
    assert len(named) > 20
    assert named <= set(CAUSES)


def test_every_code_of_a_refusal_in_the_source_is_known() -> None:
    found = set()
    package = ROOT / "streamguard"
    for path in [package / "core" / "exchange.py", *package.glob("adapters/*.py"), *package.glob("proxy/*.py")]:
        text = path.read_text(encoding="utf-8")
        found |= set(re.findall(r'(?:problem|come_back|cannot_resume|UpstreamFailed)\([^")]*?"([a-z_0-9]+)"', text))
        found |= set(re.findall(r'Refusal\([^)"]*code="([a-z_]+)"', text))
    assert {"upstream_unreachable", "body_too_slow", "unsealed"} <= found
    assert len(found) > 12
    assert found <= set(REFUSALS)
