"""Guarded answers behind nginx and HAProxy: what arrives of an abort, of each token, and of a reader that leaves.

The table of all that was measured is `docs/reference/proxies.md`; `python -m tests.proofs in-between` remakes it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from streamguard.client import Verdict, stream_sync
from streamguard.core.errors import VerdictError
from tests.adapters.endings import TEXT, TOKENS
from tests.adapters.readers import Reading
from tests.modules import ROOT
from tests.proofs.in_between import ENDS, cells_of, ends_of
from tests.stacks.between import (
    DOCUMENTED,
    END_READERS,
    HANG,
    HTTP10,
    SERVERS,
    WAYS,
    Held,
    Way,
    booked,
    client_of,
    gated,
    read_by_all,
)
from tests.stacks.gated import APP
from tests.stacks.processes import Process, running, stack_params
from tests.stacks.proxies import Proxy, haproxy, nginx

PAGE = ROOT / "docs" / "reference" / "proxies.md"
ALL = {**WAYS, **DOCUMENTED}
CUT = "".join(TOKENS[:3])
BEAT = b": hb"


@pytest.fixture
def needs_nginx() -> None:
    WAYS[HTTP10].require()


@pytest.fixture
def needs_haproxy() -> None:
    WAYS["HAProxy, HTTP/1.1"].require()


@pytest.fixture(scope="module", params=stack_params(*SERVERS))
def server(request: pytest.FixtureRequest) -> Iterator[Process]:
    """Each server once; tests of one server stand together."""
    with running(request.param, APP) as process:
        yield process


@pytest.fixture(scope="module")
def uvicorn() -> Iterator[Process]:
    """One server, for what the proxy alone decides."""
    with running("uvicorn-h11", APP) as process:
        yield process


@pytest.fixture(params=list(ALL))
def way(request: pytest.FixtureRequest) -> Way:
    found = ALL[request.param]
    found.require()
    return found


@pytest.fixture
def proxy(server: Process, way: Way) -> Iterator[Proxy]:
    with way.start(server.port) as started:
        yield started


def documented_cells(way: Way, server: str) -> list[str]:
    """The row of the page's first table for this proxy and server."""
    table = PAGE.read_text(encoding="utf-8").partition(f"**{ENDS}**")[2].partition("**")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith(f"| {way.name} |")]
    return next(row[2:] for row in rows if row[1] == "all" or server in row[1].split(", "))


def raw(proxy: Proxy, path: str) -> httpx.Response:
    with client_of(proxy) as client:
        return client.post(f"{proxy.url}{path}", json={})


# ---- ends ------------------------------------------------------------------------------------------


def test_an_end_is_what_it_was_for_every_reader(server: Process, way: Way, proxy: Proxy) -> None:
    whole, cut = ends_of(proxy)
    assert {name: reading.error for name, reading in whole.items()} == dict.fromkeys(END_READERS)
    assert whole["openai"].text == whole["streamguard.client"].text == TEXT
    # By what stands in the answer: whatever became of the abort on the way.
    assert cut["openai"] == Reading(CUT, "APIError")
    assert cut["streamguard.client"] == Reading(CUT, "FAILED (source_error)")
    for name in ("httpx", "curl"):
        assert '"error":{' in cut[name].text.replace(" ", "")
        assert "[DONE]" not in cut[name].text
        # uvicorn's httptools answers in chunks even over HTTP/1.0, and nginx takes them for what they are.
        if way.carries_abort or (way.name == HTTP10 and server.stack == "uvicorn-httptools"):
            assert cut[name].error not in (None, HANG), name
        else:
            assert cut[name].error is None, f"{name}: the abort arrives, and the table says that it does not"
    assert cells_of(cut) == documented_cells(way, server.stack)[: len(END_READERS)]


def test_a_cut_answer_is_in_the_log_of_haproxy(uvicorn: Process, needs_haproxy: None) -> None:
    path = "/warn/raises-3/openai/chat/completions"
    with haproxy(uvicorn.port) as proxy:
        with client_of(proxy) as client, pytest.raises(httpx.RemoteProtocolError):
            client.post(f"{proxy.url}{path}", json={})
        assert booked(proxy, path) == "200, SD--"  # the server ended it, within the body


# ---- token by token --------------------------------------------------------------------------------


def test_the_head_each_token_and_each_heartbeat_arrive_at_once(server: Process, way: Way, proxy: Proxy) -> None:
    with gated(proxy, server.port, heartbeat=0.05, gzip=way.gzip) as stream:
        assert stream.response.headers.get("content-encoding") == ("gzip" if way.gzip else None)
        assert "no-transform" in stream.response.headers["cache-control"]  # which nginx's gzip does not heed
        assert stream.response.http_version == ("HTTP/2" if proxy.http2 else "HTTP/1.1")
        stream.until(b"event: open")
        stream.until(BEAT, 2)
        for number in range(1, 4):
            stream.token(number)  # which is made only now
        stream.until(BEAT, stream.received.count(BEAT) + 2)
        stream.finish()
        stream.rest()
        assert b"event: end" in stream.received


@pytest.mark.parametrize("name", [HTTP10, "nginx, gzip"])
def test_the_header_of_ours_is_what_keeps_nginx_from_holding_tokens(
    uvicorn: Process, needs_nginx: None, name: str
) -> None:
    options: Any = {"gzip": True} if WAYS[name].gzip else {"http10": True}
    ignoring = "proxy_ignore_headers X-Accel-Buffering;"
    with nginx(uvicorn.port, directives=ignoring, **options) as proxy:
        with pytest.raises(Held), gated(proxy, uvicorn.port, gzip=WAYS[name].gzip, patience=1.0) as stream:
            stream.token(1)
    with nginx(uvicorn.port, directives=f"{ignoring} proxy_buffering off;", **options) as proxy:
        with gated(proxy, uvicorn.port, gzip=WAYS[name].gzip) as stream:
            stream.token(1)


# ---- leaving ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nginx, HTTP/2 in front", "HAProxy, HTTP/2 in front"])
def test_a_stream_that_is_reset_ends_its_source_though_the_connection_stays(uvicorn: Process, name: str) -> None:
    WAYS[name].require()
    with WAYS[name].start(uvicorn.port) as proxy, gated(proxy, uvicorn.port) as stream:
        stream.token(1)
        stream.reset()
        assert stream.closed()


def test_a_reader_that_leaves_ends_the_source(server: Process, way: Way, proxy: Proxy) -> None:
    with gated(proxy, server.port, gzip=way.gzip) as stream:
        stream.token(1)
        stream.leave()
        if way.program == "haproxy" and way.name not in DOCUMENTED:
            # Without `option abortonclose` it looks at its client only when it has something to write.
            made = stream.writes_until_closed()
            assert made is not None
            assert made <= 3
        else:
            assert stream.closed(), "a silent source is not told that its reader left"


# ---- HTTP/1.0 --------------------------------------------------------------------------------------


@pytest.fixture
def over_http10(server: Process, needs_nginx: None) -> Iterator[Proxy]:
    with nginx(server.port, http10=True) as started:
        yield started


def test_http10_warn_streams_and_says_once_what_to_set(server: Process, over_http10: Proxy) -> None:
    for _ in range(2):
        assert raw(over_http10, "/warn/finished/native/chat/completions").status_code == 200
    assert server.log().count("set `proxy_http_version 1.1` in nginx") == 1


def test_http10_buffer_gives_the_answer_whole_or_a_502(over_http10: Proxy) -> None:
    whole = raw(over_http10, "/buffer/finished/openai/chat/completions")
    assert (whole.status_code, whole.headers["content-length"]) == (200, str(len(whole.content)))
    cut = read_by_all(over_http10, "/buffer/raises-3/openai/chat/completions")
    assert {name: reading.error for name, reading in cut.items()} == {
        "httpx": "502",
        "curl": "exit 22",
        "openai": "502",
        "streamguard.client": "502",
    }


def test_http10_refuse_is_a_426_that_passes_nginx(over_http10: Proxy) -> None:
    refused = raw(over_http10, "/refuse/finished/openai/chat/completions")
    assert (refused.status_code, refused.json()["code"]) == (426, "http_1_0")


# ---- idle limits -----------------------------------------------------------------------------------

LIMITED = {
    "nginx": lambda port: nginx(port, directives="proxy_read_timeout 1s;"),
    "nginx, HTTP/2 in front": lambda port: nginx(port, http2_front=True, directives="proxy_read_timeout 1s;"),
    "HAProxy": lambda port: haproxy(port, options="timeout server 1s"),
    "HAProxy, HTTP/2 in front": lambda port: haproxy(port, http2_front=True, options="timeout server 1s"),
}


@pytest.fixture(params=list(LIMITED))
def limited(request: pytest.FixtureRequest, uvicorn: Process) -> Iterator[tuple[str, Proxy]]:
    WAYS["HAProxy, HTTP/1.1" if "HAProxy" in request.param else HTTP10].require()
    with LIMITED[request.param](uvicorn.port) as started:
        yield request.param, started


def test_heartbeats_keep_an_idle_limit_from_striking(uvicorn: Process, limited: tuple[str, Proxy]) -> None:
    with gated(limited[1], uvicorn.port, heartbeat=0.1) as stream:
        stream.until(BEAT, 15)  # a second and a half of silence
        stream.token(1)


def test_an_idle_limit_that_strikes_is_an_error_or_at_least_no_complete_answer(
    uvicorn: Process, limited: tuple[str, Proxy]
) -> None:
    name, proxy = limited
    with client_of(proxy) as client:
        with stream_sync("GET", f"{proxy.url}/gated/limited-{proxy.port}", client=client) as answer:
            with pytest.raises(VerdictError):
                answer.read()
            assert answer.receipt.verdict is Verdict.TRUNCATED
    with gated(proxy, uvicorn.port) as stream:
        if name == "HAProxy, HTTP/2 in front":
            stream.rest()  # a clean end, without a terminal: nobody who does not verify can know
            assert b"event: end" not in stream.received
        else:
            with pytest.raises(httpx.RemoteProtocolError):
                stream.rest()


# ---- the kit itself --------------------------------------------------------------------------------


def test_a_configuration_that_cannot_be_read_is_shown_with_the_reason(needs_haproxy: None) -> None:
    with pytest.raises(RuntimeError, match=r"unknown keyword 'no-such-option'(.|\n)*timeout server 60s"):
        with haproxy(1, options="no-such-option"):
            pass


def test_no_process_of_a_proxy_outlives_its_block(needs_nginx: None) -> None:
    with nginx(1) as proxy:
        os.killpg(proxy.process.pid, 0)
    with pytest.raises(ProcessLookupError):
        os.killpg(proxy.process.pid, 0)
