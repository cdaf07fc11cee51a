"""Two processes over one file: killed, stopped, cut, in the middle of a stream. The reader ends with the same text."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import httpx
import pytest

from streamguard.client import ResumePolicy, Verdict, stream_sync
from streamguard.testing import crash as points
from tests.processes.crashes import DEADLINE, Read, Troupe, crash, died, kill, stop
from tests.processes.worker import LENGTH, text_of

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system stops processes in other ways")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Troupe]:
    """A worker that nothing happens to."""
    with Troupe(tmp_path_factory.mktemp("processes") / "streams.db") as troupe:
        troupe.hire()
        yield troupe


@pytest.fixture
def troupe(stage: Troupe) -> Iterator[Troupe]:
    """The same, and whoever a test hires is dismissed after it."""
    stay = list(stage.workers)
    yield stage
    for worker in [worker for worker in stage.workers if worker not in stay]:
        stage.dismiss(worker)


@pytest.mark.parametrize("point", points.POINTS)
def test_a_worker_that_dies_at_a_step_costs_its_reader_nothing(point: str, troupe: Troupe) -> None:
    story = 1000 + points.POINTS.index(point)
    found, struck = crash(troupe, point, story)
    assert died(struck), "the step was not reached"
    assert (found.status, found.text, found.doubles) == ("complete", text_of(story), 0)
    assert found.requests >= 2


@pytest.mark.parametrize("story", range(5))
def test_a_worker_that_is_killed_at_any_moment_costs_its_reader_nothing(story: int, troupe: Troupe) -> None:
    found, struck = kill(troupe, story)
    assert struck
    assert (found.status, found.text, found.doubles) == ("complete", text_of(story), 0)


def test_a_stream_that_is_cut_is_resumed_on_the_other_worker_while_the_first_tells_on(troupe: Troupe) -> None:
    teller = troupe.hire()
    cuts: list[int] = []

    def cut(found: Read) -> None:
        if found.frames // 10 > len(cuts) and found.status is None:
            cuts.append(found.frames)
            troupe.workers.reverse()
            troupe.router.cut()

    found = troupe.read(2000, cut)
    assert (found.status, found.text, found.doubles) == ("complete", text_of(2000), 0)
    assert len(cuts) >= 3
    assert found.requests >= 2  # those in one piece of bytes are one, and a slow reader has large pieces
    assert teller.process.poll() is None


def test_the_client_resumes_on_the_other_worker(troupe: Troupe) -> None:
    teller = troupe.hire(silence=2 * DEADLINE)  # else a slow reader has all that it said before it is dismissed
    url = f"{troupe.router.url}/stories/2001"
    text = ""
    with stream_sync("POST", url, resume=ResumePolicy(base=0.01, attempts=20)) as answer:
        for piece in answer.text():
            text += piece
            if len(text.split()) == 20 and teller in troupe.workers:
                troupe.dismiss(teller)
    assert (answer.receipt.verdict, text) == (Verdict.COMPLETE, text_of(2001))
    assert answer.receipt.resumes >= 1


def test_a_worker_that_is_told_to_go_hands_its_stream_over(troupe: Troupe) -> None:
    """It would be silent for longer than the test has: nobody waits for it."""
    teller = troupe.hire(silence=2 * DEADLINE)

    def tell(found: Read) -> None:
        if found.frames == LENGTH // 2 and teller in troupe.workers:
            troupe.workers.remove(teller)
            teller.process.terminate()

    found = troupe.read(2002, tell)
    assert (found.status, found.text, found.doubles) == ("complete", text_of(2002), 0)
    teller.process.wait(DEADLINE)
    said = teller.close()
    assert "Task was destroyed" not in said, said


def wait_for(worker_url: str) -> None:
    """Until a worker generates nothing."""
    end = time.monotonic() + DEADLINE
    while httpx.get(f"{worker_url}/runs", timeout=DEADLINE).text != "0":
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_worker_that_was_stopped_before_its_write_cannot_write_when_it_wakes(troupe: Troupe) -> None:
    found, stopped = stop(troupe, 3000)
    try:
        assert (found.status, found.text) == ("complete", text_of(3000))
        wait_for(stopped.url)
        again = troupe.read(3000)
        assert (again.status, again.text, again.cursor) == ("complete", text_of(3000), found.cursor)
    finally:
        said = stopped.close()
    assert "lease" in said or "ended already" in said
