"""What arrives of a guarded answer behind nginx, HAProxy and Envoy, on every server that speaks HTTP/1.1.

Real proxies in the configurations of `tests.stacks.between`, those that the how-to prints among them, stand before
real servers. Clients as they are installed read an answer that ends and one that is cut; a source that makes a token
only once its predecessor was read shows what is held back; a reader that leaves shows when the source is told.

Proxies that are not installed are left out, and the notes say so.
"""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final

import httpx

from streamguard.client import stream_sync
from streamguard.core.errors import VerdictError
from tests.absence import absent
from tests.adapters.endings import TEXT, TOKENS
from tests.adapters.readers import Reading
from tests.proofs.registry import Result, Run, Table, proof
from tests.stacks.between import (
    DOCUMENTED,
    END_READERS,
    ENVOYS,
    HANG,
    HTTP10,
    SERVERS,
    WAYS,
    GatedStream,
    Held,
    Way,
    booked,
    client_of,
    gated,
    read_by_all,
)
from tests.stacks.gated import APP
from tests.stacks.gated import HTTP10 as FORMS
from tests.stacks.processes import Process, running
from tests.stacks.proxies import INSTALL, Proxy, envoy, haproxy, nginx, version_of

__all__ = ["ENDS", "cells_of", "ends_of", "in_between", "right_ends"]

CUT: Final = "".join(TOKENS[:3])
TIMED: Final = 50  # tokens of which the median is taken
ENDS: Final = "How a cut answer ends"
BEAT: Final = b": hb"

Readings = Mapping[str, Reading]
Start = Callable[[int], AbstractContextManager[Proxy]]


def ends_of(proxy: Proxy) -> tuple[Readings, Readings]:
    """What each reader makes of an answer that finishes, and of one that is cut after three tokens."""
    path = "/warn/{}/openai/chat/completions"
    return read_by_all(proxy, path.format("finished")), read_by_all(proxy, path.format("raises-3"))


def right_ends(whole: Readings, cut: Readings) -> bool:
    """Whether nobody misses a whole answer, and whoever looks into the answer knows of the cut."""
    finished = all(reading.error is None for reading in whole.values())
    texts = whole["openai"].text == whole["streamguard.client"].text == TEXT
    told = cut["openai"] == Reading(CUT, "APIError") and cut["streamguard.client"] == Reading(CUT, _FAILED)
    return finished and texts and told and all(reading.error != HANG for reading in cut.values())


_FAILED: Final = "FAILED (source_error)"


def cells_of(readings: Readings) -> list[str]:
    """A row's cells: what each reader reports."""
    return [readings[name].error or "clean end" for name in END_READERS]


def _merged(rows: Iterable[tuple[str, str, Sequence[str]]]) -> list[list[str]]:
    """Rows of (way, server, cells), one for all servers with the same cells."""
    servers: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for way, server, cells in rows:
        servers.setdefault((way, tuple(cells)), []).append(server)
    order = list(dict.fromkeys(way for way, _ in servers))
    return [
        [way, "all" if len(names) == len(SERVERS) else ", ".join(names), *cells]
        for way, cells, names in sorted(
            [(way, cells, names) for (way, cells), names in servers.items()], key=lambda row: order.index(row[0])
        )
    ]


# ---- one server behind one proxy -----------------------------------------------------------------


def _logged(proxy: Proxy) -> str:
    """What the proxy books of a cut whose reader stays to its end."""
    path = "/warn/raises-3/native/chat/completions"
    END_READERS["httpx"](proxy, path)
    return booked(proxy, path)


def _passing(server: Process, proxy: Proxy, gzip: bool) -> list[str]:
    """Whether the head, heartbeats and tokens come before the next thing is made."""
    found = dict.fromkeys(("head", "heartbeats", "tokens"), "held back")
    try:
        with gated(proxy, server.port, heartbeat=0.05, gzip=gzip) as stream:
            stream.until(b"event: open")
            found["head"] = "at once"
            stream.until(BEAT, 3)
            found["heartbeats"] = "at once"
            for number in range(1, 21):
                stream.token(number)
            found["tokens"] = "20 of 20"
    except Held:
        pass
    return list(found.values())


def _leaving(server: Process, proxy: Proxy, gzip: bool) -> tuple[bool, list[str]]:
    """When the source is told that its reader left, and what the proxy books."""
    with gated(proxy, server.port, gzip=gzip) as stream:
        stream.token(1)
        stream.leave()
        told = _told(stream)
        return told != "never", [told, booked(proxy, stream.name)]


def _matrix(ways: Sequence[Way], run: Run) -> tuple[bool, list[Table]]:
    shown, ends, passing = True, [], []
    for name in SERVERS:
        with running(name, APP) as server:
            for way in ways:
                with way.start(server.port) as proxy:
                    whole, cut = ends_of(proxy)
                    ends.append((way.name, name, [*cells_of(cut), _logged(proxy)]))
                    arrives = _passing(server, proxy, way.gzip)
                    told, leaves = _leaving(server, proxy, way.gzip)
                    passing.append((way.name, name, [*arrives, *leaves]))
                good = right_ends(whole, cut) and told and "held back" not in arrives
                shown &= good
                run.say(f"{name} behind {way.name}: {'as claimed' if good else 'NOT as claimed'}")
    columns = ["behind", "server", *END_READERS, "the proxy's log"]
    leaving = ["behind", "server", "head", "heartbeats", "tokens", "a reader that leaves is told", "the proxy's log"]
    return shown, [
        Table(columns, _merged(ends), ENDS),
        Table(leaving, _merged(passing), "What comes before the next token is made, and who leaves"),
    ]


def _told(stream: GatedStream) -> str:
    """When the source is told of a reader that has just left."""
    if stream.closed(within=2.0):
        return "at once"
    made = stream.writes_until_closed()
    return "never" if made is None else f"at write {made}"


# ---- what the proxy alone decides ------------------------------------------------------------------


def _delays(server: Process, ways: Sequence[Way]) -> Table:
    """From the making of a token in the source to its reading in the client."""
    starts: dict[str, tuple[Start, bool]] = {way.name: (way.start, way.gzip) for way in ways}
    starts["HAProxy, HTTP/1.1, `option http-no-delay`"] = (_haproxy("option http-no-delay"), False)
    rows = []
    for name, (start, gzip) in starts.items():
        with start(server.port) as proxy, gated(proxy, server.port, gzip=gzip) as stream:
            seconds = [stream.token(number) for number in range(1, TIMED + 1)]
        rows.append([name, statistics.median(seconds) * 1e3])
    return Table(["behind", "median, ms"], rows, f"Delay of a token that comes alone ({TIMED} tokens)")


def _haproxy(options: str, *, http2_front: bool = False) -> Start:
    return lambda port: haproxy(port, http2_front=http2_front, options=options)


def _nginx(directives: str, *, http10: bool = False, http2_front: bool = False, gzip: bool = False) -> Start:
    return lambda port: nginx(port, http10=http10, http2_front=http2_front, gzip=gzip, directives=directives)


def _leaving_http2(server: Process, ways: Sequence[Way]) -> Table:
    """Readers that leave one stream of a connection that they keep."""
    rows = []
    for way in ways:
        with way.start(server.port) as proxy:
            if not proxy.http2:
                continue
            with gated(proxy, server.port) as stream:
                stream.token(1)
                stream.reset()
                reset = _told(stream)
            with gated(proxy, server.port) as stream:
                stream.token(1)
                stream.response.close()
                rows.append([way.name, reset, _told(stream)])
    columns = ["behind", "the stream is reset, as browsers do", "httpx's `response.close()`"]
    return Table(columns, rows, "When a source is told of a reader that leaves and keeps its HTTP/2 connection")


def _buffering(server: Process) -> Table:
    """What nginx does with tokens where it does not heed the header that every answer of ours has."""
    rows = []
    ignoring = "proxy_ignore_headers X-Accel-Buffering;"
    settings = {"heeded": "", "ignored": ignoring, "ignored, `proxy_buffering off`": f"{ignoring} proxy_buffering off;"}
    for way in (HTTP10, "nginx, HTTP/1.1 upstream", "nginx, gzip"):
        gzip = WAYS[way].gzip
        cells = []
        for directives in settings.values():
            with _nginx(directives, http10=way == HTTP10, gzip=gzip)(server.port) as proxy:
                try:
                    with gated(proxy, server.port, gzip=gzip, patience=2.0) as stream:
                        stream.token(1)
                    cells.append("at once")
                except Held:
                    cells.append("held back")
        rows.append([way, *cells])
    columns = ["`X-Accel-Buffering: no`", *settings]
    return Table(columns, rows, "The first token, with nginx's `proxy_buffering` as it is by default")


_IDLE: Final[Mapping[str, Start]] = {
    "nginx, `proxy_read_timeout 1s`": _nginx("proxy_read_timeout 1s;"),
    "nginx, HTTP/2 in front, `proxy_read_timeout 1s`": _nginx("proxy_read_timeout 1s;", http2_front=True),
    "nginx, `send_timeout 1s`": _nginx("send_timeout 1s;"),
    "HAProxy, `timeout server 1s`": _haproxy("timeout server 1s"),
    "HAProxy, `timeout server 1s`, `timeout tunnel 1m`": _haproxy("timeout server 1s\n    timeout tunnel 1m"),
    "HAProxy, HTTP/2 in front, `timeout server 1s`": _haproxy("timeout server 1s", http2_front=True),
    "HAProxy, `timeout client 1s`": _haproxy("timeout client 1s"),
    "Envoy, `timeout: 1s`": lambda port: envoy(port, route=", timeout: 1s"),
    "Envoy, `idle_timeout: 1s`": lambda port: envoy(port, route=", timeout: 0s, idle_timeout: 1s"),
}


def _silence(server: Process) -> Table:
    """A source that is silent for longer than a limit of the proxy, with heartbeats and without."""
    rows = []
    for name, start in _IDLE.items():
        if absent(_program(name)):
            continue
        with start(server.port) as proxy:
            rows.append([name, _with_heartbeats(server, proxy), *_without(server, proxy)])
    columns = ["limit", "a heartbeat every 0.25 s", "no heartbeats: httpx", "no heartbeats: streamguard.client"]
    return Table(columns, rows, "Two seconds of silence in the middle of an answer")


def _program(name: str) -> str:
    return name.partition(",")[0].lower()


def _with_heartbeats(server: Process, proxy: Proxy) -> str:
    try:
        with gated(proxy, server.port, heartbeat=0.25) as stream:
            stream.token(1)
            stream.until(BEAT, 8)
            stream.token(2)
    except (Held, EOFError, httpx.HTTPError) as exc:
        return f"cut: {type(exc).__name__}"
    return "goes on"


def _without(server: Process, proxy: Proxy) -> tuple[str, str]:
    """What httpx says of the end, and the verdict; both wait for 2 s."""
    with gated(proxy, server.port, patience=2.0) as stream:
        stream.token(1)
        try:
            stream.rest()
            plain = "clean end"
        except httpx.ReadTimeout:
            return "goes on", "goes on"
        except httpx.HTTPError as exc:
            plain = type(exc).__name__
    with client_of(proxy) as client:
        with stream_sync("GET", f"{proxy.url}/gated/silent-{proxy.port}", client=client) as answer:
            try:
                answer.read()
            except VerdictError:
                pass
            return plain, answer.receipt.verdict.name


# ---- HTTP/1.0 --------------------------------------------------------------------------------------


def _http10() -> Table:
    rows = []
    for name in SERVERS:
        with running(name, APP) as server, WAYS[HTTP10].start(server.port) as proxy:
            for form in FORMS:
                for ending, title in (("finished", "finishes"), ("raises-3", "raises")):
                    readings = read_by_all(proxy, f"/{form}/{ending}/openai/chat/completions")
                    rows.append((f'`"{form}"`, the source {title}', name, cells_of(readings)))
    return Table(["`http10=`", "server", *END_READERS], _merged(rows), f"Behind {HTTP10}")


# ---- the proof -------------------------------------------------------------------------------------


@proof(
    claim="Behind nginx, HAProxy and Envoy each token and heartbeat arrives before the next is made, a reader that "
    "leaves ends its source, and no cut is hidden from the OpenAI SDK or from our client.",
    minutes=10,
)
def in_between(run: Run) -> Result:
    everything = {**WAYS, **ENVOYS, **DOCUMENTED}
    ways = [way for way in everything.values() if not absent(way.program)]
    missing = [program for program in INSTALL if absent(program)]
    shown, tables = _matrix(ways, run)
    with running(SERVERS[0], APP) as server:
        run.say("HTTP/2 connections that are kept, delays, buffering, silence")
        tables += [_leaving_http2(server, ways), _delays(server, ways), _buffering(server), _silence(server)]
    tables.append(_http10())
    curl = subprocess.run(["curl", "-V"], capture_output=True, text=True, check=True).stdout.split()[1]
    versions = [f"{program} {version_of(program)}" for program in INSTALL if program not in missing]
    return Result(
        shown,
        tables,
        notes=[
            f"{', '.join(versions)}, curl {curl}.",
            *[f"Not installed, and left out: {', '.join(missing)}." for _ in missing[:1]],
            "`never`: not within 20 further tokens.",
            f"What is not by server is of {SERVERS[0]}.",
        ],
        packages=["uvicorn", "h11", "httptools", "hypercorn", "granian", "httpx", "h2", "openai"],
    )
