"""The same numbers in three forms."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from streamguard.demo.lab import CutRow, LagRow, Result, Settings
from streamguard.demo.report import as_json, plot, print_legend, print_tables, progress


def lag(variant: str, truncated: int, noticed: int = 0) -> LagRow:
    return LagRow(8, variant, 300, truncated, noticed, (truncated / 400, truncated / 200), 12.5)


def measured(guarded: LagRow) -> Result:
    cuts = (
        CutRow("FIN, HTTP/1.0", "httpx", 60, 58, 0, (0.9, 1.0)),
        CutRow("FIN, HTTP/1.0", "streamguard", 60, 60, 60, (0.0, 0.06)),
    )
    return Result(Settings(chunks=(8,)), (lag("unguarded", 36), lag("unguarded+flush", 8), guarded), cuts)


KEPT = measured(lag("guarded", 0))
BROKEN = measured(lag("guarded", 2, 1))


def printed(result: Result) -> str:
    console = Console(file=io.StringIO(), width=80)
    print_tables(result, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_json_has_a_row_for_each_cell_and_a_line_for_each_cut() -> None:
    found = json.loads(as_json(KEPT))
    assert set(found) == {"settings", "rows", "cuts", "kept"}
    assert found["rows"][0] == {
        "chunk": 8,
        "variant": "unguarded",
        "answers": 300,
        "truncated": 36,
        "noticed": 0,
        "ci": [0.09, 0.18],
        "ttft_ms": 12.5,
    }
    assert found["cuts"][0]["silent"] == 58
    assert found["kept"] is True


def test_the_tables_say_what_was_lost_and_who_was_told() -> None:
    text = printed(KEPT)
    line = next(line for line in text.splitlines() if "unguarded " in line)
    for part in ("300", "12.0%", "9.0–18.0%", "0 of 36", "12 ms"):
        assert part in line
    assert "Every guarded answer was whole" in text


def test_a_broken_promise_is_said_aloud() -> None:
    assert "its reader was not told" in printed(BROKEN)


def test_a_cell_without_answers_has_no_rate() -> None:
    lag = LagRow(8, "unguarded", 0, 0, 0, (0.0, 1.0), None)
    text = printed(Result(Settings(chunks=(8,)), (lag,), (CutRow("x", "y", 0, 0, 0, (0.0, 1.0)),)))
    assert "(" not in next(line for line in text.splitlines() if "unguarded" in line)


@pytest.mark.parametrize(("suffix", "begins"), [(".svg", b"<?xml"), (".png", b"\x89PNG")])
def test_a_picture_is_written_the_same_way_each_time(tmp_path: Path, suffix: str, begins: bytes) -> None:
    pictures = []
    for name in ("one", "two"):
        path = tmp_path / f"{name}{suffix}"
        plot(KEPT, path)
        pictures.append(path.read_bytes())
    assert pictures[0].startswith(begins)
    assert pictures[0] == pictures[1]


def test_another_kind_of_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ends in \.svg or \.png"):
        plot(KEPT, tmp_path / "lab.bmp")


def test_progress_counts_each_answer() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with progress(console) as start:
        done = start("a sender that lags", 2)
        done()
        done()
    assert isinstance(console.file, io.StringIO)
    assert "2/2" in console.file.getvalue()


def test_where_it_is_no_terminal_progress_is_a_line_for_each_tenth_and_leaves_no_blank_one() -> None:
    console = Console(file=io.StringIO(), width=100)
    with progress(console) as start:
        done = start("a sender [that] lags", 25)
        assert isinstance(console.file, io.StringIO)
        assert console.file.getvalue() == "a sender [that] lags: 0 of 25\n"  # at once
        for _ in range(25):
            done()
    told = [line.rpartition(": ")[2] for line in console.file.getvalue().split("\n")]
    assert told == [*(f"{made} of 25" for made in (0, 3, 6, 9, 12, 15, 18, 21, 24, 25)), ""]


def test_the_legend_names_what_the_first_table_has() -> None:
    console = Console(file=io.StringIO(), width=80)
    print_legend(console)
    assert isinstance(console.file, io.StringIO)
    legend, table = console.file.getvalue(), printed(KEPT)
    for name in ("chunk", "unguarded+flush", "truncated", "noticed"):
        assert f"{name}: " in legend
        assert name in table
    assert [len(line) <= 80 for line in legend.splitlines()] == [True, True]


def test_the_tables_fit_a_terminal_of_eighty_columns() -> None:
    lines = printed(KEPT).splitlines()
    assert max(map(len, lines)) <= 80
    assert "unguarded+flush" in printed(KEPT)
