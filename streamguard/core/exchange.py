"""What HTTP says about a stream, without a server: request in, terms or a refusal out.

Every adapter gathers `RequestFacts` from its framework and asks two questions: on which terms is this
stream served (`terms`), and must the request be refused before it starts one (`refusal`)? A request
that bears a cursor never starts a source: it resumes or is refused. Measured otherwise, one EventSource
cut before its first frame paid for three generations in nine seconds.

The table of refusals is wire protocol, section 3. There is no log here, so every cursor without a final
status is one whose stream is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import randint
from typing import Any, Final, Literal
from urllib.parse import parse_qs

import attrs

from streamguard.core.compress import accepts_gzip
from streamguard.core.cursor import Cursor, looks_like_cursor
from streamguard.core.dialect.base import summary
from streamguard.core.errors import Failure
from streamguard.core.items import Ending
from streamguard.core.jsontext import dumps
from streamguard.core.negotiate import Answer, Request, parse_request, write_answer

__all__ = [
    "NO_STORE",
    "Granted",
    "Refusal",
    "RequestFacts",
    "Terms",
    "answer_headers",
    "cannot_resume",
    "come_back",
    "early_failure",
    "granted",
    "http10_refusal",
    "nothing_more",
    "problem",
    "refusal",
    "terms",
]

# On every answer, refusals too: 204, 404 and 410 can be cached (RFC 9110, section 15.1).
NO_STORE: Final = ("cache-control", "no-store, no-transform")
_UI_STREAM: Final = ("x-vercel-ai-ui-message-stream", "v1")  # without it a client takes a `ui` stream for plain text


@attrs.frozen
class RequestFacts:
    """What the protocol needs of a request. Header names are lower-case; `query` is the raw query string, `path` is for
    the log."""

    method: str
    headers: Mapping[str, str]
    query: str = ""
    http_version: str = "1.1"
    path: str = ""

    @property
    def cursor(self) -> str | None:
        """The cursor that the request bears, in `Last-Event-ID` or `?after=`; None if it bears none of ours."""
        # A field that came in several lines is joined by commas, which no cursor holds.
        values = self.headers.get("last-event-id", "").split(",") + parse_qs(self.query).get("after", [])
        return next((value.strip() for value in values if looks_like_cursor(value.strip())), None)

    @property
    def event_source(self) -> bool:
        """Whether it looks like a browser's EventSource: a GET that accepts server-sent events."""
        return self.method == "GET" and "text/event-stream" in self.headers.get("accept", "")

    @property
    def asks_for_ever(self) -> bool:
        """Whether it is of one that comes back behind every end but a 204, as an EventSource must.

        That asks past every cache, by its standard. Who reads event streams by `fetch` does not, and takes the end of a
        body for the end; a 204 it would take for a fault, and ask again for ever. Whoever sends our header verifies: it
        needs the terminal, and a 204 in its place would be a truncation. `sg=` in the address does not count: it is how
        an EventSource negotiates, which can send no header, and which would come back for ever.
        """
        past_caches = "no-cache" in self.headers.get("cache-control", "").lower()
        return self.event_source and past_caches and "streamguard" not in self.headers


@attrs.frozen
class Terms:
    """On which terms a stream is served: whether its reader verifies, and where the cursor stands."""

    request: Request | None
    ids: Literal["id", "comment"]

    @property
    def negotiated(self) -> bool:
        return self.request is not None


@attrs.frozen
class Granted:
    """What is granted of the keys that a reader asked for. None: it did not ask, or may not have it.

    `flush` is `token` (a frame a token) or `chunk` (the owner's policy), `compress` is `gzip`. `credit` is what may be
    sent at first, in frames and bytes, or False for whoever asked where nothing counts it. `http10` nobody asks for:
    the request came by HTTP/1.0, and its answer is sent as it is made.
    """

    flush: Literal["token", "chunk"] | None = None
    compress: Literal["gzip"] | None = None
    credit: tuple[int, int] | Literal[False] | None = None
    http10: bool = False


NOTHING: Final = Granted()


@attrs.frozen
class Refusal:
    """An answer that is no stream. `abort`: its body must not end cleanly. `code` is why, for whoever counts; empty
    where nothing was refused, and where a source chose the code."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes = b""
    abort: bool = False
    code: str = ""


def terms(facts: RequestFacts) -> Terms:
    """The terms of a request: cursors stand in `id:` for readers that use it, else in a comment."""
    request = parse_request(facts.headers.get("streamguard"), facts.query)
    in_id = request is not None or facts.event_source or "last-event-id" in facts.headers
    return Terms(request, "id" if in_id else "comment")


def granted(facts: RequestFacts, *, token: bool, gzip: bool, held: bool = False) -> Granted:
    """What of that which the request asks for its stream grants.

    `token` and `gzip` are what the owner allows: frames of single tokens, and a compressed answer, which the reader
    must ask for twice: by the key, and in `Accept-Encoding`, which says that what reads it can take it apart. A word
    that is not known is as if it were not there. `held`: over HTTP/1.0 an answer leaves whole, with its length.
    """
    request, http10 = terms(facts).request, facts.http_version == "1.0" and not held
    if request is None:
        return Granted(http10=True) if http10 else NOTHING
    flush: Literal["token", "chunk"] | None = None
    if request.flush in ("token", "chunk"):
        flush = "token" if token and request.flush == "token" else "chunk"
    compressed = gzip and request.compress == "gzip" and accepts_gzip(facts.headers.get("accept-encoding", ""))
    return Granted(flush, "gzip" if compressed else None, None if request.credit is None else False, http10)


def answer_headers(
    zero: Cursor | None,
    *,
    content_type: str,
    dialect: str,
    wire: str,
    resume: str | None = None,
    reader: str | None = None,
    granted: Granted = NOTHING,
    compresses: bool = False,
) -> list[tuple[str, str]]:
    """The headers of a stream; `zero` is None in the answer to HEAD, which makes no stream to name. `resume` and
    `reader` are as in `Answer`; `compresses` says whether other requests get a compressed answer here.

    None of `Connection`, `Transfer-Encoding`, `Content-Length`: they are the server's.
    """
    headers = [
        ("content-type", content_type),
        NO_STORE,
        ("x-accel-buffering", "no"),
        ("incremental", "?1"),
        ("x-content-type-options", "nosniff"),
        ("vary", "Origin, Streamguard, Last-Event-ID" + (", Accept-Encoding" if compresses else "")),
    ]
    if dialect == "ui":
        headers.append(_UI_STREAM)
    if granted.compress is not None:
        headers.append(("content-encoding", granted.compress))
    if zero is not None:
        keys: dict[str, Any] = attrs.asdict(granted, recurse=False)
        answer = Answer(zero, dialect, wire, resume=resume, reader=reader, **keys)
        headers.append(("streamguard", write_answer(answer)))
    return headers


def refusal(facts: RequestFacts) -> Refusal | None:
    """The answer to a request that bears a cursor, where no log could resume its stream; else None."""
    text = facts.cursor
    if text is None:
        return None
    cursor = Cursor.parse(text)
    if cursor.status is not None:  # any: a terminal's, `lost`, or one of a later version
        return nothing_more()
    detail = "the stream of this cursor is not here, and a cursor never starts a new one"
    return cannot_resume(facts, cursor, 404, "unknown_stream", detail)


def cannot_resume(facts: RequestFacts, cursor: Cursor, status: int, code: str, detail: str) -> Refusal:
    """The answer to a request that bears `cursor` and finds nothing to go on with: `status` for those who understand
    it, a conflict to a POST of an SDK, and to an EventSource one block that it hands out, and comes back from once."""
    negotiated = terms(facts).negotiated
    if not negotiated and facts.event_source:
        return _lost(cursor)
    return _problem(409 if not negotiated and facts.method == "POST" else status, code, detail)


def problem(status: int, code: str, detail: str, *more: tuple[str, str], retry: bool = False) -> Refusal:
    """Any other no, as problem+json (RFC 9457). `retry`: whether the same request may succeed later."""
    return _problem(status, code, detail, *more, retry=retry)


def come_back(
    facts: RequestFacts, code: str, detail: str, seconds: float | None = None, *, status: int = 503
) -> Refusal:
    """The answer where there is no room, or no log, now: 503 or 429 with `Retry-After`. An EventSource would take that
    for an end; it is given an empty stream that breaks off, which it comes back from with the cursor that it has.

    `seconds` is for how long to stay away, drawn at random by whoever refuses; None is one, and for an EventSource up
    to two: without a `retry:` of its own all that were refused together would come back together.
    """
    if facts.event_source and not terms(facts).negotiated:
        headers = [("content-type", "text/event-stream; charset=utf-8"), NO_STORE]
        wait = randint(1000, 2000) if seconds is None else round(1000 * seconds)
        return Refusal(200, headers, b": %b\nretry: %d\n\n" % (code.encode(), wait), abort=True, code=code)
    # A POST with a cursor comes from an SDK, whose own retries would repeat it within a second.
    retry = facts.cursor is None
    later = str(1 if seconds is None else round(seconds))
    return _problem(status, code, detail, ("retry-after", later), retry=retry)


def nothing_more() -> Refusal:
    """The answer to a request that has it all: what stops an EventSource for good."""
    return Refusal(204, [NO_STORE])


def http10_refusal() -> Refusal:
    """The answer to a request over HTTP/1.0, whose framing cannot carry an aborted body."""
    detail = "HTTP/1.0 cannot carry this stream; in nginx set `proxy_http_version 1.1`"
    return _problem(426, "http_1_0", detail, ("upgrade", "HTTP/1.1"))


def early_failure(failure: Failure) -> Refusal:
    """The answer where a source chose a failure before the headers went out: 503 if a retry may help, else 500."""
    status = 503 if failure.retryable else 500
    return attrs.evolve(_problem(status, failure.code, failure.message, retry=failure.retryable), code="")


def _problem(status: int, code: str, detail: str, *more: tuple[str, str], retry: bool = False) -> Refusal:
    body = dumps({"title": code.replace("_", " "), "status": status, "detail": detail, "code": code})
    headers = [("content-type", "application/problem+json"), NO_STORE, ("x-should-retry", str(retry).lower()), *more]
    return Refusal(status, [*headers, ("content-length", str(len(body)))], body, code=code)


def _lost(cursor: Cursor) -> Refusal:
    """One block that ends the request, not a stream: its id repeats the cursor, so the next request gets 204."""
    id = str(cursor._replace(status="lost")).encode()
    failure = Failure("unknown_stream", "the stream of this cursor is not here")
    data = summary(Ending(status="failed", failure=failure), 0, 0)
    body = b"event: end\nid: %b\ndata: %b\n\n" % (id, data)
    headers = [("content-type", "text/event-stream; charset=utf-8"), NO_STORE]
    return Refusal(200, headers, body, abort=True, code=failure.code)
