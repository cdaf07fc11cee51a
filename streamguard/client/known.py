"""What is known of an answer over httpx, the same for both drivers, and what an error of a read means."""

from __future__ import annotations

from time import monotonic

import httpx

from streamguard.client.body import Body, coding_of, may_be_read
from streamguard.client.exchange import CUT, Exchange
from streamguard.client.head import Refusal
from streamguard.core.receipt import Receipt

__all__ = ["AnswerBase", "was_cancelled"]

_OVER = (404, 409, 410)  # it has ended, or nobody there has it


class AnswerBase:
    """What is known of an answer, the same for both drivers."""

    def __init__(self, exchange: Exchange, response: httpx.Response) -> None:
        self._state = exchange.state
        self._exchange = exchange
        self.response = response
        self._take(response)

    def _take(self, response: httpx.Response) -> None:
        """Read from `response` from now on."""
        self._live = response
        coding = coding_of(response.headers.get("content-encoding", ""))
        # A body that was read before is in memory, decompressed; only httpx can give it again.
        self._body = Body("identity" if response.is_stream_consumed else coding)
        asked = may_be_read(coding, response.request.headers.get("accept-encoding", ""))
        self._raw = not response.is_stream_consumed and (self._body.own or not asked)

    @property
    def receipt(self) -> Receipt:
        """What is known so far; final once the answer was read to its end."""
        return self._state.receipt

    @property
    def received(self) -> str:
        """The text handed out so far."""
        return self._state.received

    @property
    def sid(self) -> str | None:
        """The stream's id, by which its server knows it; None where the answer has none, so far."""
        at = self._state.cursor
        return None if at is None else at.sid

    @property
    def _own_connection(self) -> bool:
        """Whether a connection carries this answer and no other: not in memory, and not HTTP/2, which
        keeps its connection whatever becomes of a stream, and loses all of them by one's timeout."""
        return "network_stream" in self._live.extensions and self._live.http_version.startswith("HTTP/1")

    def _broken(self, exc: BaseException, began: float) -> None:
        """What an error of a read means. Raises what is none of the connection's."""
        if isinstance(exc, httpx.TimeoutException):
            self._state.silent(began, monotonic(), exc)
        elif isinstance(exc, CUT):
            self._state.end(began, monotonic(), clean=False, cause=exc)
        else:
            # A cancelled read leaves httpx's generator finished: asked again, it would end as if in order.
            self._state.close()
            raise exc


def was_cancelled(response: httpx.Response, said: bytes) -> bool:
    """Whether the server ended the stream, by its answer, whose body is `said`. Raises UnexpectedResponse."""
    if response.is_success or response.status_code in _OVER:
        return response.is_success
    raise Refusal(response.status_code, response.headers, "the server did not cancel it", said).error()
