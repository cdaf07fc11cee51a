"""Layers that stand between an application and its server, and change when things arrive."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from streamguard.testing.conduct import ASGIApp, Message

__all__ = ["HeldStart"]


class HeldStart:
    """Middleware that withholds `http.response.start` until a body comes, as compressing and caching layers do.

    It can stand in front of a real server as well. An application that ends without a body message sends nothing.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(
        self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        held: list[Message] = []

        async def holding(message: Message) -> None:
            if message["type"] == "http.response.start":
                held.append(message)
                return
            if held and not message.get("body") and message.get("more_body", False):
                return  # an empty body is none
            while held:
                await send(held.pop(0))
            await send(message)

        await self.app(scope, receive, holding)
