"""What a frame is, and what one line of it may hold."""

from __future__ import annotations

import pytest

from streamguard.core.frame import Frame, fits


def test_a_frame_is_unnamed_and_no_terminal_unless_told() -> None:
    frame = Frame(1, 7, 0x6FB73295, b'"Hello"')
    assert (frame.seq, frame.offset, frame.crc, frame.data) == (1, 7, 0x6FB73295, b'"Hello"')
    assert (frame.name, frame.status, frame.extra) == (None, None, None)


@pytest.mark.parametrize("line", [b"", b"a", b"\x01\x0b\x0c\x0e\x09\x1f\x85", "\u2028".encode(), bytes(range(14, 256))])
def test_a_line_without_cr_lf_and_nul_fits(line: bytes) -> None:
    assert fits(line) is True


@pytest.mark.parametrize("byte", [b"\n", b"\r", b"\0"])
@pytest.mark.parametrize(("before", "after"), [(b"", b""), (b"a", b""), (b"", b"a"), (b"a", b"a")])
def test_cr_lf_and_nul_fit_nowhere(byte: bytes, before: bytes, after: bytes) -> None:
    assert fits(before + byte + after) is False
