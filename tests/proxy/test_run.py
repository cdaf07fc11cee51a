"""`streamguard proxy` as its users run it: processes, a signal, a server that is killed, and several of them."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.absence import absent, require
from tests.adapters.asgi_apps import exchange
from tests.adapters.servers import DEADLINE, Connection, serving
from tests.adapters.test_middleware_sockets import Site
from tests.asking import http
from tests.log.redis_server import redis_server
from tests.modules import ROOT
from tests.ports import free_port
from tests.proxy.running import running

PAGE = ROOT / "docs" / "how-to" / "two-proxies-behind-nginx.md"


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_it_serves_and_drains_when_it_is_told_to_go() -> None:
    made = Site()
    with serving(made.app) as behind, running(behind.url, "--ready", "/ready") as proxy:
        assert http.get(f"{proxy.where}/ready").text
        with proxy.connect() as connection:
            connection.request("POST", "/waits", body=b'{"stream": true}', content_type="application/json")
            connection.until(b"data:")
            proxy.process.send_signal(signal.SIGTERM)
            while listens(proxy.port):
                pass
            made.go.open()  # what runs may end
            connection.until(b"[DONE]")
        assert proxy.ended() == -signal.SIGTERM
    assert made.closed.opened


def test_what_has_not_ended_by_then_is_told_to_come_back_also_at_a_unix_socket(tmp_path: Path) -> None:
    made, path = Site(), str(tmp_path / "proxy.sock")
    with serving(made.app) as behind, running(behind.url, "--grace", "0.05", "--uds", path) as proxy:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(DEADLINE)
            connection.connect(proxy.where)
            connection.sendall(b"GET /waits HTTP/1.1\r\nHost: x\r\nStreamguard: v=1\r\n\r\n")
            received = b""
            while piece := connection.recv(65536):
                if not received and b"data:" not in piece:
                    continue
                if not received:
                    proxy.process.send_signal(signal.SIGTERM)
                received += piece
        assert b": bye " in received
        assert proxy.ended() == -signal.SIGTERM
        made.closed.wait()  # the upstream was left


def test_over_http_1_0_which_shows_no_cut_an_sdk_is_told_by_an_error_too() -> None:
    made = Site()
    with serving(made.app) as behind, running(behind.url, "--grace", "0.05") as proxy, proxy.connect() as connection:
        connection.send(
            b"POST /waits HTTP/1.0\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n"
            b'{"stream":true}'
        )
        connection.until(b"data:")
        proxy.process.send_signal(signal.SIGTERM)
        *_, error, parting = connection.rest().decode().rstrip("\n").split("\n\n")
        assert '"code":"shutdown"' in error
        assert parting.startswith(": bye ")
        made.closed.wait()


def test_an_upstream_that_is_killed_makes_the_sdk_raise(tmp_path: Path) -> None:
    require("openai", "pip install openai")
    import openai

    (tmp_path / "model.py").write_text(
        "import asyncio\n"
        "from tests.adapters.middleware_apps import EVENTS, chunk\n"
        "async def app(scope, receive, send):\n"
        '    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", EVENTS)]})\n'
        '    await send({"type": "http.response.body", "body": chunk("a"), "more_body": True})\n'
        "    await asyncio.Event().wait()\n"
    )
    command = [sys.executable, "-m", "uvicorn", "model:app", "--port", "0", "--lifespan", "off"]
    command += ["--app-dir", str(tmp_path)]
    with ExitStack() as stack:
        model = stack.enter_context(subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True))
        stack.callback(model.kill)
        assert model.stderr is not None
        url = next(found[1] for line in model.stderr if (found := re.search(r"running on (\S+)", line)))
        proxy = stack.enter_context(running(url))
        sdk = stack.enter_context(openai.OpenAI(api_key="k", base_url=f"{proxy.where}/v1", max_retries=0))
        stream = sdk.chat.completions.create(model="m", stream=True, messages=[{"role": "user", "content": "hi"}])
        assert next(iter(stream)).choices[0].delta.content == "a"
        model.kill()
        with pytest.raises(openai.APIError, match="the upstream broke off"):
            next(iter(stream))


@pytest.mark.skipif(absent("redis"), reason="absent: redis (install it with: pip install redis)")
def test_two_of_them_behind_nginx_as_the_page_has_it(tmp_path: Path) -> None:
    """A client that is cut comes back through nginx to the other one, and reads the rest of the first's stream."""
    require("nginx", "your package manager's nginx")
    made = Site()
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server(tmp_path, tcp=True))
        behind = stack.enter_context(serving(made.app))
        options = ["--log", f"redis://127.0.0.1:{redis.port}/0", "--principal-header", "X-User"]
        proxies = [stack.enter_context(running(behind.url, *options)) for _ in range(2)]
        port = stack.enter_context(nginx(tmp_path, [proxy.port for proxy in proxies]))
        with Connection(port) as connection:
            connection.get("/waits", streamguard="v=1", x_user="mallory", authorization="Bearer ann")
            connection.until(b"data:")
        at = re.findall(rb"^id: (\S+)$", connection.received, re.MULTILINE)[-1].decode()
        made.go.open()
        asking: dict[str, Any] = {"streamguard": "v=1", "last_event_id": at}
        for _ in range(2):  # one at each proxy
            rest = exchange(Connection(port), path="/streams", authorization="Bearer ann", **asking)
            assert (rest.status, rest.clean, rest.body.count(b"data:")) == (200, True, 3)
        for stranger in ("Bearer bob", ""):
            assert exchange(Connection(port), path="/streams", authorization=stranger, **asking).status in (403, 404)
        proxies[0].process.kill()
        proxies[0].ended()
        plain = [exchange(Connection(port), path="/plain").body for _ in range(2)]
        assert plain == [json.dumps({"body": ""}, separators=(",", ":")).encode()] * 2
    assert made.starts == 1


@contextmanager
def nginx(folder: Path, ports: list[int]) -> Iterator[int]:
    """nginx with the page's configuration, in front of proxies on these ports; where it listens."""
    blocks = re.findall(r"^```nginx\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    [text] = blocks
    port = free_port()
    for old, new in {"8081": ports[0], "8082": ports[1], "listen 80;": f"listen 127.0.0.1:{port};"}.items():
        assert old in text
        text = text.replace(old, str(new))
    paths = "".join(
        f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off;\npid {folder}/nginx.pid;\nerror_log {folder}/error.log;\nevents {{}}\n"
        f"http {{\n{paths}access_log off;\n{text}}}\n"
    )
    command = ["nginx", "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(1000):
            if listens(port):
                break
            try:
                process.wait(0.01)
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError(process.communicate()[1])
        yield port
    finally:
        process.terminate()
        process.communicate(timeout=DEADLINE)
