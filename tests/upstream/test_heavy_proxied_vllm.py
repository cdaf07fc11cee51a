"""`streamguard proxy` in front of vLLM's server, with a real model. Only with `-m heavy`.

    pip install vllm                             # what is not there is skipped
    python tests/upstream/tiny.py FOLDER
    STREAMGUARD_MODELS=FOLDER python -m pytest -m heavy tests/upstream/test_heavy_proxied_vllm.py
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from tests.upstream.heavy import (
    ASKED,
    FEW,
    STALL,
    UP,
    Server,
    begun,
    body,
    handed_out,
    proxied,
    refusal,
    resumed_text,
    streamed,
    tail_of,
)  # fmt: skip
from tests.upstream.heavy_vllm import endless, engine_of, metric, stopped_by_leaving, vllm_server

# The warnings of these libraries are not ours.
pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def vllm(models: Path) -> Iterator[Server]:
    with vllm_server(models) as server:
        yield server


@pytest.fixture(scope="module")
def proxy(vllm: Server) -> Iterator[Server]:
    with proxied(vllm) as server:
        yield server


def test_an_sdk_gets_the_same_from_vllm_through_the_proxy(
    models: Path, expected: dict[str, str], vllm: Server, proxy: Server
) -> None:
    for prompt in FEW:
        direct = handed_out(vllm, models / "known", prompt)
        assert handed_out(proxy, models / "known", prompt) == direct
        assert (direct["text"], direct["reasons"]) == (expected[prompt], ["stop"])
    refused = refusal(vllm, body(models / "absent", "Hello"))
    assert refusal(proxy, body(models / "absent", "Hello")) == refused
    assert refused[0] == 404


def test_a_reader_that_leaves_the_proxy_stops_vllm(
    models: Path, vllm: Server, proxy: Server, record_property: Callable[[str, object], None]
) -> None:
    stopped_by_leaving(vllm, proxy, models, record_property)


def test_an_answer_of_vllm_goes_on_through_the_proxy_after_a_cut(
    models: Path, expected: dict[str, str], vllm: Server, proxy: Server
) -> None:
    before = metric(vllm, "request_success_total")
    for cut_at in (2000, 20000):
        assert resumed_text(proxy, body(models / "known", "long"), cut_at) == (expected["long"], 1)
    assert metric(vllm, "request_success_total") - before == 2  # nothing was computed again


def test_an_sdk_raises_behind_the_proxy_when_vllms_engine_is_killed_and_no_marker_follows(
    models: Path, vllm: Server, proxy: Server
) -> None:
    """Without the proxy the same answer ends in good order, with `[DONE]`. The last that asks this server, which is
    gone then."""
    with begun(vllm, endless(models)) as direct, begun(proxy, endless(models)) as pieces:
        answer = streamed(proxy, body(models / "known", "long", max_tokens=ASKED), ignore_eos=True)
        next(answer)
        os.kill(engine_of(vllm), signal.SIGKILL)
        unguarded = b"".join(direct)
        tail = tail_of(pieces)
        with pytest.raises(openai.APIError, match="EngineCore"):
            list(answer)
    for told in (unguarded, tail):
        assert b'data: {"error": {"message": "EngineCore' in told
    assert unguarded.endswith(b"data: [DONE]\n\n")
    assert b"[DONE]" not in tail


def test_vllm_that_falls_silent_leaves_no_reader_of_the_proxy_waiting(
    models: Path, record_property: Callable[[str, object], None]
) -> None:
    """Told to go, vLLM stops its engine and leaves streams open, without another byte."""
    with vllm_server(models) as vllm, proxied(vllm, "--stall", str(STALL)) as proxy:
        with begun(proxy, endless(models)) as pieces:
            answer = streamed(proxy, body(models / "known", "long", max_tokens=ASKED), ignore_eos=True)
            next(answer)
            vllm.process.send_signal(signal.SIGTERM)
            told = time.monotonic()
            tail = tail_of(pieces)
            record_property("seconds", time.monotonic() - told)
            with pytest.raises(openai.APIError):
                list(answer)
        assert b'"code":"stalled"' in tail
        assert b"[DONE]" not in tail
        assert vllm.process.wait(UP) is not None  # nobody holds it any more
