"""One connection to Redis, as a log uses it: commands go out as bytes that are ready, replies come back in order.

The only module that imports redis-py. What it cannot do, or is told by the server, becomes a LogUnavailable with a
reason; nothing is tried again here, because whoever calls knows what may be repeated. redis-py's own time limits and
retries are off: a limit for each reply costs more than the reply, so whoever calls limits a whole exchange.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
from redis.asyncio.connection import AbstractConnection, Connection, UnixDomainSocketConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from streamguard.log.base import LogUnavailable
from streamguard.log.redis_scripts import ALL

__all__ = ["Address", "Link", "NoScriptError", "ResponseError", "command", "reason"]

_OURS: Final = ("decode_responses", "protocol", "retry", "retry_on_error", "retry_on_timeout", "socket_timeout",
                "socket_connect_timeout", "health_check_interval", "max_connections")  # fmt: skip


def command(*words: bytes) -> bytes:
    """A command as it goes over the wire."""
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


_ROLE: Final = command(b"ROLE")
_LOAD: Final = b"".join(command(b"SCRIPT", b"LOAD", script.text) for script in ALL)


def reason(error: Exception) -> str:
    """What a server's refusal means."""
    text = str(error) or type(error).__name__
    if isinstance(error, OutOfMemoryError):
        return f"Redis is full (maxmemory), and evicts nothing: {text}"
    if isinstance(error, ReadOnlyError):
        return f"Redis is a replica, and takes no writes: {text}"
    if isinstance(error, (AuthenticationError, AuthorizationError)):
        return f"Redis refuses the login: {text}"
    return f"Redis: {text}"


class Address:
    """Where Redis is, and how it is spoken to. Raises ValueError and TypeError for what cannot be understood."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        settings: dict[str, Any] = {**options, **parse_url(url)}
        wrong = [name for name in _OURS if name in settings]
        if wrong:
            raise ValueError(f"{', '.join(wrong)} cannot be set: RedisLog has `timeout` and `max_connections`")
        self._kind: type[AbstractConnection] = settings.pop("connection_class", Connection)
        self._settings = settings
        self.name = str(settings.get("path") or f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}")
        known = {
            name
            for kind in (self._kind, UnixDomainSocketConnection, AbstractConnection, Connection)
            if issubclass(self._kind, kind)
            for name in inspect.signature(kind.__init__).parameters
        }
        unknown = sorted(settings.keys() - known)
        if unknown:
            raise TypeError(f"redis-py knows no setting {', '.join(unknown)} for {self._kind.__name__}")

    def connection(self) -> AbstractConnection:
        return self._kind(protocol=2, retry=Retry(NoBackoff(), 0), socket_timeout=None, **self._settings)


@attrs.define(eq=False)
class Link:
    """An open connection. Every method raises LogUnavailable once it is broken; then it is closed, and of no use."""

    _connection: AbstractConnection
    _name: str
    _transport: asyncio.Transport | None = None  # redis-py forgets it at the first error

    @classmethod
    async def open(cls, address: Address, *, primary: bool = True) -> Link:
        """Connect and log in; with `primary` also look that it is no replica, and load the scripts."""
        link = cls(address.connection(), address.name)
        try:
            await link._connection.connect()  # type: ignore[no-untyped-call]
            writer = getattr(link._connection, "_writer", None)
            link._transport = None if writer is None else writer.transport
            if primary:
                replies = await link.exchange(_ROLE + _LOAD, 1 + len(ALL))
                link.require_primary(replies[0])
                for reply in replies[1:]:
                    if isinstance(reply, Exception):
                        raise LogUnavailable(reason(reply))
        except BaseException as exc:
            await link.close()
            if isinstance(exc, (RedisError, OSError)):
                raise link.broken(exc) from exc
            raise
        return link

    def require_primary(self, reply: Any) -> None:
        """Raise LogUnavailable where the reply to `ROLE` is a replica's; who may not ask believes that it is none."""
        if isinstance(reply, list) and reply and reply[0] != b"master":
            raise LogUnavailable(f"Redis at {self._name} is a replica, not the primary: it may lag, takes no writes")

    async def exchange(self, packed: bytes | Sequence[bytes], count: int) -> list[Any]:
        """Send commands, and the replies to them; one that is refused has its ResponseError there."""
        await self.send(packed)
        return [await self.receive() for _ in range(count)]

    async def send(self, packed: bytes | Sequence[bytes]) -> None:
        try:
            await self._connection.send_packed_command(packed, check_health=False)
        except (RedisError, OSError) as exc:
            raise self.broken(exc) from exc

    async def receive(self) -> Any:
        """The next reply."""
        try:
            return await self._connection.read_response()
        except ResponseError as exc:
            return exc
        except (RedisError, OSError) as exc:
            raise self.broken(exc) from exc

    async def load(self) -> None:
        """Load the scripts again: the server forgot them."""
        await self.exchange(_LOAD, len(ALL))

    @property
    def ended(self) -> bool:
        """Whether the server has closed it already: then nothing that is sent now arrives."""
        reader = getattr(self._connection, "_reader", None)
        return not self._connection.is_connected or (reader is not None and reader.at_eof())

    def abort(self) -> None:
        """At once: what a peer that stands still has not taken would keep the socket open for ever."""
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        self.abort()
        try:
            await self._connection.disconnect(nowait=True)
        except (RedisError, OSError):
            pass  # it is gone

    def broken(self, error: BaseException) -> LogUnavailable:
        """The error for a connection that cannot be used, or not any more."""
        if isinstance(error.__cause__, RedisError):
            error = error.__cause__  # over a unix socket a refused login is wrapped
        if isinstance(error, (AuthenticationError, AuthorizationError)):
            return LogUnavailable(reason(error))
        return LogUnavailable(f"Redis at {self._name}: {str(error) or type(error).__name__}")
