"""Recorded streams as the SDKs of others are given them: as they were sent, and through a dialect.

`events` are the provider's own; `content` is the text and blocks, all that is left of a stream when another API's
dialect takes it up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from streamguard.core.dialect import Dialect, Raw
from streamguard.core.items import Event, Finish, Item
from streamguard.core.wire import Sse, SseDecoder
from tests.client.server import Connection, Request, Server, head
from tests.core.wire.streams import Answer, read, written

__all__ = ["CHAT", "MESSAGES", "RESPONSES", "content", "events", "recorded", "served", "through"]

FOLDER = Path(__file__).parents[1] / "cases" / "recorded"
CHAT = [
    "vllm_chat_tool2", "vllmB_chat_tool2", "vllm_chat_n2", "lcp_chat_logprobs", "vllm_chat_usage", "tf_chat_usage",
    "vllm_chat_lines",
]  # fmt: skip
RESPONSES = ["vllm_resp_tool2", "vllmB_resp_think", "vllm_resp_plain", "tf_resp_zh"]
MESSAGES = ["vllm_msg_tool1", "vllmB_msg_think", "vllm_msg_zh", "vllm_msg_maxtok"]


def recorded(name: str) -> bytes:
    return (FOLDER / f"{name}.sse").read_bytes()


def events(name: str) -> list[Item]:
    """The provider's own events."""
    found = SseDecoder().feed(recorded(name))
    return [Event(event.data, None if event.event == "message" else event.event) for event in found]


def content(name: str) -> tuple[list[Item], Answer]:
    """The text and blocks of choice 0, in order, and what our client makes of the recording."""
    answer = read(recorded(name), dialect=Raw(profile="transformers" if name.startswith("tf_") else "openai"))
    items: list[Item] = []
    for frame in answer.frames:
        items += frame.blocks
        items += [frame.text] if frame.text else []
    reason = answer.receipt.finish_reason
    known = {"tool_use": "tool_calls", "end_turn": "stop", "max_tokens": "length", "completed": None}
    reason = known.get(reason, reason) if isinstance(reason, str) else None
    return [*items, Finish(reason, answer.receipt.usage)], answer


def served(body: bytes, ask: Callable[[str], Any], *, missing: int = 0) -> Any:
    """What `ask` finds at an address where `body` is served, and cut off before as many bytes more as are `missing`."""

    def script(connection: Connection, request: Request) -> bool:
        connection.send(head(content_length=len(body) + missing, connection="close") + body)
        connection.finish()  # else who keeps connections for a while holds up the server's end
        return False

    with Server(script) as server:
        return ask(server.url)


def through(items: Iterable[Item], dialect: Dialect, wire: Sse, **options: Any) -> bytes:
    return b"".join(written(items, dialect, wire, **options))
