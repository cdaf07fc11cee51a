"""Whether a request asks for a stream."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from streamguard.proxy.asking import asks_for_a_stream

JSON = b"application/json; charset=utf-8"


def asked(body: bytes, method: str = "POST", kind: bytes = JSON, **more: bytes) -> tuple[bool, bool]:
    """Whether it does, and whether its body was read for that."""
    fields = {b"content-type": kind, b"content-length": b"%d" % len(body)}
    fields.update({name.replace("_", "-").encode(): value for name, value in more.items()})
    scope: dict[str, Any] = {"method": method, "headers": list(fields.items())}
    reads = 0

    async def read() -> bytes:
        nonlocal reads
        reads += 1
        return body

    return anyio.run(asks_for_a_stream, scope, read), reads > 0


@pytest.mark.parametrize(
    ("body", "does"),
    [
        (b'{"stream": true}', True),
        (b'{"a": [1], "stream" :\n true}', True),
        (b'{"stream": false}', False),
        (b'{"stream": "true"}', False),
        (b'{"prompt": "say \\"stream\\": true"}', False),
        (b'{"inner": {"stream": true}}', False),
        (b'[{"stream": true}]', False),
        (b'{"stream": true', False),
        (b'{"a":' + b"[" * 100_000 + b', "stream": true', False),
        (b"", False),
    ],
)
def test_it_is_the_bodys_own_member(body: bytes, does: bool) -> None:
    assert asked(body) == (does, True)


@pytest.mark.parametrize(
    "how",
    [
        {"method": "PUT"},
        {"kind": b"text/plain"},
        {"content_encoding": b"gzip"},
        {"content_length": b"9000000"},
        {"content_length": b""},
    ],
)
def test_a_body_that_is_not_to_be_looked_at_is_not_read(how: dict[str, Any]) -> None:
    assert asked(b'{"stream": true}', **how) == (False, False)
