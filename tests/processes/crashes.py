"""A story that is read to its end, whatever happens to the processes that tell it.

`Troupe` has workers over one log, and a router before them; `read` is a reader of the simplest kind: it asks again,
with the last cursor it has, until it sees the end, or is refused. `crash` lets the worker that tells the story die at a
named step, `kill` after a number of words, `restart` the Redis that it is kept in; each answers what the reader got.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import attrs
import httpx

from streamguard.core.cursor import Cursor
from streamguard.testing import crash as points
from tests.log.redis_server import RedisServer
from tests.modules import ROOT
from tests.processes.router import Router
from tests.processes.worker import LENGTH, TTL

__all__ = ["DEADLINE", "REDIS_POINTS", "Read", "Troupe", "Worker", "crash", "died", "kill", "restart", "stop"]

DEADLINE = 60.0  # seconds after which a reader gives up, and its test has failed
REDIS_POINTS = [point for point in points.POINTS if point != "inside-group-commit"]  # which is SQLite's
NUMBERS = {"before-append": 20, "between-append-and-delivery": 20, "inside-group-commit": 20}  # in mid story


class Worker:
    """One process. `how` is its STREAMGUARD_CRASH, `silence` how long its model is silent once."""

    def __init__(self, place: str, how: str = "", silence: float = 0.0) -> None:
        environment = {**os.environ, points.VARIABLE: how, "SILENCE": str(silence)}
        command = [sys.executable, "-m", "tests.processes.worker", place]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> str:
        """End it, and what it said."""
        self.process.kill()
        return self.process.communicate()[1]


@attrs.define
class Read:
    """What a reader got: the text, the status of the end or the code of the refusal, how many frames twice, and how
    often it asked."""

    text: str = ""
    status: str | None = None
    refused: str | None = None
    frames: int = 0
    doubles: int = 0
    requests: int = 0
    cursor: Cursor | None = None

    def take(self, block: str) -> None:
        """One event. Raises AssertionError for a frame that does not follow the last."""
        fields = dict(line.partition(": ")[::2] for line in block.split("\n") if line and not line.startswith(":"))
        if "id" not in fields or fields.get("event") == "open":
            return
        cursor = Cursor.parse(fields["id"])
        if self.cursor is not None:
            assert cursor.sid == self.cursor.sid, "a second generation"
            if cursor.seq <= self.cursor.seq:
                self.doubles += 1
                return
        assert cursor.seq == (self.cursor.seq if self.cursor is not None else 0) + 1, "a gap"
        self.cursor = cursor
        self.frames += 1
        self.status = cursor.status
        if "event" not in fields:
            self.text += json.loads(fields["data"])


class Troupe:
    """Workers over one log, a file or the address of a Redis, behind a router that prefers the first of them that takes
    a connection."""

    def __init__(self, place: object) -> None:
        self.place = str(place)
        self.workers: list[Worker] = []
        self.router = Router(lambda: [worker.port for worker in self.workers])
        self.said: list[str] = []

    def __enter__(self) -> Troupe:
        return self

    def __exit__(self, *exc: object) -> None:
        self.router.__exit__()
        for worker in self.workers:
            worker.close()

    def hire(self, how: str = "", *, silence: float = 0.0) -> Worker:
        """One more, preferred to all others."""
        self.workers.insert(0, Worker(self.place, how, silence))
        return self.workers[0]

    def dismiss(self, worker: Worker) -> None:
        self.workers.remove(worker)
        self.said.append(worker.close())

    def read(self, story: int, on_frame: Callable[[Read], None] | None = None) -> Read:
        """Read a story to its end, as often as it takes. The key makes all POSTs one stream."""
        found, end = Read(), time.monotonic() + DEADLINE
        headers = {"streamguard": "v=1", "idempotency-key": f"a-story-and-a-number-{story}"}
        with httpx.Client(timeout=httpx.Timeout(DEADLINE, connect=5.0)) as client:
            while found.status is None and found.refused is None:
                assert time.monotonic() < end, f"no end after {found.requests} requests: {found}"
                found.requests += 1
                try:
                    self._read_on(client, story, headers, found, on_frame)
                except httpx.TransportError:
                    time.sleep(0.02)
        return found

    def _read_on(
        self,
        client: httpx.Client,
        story: int,
        headers: dict[str, str],
        found: Read,
        on_frame: Callable[[Read], None] | None,
    ) -> None:
        if found.cursor is None:
            request = client.stream("POST", f"{self.router.url}/stories/{story}", headers=headers)
        else:
            more = {"streamguard": "v=1", "last-event-id": str(found.cursor)}
            request = client.stream("GET", f"{self.router.url}/streams", headers=more)
        with request as response:
            if response.status_code == 503:  # it has trouble with the log
                time.sleep(0.05)
                return
            if found.cursor is not None and response.status_code in (404, 409, 410):
                found.refused = json.loads(response.read())["code"]
                return
            assert response.status_code == 200, response.read()
            rest = ""
            for text in response.iter_text():
                *blocks, rest = (rest + text).split("\n\n")
                for block in blocks:
                    found.take(block)
                    if on_frame is not None:
                        on_frame(found)


def crash(troupe: Troupe, point: str, story: int) -> tuple[Read, Worker]:
    """Read a story whose worker dies at a step; what the reader got, and the worker that died."""
    number = NUMBERS.get(point, 1)
    if point == "in-takeover":
        struck = troupe.hire(f"{point}:{number}")
        first = troupe.hire()

        def kill_first(found: Read) -> None:
            if found.frames == LENGTH // 3 and first in troupe.workers:
                troupe.dismiss(first)

        return troupe.read(story, kill_first), struck
    struck = troupe.hire(f"{point}:{number}", silence=0.8 * TTL if point == "in-lease-renewal" else 0.0)
    return troupe.read(story), struck


def kill(troupe: Troupe, story: int) -> tuple[Read, bool]:
    """Read a story whose worker is killed at a moment that its number decides; what the reader got, and whether it
    was killed before that was all."""
    chance = random.Random(story)
    after, pause = chance.randrange(LENGTH), chance.random() * 0.02
    struck = False
    worker = troupe.hire()

    def strike(found: Read) -> None:
        nonlocal struck
        if found.frames >= after and found.status is None and not struck:
            time.sleep(pause)
            troupe.dismiss(worker)
            struck = True

    return troupe.read(story, strike), struck


def stop(troupe: Troupe, story: int) -> tuple[Read, Worker]:
    """Read a story whose worker is stopped between its last check and its write, and woken once another has taken
    over; what the reader got, and the worker, which runs."""
    stopped = troupe.hire("before-append:20:stop")
    woken = False

    def look(found: Read) -> None:
        nonlocal woken
        if found.frames == 15:  # soon it stands, and its reader would wait for ever
            os.waitid(os.P_PID, stopped.process.pid, os.WSTOPPED | os.WNOWAIT)
            troupe.workers.remove(stopped)
            troupe.router.cut()
        elif found.frames == LENGTH - 5 and not woken:
            woken = True
            stopped.process.send_signal(signal.SIGCONT)

    try:
        found = troupe.read(story, look)
        assert woken
    except BaseException:
        stopped.close()
        raise
    return found, stopped


def restart(troupe: Troupe, server: RedisServer, story: int, *, snapshot: int | None = None) -> Read:
    """Read a story while the Redis that it is kept in is killed and started again, in its middle; with `snapshot` it
    was told to save all after so many frames."""
    saved = struck = False

    def strike(found: Read) -> None:
        nonlocal saved, struck
        if snapshot is not None and found.frames == snapshot and not saved:
            saved = True
            with contextlib.closing(server.client()) as client:
                client.save()
        if found.frames == LENGTH // 2 and not struck:
            struck = True
            server.kill()
            server.start()

    found = troupe.read(story, strike)
    assert struck
    return found


def died(worker: Worker) -> bool:
    """Whether a worker ended itself."""
    return worker.process.wait(DEADLINE) == -signal.SIGKILL
