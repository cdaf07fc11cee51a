"""What arrives behind a proxy, asked of real clients. The test's and the proof's.

WAYS         the proxies by name, each started in front of a port
END_READERS  clients that read an answer to its end, each with its own means
GatedStream  one stream of `tests.stacks.gated`: the test makes its tokens, and reads them through the proxy
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import attrs
import httpx
import openai

from streamguard.client import stream_sync
from streamguard.core.errors import UnexpectedResponse, VerdictError
from tests.absence import require
from tests.adapters.readers import BODY, Reading
from tests.stacks.proxies import INSTALL, Program, Proxy, certificate, documented, envoy, haproxy, nginx

__all__ = [
    "DOCUMENTED",
    "END_READERS",
    "ENVOYS",
    "HANG",
    "HTTP10",
    "SERVERS",
    "WAYS",
    "GatedStream",
    "Held",
    "Way",
    "booked",
    "client_of",
    "gated",
    "read_by_all",
]

HANG: Final = "hangs"
PATIENCE: Final = 5.0  # seconds after which a reader that gets nothing takes it for held back, or for a hang
SERVERS: Final = ("uvicorn-h11", "uvicorn-httptools", "hypercorn-h1", "granian-h1")


@attrs.frozen
class Way:
    """A proxy in one configuration, started in front of a port."""

    name: str
    program: Program
    start: Callable[[int], AbstractContextManager[Proxy]]
    carries_abort: bool = True
    """Whether clients notice the end of an aborted body. Behind HTTP/1.0 that is the server's doing too."""
    gzip: bool = False

    def require(self) -> None:
        """Skip the test where the program is not installed."""
        require(self.program, INSTALL[self.program])


def _by_name(*ways: Way) -> Mapping[str, Way]:
    return {way.name: way for way in ways}


HTTP10: Final = "nginx, HTTP/1.0 upstream"
WAYS: Final = _by_name(
    Way(HTTP10, "nginx", lambda port: nginx(port, http10=True), carries_abort=False),
    Way("nginx, HTTP/1.1 upstream", "nginx", nginx),
    Way("nginx, HTTP/2 in front", "nginx", lambda port: nginx(port, http2_front=True)),
    Way("nginx, gzip", "nginx", lambda port: nginx(port, gzip=True), gzip=True),
    Way("HAProxy, HTTP/1.1", "haproxy", haproxy),
    Way("HAProxy, HTTP/2 in front", "haproxy", lambda port: haproxy(port, http2_front=True), carries_abort=False),
)
DOCUMENTED: Final = _by_name(
    Way("nginx, as documented", "nginx", lambda port: documented("nginx", port, http2_front=True)),
    Way("HAProxy, as documented", "haproxy", lambda port: documented("haproxy", port, http2_front=False)),
)
ENVOYS: Final = _by_name(
    Way("Envoy, HTTP/1.1", "envoy", envoy),
    Way("Envoy, HTTP/2 in front", "envoy", lambda port: envoy(port, http2_front=True)),
    Way("Envoy, as documented", "envoy", lambda port: documented("envoy", port, http2_front=True)),
)


def client_of(proxy: Proxy, seconds: float = PATIENCE) -> httpx.Client:
    """A client that speaks what the proxy is meant to be spoken to in, and only that."""
    verify: Any = certificate().context() if proxy.tls else False
    return httpx.Client(http1=not proxy.http2, http2=proxy.http2, verify=verify, timeout=seconds, trust_env=False)


# ---- to the end of an answer -------------------------------------------------------------------


def _named(error: BaseException) -> str:
    return HANG if isinstance(error, httpx.TimeoutException) else type(error).__name__


def _httpx(proxy: Proxy, path: str) -> Reading:
    """The bytes and what httpx says of their end."""
    text = b""
    try:
        with client_of(proxy) as client, client.stream("POST", f"{proxy.url}{path}", json=BODY) as response:
            response.raise_for_status()
            for data in response.iter_bytes():
                text += data
    except httpx.HTTPStatusError as exc:
        return Reading("", f"{exc.response.status_code}")
    except httpx.HTTPError as exc:
        return Reading(text.decode(), _named(exc))
    return Reading(text.decode(), None)


def _curl(proxy: Proxy, path: str) -> Reading:
    """The bytes and curl's exit code."""
    version = "--http1.1" if not proxy.http2 else "--http2" if proxy.tls else "--http2-prior-knowledge"
    command = ["curl", "-sN", version, "--compressed", "--fail", "--max-time", str(PATIENCE)]
    command += ["--cacert", certificate().authority, "--json", json.dumps(BODY), f"{proxy.url}{path}"]
    done = subprocess.run(command, capture_output=True, check=False)
    names = {0: None, 28: HANG}
    return Reading(done.stdout.decode(), names.get(done.returncode, f"exit {done.returncode}"))


def _openai(proxy: Proxy, path: str) -> Reading:
    """The text, and what the OpenAI SDK raises."""
    text: list[str] = []
    base = proxy.url + path.rpartition("/chat/completions")[0]
    body: Any = BODY
    library: Any = openai.OpenAI  # newer ones are typed for a fork of httpx, and take httpx itself all the same
    try:
        with (
            client_of(proxy) as http,
            library(api_key="k", base_url=base, max_retries=0, http_client=http) as client,
        ):
            for chunk in client.chat.completions.create(**body):
                text += [choice.delta.content or "" for choice in chunk.choices]
    except openai.APIStatusError as exc:
        return Reading("", f"{exc.status_code}")
    except (openai.OpenAIError, httpx.HTTPError) as exc:
        return Reading("".join(text), _named(exc))
    return Reading("".join(text), None)


def _streamguard(proxy: Proxy, path: str) -> Reading:
    """The text and the verdict of the verifying client, with the code of the failure that it was told."""
    try:
        with client_of(proxy) as http, stream_sync("POST", f"{proxy.url}{path}", client=http, json=BODY) as answer:
            try:
                text = "".join(answer.text())
            except VerdictError as exc:
                failure = answer.receipt.failure
                told = f" ({failure.code})" if failure else ""
                return Reading(exc.received, f"{answer.receipt.verdict.name}{told}")
    except UnexpectedResponse as exc:
        return Reading("", f"{exc.status}")
    return Reading(text, None)


END_READERS: Final[Mapping[str, Callable[[Proxy, str], Reading]]] = {
    "httpx": _httpx,
    "curl": _curl,
    "openai": _openai,
    "streamguard.client": _streamguard,
}


def read_by_all(proxy: Proxy, path: str) -> dict[str, Reading]:
    """What each of END_READERS makes of the answer at `path`, one after the other."""
    return {name: reader(proxy, path) for name, reader in END_READERS.items()}


# ---- token by token ----------------------------------------------------------------------------


class Held(AssertionError):
    """What was sent did not come within PATIENCE seconds: something on the way holds it back."""


_numbers = itertools.count(1)


class GatedStream:
    """A stream that is read through a proxy, and stepped past it, at the server itself."""

    def __init__(self, control: httpx.Client, name: str, response: httpx.Response, reader: httpx.Client) -> None:
        self._control = control
        self._reader = reader
        self.name = name
        self.response = response
        self._pieces = response.iter_bytes()
        self.received = b""

    def until(self, mark: bytes, times: int = 1) -> None:
        """Read until `mark` has come so many times in all. Raises Held, and EOFError at an end without it."""
        while self.received.count(mark) < times:
            try:
                self.received += next(self._pieces)
            except httpx.ReadTimeout as exc:
                raise Held(f"{mark!r} did not come {times} times: {self.received!r}") from exc
            except StopIteration as exc:
                raise EOFError(f"{mark!r} did not come {times} times: {self.received!r}") from exc

    def step(self) -> None:
        """Let the source make one more token."""
        self._control.post(f"/runs/{self.name}/next").raise_for_status()

    def finish(self) -> None:
        self._control.post(f"/runs/{self.name}/finish").raise_for_status()

    def token(self, number: int) -> float:
        """Make token `number` and read it; the seconds from its making to here."""
        self.step()
        mark = b"t%d " % number
        self.until(mark)
        while not (stamp := re.search(rb"%b(\d+) " % mark, self.received)):
            self.received += next(self._pieces)
        return (time.monotonic_ns() - int(stamp[1])) / 1e9

    def rest(self) -> None:
        """Read to the end; raises what httpx raises."""
        for piece in self._pieces:
            self.received += piece

    def leave(self) -> None:
        """Close the reader's connection, in the middle of the answer."""
        self.response.close()
        self._reader.close()

    def reset(self) -> None:
        """Reset the stream with CANCEL and keep the connection, as browsers do over HTTP/2 (RFC 9113, section 6.4)."""
        frame = b"\0\0\4\3\0" + self.response.extensions["stream_id"].to_bytes(4, "big") + (8).to_bytes(4, "big")
        self.response.extensions["network_stream"].write(frame, timeout=PATIENCE)

    def closed(self, within: float = PATIENCE) -> bool:
        """Whether the source is closed by then, as the server has it in its books."""
        books = self._control.get(f"/runs/{self.name}/closed", params={"within": str(within)}).json()
        return bool(books["closed"])

    def writes_until_closed(self, most: int = 20) -> int | None:
        """How many further tokens are made until the source is closed, its reader being gone; None: it never is."""
        for made in range(most + 1):
            if self.closed(within=1.0 if made else 0.25):  # what was made tells the proxy, which tells the server
                return made
            self.step()
        return None


@contextmanager
def gated(
    proxy: Proxy, server: int, *, heartbeat: float | None = None, gzip: bool = False, patience: float = PATIENCE
) -> Iterator[GatedStream]:
    """Open one stream through `proxy`, to the server on port `server`. Its reader leaves with the block at the latest.

    Raises Held where the head of the answer does not come before there is a token.
    """
    name = f"run-{next(_numbers)}"
    params = {} if heartbeat is None else {"heartbeat": str(heartbeat)}
    headers = {"accept-encoding": "gzip" if gzip else "identity"}
    control = httpx.Client(base_url=f"http://127.0.0.1:{server}", timeout=30.0, trust_env=False)
    with control, client_of(proxy, patience) as client:
        request = client.build_request("GET", f"{proxy.url}/gated/{name}", params=params, headers=headers)
        try:
            response = client.send(request, stream=True)
        except httpx.ReadTimeout as exc:
            raise Held("not even the head of the answer came") from exc
        response.raise_for_status()
        yield GatedStream(control, name, response, client)


# ---- what the proxy writes into its log ----------------------------------------------------------


def booked(proxy: Proxy, path: str) -> str:
    """What the proxy logged of the last request for `path`, and its log's own words for how that ended."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        lines = [line for line in proxy.log().splitlines() if path in line]
        if found := _IN_LOG[proxy.program](lines):
            return found
        time.sleep(0.02)
    raise AssertionError(f"nothing is logged of {path}:\n{proxy.log()}")


def _of_nginx(lines: list[str]) -> str | None:
    """The status in the access log, which is written last, and what the error log says (its level, its words)."""
    status = [found[1] for line in lines if (found := re.search(r'" (\d{3}) \d+ "', line))]
    said = [
        f"{found[1]}: {found[2]}"
        for line in lines
        if (found := re.search(r"\[(\w+)\] [^*]*\*\d+ (?:\w+\(\) failed \([^)]*\) )?(.*?)(?: while |, client)", line))
    ]
    return ", ".join([status[-1], *said[-1:]]) if status else None


def _of_haproxy(lines: list[str]) -> str | None:
    """The status, and the state at the end: who ended it (C, S: the side), and in which phase (D: the body)."""
    found = [match for line in lines if (match := re.search(r" (\d{3}) \d+ - - (\S{4}) ", line))]
    return f"{found[-1][1]}, {found[-1][2]}" if found else None


def _of_envoy(lines: list[str]) -> str | None:
    """The status and the response flags (`-`: none)."""
    found = [match for line in lines if (match := re.search(r'" (\d{3}) (\S+) ', line))]
    return f"{found[-1][1]}, {found[-1][2]}" if found else None


_IN_LOG: Final[Mapping[Program, Callable[[list[str]], str | None]]] = {
    "nginx": _of_nginx,
    "haproxy": _of_haproxy,
    "envoy": _of_envoy,
}
