"""gzip for a body that is read while it is made: what a reader has after each part, and what it calls a whole."""

from __future__ import annotations

import gzip
import random
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.core.compress import Gzip, GzipBody, accepts_gzip, gzip_named

PARTS = [b"".join(b'id: AAAAAAAAAAAAAAAAAAAAAA.%d.%d\ndata: "t%d "\n\n' % (i, 5 * i, i) for i in range(k, k + 3))
         for k in range(0, 30, 3)]  # fmt: skip

parts_of_any_kind = st.lists(st.binary(max_size=300) | st.just(b"\0" * 5000), max_size=12)
settings_of_any_kind = st.builds(Gzip, level=st.integers(1, 9), window=st.integers(9, 15))


def reader() -> Any:
    """A decoder that takes gzip and nothing else."""
    return zlib.decompressobj(16 + zlib.MAX_WBITS)


def packed(parts: list[bytes], body: GzipBody | None = None) -> list[bytes]:
    body = body or Gzip().body()
    return [*[body.write(part) for part in parts], body.end()]


# ---- what a reader has ----------------------------------------------------------------------------


@given(parts_of_any_kind, settings_of_any_kind)
def test_each_part_can_be_read_as_it_comes_and_the_whole_is_a_gzip_file(parts: list[bytes], settings: Gzip) -> None:
    body, decoder, had = settings.body(), reader(), []
    written = 0
    for part in parts:
        data = body.write(part)
        written += len(data)
        had.append(decoder.decompress(data))
        assert not decoder.eof
    end = body.end()
    assert had == parts
    assert decoder.decompress(end) == b""
    assert (decoder.eof, decoder.unused_data, body.written) == (True, b"", written + len(end))


def test_the_whole_is_what_any_gzip_reads() -> None:
    assert gzip.decompress(b"".join(packed(PARTS))) == b"".join(PARTS)


def test_byte_by_byte_it_is_the_same() -> None:
    decoder = reader()
    data = b"".join(packed(PARTS))
    text = b"".join(decoder.decompress(bytes([byte])) for byte in data)
    assert (text, decoder.eof) == (b"".join(PARTS), True)


def test_what_follows_the_trailer_is_nobodys() -> None:
    decoder = reader()
    text = decoder.decompress(b"".join(packed(PARTS)) + b"trailing")
    assert (text, decoder.eof, decoder.unused_data) == (b"".join(PARTS), True, b"trailing")


def test_whatever_is_cut_off_a_reader_has_each_part_that_came_and_no_end() -> None:
    pieces = packed(PARTS)
    data = b"".join(pieces)
    for cut in range(len(data)):
        decoder = reader()
        text = decoder.decompress(data[:cut])
        came, at = b"", 0
        for piece, part in zip(pieces, PARTS, strict=False):  # the end is of no part
            at += len(piece)
            if at > cut:
                break
            came += part
        assert not decoder.eof, cut
        assert text.startswith(came), cut
        assert b"".join(PARTS).startswith(text), cut


@pytest.mark.parametrize("at", range(-8, 0))
def test_a_trailer_that_was_altered_is_refused(at: int) -> None:
    data = bytearray(b"".join(packed(PARTS)))
    data[at] ^= 1
    with pytest.raises(zlib.error):
        reader().decompress(bytes(data))


def test_nothing_is_compressed_to_nothing() -> None:
    """An empty part would be five bytes of nothing, each time that nothing is to be said."""
    body = Gzip().body()
    assert [body.write(b""), body.written] == [b"", 0]
    assert gzip.decompress(body.end()) == b""


def test_a_second_end_is_nothing_because_the_first_may_have_left() -> None:
    body = Gzip().body()
    first = body.end()
    assert first
    assert body.end() == b""
    assert body.written == len(first)


# ---- what it costs --------------------------------------------------------------------------------


def test_frames_that_are_alike_shrink_though_each_is_flushed() -> None:
    one_by_one = [b'id: AAAAAAAAAAAAAAAAAAAAAA.%d.%d.0badcafe\ndata: "t%d "\n\n' % (i, 5 * i, i) for i in range(500)]
    assert sum(map(len, packed(one_by_one))) < 0.6 * sum(map(len, one_by_one))


def test_what_does_not_shrink_hardly_grows() -> None:
    """A part of random bytes is stored; its few tables do not make many blocks of it."""
    noise = random.Random(1).randbytes(100_000)
    assert len(b"".join(packed([noise]))) < 1.01 * len(noise)


@pytest.mark.parametrize("window", range(9, 16))
def test_a_body_refers_back_no_farther_than_its_window(window: int) -> None:
    """A decoder of that window takes it: no more of the past was kept."""
    size = 2 ** max(window, 9)
    block = random.Random(window).randbytes(size // 4)
    decoder = zlib.decompressobj(16 + window)
    pieces = packed([block, b"\0" * size, block, block], Gzip(window=window).body())
    assert decoder.decompress(b"".join(pieces)) == block + b"\0" * size + block + block


# ---- settings -------------------------------------------------------------------------------------


def test_a_compression_has_a_name_or_is_given_as_it_is() -> None:
    mine = Gzip(level=1, window=15)
    assert gzip_named("gzip") == Gzip()
    assert gzip_named(mine) is mine


@pytest.mark.parametrize(
    ("given_", "kind", "said"),
    [
        ("br", ValueError, "unknown compression 'br'; known: gzip"),
        (True, TypeError, "compress is 'gzip', or an instance such as Gzip(level=1), not True"),
        (Gzip, TypeError, "compress is the class Gzip: give an instance, Gzip()"),
    ],
)
def test_what_is_no_compression_is_refused(given_: Any, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind) as caught:
        gzip_named(given_)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("name", "value", "kind", "range_"),
    [
        ("level", 0, ValueError, "from 1 to 9"),
        ("level", 10, ValueError, "from 1 to 9"),
        ("level", "6", TypeError, "from 1 to 9"),
        ("level", True, TypeError, "from 1 to 9"),
        ("window", 8, ValueError, "from 9 to 15"),  # zlib makes 9 of it, and some decoders fail
        ("window", 16, ValueError, "from 9 to 15"),
        ("window", 12.0, TypeError, "from 9 to 15"),
    ],
)
def test_a_setting_out_of_range_is_refused(name: str, value: Any, kind: type[Exception], range_: str) -> None:
    with pytest.raises(kind) as caught:
        Gzip(**{name: value})
    assert str(caught.value) == f"{name} is a whole number {range_}, not {value!r}"


# ---- who accepts it -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "accepts"),
    [
        ("", False),
        ("identity", False),
        ("gzip", True),
        ("GZip", True),
        ("x-gzip", True),
        ("*", True),
        ("br, gzip, deflate, zstd", True),
        ("deflate,gzip;q=0.5", True),
        ("gzip ; q = 0.001", True),
        ("gzip;q=1.000", True),
        ("gzip;q=1.", True),
        ("gzip;q=0", False),
        ("gzip;q=0.000", False),
        ("gzip;q=0, *", False),
        ("*;q=0", False),
        ("*;q=0, gzip", True),
        ("br", False),
        (", gzip,", True),
        ("gzip;q=1.5", False),
        ("gzip;q=2", False),
        ("gzip;q=x", False),
        ("gzip;level=9", False),
        ("gzip br", False),
        ("gzip, @", False),
        ("gzip;q=0.1234", False),
        ("gzıp", False),
        ("gzip," * 800, True),
        ("gzip," * 900, False),  # nobody means that
    ],
)
def test_gzip_is_for_those_who_accept_it(field: str, accepts: bool) -> None:
    assert accepts_gzip(field) is accepts


@given(st.text(max_size=60) | st.text("gzip;q=01.,* \t", max_size=60))
def test_no_field_is_too_strange_to_be_read(field: str) -> None:
    assert accepts_gzip(field) in (True, False)
