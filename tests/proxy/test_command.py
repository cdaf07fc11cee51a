"""The options of `streamguard proxy`: defaults, the environment, and what is refused."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
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
        "--dashboard", "p" * 16, "--cacert", "ca.pem", "--no-compress", "--http10", "refuse",
        "--upstream-streams", "/streams",
    )  # fmt: skip
    assert settings_of(options) == ProxySettings(
        principal_header="X-User", end="provider", profile="vllm", path="/sg", ready="/up", heartbeat=5, stall=60,
        detach=0, grace=9, limits=Limits(max_streams=7, max_waiting=0, max_wait=3), max_body=2 << 20, body_silence=4,
        connect=1, dashboard="p" * 16, cacert="ca.pem", compress=False, http10="refuse", upstream_streams="/streams",
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
     ("max-body", "2T"), ("upstream-streams", "x"), ("metrics", "65536"), ("metrics", "host"), ("metrics", "a:b:1"),
     ("metrics", "::1"), ("sample", "0"), ("http10", "1.1")],
)  # fmt: skip
def test_a_value_that_cannot_be_is_refused_wherever_it_stands(option: str, value: str, capsys: Any) -> None:
    for argv, environ in (([f"--{option}={value}"], {}), ([], {option.upper().replace("-", "_"): value})):
        with pytest.raises(SystemExit) as refused:
            parsed(URL, *argv, **environ)
        assert refused.value.code == 2
        said = capsys.readouterr().err
        assert f"--{option}" in said
        assert option == "log" or f"needed, not '{value}'" in said


@pytest.mark.parametrize(
    ("given", "meant"),
    [("9464", ("127.0.0.1", 9464)), ("0.0.0.0:0", ("0.0.0.0", 0)), ("[::1]:94", ("::1", 94)), ("a-b:1", ("a-b", 1))],
)
def test_metrics_are_at_a_port_of_this_machine_or_where_the_address_says(given: str, meant: tuple[str, int]) -> None:
    assert parsed(URL, "--metrics", given).metrics == parsed(URL, METRICS=given).metrics == meant


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
        ([URL, "--cacert", "ca.pem"], "--cacert is for an upstream of https://"),
        ([URL, "--ready", "/streams"], "--ready /streams hides where streams are resumed"),
        ([URL, "--dashboard", "short"], "the password has at least 16 characters"),
        ([URL, "--ready", "/sg/up", "--path", "/sg"], "--ready /sg/up hides"),
        ([URL, "--upstream-streams", "/streams"], "--upstream-streams /streams is the proxy's own"),
        ([URL, "--upstream-streams", "/sg/streams", "--path", "/sg"], "--upstream-streams /sg/streams is the proxy's"),
        ([URL, "--upstream-streams", "/sg", "--path", "/sg/streams"], "--upstream-streams /sg is the proxy's"),
    ],
)
def test_a_command_line_that_cannot_be_is_refused_before_anything_starts(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["proxy", *argv]) == cli.UNUSABLE
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["https://x", "--cacert", "absent.pem"], "the authorities in absent.pem cannot be read"),
        ([URL, "--host", "192.0.2.1", "--port", "8123"], "it cannot listen at 192.0.2.1, port 8123: "),
        ([URL, "--log", "sqlite:/absent/of/x.db"], "the log is unavailable: "),
        ([URL, "--log", "redis://127.0.0.1:1/0"], "the log is unavailable: "),
    ],
)
def test_what_cannot_start_says_why(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["proxy", *argv]) == cli.FAILED
    assert f"the proxy could not start: {words}" in capsys.readouterr().err


def test_a_unix_socket_that_cannot_be_is_named() -> None:
    command = [sys.executable, "-m", "streamguard.cli", "proxy", URL, "--uds", "absent/of/proxy.sock"]
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert done.returncode == cli.FAILED
    assert "could not start: it cannot listen at absent/of/proxy.sock: No such file" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_path_beside_that_of_the_streams_may_say_ready() -> None:
    assert settings_of(parsed(URL, "--ready", "/streams-up")).ready == "/streams-up"


def test_a_log_that_lacks_its_library_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lacking(text: str) -> Any:
        raise ModuleNotFoundError("No module named 'redis'", name="redis")

    monkeypatch.setattr("streamguard.proxy.run.log_named", lacking)
    assert cli.main(["proxy", URL, "--log", "rediss://ann:secret@cache/0"]) == cli.UNUSABLE
    said = '`--log rediss://…` needs the extra redis: pip install "streamguard-io[proxy,redis]"'
    assert capsys.readouterr().err == f"streamguard: {said}\n"
    with pytest.raises(SystemExit):
        parsed(URL, "--log", "postgres://ann:secret@db")
    assert "secret" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is no JSON"),
        ("[]", "is no JSON object"),
        ('{"version": 7}', "does not configure Python's logging: Unsupported version: 7"),
    ],
)
def test_a_file_that_says_how_to_log_and_does_not_is_named(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "logging.json"
    path.write_text(text)
    assert cli.main(["proxy", URL, "--port", "0", "--log-config", str(path)]) == cli.UNUSABLE
    assert says in capsys.readouterr().err
    assert cli.main(["proxy", URL, "--port", "0", "--log-config", str(tmp_path / "absent")]) == cli.FAILED


def test_its_log_has_the_time_of_each_line_and_is_otherwise_as_the_user_says(tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/see-the-log.md").read_text(encoding="utf-8")
    [config] = re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "logging.json").write_text(config)
    code = (
        "import sys, logging; from streamguard.proxy.server import *; from streamguard.proxy.run import *\n"
        "log_as(log_config_in(sys.argv[1])) if sys.argv[1:] else log_plainly()\n"
        "logging.getLogger('streamguard').info('told')"
    )
    for argument, line in ([], "INFO: told"), ([str(tmp_path / "logging.json")], "INFO streamguard: told"):
        done = subprocess.run([sys.executable, "-c", code, *argument], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        assert re.fullmatch(rf"\d{{4}}-[-\d]+ [:,\d]+ {line}\n", done.stderr)


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
