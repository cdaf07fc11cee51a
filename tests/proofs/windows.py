"""Whether the send window that learns sends as much as the best one that somebody could have chosen, and queues less.

Two network namespaces joined by a pair of TUN devices, whose packets this process carries: with a delay, some jitter
and loss, at a rate, behind a queue that is far too long, as those of home and mobile links are. A source that always
has more is served by uvicorn, with fixed windows and with the one that learns, under the system's congestion control.
"""

from __future__ import annotations

import os
import random
import select
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import attrs

from tests.modules import ROOT
from tests.proofs.figures import Point, trade_off
from tests.proofs.link_ends import PORTS
from tests.proofs.registry import Figure, Result, Run, Table, proof

__all__ = ["Carrier", "Way", "send_window"]

RATE = 500_000.0  # bytes a second
DELAY = 0.03  # seconds, each way
JITTER = 0.002
LOSS = 0.001
QUEUE = 250_000  # bytes: half a second
WINDOWS = ("16384", "32768", "65536", "131072")
WARM, SECONDS, EACH = 3, 4, 5
SHARE = 0.7


@attrs.define(eq=False)
class Way:
    """One direction: a queue before a pipe of `rate` bytes a second, then a delay. None overtakes another."""

    rate: float
    chance: random.Random
    free: float = 0.0
    last: float = 0.0
    waited: float = 0.0
    packets: int = 0
    going: deque[tuple[float, bytes]] = attrs.field(factory=deque)

    def take(self, packet: bytes, now: float) -> None:
        start = max(now, self.free)
        if (start - now) * self.rate > QUEUE:
            return
        self.free = start + len(packet) / self.rate
        self.waited += start - now
        self.packets += 1
        if self.chance.random() >= LOSS:
            self.last = max(self.last, self.free + DELAY + self.chance.random() * JITTER)
            self.going.append((self.last, packet))


class Carrier(threading.Thread):
    """Carries packets between two TUN devices: what comes from the first is limited, the way back only late."""

    def __init__(self, one: int, two: int, seed: int) -> None:
        super().__init__(name="carrier", daemon=True)
        chance = random.Random(seed)
        self.ways = {one: (two, Way(RATE, chance)), two: (one, Way(100 * RATE, chance))}
        self.forth = self.ways[one][1]
        self.over = False

    def run(self) -> None:
        while not self.over:
            now = time.monotonic()
            due = now + 0.05
            for to, way in self.ways.values():
                while way.going and way.going[0][0] <= now:
                    os.write(to, way.going.popleft()[1])
                if way.going:
                    due = min(due, way.going[0][0])
            for ready in select.select(list(self.ways), [], [], max(0.0, due - now))[0]:
                self.ways[ready][1].take(os.read(ready, 2048), time.monotonic())


@contextmanager
def _end(address: str, peer: str, what: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """A process at one end, and its device."""
    mine, its = socket.socketpair()
    with mine, its:
        command = [sys.executable, "-m", "tests.proofs.link_ends", str(its.fileno()), address, peer, what]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen(command, cwd=ROOT, text=True, pass_fds=[its.fileno()], **pipes)  # type: ignore[call-overload]
        try:
            _, (tun, *_), _, _ = socket.recv_fds(mine, 1, 1)
            yield tun, process
            os.close(tun)
        finally:
            process.kill()
            process.communicate()


def _measured(reader: subprocess.Popen[str], carrier: Carrier, control: str, window: str) -> tuple[float, float]:
    """Bytes a second that arrived, and how long a packet waited before the link."""
    way = carrier.forth
    before = way.waited, way.packets
    assert reader.stdin is not None
    assert reader.stdout is not None
    reader.stdin.write(f"{PORTS[control]} {window} {WARM} {SECONDS}\n")
    reader.stdin.flush()
    came = int(reader.stdout.readline())
    waited = (way.waited - before[0]) / max(1, way.packets - before[1])
    while time.monotonic() < way.free:  # what is left of it would be in the way of the next
        time.sleep(0.05)
    time.sleep(0.3)
    return came / SECONDS, waited


@proof(
    claim="The send window that learns sends at least 0.7 of what the best fixed one does, under cubic and bbr.",
    minutes=30,
)
def send_window(run: Run) -> Result:
    shown, tables, panels = True, [], {}
    with _end("10.77.0.1", "10.77.0.2", "serve") as (one, _), _end("10.77.0.2", "10.77.0.1", "read") as (two, reader):
        carrier = Carrier(one, two, run.seed)
        carrier.start()
        time.sleep(2.0)  # the server starts
        for control in PORTS:
            found: dict[str, list[tuple[float, float]]] = {window: [] for window in (*WINDOWS, "0", "adaptive")}
            for _ in range(EACH):
                for window, results in found.items():
                    results.append(_measured(reader, carrier, control, window))
                    run.say(f"{control}, {window}: {results[-1][0] / 1000:.0f} kB/s, {1000 * results[-1][1]:.0f} ms")
            rates = {name: statistics.median(rate for rate, _ in results) for name, results in found.items()}
            waits = {name: statistics.median(wait for _, wait in results) for name, results in found.items()}
            best = max(rates[window] for window in WINDOWS)
            shown &= rates["adaptive"] >= SHARE * best
            names = {"0": "none", "adaptive": "learns"}
            rows = [
                [names.get(name, name), round(rate / 1000), round(1000 * waits[name]), round(rate / best, 2)]
                for name, rate in rates.items()
            ]
            panels[control] = [
                Point(names.get(name, name), 1000 * waits[name], rate / 1000, chosen=name == "adaptive")
                for name, rate in rates.items()
            ]
            columns = ["window, bytes", "kB a second", "ms queued", "of the best fixed"]
            tables.append(Table(columns, rows, title=control))
        carrier.over = True
        carrier.join()
    notes = [
        f"{RATE / 1000:g} kB a second, {1000 * DELAY:g} ms each way, {1000 * JITTER:g} ms of jitter, "
        f"{100 * LOSS:g} % loss, a queue of {QUEUE / 1000:g} kB; medians of {EACH}, {SECONDS} s each after {WARM} s, "
        f"interleaved. Needs the right to make network namespaces, and a kernel with bbr.",
        "Queued: how long a packet waited before the link, on average. `none` is the system's own limit alone.",
    ]
    picture = trade_off(panels, cost="ms queued before the link", gain="kB a second")
    alt = "Throughput and queueing of fixed windows, and of the one that learns, under cubic and bbr"
    return Result(shown, tables, notes, ["uvicorn"], [Figure("send-window", alt, picture)])
