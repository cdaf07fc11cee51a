"""The samples of a page of metrics, and where they differ from what is expected."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

__all__ = ["differences", "samples", "unequal"]


def samples(page: bytes) -> dict[str, float]:
    """The samples of a page, but for those of which only a clock knows the value."""
    found = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            if sample.name.endswith(("_created", "_sum", "_bucket")) or not sample.name.startswith("streamguard_"):
                continue
            labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()) if key != "pid")
            name = sample.name + (f"{{{labels}}}" if labels else "")
            found[name] = found.get(name, 0.0) + sample.value
    return found


# What no test can know beforehand: bytes, and what was sampled by a clock.
UNKNOWN = ("streamguard_frame_bytes", "streamguard_sent_bytes", "streamguard_loop_lag", "streamguard_log_append")


def differences(expected: dict[str, float], page: bytes) -> dict[str, tuple[float, float]]:
    """What is expected, and what the page has, wherever they differ. All else must be zero."""
    return unequal(expected, samples(page))


def unequal(expected: Mapping[str, float], found: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """The same of what was found."""
    names = {name for name in (*expected, *found) if not name.startswith(UNKNOWN)}
    pairs = {name: (float(expected.get(name, 0)), found.get(name, 0.0)) for name in names}
    return {name: pair for name, pair in sorted(pairs.items()) if pair[0] != pair[1]}
