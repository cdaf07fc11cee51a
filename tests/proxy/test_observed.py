"""The proxy seen from outside: its observers, its metrics at an address of their own, and the trace it is part of."""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from streamguard import cli
from streamguard.log.memory import MemoryLog
from streamguard.observe.hooks import Closed, Observer, Opened, Passed, Passing, Refused
from streamguard.observe.opentelemetry import Traces
from streamguard.observe.prometheus import Prometheus
from streamguard.observe.record import Record, Recorder
from streamguard.proxy import telemetry
from streamguard.proxy.app import proxy_app
from streamguard.proxy.scraped import AT_ONCE, Scraped
from streamguard.proxy.upstream import Upstream
from tests.adapters.logged_apps import wait_until
from tests.adapters.middleware_apps import DONE, chunk
from tests.adapters.servers import DEADLINE, serving
from tests.asking import http
from tests.observe.measured import Traced
from tests.observe.noted import Noted
from tests.observe.pages import samples
from tests.ports import nobody
from tests.proxy.fronted import CHUNKED, Wired, answered, fronted, in_front
from tests.proxy.running import running

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACED = ("traceparent", "tracestate")
URL = "http://127.0.0.1:8000"


@pytest.mark.parametrize(("metrics", "path"), [((), "/streams"), (("--metrics", "0"), "/sg")], ids=["alone", "beside"])
def test_the_line_that_says_where_it_listens_says_where_its_page_is(metrics: tuple[str, ...], path: str) -> None:
    with running(URL, "--path", path, *metrics, STREAMGUARD_PROXY_DASHBOARD="correct horse battery") as proxy:
        assert proxy.dashboard == f"{proxy.where}{path}/dashboard"
        assert http.get(proxy.dashboard, auth=("me", "correct horse battery")).status_code == 200
        assert bool(proxy.metrics) == bool(metrics)


class Upstreams:
    """A server that streams, and has metrics of its own; `asked` is what each request says of its trace."""

    def __init__(self) -> None:
        self.asked: list[list[tuple[bytes, bytes]]] = []
        self.app = Starlette(routes=[Route("/metrics", self.metrics), Route("/{path}", self.chat)])

    def note(self, request: Request) -> None:
        self.asked.append([field for field in request.headers.raw if field[0].decode() in TRACED])

    async def metrics(self, request: Request) -> Response:
        self.note(request)
        return PlainTextResponse("vllm:num_requests_running 3.0\n")

    async def chat(self, request: Request) -> Response:
        self.note(request)
        events = [chunk("a"), chunk("b"), chunk(reason="stop"), DONE]
        return StreamingResponse(iter(events), media_type="text/event-stream")


def parent(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


def said(fields: list[tuple[bytes, bytes]]) -> dict[str, str]:
    found = {name.decode(): value.decode() for name, value in fields}
    assert len(found) == len(fields)
    return found


# ---- observers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("observe", [None, [], Noted(), Traces(trace.NoOpTracerProvider())])
def test_without_a_tracer_a_trace_passes_to_the_byte(observe: Any) -> None:
    made = Upstreams()
    fields = [(b"TraceParent", b"00-not--one at all"), (b"tracestate", b"a=1"), (b"tracestate", b"b=2,,")]
    with fronted(made.app, observe=observe) as (proxy, _):
        http.get(f"{proxy.url}/a", headers=fields)
    assert made.asked == [[(b"traceparent", b"00-not--one at all"), (b"tracestate", b"a=1"), (b"tracestate", b"b=2,,")]]


def test_observers_are_told_of_requests_and_of_streams() -> None:
    noted, made = Noted(), Upstreams()
    with fronted(made.app, observe=noted) as (proxy, _):
        assert http.get(f"{proxy.url}/a", headers={"x-request-id": "r-1"}).text.count("data:") == 4
        assert http.get(f"{proxy.url}/metrics").text == "vllm:num_requests_running 3.0\n"
        wait_until(lambda: len(noted.all(Passed)) == 2 and len(noted.all(Closed)) == 2)
    assert [(event.status, event.cause, event.request.method) for event in noted.all(Passed)] == [(200, "", "GET")] * 2
    assert noted.all(Passed)[0].request.labels.request_id == "r-1"
    assert sorted(event.stream.part for event in noted.all(Opened)) == ["producer", "reader"]
    assert {event.outcome.status for event in noted.all(Closed)} == {"complete"}


def test_what_an_observer_answers_goes_along_in_place_of_the_requests_own() -> None:
    class Adding(Observer):
        def passing(self, request: Passing) -> Mapping[str, str]:
            return {"Traceparent": "mine", "tracestate": ""}

    made = Upstreams()
    with fronted(made.app, observe=Adding()) as (proxy, _):
        http.get(f"{proxy.url}/a", headers=[("traceparent", CALLER), ("TraceParent", "again"), ("tracestate", "a=1")])
    assert made.asked == [[(b"traceparent", b"mine")]]


def test_what_is_no_observer_is_refused() -> None:
    with pytest.raises(TypeError, match="observe is an Observer"):
        proxy_app(Upstream.parse(URL), MemoryLog(), observe="prometheus")  # type: ignore[arg-type]


def test_an_observer_that_raises_or_answers_nonsense_harms_no_request(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Observer):
        def passing(self, request: Passing) -> Mapping[str, str] | None:
            raise ValueError("mine")

        def passed(self, event: Passed) -> None:
            raise ValueError("mine too")

    class Odd(Observer):
        def __init__(self, answer: Any) -> None:
            self.answer = answer

        def passing(self, request: Passing) -> Any:
            return self.answer

    made = Upstreams()
    odd = [Odd(answer) for answer in (5, {"traceparent": 5}, {5: "a"}, {"traceparent": "\u20ac"})]
    with fronted(made.app, observe=[Broken(), *odd]) as (proxy, _):
        for _ in range(2):
            assert http.get(f"{proxy.url}/metrics", headers={"traceparent": CALLER}).status_code == 200
    assert made.asked == [[(b"traceparent", CALLER.encode())]] * 2
    assert len([record for record in caplog.records if "an observer raised" in record.message]) == 2


def test_how_an_upstream_failed_is_told_and_counted_by_its_name() -> None:
    noted, numbers = Noted(), Prometheus(CollectorRegistry())
    data = chunk("a")
    cut = Wired(CHUNKED + b"%x\r\n%b\r\n" % (len(data), data))
    with cut as wired, in_front(wired.port, observe=[noted, numbers]) as proxy:
        with pytest.raises(httpx.RemoteProtocolError):
            http.get(proxy.url)
        wait_until(lambda: bool(noted.all(Passed)) and bool(noted.all(Closed, "producer")))
    with nobody() as port, in_front(port, observe=noted) as proxy:
        assert http.get(proxy.url).status_code == 502
    assert [(event.status, event.cause) for event in noted.all(Passed)] == [
        (200, "upstream_broke"), (None, "upstream_unreachable")
    ]  # fmt: skip
    name = 'streamguard_streams_closed_total{cause="upstream_broke",part="producer",status="failed"}'
    assert samples(numbers.page())[name] == 1


ASKS = {"stream": True}


@pytest.mark.parametrize(
    ("settings", "request_of", "why", "status"),
    [
        ({}, {"json": ASKS}, "upstream_unreachable", 502),
        ({}, {"content": b"plain"}, "upstream_unreachable", 502),
        ({"max_body": 3}, {"json": ASKS}, "body_too_large", 413),
        ({"max_head": 200}, {"headers": {"a": "b" * 300}}, "head_too_large", 431),
        ({}, {"headers": {"upgrade": "spdy"}}, "not_implemented", 501),
    ],
)
def test_a_request_that_the_proxy_answers_itself_is_counted_as_refused(
    settings: dict[str, Any], request_of: dict[str, Any], why: str, status: int
) -> None:
    noted, numbers = Noted(), Prometheus(CollectorRegistry())
    with nobody() as port, in_front(port, observe=[noted, numbers], **settings) as proxy:
        assert http.post(f"{proxy.url}/v1", **request_of).status_code == status
    assert [(event.why, event.status) for event in noted.all(Refused)] == [(why, status)]
    assert samples(numbers.page())[f'streamguard_requests_refused_total{{why="{why}"}}'] == 1


def test_an_upstream_that_says_nothing_is_counted_and_so_is_a_body_that_stands_still() -> None:
    noted = Noted()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with in_front(silent.getsockname()[1], observe=noted, stall=0.1, body_silence=1.0) as proxy:
            assert http.post(proxy.url, json=ASKS).status_code == 504
            head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
            assert b"408" in answered(proxy, head).partition(b"\r\n")[0]
    assert [event.why for event in noted.all(Refused)] == ["upstream_silent", "body_too_slow"]


# ---- traces -------------------------------------------------------------------------------------


def test_the_upstream_belongs_to_the_proxys_span_and_that_to_the_caller() -> None:
    made, traced = Upstreams(), Traced()
    with fronted(made.app, observe=Traces(traced.provider)) as (proxy, _):
        http.get(f"{proxy.url}/a", headers={"traceparent": CALLER, "tracestate": "a=1"})
        wait_until(lambda: len(traced.spans()) == 4)
    span, begun = traced.one("streamguard proxy"), traced.one("streamguard stream")
    assert said(made.asked[0]) == {
        "traceparent": f"00-{CALLER[3:35]}-{trace.format_span_id(span.context.span_id)}-01", "tracestate": "a=1"
    }  # fmt: skip
    assert (trace.format_span_id(parent(span)), span.kind) == (CALLER[36:52], SpanKind.SERVER)
    assert dict(span.attributes or {}) == {
        "http.request.method": "GET", "url.scheme": "http", "url.path": "/a", "http.response.status_code": 200
    }  # fmt: skip
    assert parent(begun) == parent(traced.one("streamguard reader")) == span.context.span_id
    assert parent(traced.one("streamguard producer")) == begun.context.span_id
    assert trace.get_current_span() is trace.INVALID_SPAN


@pytest.mark.parametrize("headers", [{}, {"traceparent": "nonsense", "tracestate": "a=1"}])
def test_a_request_without_a_trace_begins_one(headers: dict[str, str]) -> None:
    made, traced = Upstreams(), Traced()
    with fronted(made.app, observe=Traces(traced.provider)) as (proxy, _):
        http.get(f"{proxy.url}/metrics", headers=headers)
        wait_until(lambda: len(traced.spans()) == 1)
    (span,) = traced.spans()
    ids = f"{trace.format_trace_id(span.context.trace_id)}-{trace.format_span_id(span.context.span_id)}"
    assert list(said(made.asked[0])) == ["traceparent"]  # the state is of a trace that nobody names
    assert said(made.asked[0])["traceparent"].startswith(f"00-{ids}-")
    assert span.parent is None


def test_the_span_of_a_request_that_failed_says_how() -> None:
    traced = Traced()
    with nobody() as port, in_front(port, observe=Traces(traced.provider)) as proxy:
        http.get(proxy.url)
    span = traced.one("streamguard proxy")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "upstream_unreachable")
    assert (span.attributes or {})["error.type"] == "upstream_unreachable"
    assert (span.attributes or {})["http.response.status_code"] == 502


def test_the_span_of_an_error_of_the_upstreams_own_is_one() -> None:
    traced = Traced()
    with Wired(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n") as wired:
        with in_front(wired.port, observe=Traces(traced.provider)) as proxy:
            http.request("BREW", proxy.url)
    span = traced.one("streamguard proxy")
    assert (span.status.status_code, (span.attributes or {})["error.type"]) == (StatusCode.ERROR, "503")
    assert (span.attributes or {})["http.request.method"] == "_OTHER"


def test_a_request_that_is_passed_on_is_named_by_its_path_and_by_nothing_secret() -> None:
    noted, records, numbers = Noted(), list[Record](), Prometheus(CollectorRegistry())
    path = f"/v1/{'A' * 22}/a%0Ab/{'x' * 300}"
    data = chunk("a")
    cut = Wired(CHUNKED + b"%x\r\n%b\r\n" % (len(data), data))
    with cut as wired, in_front(wired.port, observe=[noted, Recorder(records.append), numbers]) as proxy:
        with pytest.raises(httpx.RemoteProtocolError):
            http.get(f"{proxy.url}{path}?key=secret")
        wait_until(lambda: len(records) == 1)
    named = noted.all(Passed)[0].request.labels.path
    assert named is not None
    assert (named[:14], len(named)) == (r"/v1/…/a\nb/xxx", 200)
    assert {event.stream.labels.path for event in noted.all(Opened)} == {named}
    assert {event.stream.labels.route for event in noted.all(Opened)} == {None}
    assert records[0].route == named
    assert b"/v1/" not in numbers.page()


# ---- the command --------------------------------------------------------------------------------


def test_metrics_are_at_their_own_address_and_the_upstreams_are_left_alone() -> None:
    made = Upstreams()
    with serving(made.app) as behind, running(behind.url, "--metrics", "0", "--sample", "2") as proxy:
        assert http.get(f"{proxy.where}/metrics").text == "vllm:num_requests_running 3.0\n"
        assert http.get(f"{proxy.where}/a").text.count("data:") == 4
        page = http.get(proxy.metrics)
        assert proxy.metrics.endswith("/metrics")
        assert page.headers["content-type"].startswith("text/plain")
        found = samples(page.content)
        assert found['streamguard_streams_opened_total{part="reader"}'] == 1
        assert found['streamguard_streams_opened_total{part="producer"}'] == 1
        assert found['streamguard_token_leg_seconds_count{leg="generated"}'] >= 1
        assert b"process_resident_memory_bytes" in page.content


@pytest.mark.parametrize("configured", [False, True])
def test_what_went_wrong_is_a_line_of_json_on_standard_output(configured: bool, tmp_path: Path) -> None:
    data = chunk("a")
    config = {
        "version": 1,
        "handlers": {"mine": {"class": "logging.FileHandler", "filename": str(tmp_path / "mine")}},
        "loggers": {"streamguard.abnormal": {"handlers": ["mine"]}},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    options = ["--log-config", str(tmp_path / "config.json")] if configured else []
    with Wired(CHUNKED + b"%x\r\n%b\r\n" % (len(data), data)) as wired:
        with running(f"http://127.0.0.1:{wired.port}", "--record", *options) as proxy:
            with pytest.raises(httpx.RemoteProtocolError):
                http.get(f"{proxy.where}/v1/chat?key=secret", headers={"x-request-id": "r-7"})
            proxy.process.terminate()
            proxy.ended()
            printed = proxy.printed()
    if configured:
        assert printed == ""
        assert " of GET /v1/chat" not in (tmp_path / "mine").read_text()
        assert "(producer) ended as failed: cause=upstream_broke" in (tmp_path / "mine").read_text()
        return
    (record,) = [json.loads(line) for line in printed.splitlines()]
    named = {name: record[name] for name in ("part", "status", "cause", "route", "request_id")}
    assert named == {
        "part": "producer", "status": "failed", "cause": "upstream_broke", "route": "/v1/chat", "request_id": "r-7"
    }  # fmt: skip
    assert "secret" not in printed


def test_a_record_has_the_trace_that_the_proxy_began_and_sent_its_upstream() -> None:
    data, none = chunk("a"), {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}
    with Wired(CHUNKED + b"%x\r\n%b\r\n" % (len(data), data)) as wired:
        with running(f"http://127.0.0.1:{wired.port}", "--record", "--otel", **none) as proxy:
            with pytest.raises(httpx.RemoteProtocolError):
                http.get(f"{proxy.where}/v1/chat")
            proxy.process.terminate()
            proxy.ended()
            (line,) = proxy.printed().splitlines()
    sent = re.search(rb"(?i)\ntraceparent: 00-([0-9a-f]{32})-", wired.requests[0])
    assert sent is not None
    assert json.loads(line)["trace_id"] == sent[1].decode()


@pytest.fixture(scope="module")
def scraped() -> Iterator[tuple[str, dict[str, bytes]]]:
    """Where metrics are served, and their `page`, which cannot be made where there is none."""
    pages: dict[str, bytes] = {}
    server = Scraped(socket.create_server(("127.0.0.1", 0)), lambda: pages["page"], "text/plain; version=0.0.4")
    yield f"http://127.0.0.1:{server.socket.getsockname()[1]}", pages
    server.close()


def test_the_address_of_metrics_answers_for_nothing_else(scraped: tuple[str, dict[str, bytes]]) -> None:
    url, pages = scraped
    pages["page"] = b"one 1\n"
    answer = http.get(f"{url}/metrics?name[]=x")
    assert (answer.status_code, answer.content, answer.headers["content-type"]) == (
        200, pages["page"], "text/plain; version=0.0.4"
    )  # fmt: skip
    head = http.head(f"{url}/metrics")
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "6")
    for path in ("/", "/metrics/", "/streams", "/a"):
        assert http.get(url + path).status_code == 404
    assert http.post(f"{url}/metrics").status_code == 501


def test_so_many_are_served_at_once_and_more_are_told_and_places_come_back(
    scraped: tuple[str, dict[str, bytes]],
) -> None:
    url, pages = scraped
    pages["page"] = b"one 1\n"
    at = ("127.0.0.1", int(url.rpartition(":")[2]))
    with ExitStack() as connected:
        for _ in range(AT_ONCE):
            connected.enter_context(socket.create_connection(at, DEADLINE))
        for _ in range(3):  # accepted behind those, which have all the places
            more = connected.enter_context(socket.create_connection(at, DEADLINE))
            with more.makefile("rb") as answer:
                assert answer.readline() == b"HTTP/1.1 503 Service Unavailable\r\n"
    wait_until(lambda: _gives(f"{url}/metrics", pages["page"]))


def _gives(url: str, page: bytes) -> bool:
    try:
        return http.get(url).content == page
    except httpx.TransportError:  # it was told that there is no place
        return False


def test_a_page_that_cannot_be_made_is_told_in_the_log(
    scraped: tuple[str, dict[str, bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    url, pages = scraped
    pages.clear()
    with pytest.raises(httpx.RemoteProtocolError):
        http.get(f"{url}/metrics")
    assert "the metrics could not be given" in caplog.text


def test_who_asks_for_metrics_and_goes_is_no_news(
    scraped: tuple[str, dict[str, bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    url, pages = scraped
    pages["page"] = b"x" * 10**7
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as gone:
        gone.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        gone.recv(1)
    assert http.get(f"{url}/metrics").status_code == 200
    assert "streamguard" not in {record.name for record in caplog.records}


@pytest.mark.parametrize(
    ("argv", "lacks", "words"),
    [
        (["--metrics", "0"], "prometheus_client", "--metrics needs prometheus_client: pip install "),
        (["--otel"], "opentelemetry.sdk", "--otel needs opentelemetry.sdk.metrics: pip install opentelemetry-sdk "),
        (["--sample", "5"], "", "--sample is for --metrics or --otel"),
    ],
)
def test_what_is_not_installed_is_named_with_the_line_that_installs_it(
    argv: list[str], lacks: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("streamguard.observe.prometheus", "streamguard.proxy.telemetry"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in [name for name in sys.modules if lacks and f"{name}.".startswith(f"{lacks}.")] + [lacks]:
        monkeypatch.setitem(sys.modules, name, None)
    assert cli.main(["proxy", URL, *argv]) == cli.UNUSABLE
    assert capsys.readouterr().err.startswith(f"streamguard: {words}")


def test_an_address_of_metrics_that_is_taken_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.main(["proxy", URL, "--metrics", str(port)]) == cli.FAILED
    assert f"it cannot listen at 127.0.0.1, port {port}" in capsys.readouterr().err


# ---- OpenTelemetry's SDK ------------------------------------------------------------------------


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """No provider is set up, no variable is set; which providers are set."""
    made: list[Any] = []
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    monkeypatch.setattr(trace, "set_tracer_provider", made.append)
    monkeypatch.setattr(metrics, "set_meter_provider", made.append)
    for signal_name in ("TRACES", "METRICS"):
        monkeypatch.setenv(f"OTEL_{signal_name}_EXPORTER", "none")
    return made


@pytest.mark.parametrize(
    ("variables", "service"),
    [
        ({}, telemetry.SERVICE),
        ({"OTEL_SERVICE_NAME": "mine"}, "mine"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=mine,a=b"}, "mine"),
    ],
)
def test_the_service_is_called_what_the_variables_say(
    unset: list[Any], variables: dict[str, str], service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    end = telemetry.set_up()
    assert unset[0].resource.attributes["service.name"] == service
    assert len(unset) == 2
    end()


@pytest.mark.parametrize(
    ("said", "protocol", "installed", "found"),
    [
        ("console", "", ["console", "otlp_proto_http"], "console"),
        ("otlp", "", ["otlp_proto_grpc", "otlp_proto_http"], "otlp_proto_http"),
        ("", "", ["otlp_proto_grpc"], "otlp_proto_grpc"),
        ("otlp", "grpc", ["otlp_proto_grpc", "otlp_proto_http"], "otlp_proto_grpc"),
        ("otlp", "grpc", ["otlp_proto_http"], None),
        ("own", "", ["own"], "own"),
        ("zipkin_json", "", [], None),
    ],
)
def test_an_exporter_is_found_by_its_name(
    said: str, protocol: str, installed: list[str], found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def load(self) -> str:
            return self.name

    monkeypatch.setattr(telemetry, "entry_points", lambda group: [Named(name) for name in installed])
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", said)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    if found is not None:
        assert telemetry._exporters("traces") == [found]
        return
    with pytest.raises(ValueError, match=r"--otel needs the exporter (otlp|zipkin_json): pip install opentelemetry-"):
        telemetry._exporters("traces")


def test_an_exporter_that_does_not_return_holds_the_end_up_for_a_while_only(
    unset: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, released = threading.Event(), threading.Event()

    class Hanging(SpanExporter):
        def shutdown(self) -> None:
            asked.set()
            released.wait(DEADLINE)

    monkeypatch.setattr(telemetry, "_LAST", 0.1)
    monkeypatch.setattr(telemetry, "_exporters", lambda signal: [Hanging] if signal == "traces" else [])
    end = telemetry.set_up()
    end()
    assert asked.wait(DEADLINE)
    assert not released.is_set()
    released.set()


def test_providers_that_are_set_up_already_are_used_and_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = Traced()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: traced.provider)
    telemetry.set_up()()
    traced.tracer.start_span("after").end()
    assert len(traced.spans("after")) == 1
