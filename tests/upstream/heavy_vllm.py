"""vLLM's server as a process of its own, for the tests marked `heavy`, and what it tells of itself.

    with vllm_server(models) as server:
        metric(server, "num_requests_running")
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.absence import require
from tests.upstream.heavy import ASKED, UP, Server, body, started, streamed

__all__ = ["LIMITS", "MEMORY", "endless", "engine_of", "metric", "stopped_by_leaving", "vllm_server"]

LIMITS = {"dtype": "float32", "max_model_len": 4096, "max_num_seqs": 8}
MEMORY = 0.1  # the part of the machine's memory that vLLM takes; it refuses to start where that is not free


@contextmanager
def vllm_server(models: Path, *options: str, paths: tuple[Path, ...] = ()) -> Iterator[Server]:
    require("vllm", "pip install vllm")
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(models / "known")]
    for name, value in {**LIMITS, "gpu_memory_utilization": MEMORY}.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    with started([*command, "--enforce-eager", *options], *paths) as server:
        yield server


def endless(models: Path) -> dict[str, Any]:
    """A request whose answer nobody reads to its end."""
    return body(models / "known", "long", max_tokens=ASKED, ignore_eos=True)


def engine_of(server: Server) -> int:
    """The process of its engine."""
    import psutil

    children = psutil.Process(server.process.pid).children()
    (engine,) = [child.pid for child in children if "EngineCore" in " ".join(child.cmdline())]
    return int(engine)


def metric(server: Server, name: str) -> float:
    lines = httpx.get(f"{server.url}/metrics", timeout=UP).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"vllm:{name}{{"))


def stopped_by_leaving(
    vllm: Server, asked: Server, models: Path, record_property: Callable[[str, object], None]
) -> None:
    """A reader of `asked` leaves after three pieces, and `vllm` has stopped computing within a second."""
    before = metric(vllm, "generation_tokens_total")
    answer = streamed(asked, body(models / "known", "long", max_tokens=ASKED), ignore_eos=True)
    for _ in range(3):
        next(answer)
    assert metric(vllm, "num_requests_running") == 1
    left = time.monotonic()
    answer.close()
    while metric(vllm, "num_requests_running"):
        assert time.monotonic() - left < UP
    record_property("seconds", seconds := time.monotonic() - left)
    made = metric(vllm, "generation_tokens_total") - before
    record_property("tokens", int(made))
    assert made < ASKED / 4
    assert seconds < 1
