"""A request of a provider's SDK that asks for no stream, at an endpoint that has nothing else.

`create()` without `stream=True` expects one JSON object. Given events it would raise on their first byte, or hand out a
text of events, and the model would have worked for that. So it is refused before the source starts, with 400 in the
provider's own form, whose message the SDK raises.

Whether a request asks is in its JSON, at the top level, and an application may post a JSON of its own to the same
dialect. So only what says `"stream": false` is refused, or says nothing of it and is plainly a provider's request (a
model, and what it is asked); and nobody who shows in a header that a stream is wanted, of any carrier that frames one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from streamguard.core.exchange import NO_STORE, Refusal, RequestFacts, terms
from streamguard.core.jsontext import dumps
from streamguard.core.wire import wire_named

__all__ = ["STREAM_REQUIRED", "refuse_unstreamed"]

STREAM_REQUIRED: Final = "stream_required"

_MESSAGE: Final = 'this endpoint only streams: send "stream": true'
_OF_OPENAI: Final = {
    "error": {"message": _MESSAGE, "type": "invalid_request_error", "param": "stream", "code": STREAM_REQUIRED}
}
_OF_ANTHROPIC: Final = {"type": "error", "error": {"type": "invalid_request_error", "message": _MESSAGE}}

_FORMS: Final[Mapping[str, Mapping[str, Any]]] = {
    "openai": _OF_OPENAI,
    "openai-responses": _OF_OPENAI,
    "anthropic": _OF_ANTHROPIC,
}
_STREAMS: Final = {wire_named(name).content_type.partition(";")[0] for name in ("sse", "ndjson", "binary")}


def refuse_unstreamed(facts: RequestFacts, dialect: str, body: bytes) -> Refusal | None:
    """The answer to a request that asks for no stream of this dialect; None where it does, or may."""
    form = _FORMS.get(dialect)
    if form is None or facts.method != "POST" or not body.lstrip().startswith(b"{") or not _may_be_json(facts):
        return None
    if facts.cursor is not None or terms(facts).negotiated or _takes_a_stream(facts):
        return None
    try:
        asked: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    stream = asked.get("stream")
    if stream is not False and (stream is not None or asked.get("stream_options") or not _of_a_provider(asked)):
        return None
    data = dumps(form)
    headers = [("content-type", "application/json"), NO_STORE, ("x-should-retry", "false")]
    return Refusal(400, [*headers, ("content-length", str(len(data)))], data, code=STREAM_REQUIRED)


def _may_be_json(facts: RequestFacts) -> bool:
    """Whether the body is said to be JSON, or nothing is said of it."""
    essence = _essence(facts.headers.get("content-type") or "application/json")
    return essence == "application/json" or essence.endswith("+json")


def _takes_a_stream(facts: RequestFacts) -> bool:
    return any(_essence(each) in _STREAMS for each in facts.headers.get("accept", "").split(","))


def _essence(media_type: str) -> str:
    """A media type without its parameters; its case means nothing."""
    return media_type.partition(";")[0].strip().lower()


def _of_a_provider(asked: Mapping[str, Any]) -> bool:
    return "model" in asked and ("messages" in asked or "input" in asked)
