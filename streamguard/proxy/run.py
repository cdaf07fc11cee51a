"""`streamguard proxy`, run: from its options to a server that is over."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

from streamguard.log.base import LogUnavailable, StreamLog
from streamguard.proxy.app import ProxySettings, proxy_app
from streamguard.proxy.command import limits_of
from streamguard.proxy.server import bound, serve
from streamguard.proxy.upstream import Upstream
from streamguard.runtime.slots import Limits

__all__ = ["log_named", "run", "settings_of"]


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
    limits = limits_of(options)
    return ProxySettings(
        principal_header=options.principal_header,
        end=options.end,
        profile=options.profile,
        path=options.path,
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


def run(options: argparse.Namespace) -> bool:
    """Serve until the process is told to go. Whether it ever served. Raises ValueError and OSError for options that
    cannot be, and for a log that cannot be used, before anything listens."""
    settings = settings_of(options)
    upstream = Upstream.parse(options.upstream)
    if options.cacert is not None and upstream.scheme != b"https":
        raise ValueError(f"--cacert is for an upstream of https://, not {options.upstream}")
    app = proxy_app(upstream, log_named(options.log), settings)
    asyncio.run(_tried(log_named(options.log)))
    listening = None if options.uds else bound(options.host, options.port)

    def listens() -> None:
        where: Any = f"unix:{options.uds}"
        if listening is not None:
            host, port = listening.getsockname()[:2]
            where = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        print(f"streamguard proxy: {where} in front of {options.upstream}", file=sys.stderr, flush=True)

    return serve(
        app,
        listening=listening,
        uds=options.uds,
        max_head=settings.max_head,
        grace=settings.grace,
        access_log=options.access_log,
        listens=listens,
    )
