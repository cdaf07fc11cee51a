"""How a scripted server and its reader behave, and what they note of each message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Literal, get_args

import attrs

__all__ = ["ASGIApp", "Conduct", "Message", "Sends", "Sent", "Told"]

Message = MutableMapping[str, Any]
ASGIApp = Callable[[Any, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]
Sends = Literal["silent", "fail", "hang", "stuck"]
Told = Literal["at once", "early", "late", "never", "hidden"]


def _natural(instance: object, attribute: attrs.Attribute[Any], value: int | None) -> None:
    if value is not None and value < 0:
        raise ValueError(f"{attribute.name} is {value!r}: a number from 0 up is needed")


@attrs.frozen(kw_only=True)
class Conduct:
    """What the reader does, and what the server makes of it. The default: the reader stays, `send` is taken at once.

    Positions count what was taken, from 0: `at_bytes=0` lets the start message through and nothing of the body,
    `at_messages=0` nothing at all. Raises ValueError for a negative number.
    """

    at_bytes: int | None = attrs.field(default=None, validator=_natural)
    """The reader takes so many bytes of the body, and no more: of a message that goes beyond, a part."""
    at_messages: int | None = attrs.field(default=None, validator=_natural)
    """The reader takes so many messages, the start message included, and no more."""
    sends: Sends = attrs.field(default="silent", validator=attrs.validators.in_(get_args(Sends)))
    """What it does then, and what `send` does. `silent`: it leaves, and `send` succeeds and goes nowhere (uvicorn).
    `fail`: it leaves, and `send` raises `error`. `hang`: it stops reading and stays, and `send` waits, until
    `release` lets it read on, or it leaves. `stuck`: the same, but `send` is not woken by a reader that leaves."""
    error: Callable[[], BaseException] = attrs.field(default=lambda: OSError("the reader is gone"))
    told: Told = attrs.field(default="at once", validator=attrs.validators.in_(get_args(Told)))
    """When `receive` answers `http.disconnect`. `at once`: when the reader leaves, or the answer has ended.
    `early`: at the first call, whatever the reader does. `late`: when the test calls `tell`. `never`: it waits
    for ever, even behind the end. `hidden`: it answers the request's body again and again, without a turn of the
    loop between, as a middleware does that replays the body; an application that asks a thousand times would
    never end, and gets a RuntimeError."""
    turns: int = attrs.field(default=0, validator=_natural)
    """Turns of the event loop that each send takes."""


@attrs.define(eq=False)
class Sent:
    """One message that the application sent."""

    message: Message
    task: object
    """Who sent it."""
    overlaps: bool
    """Whether another send had not returned yet."""
    late: bool
    """Whether the answer had ended before."""
    taken: int | None = None
    """Bytes of its body that went to the reader; None if it was not taken at all, or not yet."""
    pending: bool = True
    """Whether its send has not returned yet."""

    @property
    def body(self) -> bytes:
        return bytes(self.message.get("body", b""))
