"""Several workers: what a stream's reader meets at a worker that did not start it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from streamguard.client import ResumePolicy, Verdict
from streamguard.core.errors import StreamGap
from streamguard.log.base import StreamLog
from streamguard.log.memory import MemoryLog
from streamguard.log.sqlite import SQLiteLog
from tests.adapters.logged_apps import Site
from tests.adapters.servers import Gate, serving
from tests.client.reading import Read, read
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
