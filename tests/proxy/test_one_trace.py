"""One stream from a client through the proxy's process to a server and its source, cut and resumed: one trace."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import attrs
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from streamguard.adapters.starlette import StreamGuard
from streamguard.app import anyone_with_the_id
from streamguard.client import ResumePolicy, stream
from streamguard.log.memory import MemoryLog
from streamguard.observe.opentelemetry import Traces
from streamguard.runtime.timing import Timing
from streamguard.testing.proxy import HEAD, FaultProxy, Plan
from tests.adapters.logged_apps import wait_until
from tests.adapters.middleware_apps import DONE, chunk
from tests.adapters.servers import Server, serving
from tests.observe.measured import Traced
from tests.proxy.running import Running, running

TOKENS = 40
ROUTES = ("/kept", "/plain")


@attrs.frozen
class Found:
    """A span of either process."""

    name: str
    service: str
    trace: int
    id: int
    parent: int | None
    links: tuple[int, ...]
    events: tuple[str, ...]
    attributes: dict[str, Any]


class Model:
    """A server: `/kept` has streams of its own log, `/plain` streams as any other does. Both sources make spans."""

    def __init__(self) -> None:
        self.traced = Traced()
        self.traces = Traces(self.traced.provider)
        guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id, observe=self.traces)
        timing = Timing(linger=0.0)

        @guard.stream(timing=timing)
        async def kept(request: Any) -> AsyncIterator[str]:
            for number in range(TOKENS):
                with self.traced.tracer.start_as_current_span("token"):
                    yield f"token {number} "

        self.app = Starlette(
            routes=[Route("/kept", kept, methods=["POST"]), Route("/plain", self.plain, methods=["POST"])]
        )
        guard.install(self.app, "/streams", timing=timing)

    async def plain(self, request: Request) -> StreamingResponse:
        above = TraceContextTextMapPropagator().extract(dict(request.headers))

        async def tokens() -> AsyncIterator[bytes]:
            with self.traced.tracer.start_as_current_span("model", above):
                for number in range(TOKENS):
                    yield chunk(f"token {number} ")
                yield chunk(reason="stop")
                yield DONE

        return StreamingResponse(tokens(), media_type="text/event-stream")


@contextmanager
def chain() -> Iterator[tuple[Model, Server, Running]]:
    """A server, and in front of it the proxy's process, which prints its spans."""
    made = Model()
    exporters = {"OTEL_TRACES_EXPORTER": "console", "OTEL_METRICS_EXPORTER": "console"}
    options = ["--otel", "--path", "/guarded", "--upstream-streams", "/streams"]
    with serving(made.app) as behind, running(behind.url, *options, **exporters) as proxy:
        yield made, behind, proxy


async def asked(port: int, path: str, traced: Traced) -> tuple[int, int, int]:
    """Ask behind a network that cuts the first connection: how many tokens came, how often the client came back, and
    the span that it asked in."""
    again = ResumePolicy(attempts=2, base=0.0, max_wait=0.0)

    def plan(index: int) -> Plan:
        return Plan(after=HEAD, cut_at=300) if index == 0 else Plan()

    async with FaultProxy("127.0.0.1", port, plan=plan) as cutting:
        with traced.tracer.start_as_current_span("ask") as span:
            async with stream("POST", f"{cutting.url}{path}", json={"stream": True}, resume=again) as answer:
                data = "".join([str(frame.data) async for frame in answer.frames()])
            return data.count("token "), answer.receipt.resumes, span.get_span_context().span_id


def printed(text: str) -> tuple[list[Found], set[str]]:
    """The spans among what the SDK's exporters for a console print, and the names of the metrics."""
    decoder, at, spans, names = json.JSONDecoder(), 0, [], set()
    while text[at:].strip():
        found, at = decoder.raw_decode(text, at)
        at += 1
        if "context" not in found:
            scopes = [scope for resource in found["resource_metrics"] for scope in resource["scope_metrics"]]
            names |= {metric["name"] for scope in scopes for metric in scope["metrics"]}
            continue
        parent, ids = found["parent_id"], found["context"]
        spans.append(
            Found(
                found["name"], found["resource"]["attributes"]["service.name"], int(ids["trace_id"], 16),
                int(ids["span_id"], 16), None if parent is None else int(parent, 16),
                tuple(int(link["context"]["span_id"], 16) for link in found["links"]),
                tuple(event["name"] for event in found["events"]), found["attributes"],
            )
        )  # fmt: skip
    return spans, names


def here(traced: Traced) -> list[Found]:
    """The spans of this process."""
    return [
        Found(
            span.name, "server", span.context.trace_id, span.context.span_id,
            None if span.parent is None else span.parent.span_id, tuple(link.context.span_id for link in span.links),
            tuple(event.name for event in span.events), dict(span.attributes or {}),
        )
        for span in traced.spans()
    ]  # fmt: skip


def named(spans: list[Found], service: str, name: str) -> list[Found]:
    return [span for span in spans if (span.service, span.name) == (service, name)]


def test_a_stream_through_the_proxy_cut_and_resumed_is_one_trace_of_both_processes() -> None:
    with chain() as (model, _, proxy):
        answers = {path: anyio.run(asked, proxy.port, path, model.traced) for path in ROUTES}
        wait_until(lambda: not model.traces._open)
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.ended() == -signal.SIGTERM
        there, metrics = printed(proxy.printed())
    assert {path: answer[:2] for path, answer in answers.items()} == {"/kept": (TOKENS, 1), "/plain": (TOKENS, 1)}
    assert "streamguard.streams_opened" in metrics
    everything = here(model.traced) + there
    traces: dict[str, list[Found]] = {}
    for path, (_, _, asking) in answers.items():
        (root,) = [span for span in everything if span.id == asking]
        traces[path] = [span for span in everything if span.trace == root.trace]
    assert sum(map(len, traces.values())) == len(everything)  # no span of either process stands alone
    kept_by_the_server(traces["/kept"], answers["/kept"][2])
    kept_by_the_proxy(traces["/plain"], answers["/plain"][2])


def kept_by_the_server(spans: list[Found], asking: int) -> None:
    """The proxy passes both connections on; the server has the stream, and whoever reads it is linked to that."""
    passed = named(spans, "streamguard-proxy", "streamguard proxy")
    assert [span.parent for span in passed] == [asking] * 2
    (begun,) = named(spans, "server", "streamguard stream")
    (producer,) = named(spans, "server", "streamguard producer")
    readers = named(spans, "server", "streamguard reader")
    assert {reader.parent for reader in readers} == {span.id for span in passed}
    assert [reader.links for reader in readers] == [(begun.id,)] * 2
    assert sorted("streamguard.resumed" in reader.events for reader in readers) == [False, True]
    (first,) = [reader for reader in readers if "streamguard.resumed" not in reader.events]
    assert begun.parent == first.parent
    assert producer.parent == begun.id
    tokens = named(spans, "server", "token")
    assert len(tokens) == TOKENS
    assert {token.parent for token in tokens} == {producer.id}
    assert not [span for span in spans if span.service != "server" and span not in passed]


def kept_by_the_proxy(spans: list[Found], asking: int) -> None:
    """The upstream is asked once; the proxy has the stream, and whoever reads it is linked to that."""
    (passed,) = named(spans, "streamguard-proxy", "streamguard proxy")
    (begun,) = named(spans, "streamguard-proxy", "streamguard stream")
    (producer,) = named(spans, "streamguard-proxy", "streamguard producer")
    readers = named(spans, "streamguard-proxy", "streamguard reader")
    (source,) = named(spans, "server", "model")
    assert passed.parent == asking
    assert passed.attributes == {
        "http.request.method": "POST", "url.path": "/plain", "url.scheme": "http", "http.response.status_code": 200
    }  # fmt: skip
    assert source.parent == begun.parent == passed.id
    assert producer.parent == begun.id
    assert [reader.links for reader in readers] == [(begun.id,)] * 2
    again = [reader for reader in readers if "streamguard.resumed" in reader.events]
    assert [reader.parent for reader in again] == [asking]
    assert [reader.parent for reader in readers if reader not in again] == [passed.id]
