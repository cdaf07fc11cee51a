"""Metrics for Prometheus, by prometheus-client (`pip install "streamguard-io[prometheus]"`).

    metrics = Prometheus()

    @guarded(observe=metrics)

One for a process and registry, given to everything that streams; `metrics.page()` is what a scrape is answered with.
With several workers prometheus-client keeps the numbers in files (`PROMETHEUS_MULTIPROC_DIR`, set before it is
imported), and any worker answers for all: counters and histograms add up, and each gauge says how it is read
(`METRICS`, `across`). The gauges of a worker that was killed are taken away when the page is made: who was there to do
it may not have been told.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from streamguard.observe.measures import Measures
from streamguard.observe.metrics import METRICS, Metric

__all__ = ["CONTENT_TYPE", "Prometheus"]

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Prometheus(Measures):
    """An observer that keeps every metric of `METRICS` in `registry`. Raises ValueError where that has them already:
    one is enough for a process; and where the folder that PROMETHEUS_MULTIPROC_DIR names is none. One token in `every`
    is timed on its way (`token_leg_seconds`); 0: none."""

    def __init__(self, registry: CollectorRegistry = REGISTRY, *, every: int = 0) -> None:
        super().__init__(every)
        self.registry = registry
        self._folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
        if self._folder is not None and not os.path.isdir(self._folder):
            raise ValueError(
                f"PROMETHEUS_MULTIPROC_DIR names no folder: {self._folder!r}. Make it, empty, before the server starts"
            )
        self._kept: dict[str, Any] = {name: _made(metric, registry) for name, metric in METRICS.items()}
        self._children: dict[tuple[str, ...], Any] = {}
        for name, metric in METRICS.items():
            for values in metric.initial:
                self._child(name, *values)
        if self._folder is None:  # else the files would not have what is only asked for here
            around = self.surroundings
            self._kept["requests_waiting"].set_function(lambda: around.waiting)
            self._kept["streams_detached"].set_function(lambda: around.detached)
            self._kept["draining"].set_function(lambda: around.draining)

    def _child(self, *key: str) -> Any:
        child = self._children.get(key)
        if child is None:
            kept = self._kept[key[0]]
            child = self._children[key] = kept.labels(*key[1:]) if len(key) > 1 else kept
        return child

    def add(self, name: str, amount: float, *labels: str) -> None:
        if amount:
            self._child(name, *labels).inc(amount)

    def record(self, name: str, value: float, *labels: str) -> None:
        self._child(name, *labels).observe(value)

    def put(self, name: str, value: float, *labels: str) -> None:
        if self._folder is not None:
            self._child(name, *labels).set(value)

    def shift(self, name: str, amount: float, *labels: str) -> None:
        self._child(name, *labels).inc(amount)

    def page(self) -> bytes:
        """What a scrape is answered with, of type CONTENT_TYPE: all of the registry, or of all workers."""
        if self._folder is None:
            return generate_latest(self.registry)
        _forget_the_dead(self._folder)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)


def _forget_the_dead(folder: str) -> None:
    """Take the gauges of processes away that are no more. A number that another process has by now keeps them."""
    found = (re.fullmatch(r"gauge_live[a-z]+_([0-9]+)\.db", name) for name in os.listdir(folder))
    for pid in {int(each[1]) for each in found if each is not None}:
        if not _lives(pid):
            with contextlib.suppress(FileNotFoundError):  # another worker makes a page at this moment
                mark_process_dead(pid, folder)  # type: ignore[no-untyped-call]


def _lives(pid: int) -> bool:
    """Whether there may be such a process here."""
    if os.name != "posix":  # where this signal is one that ends
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # another user's, or none of a name that a worker would write
        pass
    return True


def _made(metric: Metric, registry: CollectorRegistry) -> Any:
    names = tuple(metric.labels)
    if metric.kind == "counter":
        return Counter(metric.name, metric.help, names, registry=registry)
    if metric.kind == "histogram":
        return Histogram(metric.name, metric.help, names, registry=registry, buckets=metric.buckets)
    return Gauge(metric.name, metric.help, names, registry=registry, multiprocess_mode=metric.across or "all")
