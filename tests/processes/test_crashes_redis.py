"""The same over Redis: workers that are killed and stopped, and a Redis that is, in the middle of a stream."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.log.redis_server import RedisServer, redis_server
from tests.processes.crashes import REDIS_POINTS, Troupe, crash, died, kill, restart, stop
from tests.processes.worker import LENGTH, text_of

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system stops processes in other ways")

# The others are in `python -m tests.proofs crashes`: what they stop at is not the log's.
POINTS = ["before-append", "between-append-and-delivery", "in-takeover"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def stage(server: RedisServer) -> Iterator[Troupe]:
    """A worker that nothing happens to."""
    with Troupe(server.url) as troupe:
        troupe.hire()
        yield troupe


@pytest.fixture
def troupe(stage: Troupe) -> Iterator[Troupe]:
    """The same, and whoever a test hires is dismissed after it."""
    stay = list(stage.workers)
    yield stage
    for worker in [worker for worker in stage.workers if worker not in stay]:
        stage.dismiss(worker)


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_that_dies_at_a_step_costs_its_reader_nothing(point: str, troupe: Troupe) -> None:
    assert point in REDIS_POINTS
    found, struck = crash(troupe, point, 1000 + POINTS.index(point))
    assert died(struck), "the step was not reached"
    assert (found.status, found.text, found.doubles) == ("complete", text_of(1000 + POINTS.index(point)), 0)


def test_a_worker_that_is_killed_at_any_moment_costs_its_reader_nothing(troupe: Troupe) -> None:
    found, struck = kill(troupe, 0)
    assert struck
    assert (found.status, found.text, found.doubles) == ("complete", text_of(0), 0)


def test_a_worker_that_was_stopped_before_its_write_cannot_write_when_it_wakes(troupe: Troupe) -> None:
    found, stopped = stop(troupe, 3000)
    try:
        assert (found.status, found.text) == ("complete", text_of(3000))
        again = troupe.read(3000)
        assert (again.status, again.text, again.cursor) == ("complete", text_of(3000), found.cursor)
    finally:
        stopped.close()


# ---- a Redis that is killed and started again ---------------------------------------------------


def test_a_redis_that_keeps_what_it_acknowledged_costs_a_reader_nothing(tmp_path: Path) -> None:
    with redis_server(tmp_path, appendonly="yes") as server, Troupe(server.url) as troupe:
        troupe.hire()
        found = restart(troupe, server, 4000)
    assert (found.status, found.text, found.doubles) == ("complete", text_of(4000), 0)


@pytest.mark.parametrize(("snapshot", "code"), [(None, "unknown_stream"), (10, "log_lost")], ids=["nothing", "less"])
def test_a_redis_that_keeps_less_is_said_so_and_no_text_is_wrong(
    snapshot: int | None, code: str, tmp_path: Path
) -> None:
    with redis_server(tmp_path) as server, Troupe(server.url) as troupe:
        troupe.hire()
        found = restart(troupe, server, 4001, snapshot=snapshot)
        assert (found.status, found.refused) == (None, code)
        assert found.frames >= LENGTH // 2
        assert text_of(4001).startswith(found.text)
        after = troupe.read(4002)  # other streams go on
    assert (after.status, after.text) == ("complete", text_of(4002))
