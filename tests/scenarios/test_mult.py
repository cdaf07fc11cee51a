"""Several workers: what a stream's reader meets at a worker that did not start it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamguard.adapters.workers import declared_workers
from streamguard.client import ResumePolicy, Verdict
from streamguard.core.errors import StreamGap
from streamguard.log.base import StreamLog
from streamguard.log.memory import MemoryLog
from streamguard.log.sqlite import SQLiteLog
from tests.adapters.logged_apps import Site
from tests.adapters.servers import Gate, serving
from tests.client.reading import Read, read
from tests.modules import ROOT
from tests.processes.router import Router

WORDS = [f"t{number} " for number in range(6)]


def started_here_and_resumed_there(make_log: Callable[[], StreamLog]) -> tuple[Read, int]:
    """A stream whose reader is cut after three frames, and comes back at another worker; how often that one's source
    was started."""
    gate = Gate()
    here = Site(*WORDS[:3], gate, *WORDS[3:], log=make_log())
    there = Site(*WORDS, log=make_log())
    with serving(here.app) as one, serving(there.app) as two:
        ports = [one.port]
        with Router(lambda: ports) as router:

            def move(frame: Any) -> None:
                if frame.seq == 3:
                    ports[:] = [two.port]
                    router.cut()
                    gate.open()

            policy = ResumePolicy(attempts=3, base=0.0, max_wait=0.0)
            seen = read("sync", f"{router.url}/tokens", "POST", move, resume=policy)
        for server, site in ((one, here), (two, there)):
            site.idle()
            close: Callable[[], Any] = site.log.aclose
            server.call(close)
    return seen, there.source.starts


def test_a_stream_in_another_workers_memory_is_refused_and_the_cause_is_named() -> None:
    seen, starts = started_here_and_resumed_there(MemoryLog)
    assert isinstance(seen.error, StreamGap)
    assert seen.error.code == "unknown_stream"
    assert "the log of another process" in str(seen.error)
    assert (seen.text, starts) == ("".join(WORDS[:3]), 0)


def test_a_stream_in_a_shared_log_goes_on_at_another_worker(tmp_path: Path) -> None:
    seen, starts = started_here_and_resumed_there(lambda: SQLiteLog(tmp_path / "streams.db"))
    assert seen.error is None
    assert seen.receipt is not None
    assert (seen.receipt.verdict, seen.receipt.resumes) == (Verdict.COMPLETE, 1)
    assert (seen.text, starts) == ("".join(WORDS), 0)


# ---- a log of one process behind several workers --------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "environ", "count"),
    [
        (["/usr/bin/uvicorn", "app:app", "--workers", "4"], {}, 4),
        (["/lib/uvicorn/__main__.py", "--workers=2", "app:app"], {"WEB_CONCURRENCY": "8"}, 2),
        (["gunicorn", "-w", "3", "app:app"], {}, 3),
        (["/usr/bin/hypercorn", "-w5", "app:app"], {}, 5),
        (["/usr/bin/uvicorn", "app:app"], {"WEB_CONCURRENCY": "8"}, 8),
        (["/usr/bin/granian", "app:app"], {"GRANIAN_WORKERS": "2"}, 2),
        (["/usr/bin/uvicorn", "app:app", "--workers"], {}, 1),
        (["/usr/bin/uvicorn", "app:app"], {"WEB_CONCURRENCY": "many"}, 1),
        (["/usr/bin/pytest", "--workers", "4"], {"WEB_CONCURRENCY": "8"}, 1),
        ([], {}, 1),
    ],
)
def test_the_count_of_workers_is_read_where_a_server_is_told_it(
    argv: list[str], environ: dict[str, str], count: int
) -> None:
    assert declared_workers(argv, environ) == count


def test_every_worker_that_has_a_memory_of_its_own_says_so_when_it_starts(tmp_path: Path) -> None:
    (tmp_path / "split.py").write_text(
        "from starlette.applications import Starlette\n"
        "from streamguard import anyone_with_the_id\n"
        "from streamguard.adapters.starlette import StreamGuard\n"
        "from streamguard.log.memory import MemoryLog\n"
        "app = Starlette()\n"
        "StreamGuard(MemoryLog(), authorize=anyone_with_the_id).install(app)\n"
    )
    options = ["--app-dir", str(tmp_path), "--port", "0", "--workers", "2"]
    command = [sys.executable, "-m", "uvicorn", "split:app", *options]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            said = list(iter(process.stderr.readline, "INFO:     Application startup complete.\n"))
        finally:
            process.terminate()
    (line, *_) = [line for line in said if "MemoryLog keeps streams in one process" in line]
    assert "started with 2 workers" in line
    assert "SQLiteLog or RedisLog" in line


@pytest.mark.parametrize(("workers", "log"), [("1", MemoryLog), ("2", SQLiteLog)], ids=["one worker", "a shared log"])
def test_nothing_is_said_where_no_stream_can_be_missed(
    workers: str, log: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "argv", ["uvicorn", "--workers", workers])
    Site(log=log() if log is MemoryLog else log(tmp_path / "streams.db"))
    assert not caplog.records
