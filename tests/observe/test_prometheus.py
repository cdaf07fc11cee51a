"""The numbers of Prometheus, of one worker and of two."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from streamguard.observe.measures import Measures
from streamguard.observe.metrics import LEGS, METRICS
from streamguard.observe.prometheus import CONTENT_TYPE, Prometheus
from streamguard.runtime.admission import Admission
from streamguard.runtime.slots import Limits
from tests.observe.mixed import KINDS, worked
from tests.observe.pages import differences, samples
from tests.observe.processes import ROOT, in_workers

SEVERAL = 3 * len(KINDS)


def test_every_number_equals_what_was_done() -> None:
    done = worked(SEVERAL, 1, Prometheus(CollectorRegistry()))
    assert differences(done.expected, done.page) == {}
    moved = {name.partition("{")[0].removesuffix("_count") for name, value in samples(done.page).items() if value}
    still = {metric.name for metric in METRICS.values() if metric.kind != "gauge"} - moved
    # Of a reader that gives credit (tests/adapters/test_watching.py), and where tokens are sampled (below).
    assert still == {"streamguard_ack_rtt_seconds", "streamguard_token_leg_seconds"}


def test_tokens_are_sampled_where_that_is_wanted() -> None:
    done = worked(len(KINDS), 6, Prometheus(CollectorRegistry(), every=1))
    found = samples(done.page)
    legs = {name: value for name, value in found.items() if name.startswith("streamguard_token_leg_seconds_count")}
    assert all(legs.values())
    assert len(legs) == len(LEGS) - 2  # no source here has a buffer, and no reader gives credit
    assert {name: pair for name, pair in differences(done.expected, done.page).items() if name not in legs} == {}


def test_a_number_that_is_wrong_is_found() -> None:
    done = worked(len(KINDS), 2, Prometheus(CollectorRegistry()))
    name = 'streamguard_items_total{part="direct"}'
    assert list(differences({**done.expected, name: done.expected[name] + 1}, done.page)) == [name]


def test_the_numbers_of_two_workers_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    told = in_workers(len(KINDS), seeds=(3, 4))
    page = Prometheus(CollectorRegistry()).page()  # any process answers for all
    assert differences(told, page) == {}


OPENS = """
from streamguard.observe.prometheus import Prometheus
metrics = Prometheus()
metrics.shift("streams_open", 3, "direct")
metrics.add("streams_opened_total", 3, "direct")
print(flush=True)
input()
"""


def test_a_worker_that_was_killed_leaves_no_open_streams_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    opened, counted = 'streamguard_streams_open{part="direct"}', 'streamguard_streams_opened_total{part="direct"}'
    metrics = Prometheus(CollectorRegistry())
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", OPENS], cwd=ROOT, **pipes) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        (tmp_path / "gauge_livesum_1.db").write_bytes(bytes(64))  # of a process that lives
        found = samples(metrics.page())
        assert (found[opened], found[counted]) == (3, 3)
        assert (found["streamguard_requests_waiting"], found["streamguard_draining"]) == (0, 0)
        worker.kill()
    found = samples(metrics.page())
    assert (found.get(opened, 0), found[counted]) == (0, 3)
    assert [path.name for path in tmp_path.glob("gauge_live*")] == ["gauge_livesum_1.db"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "none"))
    with pytest.raises(ValueError, match=r"PROMETHEUS_MULTIPROC_DIR names no folder: .*none'. Make it, empty, before"):
        Prometheus(CollectorRegistry())


def test_the_page_has_every_metric_by_its_name_kind_and_labels() -> None:
    done = worked(len(KINDS), 5, Prometheus(CollectorRegistry()))
    families = {family.name: family for family in text_string_to_metric_families(done.page.decode())}
    for metric in METRICS.values():
        family = families[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        for sample in family.samples:
            for label, value in sample.labels.items():
                assert label == "le" or value in metric.labels[label], f"{metric.name}: {label}={value}"
    assert CONTENT_TYPE.startswith("text/plain")


def test_what_an_alert_looks_at_is_there_before_it_moves() -> None:
    found = samples(Prometheus(CollectorRegistry()).page())
    assert found['streamguard_tokens_lost_total{part="direct"}'] == 0
    assert found['streamguard_takeovers_total{result="sealed"}'] == 0
    assert found['streamguard_requests_refused_total{why="upstream_unreachable"}'] == 0
    assert found['streamguard_streams_closed_total{cause="source_error",part="producer",status="failed"}'] == 0
    assert found['streamguard_blocked_seconds_count{by="transport"}'] == 0
    assert found['streamguard_time_to_first_frame_seconds_count{part="direct"}'] == 0


def test_every_end_of_a_stream_is_there_before_the_first_one() -> None:
    begun = set(samples(Prometheus(CollectorRegistry()).page()))
    moved = set(samples(worked(len(KINDS), 1, Prometheus(CollectorRegistry())).page))
    assert {name for name in moved - begun if "_closed_total{" in name or "_refused_total{" in name} == set()


def test_a_fresh_worker_has_them_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    in_workers(0, seeds=(1,))
    page = samples(Prometheus(CollectorRegistry()).page())
    assert page['streamguard_streams_closed_total{cause="source_error",part="direct",status="failed"}'] == 0
    assert page['streamguard_requests_refused_total{why="full"}'] == 0


def test_how_many_wait_is_asked_when_the_page_is() -> None:
    metrics, admission = Prometheus(CollectorRegistry()), Admission(Limits(max_streams=1))
    metrics.attached(admission)
    admission._slots.waiting = 7
    assert samples(metrics.page())["streamguard_requests_waiting"] == 7


def test_one_registry_has_one_of_each() -> None:
    registry = CollectorRegistry()
    Prometheus(registry)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        Prometheus(registry)


@pytest.mark.parametrize("verb", ["add", "record", "put", "shift"])
def test_a_back_end_says_how_a_number_is_kept(verb: str) -> None:
    with pytest.raises(NotImplementedError):
        getattr(Measures(), verb)("items_total", 1)
