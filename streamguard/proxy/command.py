"""The options of `streamguard proxy`, each with its environment variable, and what they mean. Needs no library."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from streamguard.core.dialect.provider import PROFILES
from streamguard.options import address, count, count_from_zero, port, refuse, seconds, seconds_above_zero

__all__ = ["PREFIX", "Commands", "add_options", "limits_of"]

PREFIX: Final = "STREAMGUARD_PROXY_"

_ABOUT: Final = """\
A reverse proxy that guards the streams of a server which you do not change: vLLM, TGI, Ollama, any server
of the OpenAI or Anthropic API, any other that answers with server-sent events or lines of JSON.

Every request is passed through to the byte, and so is every answer that is no stream. A stream gets an id
and cursors, signs of life while the server is silent, and an end that is proven, or none: where the server
breaks off, stalls or dies, clients raise instead of taking half an answer for a whole one. A client that
loses its connection reads on where it was; one that leaves stops the server's work.
"""

_END: Final = """\
examples:
  streamguard proxy http://127.0.0.1:8000                    in front of a vLLM; then ask port 8080
  streamguard proxy http://127.0.0.1:8000 --log sqlite:/var/lib/streams.db
                                                             streams outlive this process
  streamguard proxy http://gpu:8000 --log redis://cache:6379/0 --principal-header X-User
                                                             several proxies behind one balancer
  streamguard proxy http://127.0.0.1:8000 --max-streams 64   the 65th waits, or is told when to come back
  streamguard proxy http://127.0.0.1:8000 --metrics 9464     Prometheus asks http://127.0.0.1:9464/metrics
  streamguard proxy http://127.0.0.1:8000 --record >>abnormal.jsonl
                                                             what was known of each stream that went wrong

Check it: streamguard check http://127.0.0.1:8080/v1/chat/completions -d '{"stream": true, ...}'

Every option has an environment variable, STREAMGUARD_PROXY_ and its name: --max-streams 64 is
STREAMGUARD_PROXY_MAX_STREAMS=64, and UPSTREAM is STREAMGUARD_PROXY_UPSTREAM. The command line wins.
Without --principal-header whoever knows a stream's id, 128 random bits, may read on in it and cancel it.

exit code:
  2 for a wrong command line, or if a library is missing; 3 if the proxy could not start, as where its port is
  taken or its log cannot be used. SIGTERM ends it once its streams are over, at the latest after --grace; the
  code is that of the signal.
"""


class Commands(Protocol):
    """What argparse's `add_subparsers` answers."""

    def add_parser(
        self, name: str, *, help: str, description: str, epilog: str, formatter_class: type[argparse.HelpFormatter]
    ) -> argparse.ArgumentParser: ...


class _Adding:
    """Adds options whose defaults come from the environment. A default that is a text is read like an argument."""

    def __init__(self, parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
        self._parser = parser
        self._environ = environ

    def value(self, name: str, metavar: str, kind: Callable[[str], Any], default: str | None, help: str) -> None:
        given = self._environ.get(_variable(name), default)
        self._parser.add_argument(f"--{name}", metavar=metavar, type=kind, default=given, help=help)

    def switch(self, name: str, help: str) -> None:
        given = self._environ.get(_variable(name), "").strip().lower() in ("1", "true", "yes", "on")
        self._parser.add_argument(f"--{name}", action="store_true", default=given, help=help)


def _variable(name: str) -> str:
    return PREFIX + name.upper().replace("-", "_")


def add_options(commands: Commands, environ: Mapping[str, str] | None = None) -> None:
    """Add the command to those of the program."""
    proxy = commands.add_parser(
        "proxy",
        help="guard the streams of a server that you do not change",
        description=_ABOUT,
        epilog=_END,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    environ = os.environ if environ is None else environ
    proxy.add_argument(
        "upstream", metavar="UPSTREAM", nargs="?", default=environ.get(PREFIX + "UPSTREAM"),
        help="the server's address: http://HOST:PORT, with a path if all requests go below one",
    )  # fmt: skip
    add = _Adding(proxy, environ)
    add.value("host", "HOST", str, "127.0.0.1", "where to listen (127.0.0.1)")
    add.value("port", "PORT", port, "8080", "where to listen; 0 is any that is free (8080)")
    add.value("uds", "PATH", str, None, "listen at a Unix socket instead")
    add.value("log", "LOG", _log, "memory", "keeps streams: memory, sqlite:PATH, redis://HOST:PORT/DB (memory)")
    add.value("principal-header", "NAME", _name, None, "the header that says who asks, by which streams are theirs")
    add.value("end", "RULE", _one_of("known", "provider", "asgi"), "known",
              "what proves an end: the API's marker, and for unknown APIs the server's own end (known); always the "
              "marker (provider); always the server's own end (asgi)")  # fmt: skip
    add.value("profile", "NAME", _one_of(*PROFILES), "openai", f"the server, where it departs: {', '.join(PROFILES)}")
    add.value("path", "PATH", _path, "/streams", "where streams are resumed, cancelled, asked about (/streams)")
    add.value("upstream-streams", "PATH", _path, None,
              "where an upstream that guards streams itself has them resumed: it is passed on as it comes")  # fmt: skip
    add.value("ready", "PATH", _path, None, "a path that answers 200, and 503 once the proxy is told to go")
    add.value("heartbeat", "SECONDS", seconds_above_zero, "15", "of silence, after which a sign of life is sent (15)")
    add.value("stall", "SECONDS", seconds_above_zero, "600",
              "of the server's silence; then a stream ends as stalled, any other answer as 504 (600)")  # fmt: skip
    add.value("detach", "SECONDS", seconds, "60", "that a stream runs on for a reader who may come back (60)")
    add.value("grace", "SECONDS", seconds, "20", "that streams have to end once the proxy is told to go (20)")
    add.value("max-streams", "N", count, None, "streams at once (any number)")
    add.value("max-per-principal", "N", count, None, "of them of one who asks (any number)")
    add.value("max-waiting", "N", count_from_zero, "100", "requests that may wait for a stream's end (100)")
    add.value("max-wait", "SECONDS", seconds_above_zero, "10", "that they wait (10)")
    add.value("max-body", "BYTES", _size, "64M", "of a request, with K, M or G (64M)")
    add.value("body-timeout", "SECONDS", seconds_above_zero, "60", "between two parts of a request's body (60)")
    add.value("connect-timeout", "SECONDS", seconds_above_zero, "10", "until the server is reached (10)")
    add.value("cacert", "FILE", str, None, "believe these authorities of the server, and no others")
    add.value("http10", "FORM", _one_of("warn", "buffer", "refuse"), "warn",
              "what a stream is for HTTP/1.0, as nginx asks by default, which shows no cut: sent all the same, with "
              "one line in the log (warn); whole, with its length, or a 502 (buffer); a 426 (refuse)")  # fmt: skip
    add.switch("no-compress", "do not compress streams for readers that ask for it")
    _add_watching(add)


def _add_watching(add: _Adding) -> None:
    """Those of whoever runs the proxy and wants to see what it does."""
    add.value("dashboard", "PASSWORD", str, None,
              "serve the live page at PATH/dashboard to who gives this password, of at least 16 characters; better "
              "given by STREAMGUARD_PROXY_DASHBOARD, since others on the machine can see a command line")  # fmt: skip
    add.value("metrics", "ADDRESS", address, None,
              "serve /metrics for Prometheus there, and nowhere else: PORT, of 127.0.0.1, or HOST:PORT")  # fmt: skip
    add.switch("otel", "spans and metrics by OpenTelemetry, to where its own variables say (OTEL_…)")
    add.value("sample", "N", count, None, "time one token in N on its way, for --metrics and --otel (none)")
    add.switch("record", "a line of JSON on standard output for each stream that did not end complete and delivered")
    add.switch("access-log", "a line for each request")
    add.value("log-config", "FILE", str, None, "how to log, as JSON for Python's logging.config.dictConfig")


def limits_of(options: argparse.Namespace) -> dict[str, Any] | None:
    """The arguments of the Limits that the options name; None for no limits."""
    if options.max_streams is None and options.max_per_principal is None:
        return None
    names = ("max_streams", "max_per_principal", "max_waiting", "max_wait")
    return {name: getattr(options, name) for name in names}


def _log(text: str) -> str:
    if text == "memory" or re.match(r"(sqlite:|rediss?://|unix://).", text):
        return text
    # What follows the scheme may have a password in it.
    return refuse("memory, sqlite:PATH, redis://…, rediss://… or unix://…", re.sub(":.+", ":…", text))


def _name(text: str) -> str:
    return text if re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", text) else refuse("the name of a header", text)


def _path(text: str) -> str:
    return text if re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", text) else refuse("a path such as /streams", text)


def _size(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,15})([KMG]?)", text.strip().upper())
    if not found:
        refuse("bytes, such as 64M,", text)
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]]


def _one_of(*names: str) -> Callable[[str], str]:
    def known(text: str) -> str:
        return text if text in names else refuse(f"one of {', '.join(names)}", text)

    return known
