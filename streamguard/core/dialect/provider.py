"""What a provider's own events say: which API they are, their text, and how they end.

`ProviderStream` watches the events of one stream, as a server re-frames them (`raw`) or as a client
reads them. It decides nothing while the stream runs; at the end it answers two questions: did it
end, and what proves it. The field's commonest lies are answered here: `[DONE]` or `message_stop` from
a `finally` after a swallowed fault (no finish reason anywhere, or no event at all), `[DONE]` after an
error event, the finish reasons `abort` and `error`, and `response.completed` of a response that failed.

The API is told from the first events. A *profile* names a server's known departures from its API;
it is chosen by name, never guessed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

import attrs

from streamguard.core.codes import code_in
from streamguard.core.dialect.assembly import MAX_CHOICES, ProviderBlocks
from streamguard.core.dialect.base import Reading
from streamguard.core.dialect.blocks import as_error, as_index, as_mapping
from streamguard.core.dialect.mould import Mould
from streamguard.core.errors import Failure
from streamguard.core.items import BROKEN, Block, Event
from streamguard.core.jsontext import object_in
from streamguard.core.receipt import UNREAD

__all__ = ["Api", "EndRule", "PROFILES", "Profile", "ProviderReader", "ProviderStream", "Seen", "settled"]

Api = Literal["chat", "completions", "responses", "anthropic"]
Seen = Literal["event", "marker", "error"]
EndRule: TypeAlias = "Literal['provider', 'known', 'asgi', 'endless'] | Callable[[Event], bool]"


@attrs.frozen
class Profile:
    """How one server departs from its API.

    `done`: whether chat and completions end with `[DONE]`; `reasons`: whether choices get a
    `finish_reason`; `lenient`: whether the blank line behind the last event may be missing.
    """

    done: bool = True
    reasons: bool = True
    lenient: bool = False


# transformers serve 5.24 never sends `[DONE]` (recorded), llama-server was seen to end without a blank line behind it;
# the others follow the API. They have names so that a departure that is found later is no change to those who use them.
PROFILES: Final[Mapping[str, Profile]] = {
    "openai": Profile(),
    "vllm": Profile(),
    "sglang": Profile(),
    "llama.cpp": Profile(lenient=True),
    "ollama": Profile(),
    "transformers": Profile(done=False),
    "litellm": Profile(),
}

_scan: Final[Callable[[str, int], tuple[Any, int]]] = vars(json.JSONDecoder())["scan_once"]
_RESPONSES_ENDS: Final = ("response.completed", "response.incomplete")
_TEXT: Final = frozenset({"content", "role"})  # what a delta has that says its text and nothing else
_CHUNKS: Final = ("chat.completion.chunk", "text_completion")
_ANTHROPIC: Final = (
    "message_start",
    "message_delta",
    "message_stop",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
)


class ProviderStream:
    """Watches one stream of a provider's events. `asked`: whether a provider was asked for it; then a marker behind
    events of no API that is known proves nothing."""

    def __init__(self, profile: str = "openai", *, asked: bool = False) -> None:
        try:
            self.profile = PROFILES[profile]
        except KeyError:
            raise ValueError(f"unknown profile {profile!r}; known: {', '.join(PROFILES)}") from None
        self.api: Api | None = None
        self._asked = asked
        self._strange = False  # whether an event came before the API was known
        self.sure = False  # whether the API is known for certain: a list of choices may be a stranger's
        self.begun: set[int] = set()
        self.reasons: dict[int, str] = {}
        self.usage: Mapping[str, Any] | None = None
        self.error: Failure | None = None
        self.ended = False  # the marker was seen, and nothing after it
        self.overrun = False  # events came after the marker
        self.response: Mapping[str, Any] = {}  # Responses: the last response object
        self.sequence = -1  # Responses: the last sequence_number
        self._told = 0  # how often a reason came that was not there
        self._mould = Mould()

    def observe(self, name: str | None, data: str) -> tuple[Seen, Reading]:
        """Take one event in; say whether it is an ordinary one, the end marker, or an error."""
        if self.ended:
            self.overrun = self.overrun or bool(data)  # one without data is a sign of life, also after the end
        elif name is None and (text := self._mould.text(data)):
            return "event", Reading(UNREAD, text, {0: text})  # all else was noted with the first of its kind
        if len(data) < 16 and data.strip() == "[DONE]":
            self.ended = True
            return "marker", Reading(None)
        self._strange = self._strange or (self.api is None and bool(data))
        try:
            payload = _load(data)
        except (ValueError, RecursionError):
            payload = None
        if type(payload) is not dict:
            # A chat chunk is an object; a bare string between them is a gateway's error message.
            if name == "error" or (type(payload) is str and self.api in ("chat", "completions")):
                self._fail(payload if type(payload) is str else data)
                return "error", Reading(None)
            return "event", Reading(None)
        if (error := self._error_in(name, payload)) is not None:
            self._fail(error)
            return "error", Reading(payload)
        seen, reading = self.observe_payload(payload)
        if name is None and reading.text and self._says_text_only(payload):
            self._mould.learn(data, payload, "content" if self._is_chat(payload) else "text")
        return seen, reading

    def observe_payload(self, payload: Mapping[str, Any]) -> tuple[Seen, Reading]:
        """The same for an event that is no error and already parsed."""
        if isinstance(payload.get("choices"), (list, tuple)):
            texts = self._choices(payload)
            return "event", Reading(payload, texts.get(0, ""), texts)
        kind = payload.get("type")
        if isinstance(kind, str) and kind.startswith("response."):
            return self._responses(kind, payload)
        if kind in _ANTHROPIC:
            return self._anthropic(kind, payload)
        return "event", Reading(payload)

    def noted(self) -> object:
        """All that is noted, to be compared with what was at another time: once an event, so reasons are counted."""
        told, error = self._told, self.error
        known = (self.api, self.sure, len(self.begun), told, self.usage, error, self.ended, self.overrun)
        return (*known, self.sequence, self.response)

    def judge(self) -> Failure | None:
        """None if the stream is complete by its provider's rule, else why it is not."""
        if self.error is not None:
            return self.error
        if any(reason in BROKEN for reason in self.reasons.values()):
            return Failure("generation_aborted", "the engine aborted the generation", retryable=True)
        if not self.has_end():
            return Failure("unproven_end", "the provider's stream ended without its end marker", retryable=True)
        if self.overrun:
            return Failure("unproven_end", "events followed the provider's end marker")
        if self.api is None and (self._asked or not self._strange):
            return Failure("unproven_end", "the end marker came without any part of an answer", retryable=True)
        if self.api is not None and self.profile.reasons and not self.reasons:
            return Failure("unproven_end", "the end marker came without any finish reason", retryable=True)
        return None

    def has_end(self) -> bool:
        """Whether the provider's end rule is met, whatever else is wrong."""
        if self.api in ("chat", "completions") and not self.profile.done:
            return bool(self.begun) and self.begun <= self.reasons.keys()
        return self.ended

    @property
    def proved_by(self) -> str | None:
        """What proves the end: `marker+reason`, `marker`, `framing` (reasons alone), or None."""
        if not self.has_end():
            return None
        if not self.ended:
            return "framing"
        return "marker+reason" if self.reasons else "marker"

    def _fail(self, error: object) -> None:
        if self.error is None:
            detail = error if isinstance(error, Mapping) else {"message": str(error)}
            code = code_in(detail.get("code"), detail.get("type"))
            self.error = Failure(code, str(detail.get("message") or "the provider sent an error"))

    def _error_in(self, name: str | None, payload: Mapping[str, Any]) -> object | None:
        """The error that an event reports, in any of the forms in use, or None."""
        if (error := as_error(payload.get("error"))) is not None:
            return error
        if "choices" in payload and name != "error":
            return None  # the usual way, a chunk
        if payload.get("type") == "response.failed":
            self._responses_state(payload)
            return self.response.get("error") or {"message": "the response failed"}
        if name == "error" or payload.get("type") == "error":
            return payload
        return None

    def _is_chat(self, payload: Mapping[str, Any]) -> bool:
        return payload.get("object") != "text_completion"

    def _says_text_only(self, payload: Mapping[str, Any]) -> bool:
        """Whether a chunk with text says nothing else that is noted, nor has a piece of a block, which would be lost
        where the next chunk repeats it beside another text."""
        choices = payload.get("choices")
        if not isinstance(choices, list) or len(choices) != 1 or payload.get("usage") is not None:
            return False
        choice = choices[0]
        if choice.get("finish_reason"):
            return False
        delta = choice.get("delta")
        return not delta or (isinstance(delta, dict) and not any(delta[key] for key in delta.keys() - _TEXT))

    def _choices(self, payload: Mapping[str, Any]) -> dict[int, str]:
        chat = self._is_chat(payload)
        if self.api is None:
            self.api = "chat" if chat else "completions"
        self.sure = self.sure or payload.get("object") in _CHUNKS
        texts: dict[int, str] = {}
        for choice in payload["choices"]:
            if not isinstance(choice, Mapping):
                continue  # not this API's: a stranger's events pass through `raw` too
            self.sure = self.sure or "finish_reason" in choice or isinstance(choice.get("delta"), Mapping)
            index = as_index(choice.get("index")) or 0
            if index not in self.begun:
                if len(self.begun) >= MAX_CHOICES:
                    if self.sure:  # else they are a stranger's, and mean something else
                        self._fail({"code": "upstream_format", "message": f"more than {MAX_CHOICES} choices came"})
                    break
                self.begun.add(index)
            holder = choice.get("delta") if chat else choice
            text = holder.get("content" if chat else "text") if isinstance(holder, Mapping) else None
            if text and isinstance(text, str):
                texts[index] = texts.get(index, "") + text
            if reason := choice.get("finish_reason"):
                self._reason(index, reason)
        self._note_usage(payload)
        return texts

    def _reason(self, index: int, reason: object) -> None:
        text = str(reason)
        if self.reasons.get(index) != text:
            self.reasons[index] = text
            self._told += 1

    def _note_usage(self, payload: Mapping[str, Any]) -> None:
        usage = payload.get("usage")
        if isinstance(usage, Mapping):
            self.usage = usage

    def _responses_state(self, payload: Mapping[str, Any]) -> None:
        self.api, self.sure = "responses", True
        if isinstance(payload.get("response"), dict):
            self.response = payload["response"]
        if isinstance(payload.get("sequence_number"), int):
            self.sequence = payload["sequence_number"]

    def _responses(self, kind: str, payload: Mapping[str, Any]) -> tuple[Seen, Reading]:
        self._responses_state(payload)
        if kind in _RESPONSES_ENDS:
            self.ended = True
            status, error = self.response.get("status"), self.response.get("error")
            if error or status in ("failed", "cancelled"):
                self._fail(error or {"code": "unproven_end", "message": f"the response ended as {status}"})
            self._reason(0, status or kind.removeprefix("response."))
            self._note_usage(self.response)
            return "marker", Reading(payload)
        text = payload.get("delta") if kind == "response.output_text.delta" else ""
        return "event", Reading(payload, text if isinstance(text, str) else "")

    def _anthropic(self, kind: str, payload: Mapping[str, Any]) -> tuple[Seen, Reading]:
        self.api, self.sure = "anthropic", True
        if kind == "message_stop":
            self.ended = True
            return "marker", Reading(payload)
        if kind == "message_start" and isinstance(payload.get("message"), dict):
            self._note_usage(payload["message"])
        delta = payload.get("delta")
        text = delta.get("text") if isinstance(delta, dict) and delta.get("type") == "text_delta" else ""
        if kind == "message_delta":
            if isinstance(delta, dict) and delta.get("stop_reason"):
                self._reason(0, delta["stop_reason"])
            before = self.usage or {}
            self._note_usage(payload)
            self.usage = {**before, **(self.usage or {})} or None  # the start has the input, and the end its output
        return "event", Reading(payload, text if isinstance(text, str) else "")


def settled(end: EndRule, seen: ProviderStream) -> EndRule:
    """The rule that `end` means for the events so far: `known` is `provider` where they are of an API that is known, or
    end with its marker, and else `asgi`."""
    if end != "known":
        return end
    return "provider" if seen.sure or (seen.ended and not seen.overrun) else "asgi"


def _load(data: str) -> Any:
    """`json.loads` without its search for white space, which costs as much as a small chunk."""
    try:
        value, end = _scan(data, 0)
    except StopIteration:
        value, end = None, -1
    return value if end == len(data) else json.loads(data)


class ProviderReader:
    """A provider's events to a reader. `end` is the rule that proves the end, as in dialect `raw`; `asked` as in
    `ProviderStream`."""

    def __init__(self, profile: str = "openai", end: EndRule = "provider", *, asked: bool = False) -> None:
        self._stream = ProviderStream(profile, asked=asked)
        self._end: EndRule = end
        self._marked = False
        self._blocks = ProviderBlocks()

    @property
    def begun(self) -> set[int]:
        """The choices of chat and completions that anything came of."""
        return self._stream.begun

    @property
    def reasons(self) -> dict[int, str]:
        return self._stream.reasons

    @property
    def usage(self) -> Mapping[str, Any] | None:
        return self._stream.usage

    @property
    def error(self) -> Failure | None:
        return self._stream.error

    def read(self, name: str | None, data: str) -> Reading | None:
        if not data:
            return None  # an event without content: some servers send it as a sign of life
        if callable(self._end):
            self._marked = self._end(Event(data, name))
        seen, reading = self._stream.observe(name, data)
        if reading.item is UNREAD:  # text of choice 0 and nothing else
            if self._blocks.chat.thinking:
                reading.blocks = self._blocks.chat.spoke()
        elif seen != "error" and isinstance(reading.item, dict):
            reading.blocks = self._blocks.take(reading.item)
        return reading

    def rest(self, data: str) -> tuple[Block, ...]:
        """The blocks that the end makes whole; `data` is that of the terminal, where it was not read."""
        if data and self._stream.api == "responses":  # whose last event repeats what had no end of its own
            self._blocks.take(as_mapping(object_in(data)))
        return self._blocks.rest()

    def proof(self, clean: bool) -> str | None:
        end = settled(self._end, self._stream)
        if end == "provider":
            return self._stream.proved_by
        if callable(end):
            return "marker" if self._marked else None
        return "framing" if clean else None

    def judge(self) -> Failure | None:
        provider = settled(self._end, self._stream) == "provider"
        return self._stream.judge() if provider else self._stream.error
