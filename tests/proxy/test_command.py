"""The options of `streamguard proxy`: defaults, the environment, and what is refused."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from typing import Any

import pytest

from streamguard import cli
from streamguard.log.memory import MemoryLog
from streamguard.log.redis import RedisLog
from streamguard.log.sqlite import SQLiteLog
from streamguard.proxy.app import ProxySettings
from streamguard.proxy.command import add_options
from streamguard.proxy.run import log_named, settings_of
from streamguard.runtime.slots import Limits
from tests.modules import ROOT

URL = "http://127.0.0.1:8000"


def parsed(*argv: str, **environ: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    variables = {f"STREAMGUARD_PROXY_{name}": value for name, value in environ.items()}
    add_options(parser.add_subparsers(), variables)
    return parser.parse_args(["proxy", *argv])


def test_the_defaults_are_those_of_the_application() -> None:
    options = parsed(URL)
    assert settings_of(options) == ProxySettings()
    assert (options.upstream, options.host, options.port, options.uds) == (URL, "127.0.0.1", 8080, None)


def test_every_option_says_what_the_application_is_to_do() -> None:
    options = parsed(
        URL, "--principal-header", "X-User", "--end", "provider", "--profile", "vllm", "--path", "/sg", "--ready",
        "/up", "--heartbeat", "5", "--stall", "60", "--detach", "0", "--grace", "9", "--max-streams", "7",
        "--max-waiting", "0", "--max-wait", "3", "--max-body", "2m", "--body-timeout", "4", "--connect-timeout", "1",
        "--cacert", "ca.pem", "--no-compress",
    )  # fmt: skip
    assert settings_of(options) == ProxySettings(
        principal_header="X-User", end="provider", profile="vllm", path="/sg", ready="/up", heartbeat=5, stall=60,
        detach=0, grace=9, limits=Limits(max_streams=7, max_waiting=0, max_wait=3), max_body=2 << 20, body_silence=4,
        connect=1, cacert="ca.pem", compress=False,
    )  # fmt: skip


def test_the_environment_says_the_same_and_the_command_line_wins() -> None:
    environ = {"UPSTREAM": URL, "MAX_STREAMS": "7", "NO_COMPRESS": "true", "ACCESS_LOG": "0", "PORT": "9000"}
    options = parsed("--port", "9001", **environ)
    assert (options.upstream, options.max_streams, options.no_compress) == (URL, 7, True)
    assert (options.access_log, options.port) == (False, 9001)


@pytest.mark.parametrize(
    ("option", "value"),
    [("port", "65536"), ("port", "-1"), ("log", "postgres://x"), ("log", "sqlite:"), ("principal-header", "a b"),
     ("end", "never"), ("profile", "none"), ("path", "streams"), ("path", "/a//b"), ("ready", "/"), ("stall", "0"),
     ("heartbeat", "0"), ("detach", "-1"), ("grace", "nan"), ("max-streams", "0"), ("max-waiting", "-1"),
     ("max-body", "2T")],
)  # fmt: skip
def test_a_value_that_cannot_be_is_refused_wherever_it_stands(option: str, value: str, capsys: Any) -> None:
    for argv, environ in (([f"--{option}={value}"], {}), ([], {option.upper().replace("-", "_"): value})):
        with pytest.raises(SystemExit) as refused:
            parsed(URL, *argv, **environ)
        assert refused.value.code == 2
        assert f"--{option}" in capsys.readouterr().err


def test_a_log_is_named_by_its_address(tmp_path: Any) -> None:
    assert isinstance(log_named("memory"), MemoryLog)
    assert isinstance(log_named(f"sqlite:{tmp_path}/streams.db"), SQLiteLog)
    assert isinstance(log_named("redis://localhost:6379/0"), RedisLog)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "name the server"),
        (["ftp://x"], "the upstream is an address"),
        (["127.0.0.1:8000"], "the upstream is an address"),
        (["http://user:secret@x"], "nothing else"),
        (["http://x/?a=b"], "nothing else"),
        (["http://x/a b"], "without spaces"),
        (["http://x:99999"], "ort"),
        (["https://x", "--cacert", "absent.pem"], "could not start"),
        ([URL, "--host", "192.0.2.1"], "could not start"),
    ],
)
def test_what_cannot_start_says_why(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["proxy", *argv]) in (2, 3)
    assert words in capsys.readouterr().err


def test_help_teaches_and_needs_no_library() -> None:
    code = "import sys; from streamguard import cli\ntry: cli.main(['proxy', '--help'])\nexcept SystemExit: pass\n"
    code += "assert not {'uvicorn', 'httpcore', 'redis'} & set(sys.modules), sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    for part in ("examples:", "exit code:", "STREAMGUARD_PROXY_MAX_STREAMS", "--principal-header", "streamguard check"):
        assert part in done.stdout


def test_the_reference_has_every_option() -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    add_options(commands, {})
    shown = set(re.findall(r"--[a-z-]+", commands.choices["proxy"].format_usage())) - {"--help"}
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text(encoding="utf-8")
    section = page.partition("## `streamguard proxy`")[2]
    assert {name for name in shown if f"`{name}" not in section} == set()
