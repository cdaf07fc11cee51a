"""The options of `streamguard check`, and what they mean. Needs no library."""

from __future__ import annotations

import argparse
from typing import Final, Protocol

from streamguard.check.request import Request, request_from
from streamguard.core.dialect.provider import PROFILES
from streamguard.options import count, seconds_above_zero

__all__ = ["Commands", "add_options", "asked"]

_ABOUT: Final = """\
What happens to this endpoint's streams between its server and you?

Sends the request, reads the answer as an ordinary client does, and says what it looked like on the way:
when headers, first token and each further token came, whether they came one by one, how the stream said
that it is over, how its connection ended, and what a cut answer would look like. Each fault is named with
the setting to change and the page that explains it.

It recognises OpenAI's chat, completions and Responses, Anthropic's Messages, the AI SDK's UI stream, AG-UI,
other server-sent events, and lines of JSON. A guarded stream is verified.
"""

_END: Final = """\
examples:
  streamguard check http://localhost:8000/v1/chat/completions -H 'Authorization: Bearer KEY' \\
      -d '{"model": "m", "stream": true, "messages": [{"role": "user", "content": "Count to 100"}]}'
  streamguard check https://example.org/chat --repeat 5      five answers, which are compared
  streamguard check URL --leave                              go early, and see whether the server stops
  streamguard check URL --json > check.json                  for programs

Ask for an answer of some seconds: a short one cannot show whether a layer holds tokens back.
Beside the answer a small OPTIONS request is sent, to see whether the server serves others meanwhile.

exit code:
  0 in order (warnings and notes may stand beside it); 1 a fault was found; 2 for a wrong command line, or if
  a library is missing; 3 if there was no stream to check: no connection, an HTTP error, another kind of answer
"""


class Commands(Protocol):
    """What argparse's `add_subparsers` answers."""

    def add_parser(
        self, name: str, *, help: str, description: str, epilog: str, formatter_class: type[argparse.HelpFormatter]
    ) -> argparse.ArgumentParser: ...


def add_options(commands: Commands) -> None:
    """Add the command to those of the program."""
    check = commands.add_parser(
        "check",
        help="what happens to an endpoint's streams on their way to you",
        description=_ABOUT,
        epilog=_END,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = check.add_argument
    add("url", metavar="URL")
    add("-X", "--request", metavar="METHOD", help="GET, or POST if there is a body")
    add("-H", "--header", action="append", default=[], metavar="LINE", help="'Name: value'; any number of them")
    add("-d", "--data", action="append", default=[], metavar="DATA", help="the body; @FILE, or @- for standard input")
    add("-L", "--location", action="store_true", help="follow redirects")
    add("-k", "--insecure", action="store_true", help="believe any certificate")
    add("--cacert", metavar="FILE", help="believe the certificates of these authorities, and no others")
    http = check.add_mutually_exclusive_group()
    http.add_argument("--http1.1", dest="http", action="store_const", const="1.1", help="do not offer HTTP/2")
    http.add_argument(
        "--http2-prior-knowledge", dest="http", action="store_const", const="2", help="HTTP/2 without asking first"
    )
    add("--repeat", type=count, default=1, metavar="N", help="ask N times, one after the other (default: 1)")
    add("--leave", action="store_true", help="leave one more answer early, and see whether the server stops")
    add("--profile", choices=PROFILES, default="openai", help="the server, where it departs from its API")
    add("--selftest", metavar="URL", help="a stream that fails on purpose (default: the server's own, if it names one)")
    add("--gauge", metavar="URL[#NAME]", help="a page that counts what runs, for --leave (default: /metrics)")
    add("--timeout", type=seconds_above_zero, default=130.0, metavar="SECONDS", help="of silence that ends it (130)")
    add("--max-time", type=seconds_above_zero, metavar="SECONDS", help="for each answer (default: as long as it takes)")
    add("--json", action="store_true", help="print one JSON object")
    check.set_defaults(http="any")


def asked(options: argparse.Namespace) -> Request:
    """The request that the options name. Raises ValueError, OSError."""
    return request_from(options.url, method=options.request, headers=options.header, data=options.data)
