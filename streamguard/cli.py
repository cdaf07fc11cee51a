"""The command line: `streamguard demo`, `streamguard check`, `streamguard proxy`.

Every command's modules are imported when it runs, so that `--help` answers at once and one command does
not need another's libraries. Results go to standard output, progress and problems to standard error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from streamguard.check import command as check_command
from streamguard.options import count, port, refuse, seconds
from streamguard.proxy import command as proxy_command

__all__ = ["main"]

# Exit codes, beside 0; 2 is argparse's own for a command line that it does not understand.
BROKEN = 1  # the promise was not kept
UNUSABLE = 2  # something is missing that the command needs
FAILED = 3  # the command itself did not work
INTERRUPTED = 130  # as a shell reports SIGINT

_ABOUT = """\
An LLM stream is either delivered whole, or both ends know that it was not.

Nearly every client takes a stream that ends early for a whole answer. streamguard ends a body cleanly
only if the answer is complete, and its client says so when it is not.
"""

_BEGIN = """\
begin here:
  streamguard demo                      see streams lose their tails on this machine, and see it stop
  streamguard demo --delay 0            the same code as its author sees it: nothing is ever lost
  streamguard demo --web --open         the same in the browser: cut an answer, and see what each reader believes
  streamguard check URL                 what happens to an endpoint's streams on their way to you
  streamguard proxy UPSTREAM            guard the streams of a server that you do not change
  streamguard COMMAND --help            what a command does, and its options
"""

_DEMO = """\
Starts real servers on loopback and reads some thousand answers from them, in one to two minutes.

1. A sender that lags. Tokens are sent in chunks, the sender lags behind the model, and the response ends
   when generation does. The endpoint stands there as people write it ("unguarded"), with a flush of the
   chunk buffer at the end ("unguarded+flush"), and with streamguard ("guarded"). No answer is cut by a
   random draw: only token times and lengths vary, and what is lost is lost by timing.
2. A connection that is cut. A proxy in between ends each connection at a random byte, and the table shows
   which readers notice.
3. With --resume, instead of both: each answer is cut ten times and goes on, over each log that is here. The
   log in Redis needs the extra "redis" and a redis-server on the path. Half a minute.
4. With --web, instead of all: a page, served until Ctrl-C, that streams one answer side by side, unguarded and
   guarded, with buttons that cut and stall both.

"chunk": how many tokens are sent at once. "truncated": the answers of which less arrived than the server
generated, as "lost text" in the second table. "noticed": for how many of those the client library raised an
error. "silent": for how many it did not.
"""

_DEMO_END = """\
examples:
  streamguard demo --requests 20        quick: 20 answers in each cell
  streamguard demo --delay 0.01         a sender that lags more loses more
  streamguard demo --resume             streams that go on after every cut
  streamguard demo --web --open         the page, in the browser
  streamguard demo --web --host 0.0.0.0 for a phone in the same network, too
  streamguard demo --json > lab.json    for programs
  streamguard demo --plot lab.svg       as a picture

exit code:
  0 if every guarded answer was whole or its reader was told (with --resume: every text is the one that was
  generated); 1 if not; 2 for a wrong command line, or if something is missing that the demo needs; 3 if the
  demo itself did not work
"""


# Options of `demo` that mean something without `--web` only, and with it only.
_OF_THE_LAB: Final = ("requests", "delay", "json", "plot")
_OF_THE_PAGE: Final = ("host", "port", "open")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; `argv` is without the program's name. Answers the exit code.

    Raises SystemExit for `--help`, `--version` and command lines that are none, as argparse does.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    if options.command == "demo":
        for name in _OF_THE_LAB if options.web else _OF_THE_PAGE:
            value = getattr(options, name)
            if value is not None and value is not False:  # 0 is a value
                parser.error(f"--{name} {'does not go with' if options.web else 'is an option of'} `demo --web`")
    if options.command is None:
        parser.print_help()
        return 0
    try:
        return _COMMANDS[options.command](options)
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="streamguard",
        description=_ABOUT,
        epilog=_BEGIN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"streamguard {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    demo = commands.add_parser(
        "demo",
        help="lose the ends of streams, and stop losing them",
        description=_DEMO,
        epilog=_DEMO_END,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    demo.add_argument("--requests", type=count, metavar="N", help="answers in each cell (default: 100 or 300)")
    demo.add_argument(
        "--delay", type=seconds, metavar="SECONDS", help="how far the sender lags behind the model (default: 0.0025)"
    )
    demo.add_argument("--seed", type=int, default=1, metavar="N", help="of token times and lengths (default: 1)")
    instead = demo.add_mutually_exclusive_group()
    instead.add_argument("--resume", action="store_true", help="cut streams ten times and resume them, over each log")
    instead.add_argument("--web", action="store_true", help="serve a page that shows both sides, with buttons that cut")
    demo.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    demo.add_argument("--plot", type=_picture, metavar="FILE", help="also draw the first table: a .svg or .png file")
    demo.add_argument("--host", metavar="HOST", help="with --web: where it listens (default: 127.0.0.1)")
    demo.add_argument("--port", type=port, metavar="PORT", help="with --web: 0 for a free one (default: 8765)")
    demo.add_argument("--open", action="store_true", help="with --web: open it in the browser")
    check_command.add_options(commands)
    proxy_command.add_options(commands)
    return parser


def _demo(options: argparse.Namespace) -> int:
    if options.web:
        return _web(options)
    try:
        if options.plot is not None:
            import matplotlib  # noqa: F401  (before the lab runs, not after it)
        import anyio
        from rich.console import Console

        from streamguard.demo import lab, report
        from streamguard.demo.servers import LabError
    except ModuleNotFoundError as exc:
        return _missing(exc, "demo")
    if options.resume:
        return _resume(options)
    delay = lab.DELAY if options.delay is None else options.delay
    settings = lab.Settings(options.seed, options.requests, delay)

    async def run() -> lab.Result:
        with report.progress(Console(stderr=True)) as start:
            return await lab.run(settings, start=start)

    if not options.json:
        report.print_legend(Console())
    try:
        result = anyio.run(run)
    except (LabError, OSError) as exc:
        return _problem(f"the demo did not work: {exc}", FAILED)
    if options.json:
        print(report.as_json(result))
    else:
        report.print_tables(result, Console())
    if options.plot is not None:
        try:
            report.plot(result, options.plot)
        except OSError as exc:
            return _problem(f"the picture could not be written: {exc}", FAILED)
    return 0 if result.kept else BROKEN


def _resume(options: argparse.Namespace) -> int:
    """The demo's third experiment."""
    import anyio
    from rich.console import Console

    from streamguard.demo import report, resume
    from streamguard.demo.servers import LabError

    async def run() -> resume.ResumeResult:
        with report.progress(Console(stderr=True)) as start:
            return await resume.run(options.seed, options.requests, start=start)

    try:
        result = anyio.run(run)
    except (LabError, OSError) as exc:
        return _problem(f"the demo did not work: {exc}", FAILED)
    if options.json:
        print(report.resume_json(result))
    else:
        report.print_resumes(result, Console())
    return 0 if result.kept else BROKEN


def _web(options: argparse.Namespace) -> int:
    """The demo's page."""
    try:
        from streamguard.demo.web import PORT, serve_page
    except ModuleNotFoundError as exc:
        return _missing(exc, "demo")
    host = options.host or "127.0.0.1"
    port = PORT if options.port is None else options.port
    try:
        serve_page(host, port, open_browser=options.open)
    except OSError as exc:
        return _problem(f"the page cannot be served at {host}, port {port}: {exc}", FAILED)
    return 0


def _check(options: argparse.Namespace) -> int:
    try:
        import anyio
        from rich.console import Console

        from streamguard.check import report
        from streamguard.check.diagnosis import diagnose
        from streamguard.check.evidence import Evidence
        from streamguard.check.run import Plan, examine
        from streamguard.check.transport import Transport
    except ModuleNotFoundError as exc:
        return _missing(exc, "check")
    try:
        evidence = Evidence(check_command.asked(options))
        transport = Transport(
            options.http, options.cacert, insecure=options.insecure, follow=options.location, silence=options.timeout
        )
    except (ValueError, OSError) as exc:
        return _problem(str(exc), UNUSABLE)
    plan = Plan(
        options.repeat, options.leave, options.profile, options.max_time, selftest=options.selftest, gauge=options.gauge
    )
    with report.live(Console(stderr=True)) as stage:
        anyio.run(examine, evidence, plan, transport, stage)
    findings = diagnose(evidence)
    if options.json:
        print(report.as_json(evidence, findings))
    else:
        report.print_report(evidence, findings, Console())
    return {"ok": 0, "fault": BROKEN, "no stream": FAILED}[report.outcome(evidence, findings)]


def _proxy(options: argparse.Namespace) -> int:
    if options.upstream is None:
        return _problem("name the server to stand in front of: streamguard proxy http://HOST:PORT", UNUSABLE)
    try:
        from streamguard.proxy.run import run
    except ModuleNotFoundError as exc:
        return _missing(exc, "proxy")
    try:
        return 0 if run(options) else FAILED
    except ModuleNotFoundError as exc:  # what the log needs; the rest of its address may have a password in it
        return _missing(exc, "redis", f"--log {options.log.partition(':')[0]}://…", "proxy,redis")
    except ValueError as exc:
        return _problem(str(exc), UNUSABLE)
    except OSError as exc:
        return _problem(f"the proxy could not start: {exc}", FAILED)


_COMMANDS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {"demo": _demo, "check": _check, "proxy": _proxy}


def _missing(exc: ModuleNotFoundError, extra: str, what: str | None = None, install: str | None = None) -> int:
    """What to install, for the command of the extra's name or for `what`. Raises `exc` itself if it is no library of
    the extra's."""
    library = (exc.name or "").partition(".")[0]
    if library in ("", "streamguard"):
        raise exc
    needed = f"`streamguard {extra}` needs {library}" if what is None else f"`{what}` needs the extra {extra}"
    return _problem(f'{needed}: pip install "streamguard-io[{install or extra}]"', UNUSABLE)


def _problem(text: str, code: int) -> int:
    print(f"streamguard: {text}", file=sys.stderr)
    return code


def _version() -> str:
    try:
        return version("streamguard-io")
    except PackageNotFoundError:  # a checkout that is not installed
        return "(not installed)"


def _picture(text: str) -> Path:
    path = Path(text)
    if path.suffix not in (".svg", ".png"):
        refuse("a file name that ends in .svg or .png", text)
    if not path.absolute().parent.is_dir():
        refuse("a file in a directory that exists", text)
    return path


if __name__ == "__main__":
    sys.exit(main())
