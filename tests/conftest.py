"""What every test gets: hypothesis profiles, the event loops, and an account of skips.

Hypothesis: `HYPOTHESIS_PROFILE=ci` (the default: 200 examples, the same ones every time) or `proof`
(20,000, seeded by `--hypothesis-seed`). No deadlines: a slow machine is not a wrong answer.

Loops: a test marked `anyio` runs on asyncio, on asyncio with uvloop, and on trio. One that needs a
real uvicorn overrides `anyio_backend` with the asyncio ones (`ASYNCIO_BACKENDS`); one in a folder of virtual time
that needs real time, with `LOOPS`, or by the mark `real_loops`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.absence import IN_CI, absent

__all__ = ["ASYNCIO_BACKENDS", "LOOPS", "real_loops"]

@pytest.fixture(autouse=True)
def drain_of_sse_starlette(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off: whichever test imports that library, GuardMiddleware would warn of it in every later one."""
    status = getattr(sys.modules.get("sse_starlette.sse"), "AppStatus", None)
    if status is not None:
        monkeypatch.setattr(status, "enable_automatic_graceful_drain", False)


settings.register_profile(
    "ci",
    max_examples=200,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "proof",
    max_examples=20_000,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
# For `python -m tests.proofs mutants`, which runs the tests some thousand times, and where they are run once more: on
# other Pythons, and to see what they cover.
settings.register_profile("few", settings.get_profile("ci"), max_examples=60)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

_WITHOUT_UVLOOP = pytest.mark.skipif(absent("uvloop"), reason="absent: uvloop (install it with: pip install uvloop)")

ASYNCIO_BACKENDS = [
    pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
    pytest.param(("asyncio", {"use_uvloop": True}), id="asyncio+uvloop", marks=_WITHOUT_UVLOOP),
]
LOOPS = [*ASYNCIO_BACKENDS, pytest.param(("trio", {}), id="trio")]
real_loops = pytest.mark.parametrize("anyio_backend", LOOPS)


@pytest.fixture(params=LOOPS, scope="session")
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


def _refuse_skip(report: pytest.CollectReport | pytest.TestReport) -> None:
    """In CI a skipped test is a failed one: what was not tried is not known to work."""
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped, and STREAMGUARD_CI=1 allows no skip: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each thing that was missing, so that a reader can install it."""
    missing = set()
    for report in terminalreporter.stats.get("skipped", []):
        reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
        if "absent: " in reason:
            missing.add(reason.partition("absent: ")[2])
    for reason in sorted(missing):
        terminalreporter.write_line(f"not tried, for absence of {reason}")
