"""What a frame is, and what one line of it may hold."""

from __future__ import annotations

import pytest

from streamguard.core.frame import Frame, Row, fits, place_of, row_of, status_of


def test_a_frame_is_unnamed_and_no_terminal_unless_told() -> None:
    frame = Frame(1, 7, 0x6FB73295, b'"Hello"')
    assert (frame.seq, frame.offset, frame.crc, frame.data) == (1, 7, 0x6FB73295, b'"Hello"')
    assert (frame.name, frame.status, frame.extra) == (None, None, None)


@pytest.mark.parametrize(
    ("frame", "row"),
    [
        (Frame(1, 7, 9, b"a"), (1, 7, 9, b"a")),
        (Frame(1, 7, 9, b"a", "block"), (1, 7, 9, b"a", "block", None, None)),
        (Frame(1, 7, 9, b"a", "end", "failed"), (1, 7, 9, b"a", "end", "failed", None)),
        (Frame(1, 7, 9, b"a", None, "complete"), (1, 7, 9, b"a", None, "complete", None)),
        (Frame(1, 7, 9, b"a", extra=b"x"), (1, 7, 9, b"a", None, None, b"x")),
    ],
)
def test_a_frame_and_its_row_are_one_frame(frame: Frame, row: Row) -> None:
    assert row_of(frame) == row
    assert Frame(*row) == frame
    assert status_of(row) == status_of(frame) == frame.status
    assert place_of(row) == place_of(frame) == (1, 7, 9)


@pytest.mark.parametrize("line", [b"", b"a", b"\x01\x0b\x0c\x0e\x09\x1f\x85", "\u2028".encode(), bytes(range(14, 256))])
def test_a_line_without_cr_lf_and_nul_fits(line: bytes) -> None:
    assert fits(line) is True


@pytest.mark.parametrize("byte", [b"\n", b"\r", b"\0"])
@pytest.mark.parametrize(("before", "after"), [(b"", b""), (b"a", b""), (b"", b"a"), (b"a", b"a")])
def test_cr_lf_and_nul_fit_nowhere(byte: bytes, before: bytes, after: bytes) -> None:
    assert fits(before + byte + after) is False


@pytest.mark.parametrize(
    ("frame", "bare"),
    [
        (Frame(1, 0, 9, b"", None, "complete"), True),
        (Frame(1, 1, 9, b"a", None, "complete"), False),
        (Frame(1, 0, 9, b"", "end", "complete"), False),
        (Frame(1, 0, 9, b""), False),
    ],
)
def test_an_end_without_anything_in_it_is_bare(frame: Frame, bare: bool) -> None:
    assert frame.bare == bare
