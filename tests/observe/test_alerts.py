"""The alerts, by Prometheus's own tool: each fires on its fault, and none while all is well."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from streamguard.observe.alerts import ALERTS, rules
from streamguard.observe.metrics import METRICS
from streamguard.observe.prometheus import Prometheus
from tests.absence import require
from tests.observe.mixed import KINDS, worked
from tests.observe.pages import samples

CLOSED = 'streamguard_streams_closed_total{part="direct",status="%s",cause="%s"}'
FIRST = 'streamguard_time_to_first_frame_seconds_bucket{part="direct",le="%s"}'

# A minute apart: a hundred streams a minute of twenty items, of which one in a hundred fails.
WELL = {
    CLOSED % ("complete", ""): "0+99x60",
    CLOSED % ("failed", "source_error"): "0+1x60",
    'streamguard_tokens_lost_total{part="direct"}': "0x60",
    'streamguard_streams_open{part="direct"}': "30x60",
    'streamguard_blocked_seconds_sum{by="transport"}': "0+60x60",
    FIRST % "1.5": "0+99x60",
    FIRST % "6.0": "0+100x60",
    FIRST % "+Inf": "0+100x60",
    "streamguard_items_undelivered_total": "0+100x60",
    'streamguard_items_total{part="direct"}': "0+2000x60",
    'streamguard_takeovers_total{result="gone_on"}': "0x60",
    'streamguard_aborts_not_carried_total{hop="http10"}': "0x60",
    'streamguard_requests_refused_total{why="full"}': "0x60",
    'streamguard_requests_refused_total{why="forbidden"}': "0+50x60",
    'streamguard_requests_refused_total{why="upstream_silent"}': "0+1x30 30x30",
}

# What each fault does to one or two of these.
FAULTS: dict[str, dict[str, str]] = {
    "StreamguardAbnormalEnds": {CLOSED % ("failed", "source_error"): "0+20x60"},
    "StreamguardTokensLost": {'streamguard_tokens_lost_total{part="direct"}': "0x25 1x35"},
    "StreamguardReadersBlocked": {'streamguard_blocked_seconds_sum{by="transport"}': "0+900x60"},
    "StreamguardSlowFirstFrame": {FIRST % "1.5": "0+10x60", FIRST % "6.0": "0+20x60"},
    "StreamguardUndelivered": {
        "streamguard_items_undelivered_total": "0+900x60",
        'streamguard_items_total{part="direct"}': "0x60",
        'streamguard_items_total{part="producer"}': "0+2000x60",  # of a guard, which has no others
    },
    "StreamguardTakeovers": {'streamguard_takeovers_total{result="gone_on"}': "0x25 1x35"},
    "StreamguardAbortsNotCarried": {'streamguard_aborts_not_carried_total{hop="http10"}': "0x25 2x35"},
    "StreamguardRefusals": {'streamguard_requests_refused_total{why="full"}': "0+5x60"},
    "StreamguardUpstreamDown": {'streamguard_requests_refused_total{why="upstream_unreachable"}': "0x25 0+2x35"},
}


def promtool(*arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    require("promtool", "apt-get install prometheus")
    return subprocess.run(["promtool", *arguments], input=given, capture_output=True, text=True, timeout=60)


def tried(
    folder: Path, fires: dict[str, list[str]], at: str = "30m", faults: dict[str, dict[str, str]] = FAULTS
) -> subprocess.CompletedProcess[str]:
    """A test of rules: in each world, a fault or none, exactly these alerts fire."""
    (folder / "rules.yml").write_text(rules(), encoding="utf-8")
    worlds: list[dict[str, Any]] = []
    for fault, firing in fires.items():
        series = {**WELL, **faults.get(fault, {})}
        checks = []
        for alert in ALERTS:
            told = {"exp_labels": {"severity": alert.severity}}
            told["exp_annotations"] = {"summary": alert.summary, "description": alert.description}
            expected = [told] if alert.name in firing else []
            checks.append({"eval_time": at, "alertname": alert.name, "exp_alerts": expected})
        inputs = [{"series": name, "values": values} for name, values in series.items()]
        worlds.append({"name": fault, "interval": "1m", "input_series": inputs, "alert_rule_test": checks})
    test = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": worlds}
    (folder / "test.yml").write_text(json.dumps(test), encoding="utf-8")
    return promtool("test", "rules", str(folder / "test.yml"))


def test_each_alert_fires_on_its_fault_and_no_other_does(tmp_path: Path) -> None:
    assert set(FAULTS) == {alert.name for alert in ALERTS}
    done = tried(tmp_path, {"all is well": [], **{name: [name] for name in FAULTS}})
    assert done.returncode == 0, done.stdout + done.stderr


# Each from a process that is new: its series are there, as zero, for as long as one scrape.
BURSTS = {
    "StreamguardAbnormalEnds": {
        CLOSED % ("failed", "upstream_broke"): "_x26 0 80x33",
        CLOSED % ("complete", ""): "0x60",
    },
    "StreamguardTokensLost": {'streamguard_tokens_lost_total{part="direct"}': "_x26 0 1x33"},
    "StreamguardRefusals": {'streamguard_requests_refused_total{why="full"}': "_x22 0 80x37"},
    "StreamguardUpstreamDown": {'streamguard_requests_refused_total{why="upstream_unreachable"}': "_x26 0 20x33"},
}


def test_the_first_burst_of_a_fresh_process_is_seen(tmp_path: Path) -> None:
    done = tried(tmp_path, {name: [name] for name in BURSTS}, faults=BURSTS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_a_burst_moves_is_there_from_the_start() -> None:
    begun = samples(Prometheus(CollectorRegistry()).page())
    for series in BURSTS.values():
        for name in series:
            metric, _, labels = name.rstrip("}").partition("{")
            assert f"{metric}{{{','.join(sorted(labels.split(',')))}}}" in begun


def test_an_alert_that_does_not_fire_is_found(tmp_path: Path) -> None:
    assert tried(tmp_path, {"all is well": ["StreamguardTakeovers"]}).returncode == 1


def test_the_file_of_rules_is_one(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(rules(), encoding="utf-8")
    done = promtool("check", "rules", str(tmp_path / "rules.yml"))
    assert done.returncode == 0, done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


def test_the_page_is_as_prometheus_wants_pages() -> None:
    done = promtool("check", "metrics", given=worked(len(KINDS), 1, Prometheus(CollectorRegistry())).page.decode())
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_alerts_name_only_metrics_and_labels_that_exist() -> None:
    for alert in ALERTS:
        check_names(alert.expression)


def check_names(expression: str) -> None:
    """Every metric of an expression exists, and has the labels that are asked for, with values that it can have."""
    names = {metric.name: metric for metric in METRICS.values()}
    found = re.findall(r"(streamguard_\w+)(?:\{([^}]*)\})?", expression)
    assert found, expression
    for name, selector in found:
        base = re.sub("_(bucket|sum|count)$", "", name)
        metric = names.get(name) or names[base]
        assert name == metric.name or metric.kind == "histogram"
        for label, _, values in re.findall(r'(\w+)(=~|!~|!=|=)"([^"]*)"', selector):
            assert set(values.split("|")) <= set(metric.labels[label]), f"{name}: {label}"
