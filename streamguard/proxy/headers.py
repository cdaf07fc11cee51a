"""Which headers of a request go on to the upstream, and which of its answer come back.

A field that is for one connection is not passed on: those that HTTP names, and those that `Connection` does (RFC 9110,
section 7.6.1). A client may name any field there. What the upstream decides by is kept all the same: else a request
could take off its own length, its credentials, or what a proxy in front has said of it.

Nor is a field whose name has an underscore: a server of CGI's kind, as one of WSGI is, knows headers as variables, in
which `X_User` and `X-User` are the same. A client could so say what the proxy in front says, or a second length.

Everything else stays as it came, in its order. The message is framed anew on each side, so that both sides cannot
disagree about where it ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

__all__ = ["Fields", "answer_fields", "is_ambiguous", "replaced", "request_fields", "values"]

Fields = Sequence[tuple[bytes, bytes]]

_HOP: Final = frozenset(
    [b"connection", b"proxy-connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"]
)
# Meant for a proxy that the client chose, which this is not; and HTTP/1.1's offer to switch, which is not taken.
_OF_A_PROXY: Final = frozenset([b"proxy-authorization", b"proxy-authenticate", b"http2-settings"])
# The server has said "100 Continue" itself by then; the upstream's name is the upstream's.
_REPLACED: Final = frozenset([b"expect", b"host", b"x-forwarded-for"])
_KEPT: Final = frozenset(
    [
        b"accept", b"authorization", b"content-encoding", b"content-length", b"content-type", b"cookie", b"forwarded",
        b"host", b"origin", b"set-cookie", b"via", b"x-api-key", b"x-forwarded-for", b"x-forwarded-host",
        b"x-forwarded-proto", b"x-real-ip",
    ]
)  # fmt: skip


def values(fields: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    """The values of every field of that name, which is in lower case."""
    return [value for found, value in fields if found.lower() == name]


def is_ambiguous(name: bytes, kept: Iterable[bytes] = ()) -> bool:
    """Whether a server may take a request's field for one of another name. Those that are `kept`, in lower case, are
    not, by whatever spelling; what a server could take for one of them is."""
    name = name.lower()
    return name not in kept and (b"_" in name or any(name == other.replace(b"_", b"-") for other in kept))


def _members(fields: Fields, name: bytes) -> list[bytes]:
    """The members of a list that may stand in several fields, in lower case."""
    return [part for value in values(fields, name) for part in map(bytes.strip, value.lower().split(b",")) if part]


def _passed(fields: Fields, without: frozenset[bytes], kept: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
    dropped = without | (frozenset(_members(fields, b"connection")) - kept)
    return [(name, value) for name, value in fields if name.lower() not in dropped]


def request_fields(
    fields: Fields, *, host: bytes, client: str | None, scheme: str, kept: Iterable[bytes] = ()
) -> list[tuple[bytes, bytes]]:
    """What the upstream is sent. `host` is its own name, `client` the address of whoever asks, `kept` more names that
    neither `Connection` nor an underscore takes away. `X-Forwarded-For` grows by one; what a proxy in front said of
    host and scheme stays."""
    passed = _passed(fields, _HOP | _OF_A_PROXY | _REPLACED, _KEPT.union(kept))
    passed = [(name, value) for name, value in passed if not is_ambiguous(name, kept)]
    if values(fields, b"transfer-encoding"):  # front lets no other than `chunked` come here, and none beside a length
        passed.append((b"transfer-encoding", b"chunked"))
    hops = [*values(fields, b"x-forwarded-for"), *([client.encode("latin-1", "replace")] if client else [])]
    added = [(b"x-forwarded-for", b", ".join(hops))] if hops else []
    asked = values(fields, b"host")
    if asked and not values(fields, b"x-forwarded-host"):
        added.append((b"x-forwarded-host", asked[0]))
    if not values(fields, b"x-forwarded-proto"):
        added.append((b"x-forwarded-proto", scheme.encode("latin-1")))
    return [(b"host", host), *passed, *added, (b"via", b"1.1 streamguard")]


def replaced(fields: Fields, given: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """With what is `given` in place of all of that name, in lower case; one that is empty is left out."""
    names = {name.encode("latin-1") for name in given}
    kept = [(name, value) for name, value in fields if name.lower() not in names]
    return [*kept, *((name.encode("latin-1"), value.encode("latin-1")) for name, value in given.items() if value)]


def answer_fields(fields: Fields, status: int) -> list[tuple[bytes, bytes]]:
    """What the client is sent."""
    passed = _passed(fields, _HOP | _OF_A_PROXY, _KEPT)
    # No body, whose length a server would wait for; or a length that a transfer coding overrides, and whoever forwards
    # such a message must take away (RFC 9112, section 6.3): the body that comes is another one's.
    if status in (204, 304) or values(fields, b"transfer-encoding"):
        passed = [(name, value) for name, value in passed if name.lower() != b"content-length"]
    return passed
