"""A process dies, or is stopped, at the step that was named, the time that was named."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from streamguard.log import base
from streamguard.testing import crash
from tests.modules import ROOT


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    crash.disarm()
    assert base.crash is None


def reach(*steps: str) -> None:
    assert base.crash is not None
    for step in steps:
        base.crash(step)


def test_nothing_is_armed_unless_somebody_asks() -> None:
    assert base.crash is None
    crash.arm({})
    assert base.crash is None


def test_a_step_counts_by_itself_and_strikes_once() -> None:
    struck: list[int] = []
    crash.crash_at("before-append", number=2, then=lambda: struck.append(1))
    reach("before-append", "in-takeover", "in-takeover")
    assert struck == []
    reach("before-append", "before-append")
    assert struck == [1]


def test_a_step_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no step 'before'"):
        crash.crash_at("before")
    for wish in ("before-append:1:explode", "before-append:x", "before:1"):
        with pytest.raises(ValueError, match=r"kill or stop|invalid literal|there is no step"):
            crash.arm({crash.VARIABLE: wish})


def test_every_step_that_is_reached_has_a_name_in_the_list() -> None:
    """The steps of the library's own source, read from it."""
    found = set()
    for path in (ROOT / "streamguard").rglob("*.py"):
        if path.name != "crash.py":
            found |= set(re.findall(r'\bcrash\("([a-z-]+)"\)', path.read_text()))
    assert found == set(crash.POINTS)


SCRIPT = """
import os
from streamguard.log import base
from streamguard.testing import crash
crash.arm(os.environ)
for number in range(3):
    print(number, flush=True)
    base.crash("before-append")
print("alive", flush=True)
"""


def begun(wish: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        env={**os.environ, crash.VARIABLE: wish},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_process_kills_itself_where_its_environment_says() -> None:
    with begun("before-append:2") as process:
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, out.split()) == (-signal.SIGKILL, ["0", "1"])


def test_a_process_stops_itself_and_goes_on_when_it_is_told() -> None:
    with begun("before-append:2:stop") as process:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, out.split()) == (0, ["0", "1", "2", "alive"])
