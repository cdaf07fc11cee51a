"""Spans and metrics by the exporters of OpenTelemetry's own SDK, and one trace from the client to the source."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import attrs
import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode
from starlette.applications import Starlette
from starlette.routing import Route

from streamguard.adapters.asgi import GuardedAnswer, SealMiddleware
from streamguard.adapters.logged import LoggedAnswer
from streamguard.adapters.starlette import StreamGuard, guarded
from streamguard.adapters.wsgi import GuardedResponse
from streamguard.app import anyone_with_the_id
from streamguard.client import ResumePolicy, stream, stream_sync
from streamguard.client.traceparent import trace_headers
from streamguard.core.cursor import Cursor
from streamguard.core.errors import Failure, UnexpectedResponse
from streamguard.core.items import Finish
from streamguard.log.memory import MemoryLog
from streamguard.observe.hooks import Acknowledged, Blocked, Closed, Observer, Opened, RequestLabels, StreamDetails
from streamguard.observe.legs import LEGS, Legs
from streamguard.observe.live import Live
from streamguard.observe.metrics import METRICS
from streamguard.observe.opentelemetry import GEN_AI, Metrics, Traces, instrument_name
from streamguard.observe.record import Record, Recorder
from streamguard.observe.stream import Leg, Outcome, Sampled
from streamguard.runtime.admission import Admission
from streamguard.runtime.own import origin_of
from streamguard.runtime.slots import Limits
from streamguard.runtime.timing import Timing
from streamguard.testing.proxy import HEAD, FaultProxy, Plan
from streamguard.upstream.chat import ChatCompletions
from tests.adapters.logged_apps import wait_until
from tests.adapters.servers import serving
from tests.adapters.wsgi_calls import called
from tests.observe.measured import Exported, Measured, Traced, exported, exported_by
from tests.observe.mixed import KINDS, Mixed, Request, expected_of, orphan
from tests.observe.pages import unequal
from tests.runtime.virtual import run

SEVERAL = 2 * len(KINDS)
OUTCOME = Outcome(
    "complete", None, None, 10, 10, 100, 100, None, Cursor("A" * 22, 10, 100, 0), "unknown", 0.0, 0.1, 0.1, 10.0
)
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def tracing() -> tuple[Traced, Traces]:
    traced = Traced()
    return traced, Traces(traced.provider)


def of(span: ReadableSpan, name: str) -> Any:
    return (span.attributes or {}).get(f"streamguard.{name}")


def events(span: ReadableSpan) -> list[str]:
    return [event.name.removeprefix("streamguard.") for event in span.events]


# ---- numbers ----------------------------------------------------------------------------------


def test_every_number_and_span_equals_what_was_done() -> None:
    told = exported(SEVERAL, 1)
    assert told.wrong == {}
    missing = dict(told.found)
    name = 'spans{name="streamguard producer",status="complete"}'
    missing[name] -= 1
    assert list(Exported(told.expected, missing).wrong) == [name]


def test_the_numbers_and_the_spans_of_two_processes_add_up() -> None:
    told = exported_by(len(KINDS), (3, 4))  # each exports its own
    assert told.wrong == {}
    assert told.found['spans{name="streamguard reader",status="parted"}'] == 4


def test_a_number_that_is_wrong_is_found() -> None:
    measured = Measured()
    expected = expected_of(len(KINDS), 2, Metrics(measured.provider))
    name = 'streamguard_items_total{part="direct"}'
    assert list(unequal({**expected, name: expected[name] + 1}, measured.samples())) == [name]


def test_the_conventions_numbers_are_of_those_who_generate() -> None:
    measured = Measured()
    expected = expected_of(len(KINDS), 3, Metrics(measured.provider, attributes={"gen_ai.request.model": "m"}))
    found = measured.all()
    whole = sum(
        value for name, value in expected.items()
        if name.startswith("streamguard_streams_closed_total") and 'status="complete"' in name and "reader" not in name
    )  # fmt: skip
    all_of_them = sum(
        value for name, value in expected.items()
        if name.startswith("streamguard_streams_closed_total") and "reader" not in name
    )  # fmt: skip
    first = found["gen_ai.server.time_to_first_token"].data.data_points
    assert sum(point.count for point in first) == whole
    assert {point.attributes["gen_ai.request.model"] for point in first} == {"m"}
    assert {point.attributes["gen_ai.operation.name"] for point in first} == {"chat"}
    duration = found["gen_ai.server.request.duration"].data.data_points
    assert sum(point.count for point in duration) == all_of_them
    errors = {point.attributes.get("error.type") for point in duration}
    assert errors == {None, "source_error", "own", "stalled", "slow", "gone", "internal"}


def test_the_time_of_a_token_is_what_passed_between_two() -> None:
    measured = Measured()

    async def source() -> AsyncIterator[Any]:
        await anyio.sleep(2.0)
        for _ in range(5):
            yield "a token "
            await anyio.sleep(0.5)

    async def counted() -> AsyncIterator[Any]:
        async for item in source():
            yield item
        yield Finish("stop", {"prompt_tokens": 7, "completion_tokens": 11})  # of which some came together

    async def main() -> None:
        mixed = Mixed(Metrics(measured.provider))
        await Request().at(mixed.answer(source))
        await Request().at(mixed.answer(counted))

    run("asyncio", main)
    found = measured.all()
    (first,) = found["gen_ai.server.time_to_first_token"].data.data_points
    (each,) = found["gen_ai.server.time_per_output_token"].data.data_points
    assert (first.count, first.sum) == (2, pytest.approx(4.0))
    assert (each.count, each.min, each.max) == (2, pytest.approx(0.25), pytest.approx(0.625))
    for name, (_, buckets) in GEN_AI.items():
        (point,) = found[name].data.data_points
        assert (found[name].unit, tuple(point.explicit_bounds)) == ("s", buckets)


def test_names_are_those_that_an_exporter_makes_the_documented_ones_of() -> None:
    measured = Measured()
    metrics = Metrics(measured.provider)
    admission = Admission(Limits(max_streams=1))
    metrics.attached(admission)
    admission._slots.waiting = 7
    found = measured.all()
    assert found["streamguard.requests_waiting"].data.data_points[0].value == 7
    units = {"s": "_seconds", "By": "_bytes", "1": ""}
    for metric in METRICS.values():
        name = instrument_name(metric).replace(".", "_")
        unit = units[{"seconds": "s", "bytes": "By", "": "1"}[metric.unit]]
        name += "" if name.endswith(unit) else unit
        assert name + ("_total" if metric.kind == "counter" else "") == metric.name


# ---- spans ------------------------------------------------------------------------------------


def test_every_part_of_a_stream_is_a_span() -> None:
    traced, traces = tracing()
    expected = expected_of(len(KINDS), 4, traces)
    for part in ("direct", "producer", "reader"):
        opened = expected[f'streamguard_streams_opened_total{{part="{part}"}}']
        sealed = expected['streamguard_takeovers_total{result="sealed"}'] if part == "producer" else 0
        assert len(traced.spans(f"streamguard {part}")) == opened + sealed
    statuses = Counter(of(span, "status") for span in traced.spans("streamguard direct"))
    assert statuses == {"complete": 1, "failed": 2, "cancelled": 1, "stalled": 2, "slow": 1, "gone": 1}
    for span in traced.spans("streamguard direct"):
        bad = of(span, "status") in ("failed", "stalled", "slow")
        assert (span.status.status_code is StatusCode.ERROR) == bad
    assert not traces._open
    named = {name for span in traced.spans() for name in events(span)} - {"abort_not_carried"}  # by chance
    assert named == {
        "first_frame", "stall", "blocked", "resumed", "taken_over", "terminal", "reader_gone", "source_closed",
    }  # fmt: skip


def test_a_stream_belongs_to_its_requests_trace_and_its_source_to_the_stream() -> None:
    traced, traces = tracing()

    async def source() -> AsyncIterator[str]:
        with traced.tracer.start_as_current_span("model"):
            yield "one "
        yield "two"

    answer = GuardedAnswer(source, observe=traces, timing=Timing(linger=0.0))
    anyio.run(Request(traceparent=CALLER, tracestate="a=1", x_request_id="r-1").at, answer)
    span, model = traced.one("streamguard direct"), traced.one("model")
    assert span.parent is not None
    assert trace.format_span_id(span.parent.span_id) == CALLER[36:52]
    assert span.context.trace_state.get("a") == "1"
    assert model.parent == span.context
    assert span.kind is SpanKind.SERVER
    assert (of(span, "request_id"), of(span, "items"), of(span, "frames")) == ("r-1", 2, 3)
    assert events(span) == ["first_frame", "terminal", "source_closed"]
    assert trace.get_current_span() is trace.INVALID_SPAN  # nothing is left behind


def test_a_span_that_is_current_already_is_the_parent() -> None:
    traced, traces = tracing()

    async def main() -> None:
        with traced.tracer.start_as_current_span("framework"):
            await Request(traceparent=CALLER).at(GuardedAnswer(iter("ab"), observe=traces, timing=Timing(linger=0.0)))

    anyio.run(main)
    span = traced.one("streamguard direct")
    assert span.parent == traced.one("framework").context
    assert span.kind is SpanKind.INTERNAL


@pytest.mark.parametrize("own_thread", [False, True, None])
def test_a_source_on_a_thread_is_in_its_streams_span(own_thread: bool | None) -> None:
    traced, traces = tracing()

    def source() -> Iterator[str]:
        with traced.tracer.start_as_current_span("model"):
            threads.append(threading.get_ident())
        yield "one"

    threads: list[int] = []
    timing = Timing(linger=0.0)
    if own_thread is None:
        anyio.run(Request().at, GuardedAnswer(source(), observe=traces, timing=timing))
    else:
        called(GuardedResponse(source(), observe=traces, timing=timing, own_thread=own_thread))
    assert traced.one("model").parent == traced.one("streamguard direct").context
    assert (threads[0] == threading.get_ident()) == (own_thread is False)
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_an_async_source_of_an_answer_on_a_thread_is_in_its_streams_span() -> None:
    traced, traces = tracing()

    async def source() -> AsyncIterator[str]:
        with traced.tracer.start_as_current_span("model"):
            yield "one"

    called(GuardedResponse(source(), observe=traces, timing=Timing(linger=0.0)))
    assert traced.one("model").parent == traced.one("streamguard direct").context


@pytest.mark.parametrize("traces_first", [True, False])
def test_the_record_of_a_stream_has_the_id_of_its_trace_whoever_began_that(traces_first: bool) -> None:
    """A browser sends no `traceparent`: the trace begins here, and the record is to be found in it all the same."""
    traced, traces = tracing()
    records: list[Record] = []
    live = Live(password="p" * 20)
    observers: list[Observer] = [traces, Recorder(records.append), live]

    async def failing() -> AsyncIterator[str]:
        yield "one"
        raise ValueError

    async def main() -> None:
        mixed = Mixed(observers if traces_first else observers[::-1])
        for above in (trace.INVALID_SPAN, traced.tracer.start_span("framework")):
            with trace.use_span(above):
                await Request().at(mixed.answer(failing))
                await Request().at(LoggedAnswer(mixed.guard, failing, timing=mixed.timing()))
        await Request(traceparent=CALLER).at(mixed.answer(failing))
        await mixed.guard.aclose()

    run("asyncio", main)
    spans = [span for span in traced.spans() if of(span, "status") == "failed" and of(span, "part") != "reader"]
    assert len(records) == len(spans) == 5
    ids = {of(span, "stream"): trace.format_trace_id(span.context.trace_id) for span in spans}
    assert {record.stream: record.trace_id for record in records} == ids
    assert {entry["stream"]: entry["trace_id"] for _, entry in live._records} == ids
    assert records[-1].trace_id == CALLER[3:35]


def test_without_an_sdk_the_record_has_the_id_that_the_request_bore() -> None:
    records: list[Record] = []

    async def main() -> None:
        mixed = Mixed([Traces(trace.NoOpTracerProvider()), Recorder(records.append)])

        def failing() -> Iterator[str]:
            yield "one"
            raise ValueError

        for headers in ({}, {"traceparent": CALLER}):
            await Request(**headers).at(mixed.answer(failing))

    run("asyncio", main)
    assert [record.trace_id for record in records] == [None, CALLER[3:35]]


def test_a_refusal_is_an_event_of_who_serves_the_request() -> None:
    traced, traces = tracing()
    admission = Admission(Limits(max_streams=1, max_waiting=0))

    async def main() -> None:
        slot = admission.free()
        with traced.tracer.start_as_current_span("framework"):
            await Request().at(GuardedAnswer(iter("a"), observe=traces, limits=admission, timing=Timing(linger=0.0)))
        assert slot is not None
        slot.release()

    anyio.run(main)
    (event,) = traced.one("framework").events
    assert (event.name, dict(event.attributes or {})) == (
        "streamguard.refused", {"streamguard.why": "full", "http.response.status_code": 503}
    )  # fmt: skip


def test_a_span_names_the_slowest_leg_and_the_setting_to_change() -> None:
    traced = Traced()
    measured = Measured()

    async def main() -> None:
        mixed = Mixed([Traces(traced.provider, every=2), Metrics(measured.provider, every=2)])

        async def source() -> AsyncIterator[str]:
            for number in range(8):
                await anyio.sleep(0.5)
                yield f"w{number} "
            raise ValueError

        await Request().at(mixed.answer(source))

    run("asyncio", main)
    span = traced.one("streamguard direct")
    assert of(span, "slowest_leg") == "generated"
    assert of(span, "leg.generated") == pytest.approx(0.5)
    assert of(span, "change") == LEGS["generated"][1]
    points = {point.attributes["leg"]: point for point in measured.all()["streamguard.token_leg"].data.data_points}
    assert (points["generated"].count, points["generated"].sum) == (4, pytest.approx(2.0))
    assert set(points) == {"generated", "held", "encoded", "sent"}


def test_a_span_of_a_stream_that_is_well_advises_nothing() -> None:
    traced = Traced()

    async def main() -> None:
        async def source() -> AsyncIterator[str]:
            for word in "abcd":
                yield word

        await Request().at(Mixed(Traces(traced.provider, every=1)).answer(source))

    run("asyncio", main)
    span = traced.one("streamguard direct")
    assert of(span, "slowest_leg")
    assert "streamguard.change" not in (span.attributes or {})


def test_a_span_of_a_whole_stream_does_not_blame_the_model() -> None:
    traced = Traced()

    async def main() -> None:
        async def source() -> AsyncIterator[str]:
            for number in range(8):
                await anyio.sleep(0.05)
                yield f"w{number} "

        mixed = Mixed(Traces(traced.provider, every=2))
        await Request().at(mixed.answer(source))
        await Request().at(LoggedAnswer(mixed.guard, source, timing=mixed.timing()))
        await mixed.guard.aclose()

    run("asyncio", main)
    for part in ("direct", "producer"):
        span = traced.one(f"streamguard {part}")
        assert (of(span, "status"), of(span, "slowest_leg"), of(span, "change")) == ("complete", "generated", None)


@pytest.mark.parametrize("every", [1, 100])
@pytest.mark.parametrize("logged", [False, True])
def test_the_span_of_a_reader_that_took_nothing_names_what_waited_for_it(logged: bool, every: int) -> None:
    """The write that hangs is never over, and so is never sampled: all the samples are of tokens that went well."""
    traced, measured = Traced(), Legs(every)

    async def source() -> AsyncIterator[str]:
        for number in range(40):
            await anyio.sleep(0.25)
            yield f"w{number} "

    async def main() -> None:
        mixed = Mixed([Traces(traced.provider, every=every), measured])
        request, timing = Request(deaf=31), mixed.timing(write=4.0)
        answer: Any = LoggedAnswer(mixed.guard, source, timing=timing) if logged else mixed.answer(source, write=4.0)
        await request.at(answer)
        await mixed.guard.aclose()

    run("asyncio", main)
    span = traced.one("streamguard reader" if logged else "streamguard direct")
    assert of(span, "slowest_leg") == "sent"
    assert of(span, "change") == LEGS["sent"][1]
    assert of(span, "leg.sent") > 0.1


@pytest.mark.parametrize(("by", "leg"), [("transport", "sent"), ("credit", "credit"), ("lead", "sent")])
def test_a_stream_that_waited_for_its_reader_most_of_its_time_names_that(by: Any, leg: Leg) -> None:
    traced = Traced()
    traces = Traces(traced.provider, every=1)
    outcome = attrs.evolve(OUTCOME, status="complete", delivered="unknown")
    for waited in (4.0, 6.0):
        stream = StreamDetails("direct", "AAAAAAAA", RequestLabels(), 0.0, 0.0)
        traces.opened(Opened(stream, 0.0))
        for _ in range(9):
            traces.sampled(Sampled(stream, 1.0, {"generated": 0.45, "encoded": 0.0}))
        traces.blocked(Blocked(stream, 1.0, by, waited))
        traces.closed(Closed(stream, 10.0, outcome))
    other, mostly = traced.spans()
    assert (of(other, "slowest_leg"), of(other, "change")) == ("generated", None)
    assert (of(mostly, "slowest_leg"), of(mostly, "change")) == (leg, LEGS[leg][1])
    assert of(mostly, f"leg.{leg}") == pytest.approx(6.0 / 9)


@pytest.mark.parametrize(("status", "leg"), [("slow", "sent"), ("parted", "credit"), ("failed", "generated")])
def test_a_reader_that_was_given_up_is_named_however_long_the_stream_was(status: str, leg: Leg) -> None:
    traced = Traced()
    traces = Traces(traced.provider, every=1)
    stream = StreamDetails("reader" if status == "parted" else "direct", "AAAAAAAA", RequestLabels(), 0.0, 0.0)
    traces.opened(Opened(stream, 0.0))
    for _ in range(9):
        traces.sampled(Sampled(stream, 1.0, {"generated": 1000.0}))
    if leg == "credit":
        traces.blocked(Blocked(stream, 9999.0, "credit", 0.001))
    failure = Failure("slow", "of a reader; or what an application calls its own")
    traces.closed(Closed(stream, 9999.0, attrs.evolve(OUTCOME, status=status, failure=failure, delivered="no")))
    (span,) = traced.spans()
    assert (of(span, "slowest_leg"), of(span, "change")) == (leg, LEGS[leg][1])


def test_an_acknowledgement_is_a_leg() -> None:
    traced = Traced()
    traces = Traces(traced.provider, every=1)
    stream = StreamDetails("reader", "AAAAAAAA", RequestLabels(), 0.0, 0.0)
    traces.opened(Opened(stream, 0.0))
    traces.acknowledged(Acknowledged(stream, 1.0, 4, 0.25))
    found = traces._open[stream]
    assert (found.acked, found.way.means) == (4, {"acknowledged": 0.25})


# ---- one trace --------------------------------------------------------------------------------


def test_what_a_log_keeps_of_a_trace_is_where_it_began_and_nothing_that_grants() -> None:
    traced, traces = tracing()

    async def main() -> tuple[Any, str]:
        mixed = Mixed(traces)
        request = Request(traceparent=CALLER, streamguard="v=1")
        answer = LoggedAnswer(mixed.guard, iter("ab"), timing=Timing(linger=0.0))
        await request.at(answer)
        assert answer.run is not None
        state = await mixed.log.state(answer.run.sid)
        await mixed.guard.aclose()
        return state.info, answer.run.sid

    info, sid = anyio.run(main)
    begun = traced.one("streamguard stream")
    origin = origin_of(info)
    assert origin == f"00-{CALLER[3:35]}-{trace.format_span_id(begun.context.span_id)}-01"
    assert sid not in origin
    assert traced.one("streamguard producer").parent.span_id == begun.context.span_id  # type: ignore[union-attr]
    reader = traced.one("streamguard reader")
    assert reader.parent is not None
    assert trace.format_span_id(reader.parent.span_id) == CALLER[36:52]
    assert [link.context.span_id for link in reader.links] == [begun.context.span_id]


def test_one_stream_from_the_client_to_the_source_cut_and_resumed_is_one_trace() -> None:
    traced, traces = tracing()
    timing = Timing(linger=0.0)

    @guarded(dialect="openai", observe=traces, timing=timing)
    async def model(request: Any) -> AsyncIterator[str]:
        for number in range(40):
            with traced.tracer.start_as_current_span("token"):
                yield f"token {number} "

    guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id, observe=traces)

    @guard.stream(timing=timing)
    async def relayed(request: Any) -> AsyncIterator[Any]:
        async for item in ChatCompletions(behind.url + "/v1").stream({"messages": []}):
            yield item

    proxy = Starlette(routes=[Route("/chat", relayed, methods=["POST"])])
    guard.install(proxy, "/streams", timing=timing)
    server = SealMiddleware(Starlette(routes=[Route("/v1/chat/completions", model, methods=["POST"])]))
    with serving(server) as behind, serving(proxy) as front:
        text, resumes = anyio.run(_asked, front.port, traced)
        wait_until(lambda: not traces._open)
    assert text == "".join(f"token {number} " for number in range(40))
    assert resumes == 1
    asked, begun = traced.one("ask"), traced.one("streamguard stream")
    assert {span.context.trace_id for span in traced.spans()} == {asked.context.trace_id}
    assert _parent(begun) == asked.context.span_id
    producer, source = traced.one("streamguard producer"), traced.one("streamguard direct")
    assert _parent(producer) == begun.context.span_id
    assert _parent(source) == producer.context.span_id
    assert {_parent(span) for span in traced.spans("token")} == {source.context.span_id}
    readers = traced.spans("streamguard reader")
    assert len(readers) == 2
    for reader in readers:
        assert _parent(reader) == asked.context.span_id
        assert [link.context.span_id for link in reader.links] == [begun.context.span_id]
    assert sorted("resumed" in events(reader) for reader in readers) == [False, True]


async def _asked(port: int, traced: Traced) -> tuple[str, int]:
    """The answer behind a proxy that cuts the first connection."""
    again = ResumePolicy(attempts=2, base=0.0, max_wait=0.0)

    def plan(index: int) -> Plan:
        return Plan(after=HEAD, cut_at=300) if index == 0 else Plan()

    async with FaultProxy("127.0.0.1", port, plan=plan) as cutting:
        with traced.tracer.start_as_current_span("ask"):
            async with stream("POST", f"{cutting.url}/chat", json={}, resume=again) as answer:
                return await answer.read(), answer.receipt.resumes


def _parent(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


def test_a_stream_that_another_process_goes_on_with_is_of_the_same_trace() -> None:
    traced, traces = tracing()
    origin = f"00-{'1' * 32}-{'2' * 16}-01"

    async def main() -> None:
        mixed = Mixed(traces)
        for resumer in ("on", ""):
            cursor = await orphan(mixed, resumer, origin)
            request = Request("/streams", streamguard="v=1", last_event_id=str(cursor), traceparent=CALLER)
            await request.at(mixed.endpoints)
        await mixed.guard.aclose()

    run("asyncio", main)
    gone_on, sealed = traced.spans("streamguard producer")
    for span in (gone_on, sealed):
        assert trace.format_span_id(_parent(span)) == "2" * 16
        assert "taken_over" in events(span)
    for reader in traced.spans("streamguard reader"):
        assert [trace.format_span_id(link.context.span_id) for link in reader.links] == ["2" * 16]


@pytest.mark.parametrize("origin", [None, "", "nonsense", f"00-{'0' * 32}-{'2' * 16}-01"])
def test_an_origin_that_is_none_links_to_nothing(origin: str | None) -> None:
    traced, traces = tracing()
    traces._started(StreamDetails("reader", "A", RequestLabels(), 0.0, 0.0, origin=origin)).end()
    assert traced.one("streamguard reader").links == ()


# ---- the client -------------------------------------------------------------------------------


def test_a_client_says_which_trace_it_belongs_to_unless_told_otherwise() -> None:
    traced = Traced()
    assert sent_by({}) is None
    with traced.tracer.start_as_current_span("ask") as span:
        ids = span.get_span_context()
        mine = f"00-{trace.format_trace_id(ids.trace_id)}-{trace.format_span_id(ids.span_id)}-"
        assert (sent_by({}) or "").startswith(mine)
        assert sent_by({"Traceparent": CALLER}) == CALLER
        assert sent_by({}, headers={"traceparent": CALLER}) == CALLER
    assert trace_headers() == {}


def sent_by(own: dict[str, str], **options: Any) -> str | None:
    """The `traceparent` of a client's request."""
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(404)

    with httpx.Client(transport=httpx.MockTransport(answer), **options) as client:
        with pytest.raises(UnexpectedResponse), stream_sync("GET", "http://a", client=client, headers=own):
            pass
    return asked[0].headers.get("traceparent")


def test_a_program_without_opentelemetry_sends_nothing_of_it() -> None:
    code = (
        "import sys; import streamguard.client; from streamguard.client.traceparent import trace_headers\n"
        "assert trace_headers() == {}\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
