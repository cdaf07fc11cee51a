"""What a reader asks for and what a stream promises: the `Streamguard` header (wire protocol, section 6).

    request   Streamguard: v=1, flush=token, compress=gzip, resume=?1, credit=(64 65536)
    answer    Streamguard: v=1, cursor="<cursor zero>", dialect=native, wire=sse

Both are dictionaries of RFC 9651 (Structured Fields), so a parser is strict: what is not well-formed
is ignored as a whole, never in part, since half a promise is worse than none. Reading takes two
steps. One expression cuts the text into members, whatever their types, which tells well-formed from
not; then each of the few keys that are known is matched with the one type that it may have. Unknown
keys are passed over, so that later versions may add some; parameters too.
"""

from __future__ import annotations

import re
from typing import Final, Literal
from urllib.parse import parse_qs

import attrs

from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.errors import CursorError, FieldRefused

__all__ = ["Answer", "Request", "parse_answer", "parse_key", "parse_request", "write_answer"]

VERSION: Final = 1
_MAX_FIELD: Final = 4096  # characters; both sides write a few dozen

_KEY: Final = r"[a-z*][a-z0-9_.*-]*"
_INTEGER: Final = r"-?[0-9]{1,15}"
_TOKEN: Final = r"[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*"
_STRING: Final = r'"(?:[ !#-\[\]-~]|\\["\\])*"'
# UTF-8 as RFC 9651 spells it in a display string: a sequence that is no character is no such string.
_ASCII: Final = r"(?:[ !#$&-~]|%[0-7][0-9a-f])"
_TAIL: Final = r"%[89ab][0-9a-f]"
_DISPLAY: Final = (
    rf'%"(?:{_ASCII}|%(?:c[2-9a-f]|d[0-9a-f]){_TAIL}'
    rf"|%(?:e0%[ab][0-9a-f]|e[1-9a-cef]{_TAIL}|ed%[89][0-9a-f]){_TAIL}"
    rf'|%(?:f0%[9ab][0-9a-f]|f[1-3]{_TAIL}|f4%8[0-9a-f]){_TAIL}{_TAIL})*"'
)
_BASE64: Final = r":(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}(?:==)?|[A-Za-z0-9+/]{3}=?)?:"
_BARE: Final = (
    rf"(?:-?[0-9]{{1,12}}\.[0-9]{{1,3}}|{_INTEGER}|{_STRING}|{_TOKEN}|{_BASE64}|\?[01]|@{_INTEGER}|{_DISPLAY})"
)
_PARAMETERS: Final = rf"(?:; *{_KEY}(?:={_BARE})?)*"
_ITEM: Final = rf"{_BARE}{_PARAMETERS}"
_INNER: Final = rf"\( *(?:{_ITEM}(?: +{_ITEM})* *)?\)"
# The comma after a member belongs to its match: the text is read to its end, or the field is malformed.
_MEMBER: Final = re.compile(
    rf"({_KEY})(?:=({_BARE}|{_INNER}))?{_PARAMETERS}(?:[ \t]*(,)[ \t]*|[ \t]*\Z)", re.ASCII
)

_ONE: Final = re.compile(r"0{0,14}1")
_WORD: Final = re.compile(_TOKEN)
_QUOTED: Final = re.compile(_STRING)
_FLAG: Final = re.compile(r"\?[01]")
_PAIR: Final = re.compile(rf"\( *([0-9]{{1,15}}){_PARAMETERS} +([0-9]{{1,15}}){_PARAMETERS} *\)")


@attrs.frozen
class Request:
    """What a reader asks for. `flush` and `compress` are names, `credit` is frames and bytes."""

    v: int = VERSION
    flush: str | None = None
    compress: str | None = None
    resume: bool = False
    credit: tuple[int, int] | None = None


@attrs.frozen
class Answer:
    """What a stream promises: its name (cursor zero), its dialect and its carrier, by name.

    `flush` and `compress` are what was granted of that which the reader asked for; `credit` is what it may be sent at
    first, in frames and bytes, or False where it asked and nothing counts. `resume` is the address to come back to
    (None: nowhere), `reader` this connection's name for what the reader tells the server. `http10` says that the server
    was asked by HTTP/1.0, by a hop in between perhaps: an abort may not arrive.
    """

    cursor: Cursor
    dialect: str
    wire: str
    flush: str | None = None
    compress: str | None = None
    resume: str | None = None
    reader: str | None = None
    v: int = VERSION
    credit: tuple[int, int] | Literal[False] | None = None
    http10: bool = False


class _Malformed(ValueError):
    """A known key with a value of another type."""


def parse_request(header: str | None, query: str | None = None) -> Request | None:
    """What the request asks for, or None if it does not negotiate.

    `header` is the `Streamguard` field's value (several lines joined by commas), `query` the request's
    query string, in which `sg=` may hold the same for readers that cannot set headers. A header, good
    or not, wins. Malformed fields and versions other than 1 are ignored as a whole.
    """
    if header is None:
        values = parse_qs(query or "", keep_blank_values=True).get("sg") if query and "sg=" in query else None
        header = values[0] if values else None
    members = _members(header)
    if members is None:
        return None
    try:
        return Request(
            v=_version(members),
            flush=_word(members, "flush"),
            compress=_word(members, "compress"),
            resume=_flag(members, "resume"),
            credit=_pair(members, "credit"),
        )
    except _Malformed:
        return None


def parse_key(query: str | None) -> str | None:
    """The idempotency key in the query's `sg=key="…"`, for readers that cannot set headers; None if there is none.

    It is a string or a token. Raises ValueError for an `sg=` that seems to have a key and is not well-formed: what
    it asked for once would be started at each attempt.
    """
    values = parse_qs(query or "", keep_blank_values=True).get("sg") if query and "sg=" in query else None
    if not values or "key=" not in values[0]:
        return None
    members = _members(values[0])
    value = (members or {}).get("key", "")
    if _WORD.fullmatch(value):
        return value
    if members is None or ("key" in members and not _QUOTED.fullmatch(value)):
        raise ValueError('the key in sg= is a token, or a quoted string: sg=key="…"')
    return re.sub(r"\\(.)", r"\1", value[1:-1]) or None


def parse_answer(header: str | None) -> Answer | None:
    """What the answer promises, or None if it promises nothing that can be understood."""
    members = _members(header)
    if members is None:
        return None
    try:
        _version(members)
        cursor = Cursor.parse(_string(members, "cursor"))
        dialect = _word(members, "dialect")
        wire = _word(members, "wire")
        if dialect is None or wire is None or cursor != cursor_zero(cursor.sid):
            return None
        return Answer(
            cursor,
            dialect,
            wire,
            flush=_word(members, "flush"),
            compress=_word(members, "compress"),
            resume=_text(members, "resume"),
            reader=_text(members, "reader"),
            credit=_granted_credit(members),
            # It promises nothing of the frames: with another type it is passed over, as by who does not know the key.
            http10=members.get("http10") == "?1",
        )
    except (_Malformed, CursorError):
        return None


def write_answer(answer: Answer) -> str:
    """The field's value. Raises FieldRefused for a name that is no token, and an address that no string can hold."""
    words = {"dialect": answer.dialect, "wire": answer.wire, "flush": answer.flush, "compress": answer.compress}
    parts = [f"v={answer.v}", f'cursor="{answer.cursor}"']
    for key, word in words.items():
        if word is None:
            continue
        if not _WORD.fullmatch(word):
            raise FieldRefused(key, "is no token")
        parts.append(f"{key}={word}")
    for key, text in {"resume": answer.resume, "reader": answer.reader}.items():
        if text is None:
            continue
        quoted = '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'
        if not _QUOTED.fullmatch(quoted):
            raise FieldRefused(key, "holds what is not printable ASCII")
        parts.append(f"{key}={quoted}")
    if answer.credit is not None:
        parts.append("credit=({} {})".format(*answer.credit) if answer.credit else "credit=?0")
    if answer.http10:
        parts.append("http10=?1")
    return ", ".join(parts)


def _members(field: str | None) -> dict[str, str] | None:
    """Keys to their values as written; None for no field, and for one that is not well-formed."""
    text = (field or "").strip(" ")
    if not text or len(text) > _MAX_FIELD:
        return None
    members: dict[str, str] = {}
    at = 0
    while (match := _MEMBER.match(text, at)) is not None:
        key, value, comma = match.groups()
        members[key] = "?1" if value is None else value  # the last one of a repeated key counts
        at = match.end()
        if not comma:
            return members
    return None


def _match(pattern: re.Pattern[str], value: str | None) -> re.Match[str] | None:
    """The match of a known key's value with its type; None if the key is absent."""
    if value is None:
        return None
    match = pattern.fullmatch(value)
    if match is None:
        raise _Malformed(value)
    return match


def _version(members: dict[str, str]) -> int:
    if not _match(_ONE, members.get("v")):
        raise _Malformed("no version")
    return VERSION


def _word(members: dict[str, str], key: str) -> str | None:
    match = _match(_WORD, members.get(key))
    return match[0] if match else None


def _flag(members: dict[str, str], key: str) -> bool:
    match = _match(_FLAG, members.get(key))
    return match is not None and match[0] == "?1"


def _pair(members: dict[str, str], key: str) -> tuple[int, int] | None:
    match = _match(_PAIR, members.get(key))
    return (int(match[1]), int(match[2])) if match else None


def _granted_credit(members: dict[str, str]) -> tuple[int, int] | Literal[False] | None:
    return False if members.get("credit") == "?0" else _pair(members, "credit")


def _text(members: dict[str, str], key: str) -> str | None:
    return _string(members, key) if key in members else None


def _string(members: dict[str, str], key: str) -> str:
    match = _match(_QUOTED, members.get(key))
    if match is None:
        raise _Malformed(key)
    return re.sub(r"\\(.)", r"\1", match[0][1:-1])
