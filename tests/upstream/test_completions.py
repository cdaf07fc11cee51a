"""A completions server is read to a proven end, and asked to go on with a text whose process is gone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import attrs
import httpx
import pytest

from streamguard import anyone_with_the_id
from streamguard.app import Endpoint, StreamGuard
from streamguard.core.cursor import cursor_zero
from streamguard.core.dialect import dialect_named
from streamguard.core.errors import SourceFailed, failure_from
from streamguard.core.flush import Immediate
from streamguard.core.frame import Frame
from streamguard.core.items import Block, Finish
from streamguard.log.memory import MemoryLog
from streamguard.runtime.takeover import Orphan
from streamguard.runtime.timing import Timing
from streamguard.upstream.completions import Completions
from tests.adapters.servers import DEADLINE, Server, serving
from tests.runtime.fakes import SID
from tests.runtime.logs import frames_in
from tests.runtime.orphans import died
from tests.upstream.engine import PROMPT, WHOLE, WORDS, Engine

pytestmark = pytest.mark.anyio

KEY = {"authorization": "Bearer key"}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


@pytest.fixture(scope="module")
def server(engine: Engine) -> Iterator[Server]:
    with serving(engine.app) as server:
        yield server


def body(model: str = "m", **more: Any) -> dict[str, Any]:
    return {"model": model, "prompt": PROMPT, "temperature": 0, **more}


def of(server: Server) -> Completions:
    return Completions(f"{server.url}/v1", headers=KEY)


async def items(server: Server, model: str = "m", profile: str = "openai", **more: Any) -> list[Any]:
    return [item async for item in attrs.evolve(of(server), profile=profile).stream(body(model, **more))]


# ---- the server as a source ---------------------------------------------------------------------


async def test_a_server_is_read_as_text_and_the_reason_why_it_ended(server: Server, engine: Engine) -> None:
    assert await items(server, stream_options={"include_usage": True}) == [
        *WORDS, Finish("stop", {"prompt_tokens": 1, "completion_tokens": 12}),
    ]  # fmt: skip
    assert engine.asked[-1] == body(stream=True, stream_options={"include_usage": True})
    assert engine.keys[-1] == KEY["authorization"]


@pytest.mark.parametrize(("model", "profile"), [("m", "vllm"), ("length", "openai"), ("no marker", "transformers")])
async def test_a_reason_and_the_marker_prove_the_end_or_the_reason_where_the_server_has_no_marker(
    model: str, profile: str, server: Server
) -> None:
    assert await items(server, model, profile) == [*WORDS, Finish("length" if model == "length" else "stop")]


@pytest.mark.parametrize(
    ("model", "code", "retryable", "words"),
    [
        ("fails", "upstream_error", True, 2),
        ("cut", "upstream_truncated", True, 2),
        ("breaks", "upstream_truncated", True, 2),
        ("unproven", "upstream_truncated", True, 12),
        ("no marker", "upstream_truncated", True, 12),
        ("no reason", "unproven_end", True, 12),
        ("abort", "generation_aborted", True, 12),
        ("refuses", "upstream_status", False, 0),
        ("busy", "upstream_status", True, 0),
        ("whole", "upstream_format", False, 0),
    ],
)
async def test_whatever_is_no_proven_end_is_a_failure_after_the_text_before_it(
    model: str, code: str, retryable: bool, words: int, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    found = []
    with pytest.raises(SourceFailed) as raised:
        async for item in of(server).stream(body(model)):
            found.append(item)
    failure = failure_from(raised.value)
    assert (failure.code, failure.retryable) == (code, retryable)
    assert found[:words] == WORDS[:words]
    assert "secret" not in failure.message
    if model in ("fails", "refuses"):
        assert "a secret path" in caplog.text  # whoever runs the server is told what it said
    assert ("choose profile='transformers'" in caplog.text) == (model == "no marker")


async def test_a_server_that_is_not_there_is_a_failure() -> None:
    with pytest.raises(SourceFailed) as raised:
        async for _ in Completions("http://127.0.0.1:9/v1").stream(body()):
            pass
    assert failure_from(raised.value).code == "upstream_unreachable"


async def test_a_source_that_is_closed_hangs_up(server: Server, engine: Engine) -> None:
    source = of(server).stream(body("hangs"))
    assert [await source.__anext__() for _ in range(2)] == WORDS[:2]
    await anyio.to_thread.run_sync(engine.reached.wait)
    await source.aclose()
    await anyio.to_thread.run_sync(engine.closed.wait)


async def test_a_client_of_the_applications_own_is_used_and_left_open(server: Server) -> None:
    async with httpx.AsyncClient(headers={"authorization": "theirs"}) as client:
        found = [item async for item in Completions(f"{server.url}/v1/", client=client).stream(body())]
        assert (found[:-1], client.is_closed) == (WORDS, False)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [({"prompt": [1, 2]}, "prompt"), ({"prompt": None}, "prompt"), ({"n": 2}, "n=2"), ({"echo": True}, "echo")],
    ids=str,
)
def test_a_request_that_is_no_one_text_is_refused_where_it_is_given(wrong: dict[str, Any], what: str) -> None:
    with pytest.raises((TypeError, ValueError), match=what):
        Completions("http://engine/v1").stream(body(**wrong))


# ---- taken over ---------------------------------------------------------------------------------


async def read(resume: Any, *made: Any, dialect: str = "native") -> list[Frame]:
    """The frames of a stream whose process made these items and is gone, once somebody has read it to its end."""
    log = MemoryLog()
    guard = StreamGuard(log, authorize=anyone_with_the_id)
    name = guard.register(Endpoint(resume, dialect_named(dialect), Immediate(), Timing(), None))
    await log.release(await died(log, *made, dialect=dialect, resumer=name, name="chat"))
    with anyio.fail_after(DEADLINE):
        await guard.lost(await log.state(SID))
        async for _ in guard.pages(cursor_zero(SID)):
            pass
    return await frames_in(log)


@pytest.mark.parametrize("dialect", ["native", "openai"])
@pytest.mark.parametrize("words", [0, 5, 12])
async def test_a_text_goes_on_where_it_was_left(words: int, dialect: str, server: Server, engine: Engine) -> None:
    async def asked(orphan: Orphan) -> dict[str, Any]:
        assert orphan.info.name == "chat"
        return body(max_tokens=20, stream_options={"include_usage": True})

    frames = await read(of(server).resumer(asked), *WORDS[:words], dialect=dialect)
    reader = dialect_named(dialect).reader()
    said = [reader.read(frame.name, frame.data.decode()) for frame in frames]
    text = "".join([part if isinstance(part, str) else part.text for part in said if part is not None])
    assert (text, frames[-1].status) == (WHOLE, "complete")
    assert engine.asked[-1]["prompt"] == PROMPT + "".join(WORDS[:words])
    assert engine.asked[-1]["max_tokens"] == 20


async def test_the_end_has_the_servers_reason_and_no_usage_that_counts_the_text_so_far_as_prompt(
    server: Server,
) -> None:
    asked = body("length", stream_options={"include_usage": True})
    frames = await read(of(server).resumer(lambda orphan: asked), *WORDS[:5])
    end = frames[-1].data.decode()
    assert '"finish_reason":"length"' in end
    assert '"usage":null' in end


async def test_a_server_that_fails_again_is_a_failed_stream_with_all_text_that_there_is(server: Server) -> None:
    frames = await read(of(server).resumer(lambda orphan: body("fails")), *WORDS[:5])
    assert ["".join(frame.data.decode().strip('"') for frame in frames[:-1]), frames[-1].status] == [
        "".join(WORDS[:7]), "failed",
    ]  # fmt: skip
    assert b'"upstream_error"' in frames[-1].data


@pytest.mark.parametrize("wrong", [{"prompt": [1]}, {"n": 2}], ids=str)
async def test_what_cannot_be_gone_on_with_ends_as_lost(
    wrong: dict[str, Any], server: Server, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    before = len(engine.asked)
    frames = await read(of(server).resumer(lambda orphan: body(**wrong)), "w0é ")
    assert b'"producer_lost"' in frames[-1].data
    assert "cannot be taken over" in caplog.text
    assert len(engine.asked) == before


async def test_a_stream_that_holds_more_than_text_is_not_gone_on_with(
    server: Server, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """A prompt has no place for it, and the text behind it would be another answer's."""
    before = len(engine.asked)
    frames = await read(of(server).resumer(lambda orphan: body()), "w0é ", Block("image", {}))
    assert b'"producer_lost"' in frames[-1].data
    assert "more than text" in caplog.text
    assert len(engine.asked) == before
