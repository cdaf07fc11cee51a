"""`streamguard proxy` in front of `transformers serve`, with real models. Only with `-m heavy`.

    pip install torch 'transformers[serving]'    # what is not there is skipped
    python tests/upstream/tiny.py FOLDER
    STREAMGUARD_MODELS=FOLDER python -m pytest -m heavy tests/upstream/test_heavy_proxied_transformers.py
"""

from __future__ import annotations

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
from tests.upstream.heavy_transformers import last_made, serve_that_is

# The warnings of these libraries are not ours.
pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("default")]

PROFILE = ("--profile", "transformers")


@pytest.fixture(scope="module")
def serve(models: Path) -> Iterator[Server]:
    with serve_that_is("bare") as server:
        yield server


@pytest.fixture(scope="module")
def proxy(serve: Server) -> Iterator[Server]:
    with proxied(serve, *PROFILE) as server:
        yield server


def test_an_sdk_gets_the_same_from_transformers_serve_through_the_proxy(
    models: Path, expected: dict[str, str], serve: Server, proxy: Server
) -> None:
    for prompt in FEW:
        direct = handed_out(serve, models / "known", prompt)
        assert handed_out(proxy, models / "known", prompt) == direct
        assert (direct["text"], direct["reasons"]) == (expected[prompt], ["stop"])
    refused = refusal(serve, body(models / "known", "Hello"), nonsense=True)
    assert refusal(proxy, body(models / "known", "Hello"), nonsense=True) == refused
    assert refused[0] == 422


def test_a_reader_that_leaves_the_proxy_stops_transformers_serve(
    models: Path, serve: Server, proxy: Server, record_property: Callable[[str, object], None]
) -> None:
    answer = streamed(proxy, body(models / "random", "Hello", max_tokens=ASKED))
    for _ in range(3):
        next(answer)
    left = time.monotonic()
    answer.close()
    while not (made := last_made(serve))["over"]:
        assert time.monotonic() - left < UP
    record_property("seconds", seconds := time.monotonic() - left)
    record_property("tokens", made["tokens"])
    assert made["tokens"] < ASKED / 4
    assert seconds < 1


def test_an_answer_of_transformers_serve_goes_on_through_the_proxy_after_a_cut(
    models: Path, expected: dict[str, str], proxy: Server
) -> None:
    for cut_at in (1500, 9000):
        assert resumed_text(proxy, body(models / "known", "long"), cut_at) == (expected["long"], 1)


def test_transformers_serve_that_falls_silent_leaves_no_reader_of_the_proxy_waiting(
    models: Path, serve: Server, record_property: Callable[[str, object], None]
) -> None:
    """Its process is stopped, and works on afterwards."""
    asked = body(models / "random", "Hello", max_tokens=ASKED)
    with proxied(serve, *PROFILE, "--stall", str(STALL)) as proxy, begun(proxy, asked) as pieces:
        serve.process.send_signal(signal.SIGSTOP)
        try:
            told = time.monotonic()
            tail = tail_of(pieces)
            record_property("seconds", time.monotonic() - told)
        finally:
            serve.process.send_signal(signal.SIGCONT)
    assert b'"code":"stalled"' in tail
    while not last_made(serve)["over"]:  # what nobody reads any more
        assert time.monotonic() - told < UP


def test_an_sdk_raises_behind_the_proxy_when_transformers_serve_is_killed(
    models: Path, serve: Server, proxy: Server
) -> None:
    """The last that asks this server, which is gone then."""
    asked = body(models / "random", "Hello", max_tokens=ASKED)
    answer = streamed(proxy, asked)
    next(answer)
    serve.process.kill()
    with pytest.raises(openai.APIError, match="the upstream broke off"):
        list(answer)
