"""`streamguard proxy`, run: from its options, and who is to observe it, to a server that is over."""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs

from streamguard.log.base import LogUnavailable, StreamLog
from streamguard.observe.hooks import Observer
from streamguard.observe.record import Recorder
from streamguard.proxy.app import ProxySettings, proxy_app
from streamguard.proxy.command import limits_of
from streamguard.proxy.scraped import PATH, Scraped
from streamguard.proxy.server import bound, log_as, log_plainly, log_records, serve
from streamguard.proxy.upstream import Upstream
from streamguard.runtime.slots import Limits

__all__ = ["Watching", "log_config_in", "log_named", "run", "settings_of", "watching"]


def log_named(text: str) -> StreamLog:
    """The log that `--log` names. Raises ValueError, OSError and ModuleNotFoundError."""
    if text == "memory":
        from streamguard.log.memory import MemoryLog

        return MemoryLog()
    if text.startswith("sqlite:"):
        from streamguard.log.sqlite import SQLiteLog

        return SQLiteLog(text.removeprefix("sqlite:"))
    from streamguard.log.redis import RedisLog

    return RedisLog(text)


async def _tried(log: StreamLog) -> None:
    """Use a log, and close it: one that cannot be used would else be found out by the first stream, as a 503. It is not
    the log that serves, since a closed one stays closed. Raises OSError."""
    try:
        await log.sweep(1)
    except LogUnavailable as exc:
        raise OSError(str(exc)) from exc
    finally:
        await log.aclose()


def settings_of(options: argparse.Namespace) -> ProxySettings:
    """What the options say of the proxy's behaviour. Raises ValueError for options that do not go together."""
    if f"{options.ready}/".startswith(f"{options.path}/"):
        raise ValueError(f"--ready {options.ready} hides where streams are resumed (--path {options.path})")
    theirs = f"{options.upstream_streams}/"
    if f"{options.path}/".startswith(theirs) or theirs.startswith(f"{options.path}/"):
        raise ValueError(f"--upstream-streams {options.upstream_streams} is the proxy's own (--path {options.path})")
    limits = limits_of(options)
    return ProxySettings(
        principal_header=options.principal_header,
        end=options.end,
        profile=options.profile,
        path=options.path,
        upstream_streams=options.upstream_streams,
        ready=options.ready,
        dashboard=options.dashboard,
        heartbeat=options.heartbeat,
        stall=options.stall,
        detach=options.detach,
        grace=options.grace,
        limits=None if limits is None else Limits(**limits),
        compress=not options.no_compress,
        http10=options.http10,
        max_body=options.max_body,
        body_silence=options.body_timeout,
        connect=options.connect_timeout,
        cacert=options.cacert,
    )


def log_config_in(path: str) -> dict[str, Any]:
    """What the file of `--log-config` has. Raises ValueError and OSError."""
    with open(path, encoding="utf-8") as file:
        try:
            found = json.load(file)
        except ValueError as exc:
            raise ValueError(f"--log-config {path} is no JSON: {exc}") from exc
    if not isinstance(found, dict):
        raise ValueError(f"--log-config {path} is no JSON object")
    return found


@attrs.define
class Watching:
    """Who observes the proxy; `serving` says where its metrics are, `end` ends what is exported."""

    observers: list[Observer] = attrs.field(factory=list)
    serving: str = ""
    end: Callable[[], object] = attrs.field(default=lambda: None)


def watching(options: argparse.Namespace) -> Watching:
    """Who is to observe, by the options. Raises ValueError where what they need is missing, OSError where the address
    of the metrics cannot be had."""
    made, every = Watching(), options.sample or 0
    if every and options.metrics is None and not options.otel:
        raise ValueError("--sample is for --metrics or --otel")
    if options.otel:
        with _needs("--otel", "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"):
            from streamguard.observe.opentelemetry import Metrics, Traces
            from streamguard.proxy.telemetry import set_up
        made.end = set_up()
        made.observers += [Traces(every=every), Metrics(every=every)]
    if options.metrics is not None:
        with _needs("--metrics", '"streamguard-io[prometheus]"'):
            from streamguard.observe.prometheus import CONTENT_TYPE, Prometheus
        listening = bound(*options.metrics)
        prometheus = Prometheus(every=every)
        Scraped(listening, prometheus.page, CONTENT_TYPE)
        made.serving = f", metrics at {_url(listening)}{PATH}"
        made.observers.append(prometheus)
    if options.record:
        made.observers.append(Recorder())
        if options.log_config is None:  # which says where all loggers write
            log_records()
    return made


@contextmanager
def _needs(option: str, packages: str) -> Iterator[None]:
    """What the block does not find is what the option needs. Raises ValueError, which says how to install it."""
    try:
        yield
    except ModuleNotFoundError as exc:
        if (exc.name or "streamguard").partition(".")[0] == "streamguard":
            raise
        raise ValueError(f"{option} needs {exc.name}: pip install {packages}") from exc


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(options: argparse.Namespace) -> bool:
    """Serve until the process is told to go. Whether it ever served. Raises ValueError and OSError for options that
    cannot be, and for a log that cannot be used, before anything listens."""
    settings = settings_of(options)
    upstream = Upstream.parse(options.upstream)
    if options.cacert is not None and upstream.scheme != b"https":
        raise ValueError(f"--cacert is for an upstream of https://, not {options.upstream}")
    if options.log_config is not None:
        log_as(log_config_in(options.log_config))
    asyncio.run(_tried(log_named(options.log)))
    watched = watching(options)
    app = proxy_app(upstream, log_named(options.log), settings, observe=watched.observers)
    listening = None if options.uds else bound(options.host, options.port)
    if options.log_config is None:
        log_plainly()

    def listens() -> None:
        where = f"unix:{options.uds}" if listening is None else _url(listening)
        told = f"streamguard proxy: {where} in front of {options.upstream}{watched.serving}"
        if settings.dashboard is not None:
            told += f", dashboard at {'' if listening is None else where}{settings.path}/dashboard"
        print(told, file=sys.stderr, flush=True)

    return serve(
        app,
        listening=listening,
        uds=options.uds,
        max_head=settings.max_head,
        grace=settings.grace,
        access_log=options.access_log,
        listens=listens,
        ends=watched.end,
    )
