"""One request over httpx, and those that go on with its answer: their parts, redirects, and what errors mean.

httpx takes its timeouts from a request's extensions each time it begins to read: for the head of the
response, then for its body. So one dictionary, changed in between, gives the head (`request`) and the
liveness of the stream limits of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final
from zlib import error as Damaged

import httpx

from streamguard.client.answer import REQUEST_HEADERS, AnswerState
from streamguard.client.request import (
    HeadLimit,
    RequestOptions,
    is_safe_header,
    same_origin,
    stays_in_resume,
    vet_place,
    why_not_follow,
)
from streamguard.client.resume import Attempt
from streamguard.core.errors import ConnectLimitExceeded

__all__ = ["CUT", "Exchange"]

# What a cut connection looks like in httpx; others of its errors (no such host, a certificate that
# does not fit) are no statement about a stream and pass as they are.
CUT: Final = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.DecodingError, Damaged)


class _NoPlace(ConnectLimitExceeded):
    """All connections that the caller's client may make are in use."""

    what = "no free connection in the client's pool, where each open stream keeps one,"


@cache
def _defaults() -> httpx.Headers:
    """What httpx sends if nobody chose otherwise, which asks for nothing."""
    with httpx.Client(transport=httpx.BaseTransport(), trust_env=False) as client:
        return client.headers


class Exchange:
    """The next request, as far as both drivers share it."""

    def __init__(
        self,
        client: httpx.Client | httpx.AsyncClient,
        state: AnswerState,
        method: str,
        url: httpx.URL | str,
        options: RequestOptions,
    ) -> None:
        fields: dict[str, Any] = dict(options)
        self.auth: Any = fields.pop("auth", httpx.USE_CLIENT_DEFAULT)
        self.follows: bool = fields.pop("follow_redirects", client.follow_redirects)
        self.state = state
        self._client = client
        self._cookies = fields.get("cookies")
        headers = httpx.Headers(fields.pop("headers", None))
        # A cookie that stands in a header is the caller's, and no jar's.
        self._own_cookie = "cookie" in headers or "cookie" in client.headers
        for name, value in REQUEST_HEADERS:
            if name not in headers and client.headers.get(name) in (None, _defaults().get(name)):
                headers[name] = value
        self.request = client.build_request(method, url, headers=headers, **fields)
        vet_place(self.request.headers.get("last-event-id", ""), self.request.url.params.get_list("after"))
        self._answered = self.request  # the one whose answer is the stream
        self._first = self.request.url
        self._extensions = self.request.extensions
        self._limit()

    def opened(self, response: httpx.Response) -> bool:
        """Take the head of the response in: whether it is a stream's."""
        self._answered = request = response.request
        version, accept = _of(response)
        is_stream = self.state.open(
            response.status_code, response.headers, version, accept, method=request.method, url=request.url
        )
        self.head.came(self.state.limits.silence if is_stream else self.state.limits.first_byte)
        return is_stream

    def redirected(self, response: httpx.Response) -> bool:
        """Whether there is one more request to send; then it is `request`."""
        following = response.next_request
        if following is None:
            return False
        away = not same_origin(self._first, following.url)
        why = why_not_follow(self.follows, away, following.headers)
        if not self.state.follow(response.status_code, response.headers.get("location"), why):
            return False
        if away:
            kept = [(name, value) for name, value in following.headers.multi_items() if is_safe_header(name)]
            following.headers = httpx.Headers(kept)
        self.request = following
        # What the redirect's target may see of the credentials is in the request's headers already.
        self.auth = None
        return True

    def come_back(self, attempt: Attempt) -> None:
        """Make the request that an attempt to resume sends: a GET with the headers of the one that was answered, to
        its origin, and the cookies that its answers have set since."""
        headers = httpx.Headers(
            [(name, value) for name, value in self._answered.headers.multi_items() if stays_in_resume(name)]
        )
        headers.update(attempt.headers)
        cookies = httpx.Cookies()
        if self._own_cookie and "cookie" in self._answered.headers:
            headers["Cookie"] = self._answered.headers["cookie"]
        elif same_origin(self._first, self._answered.url):
            cookies = httpx.Cookies(self._client.cookies)
            cookies.update(self._cookies)
        url = httpx.URL(str(attempt.url))
        self.request = httpx.Request("GET", url, headers=headers, cookies=cookies, extensions=self._extensions)
        self._limit()

    def came_back(self, response: httpx.Response, now: float) -> None:
        """Take in the head of the response to an attempt."""
        version, accept = _of(response)
        goes_on = self.state.reopen(response.status_code, response.headers, version, accept, now)
        self.head.came(self.state.limits.silence if goes_on else self.state.limits.first_byte)

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Say what an error before the response's head means."""
        try:
            yield
        except httpx.ConnectError:
            raise
        except httpx.PoolTimeout as exc:
            raise _NoPlace(self.state.limits.connect or 0.0) from exc
        except httpx.ConnectTimeout as exc:
            raise self.state.unconnected() from exc
        except httpx.TimeoutException as exc:
            raise self.state.unanswered() from exc
        except CUT as exc:
            raise self.state.dropped() from exc

    def _limit(self) -> None:
        """Limits of their own for the request that is sent next, and its redirects."""
        self.head = HeadLimit(self.state.limits, self._extensions.get("trace"))
        trace = self.head.atrace if isinstance(self._client, httpx.AsyncClient) else self.head.trace
        self.request.extensions = {**self._extensions, "timeout": self.head.timeouts, "trace": trace}


def _of(response: httpx.Response) -> tuple[str | None, str]:
    """The HTTP version, None where no connection carries the body, and the codings that were asked for."""
    version = response.http_version if "http_version" in response.extensions else None
    return version, response.request.headers.get("accept-encoding", "")
