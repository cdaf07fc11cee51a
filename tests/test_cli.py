"""The command line teaches, refuses what it cannot do, and answers with an exit code."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streamguard import cli, demo
from streamguard.demo import lab, report, web


def stand_in(monkeypatch: pytest.MonkeyPatch, *, silent: int = 0, error: BaseException | None = None) -> list[Any]:
    """Instead of the lab: a result in which so many guarded answers were cut in silence, or an error."""
    asked = []

    async def run(settings: lab.Settings, *, start: Any) -> lab.Result:
        asked.append(settings)
        if error is not None:
            raise error
        return lab.Result(settings, (lab.LagRow(8, "guarded", 10, silent, 0, (0.0, 1.0), 1.0),), ())

    monkeypatch.setattr(lab, "run", run)
    return asked


def test_help_says_what_it_is_for_and_where_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    shown = capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        cli.main(["--help"])
    assert end.value.code == 0
    assert capsys.readouterr().out == shown
    assert "streamguard demo" in shown
    assert "delivered whole" in shown


def test_a_commands_help_explains_its_columns_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["demo", "--help"])
    shown = capsys.readouterr().out
    for part in ('"chunk"', '"truncated"', '"lost text"', '"noticed"', '"silent"'):
        assert part in shown
    for part in ("examples:", "exit code:", "--requests", "--delay", "--seed", "--json", "--plot"):
        assert part in shown


def test_help_needs_no_library_of_the_demo() -> None:
    code = "import sys, streamguard.cli as c; c.main([]); sys.exit(bool({'rich','uvicorn','httpx'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    "argv",
    [
        ["nonsense"],
        ["demo", "--requests", "0"],
        ["demo", "--requests", "x"],
        ["demo", "--requests", "²"],
        ["demo", "--delay", "-1"],
        ["demo", "--delay", "nan"],
        ["demo", "--delay", "soon"],
        ["demo", "--port", "80"],
        ["demo", "--open"],
        ["demo", "--resume", "--host", "localhost"],
        ["demo", "--web", "--resume"],
        ["demo", "--web", "--json"],
        ["demo", "--web", "--delay", "0"],
        ["demo", "--web", "--port", "-1"],
        ["demo", "--web", "--port", "65536"],
        ["demo", "--web", "--port", "²"],
        ["demo", "--plot", "lab.bmp"],
        ["demo", "--plot", "no/such/directory/lab.svg"],
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_starts(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = stand_in(monkeypatch)
    with pytest.raises(SystemExit) as end:
        cli.main(argv)
    assert end.value.code == 2
    assert "streamguard" in capsys.readouterr().err
    assert asked == []


@pytest.mark.parametrize("library", ["rich", "matplotlib"])
def test_a_missing_library_is_named_with_the_line_that_installs_it(
    library: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, "streamguard.demo.report", raising=False)
    assert cli.main(["demo", "--plot", "lab.svg"]) == cli.UNUSABLE
    error = capsys.readouterr().err
    assert library in error
    assert 'pip install "streamguard-io[demo]"' in error


def test_a_missing_module_of_our_own_is_no_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(demo, "report")
    monkeypatch.setitem(sys.modules, report.__name__, None)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["demo"])


def test_the_exit_code_says_whether_the_promise_was_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch)
    assert cli.main(["demo"]) == 0
    assert capsys.readouterr().out.startswith("chunk: ")
    stand_in(monkeypatch, silent=1)
    assert cli.main(["demo"]) == cli.BROKEN
    assert "please report this" in capsys.readouterr().out


def test_a_lab_that_does_not_work_is_an_error_and_no_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch, error=OSError("no more sockets"))
    assert cli.main(["demo"]) == cli.FAILED
    assert "no more sockets" in capsys.readouterr().err


def test_the_page_is_served_where_the_options_say(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(web, "serve_page", lambda *where, **how: asked.append((*where, how)))
    assert cli.main(["demo", "--web"]) == 0
    assert cli.main(["demo", "--web", "--host", "0.0.0.0", "--port", "0", "--open"]) == 0
    assert asked == [("127.0.0.1", web.PORT, {"open_browser": False}), ("0.0.0.0", 0, {"open_browser": True})]


def test_a_port_that_is_taken_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert cli.main(["demo", "--web", "--port", port]) == cli.FAILED
    assert f"cannot be served at 127.0.0.1, port {port}" in capsys.readouterr().err


def test_an_interrupt_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, error=KeyboardInterrupt())
    assert cli.main(["demo"]) == cli.INTERRUPTED


def test_options_reach_the_lab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = stand_in(monkeypatch)
    picture = tmp_path / "lab.svg"
    assert cli.main(["demo", "--seed", "7", "--requests", "9", "--delay", "0.5", "--plot", str(picture)]) == 0
    assert asked == [lab.Settings(7, 9, 0.5)]
    assert picture.read_bytes()


def test_a_picture_that_cannot_be_written_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch)
    (tmp_path / "lab.svg").mkdir()
    assert cli.main(["demo", "--plot", str(tmp_path / "lab.svg")]) == cli.FAILED
    assert "could not be written" in capsys.readouterr().err


def test_the_demo_runs_and_prints_json_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--requests", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["rows"]) == 18
    assert {tuple(row) for row in found["rows"]} == {
        ("chunk", "variant", "answers", "truncated", "noticed", "ci", "ttft_ms")
    }
    assert found["settings"]["seed"] == 1
    assert found["kept"] is True


def test_check_teaches_and_refuses_before_it_asks_anything(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["check", "--help"])
    shown = capsys.readouterr().out
    for part in ("examples:", "exit code:", "--repeat", "--leave", "--json", "--header", "--selftest", "--gauge"):
        assert part in shown
    wrong = (["--repeat", "0"], ["--timeout", "0"], ["--max-time", "soon"], ["--profile", "x"], ["another"])
    for argv in ([], *(["u", *rest] for rest in wrong)):
        with pytest.raises(SystemExit) as end:
            cli.main(["check", *argv])
        assert end.value.code == 2
    for argv in (["ftp://u"], ["u", "-H", "none"], ["u", "-d", "@no/such/file"], ["u", "--cacert", "no/such/file"]):
        assert cli.main(["check", *argv]) == cli.UNUSABLE
    assert "ftp://u" in capsys.readouterr().err


def test_a_library_that_check_lacks_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    assert cli.main(["check", "http://host/"]) == cli.UNUSABLE
    assert 'pip install "streamguard-io[check]"' in capsys.readouterr().err
