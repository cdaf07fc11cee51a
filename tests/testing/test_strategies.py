"""The public strategies reach what they promise, and draw nothing that a stream would refuse."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import find, given
from hypothesis import strategies as st

from streamguard.core.dialect import Dialect
from streamguard.core.flush import FlushPolicy, HoldBack
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.items import Block, Checkpoint, Finish
from streamguard.core.pipeline import Pipeline
from streamguard.core.receipt import Verdict
from streamguard.core.verify import StreamVerifier
from streamguard.core.wire import Sse, Wire
from streamguard.testing.strategies import (
    byte_cuts,
    clean_texts,
    dialects,
    flush_policies,
    items,
    plain_policies,
    texts,
    token_cuts,
    wires,
)
from tests.modules import ROOT


def served(found: list[Any], policy: FlushPolicy, dialect: Dialect, wire: Wire) -> Verdict | None:
    pipeline = Pipeline(policy, FramedEncoder(dialect), CompletionGuard(wire))
    body = pipeline.open() + b"".join([pipeline.push(item, 0.0) for item in found]) + pipeline.finish(0.0)
    verifier = StreamVerifier(wire=wire, dialect=dialect.name)
    verifier.feed(body)
    verifier.end(clean=True)
    return verifier.verdict


@given(items(), flush_policies(), wires())
def test_every_stream_of_them_is_complete(found: list[Any], policy: FlushPolicy, wire: Wire) -> None:
    from streamguard.core.dialect import Native

    assert served(found, policy, Native(), wire) is Verdict.COMPLETE


@given(items(blocks=False), flush_policies(), dialects())
def test_every_dialect_takes_text(found: list[Any], policy: FlushPolicy, dialect: Dialect) -> None:
    assert served(found, policy, dialect, Sse()) is Verdict.COMPLETE


@given(clean_texts())
def test_clean_texts_are_whole(text: str) -> None:
    assert text.encode().decode() == text


@given(st.data())
def test_cuts_are_of_what_was_drawn(data: st.DataObject) -> None:
    text = data.draw(texts())
    assert "".join(data.draw(token_cuts(st.just(text)))) == text
    body = text.encode("utf-8", "replace")
    assert b"".join(data.draw(byte_cuts(st.just(body)))) == body


@pytest.mark.parametrize(
    ("strategy", "condition"),
    [
        (texts(), lambda text: "\ud83d" in text),
        (clean_texts(), lambda text: "\u2028" in text),
        (clean_texts(), lambda text: "data: " in text),
        (token_cuts(), lambda pieces: "" in pieces),
        (token_cuts(st.just("\ud83d\ude42")), lambda pieces: pieces == ["\ud83d", "\ude42"]),
        (items(), lambda found: any(isinstance(item, Checkpoint) for item in found)),
        (items(), lambda found: any(isinstance(item, Block) and item.type == "tool_call" for item in found)),
        (items(), lambda found: isinstance(found[-1:], list) and isinstance((found or [None])[-1], Finish)),
        (items(), lambda found: b"" in found),
        (flush_policies(), lambda policy: isinstance(policy, HoldBack)),
        (wires(), lambda wire: wire == Sse(ids="id", heartbeat="ping")),
        (wires(), lambda wire: wire.name == "binary"),
        (dialects(), lambda dialect: dialect.name == "openai" and dialect.include_usage),
    ],
    ids=[
        "a lone surrogate",
        "a line separator",
        "a spelled frame",
        "an empty piece",
        "a torn pair",
        "a checkpoint",
        "a tool call",
        "a finish at the end",
        "empty bytes",
        "a policy that holds back",
        "names of an SSE stream",
        "the binary carrier",
        "usage asked for",
    ],
)
def test_what_matters_is_found(strategy: Any, condition: Any) -> None:
    find(strategy, condition)


@given(items(finish=False, blocks=False), wires(pings=False), plain_policies())
def test_what_is_left_out_is_left_out(found: list[Any], wire: Wire, policy: FlushPolicy) -> None:
    assert not [item for item in found if isinstance(item, (Finish, Block, Checkpoint))]
    assert not isinstance(wire, Sse) or wire.heartbeat != "ping"
    assert not isinstance(policy, HoldBack)


def test_the_rest_of_the_kit_does_without_hypothesis() -> None:
    code = "import sys, streamguard.testing as kit; [getattr(kit, name) for name in kit.__all__]; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert "streamguard.testing.server" in done.stdout.split()
    assert "hypothesis" not in done.stdout.split()
