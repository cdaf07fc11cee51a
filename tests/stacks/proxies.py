"""nginx and HAProxy as they are installed, started in front of a server for one block.

    with nginx(server.port, front="h2") as proxy:
        httpx.get(proxy.url, verify=False)

Each runs in the foreground with a configuration of its own in a temporary folder, on a free loopback port, and
is ended with its whole process group. `configured` starts one from the text of a configuration, so that what the
documentation prints can be run as it is printed.

HTTP/2 in front needs TLS, hence a certificate that is made once a process; `Certificate.context()` trusts it.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import attrs
import trustme

__all__ = [
    "HAPROXY",
    "NGINX",
    "Certificate",
    "Front",
    "Proxy",
    "certificate",
    "configured",
    "haproxy",
    "haproxy_version",
    "nginx",
    "nginx_tls",
    "nginx_version",
    "reserved_port",
]

Front = Literal["h1", "h2"]

NGINX: Final = ("nginx", "apt-get install --no-install-recommends nginx")
HAPROXY: Final = ("haproxy", "apt-get install --no-install-recommends haproxy")

_START: Final = 10.0  # seconds in which a proxy must listen
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
    """A proxy that runs: where it listens, and what it has logged so far."""

    port: int
    front: Front
    folder: Path
    process: subprocess.Popen[bytes] = attrs.field(repr=False)

    @property
    def url(self) -> str:
        return f"{'https' if self.front == 'h2' else 'http'}://127.0.0.1:{self.port}"

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
            {version}
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


@functools.cache
def nginx_version() -> tuple[int, ...]:
    """The version of the nginx on PATH."""
    said = subprocess.run(["nginx", "-v"], capture_output=True, text=True, check=True).stderr
    found = re.search(r"nginx/(\d+)\.(\d+)\.(\d+)", said)
    assert found, said
    return tuple(map(int, found.groups()))


def haproxy_version() -> str:
    """The version of the HAProxy on PATH, as it says it."""
    said = subprocess.run(["haproxy", "-v"], capture_output=True, text=True, check=True).stdout
    return said.split()[2].partition("-")[0]


@contextmanager
def nginx(
    upstream: int, *, http10: bool = False, front: Front = "h1", gzip: bool = False, directives: str = ""
) -> Iterator[Proxy]:
    """nginx in front of the server on port `upstream`.

    `http10` leaves the version that it speaks to the server at its default, which is 1.0 before nginx 1.29.7;
    `front` is what clients speak; `gzip` compresses event streams; `directives` go into the location.
    """
    with reserved_port() as port:
        http = _NGINX_SERVER.format(
            gzip="gzip on; gzip_types text/event-stream;" if gzip else "",
            listen=f"listen 127.0.0.1:{port} reuseport{nginx_tls() if front == 'h2' else ''};",
            upstream=upstream,
            version="" if http10 else 'proxy_http_version 1.1; proxy_set_header Connection "";',
            directives=directives,
        )
        with configured("nginx", http, port, front) as proxy:
            yield proxy


def nginx_tls() -> str:
    """What follows the address of a `listen` that speaks HTTP/2, and the certificate."""
    pem = certificate().path
    protocol = " ssl; http2 on" if nginx_version() >= (1, 25, 1) else " ssl http2"
    return f"{protocol}; ssl_certificate {pem}; ssl_certificate_key {pem}"


@contextmanager
def haproxy(upstream: int, *, front: Front = "h1", options: str = "") -> Iterator[Proxy]:
    """HAProxy in front of the server on port `upstream`. `options` are lines of the section `defaults`."""
    with reserved_port() as port:
        tls = f" ssl crt {certificate().path} alpn h2,http/1.1" if front == "h2" else ""
        sections = _HAPROXY_SECTIONS.format(port=port, tls=tls, upstream=upstream, options=options)
        with configured("haproxy", sections, port, front) as proxy:
            yield proxy


@contextmanager
def configured(program: Literal["nginx", "haproxy"], text: str, port: int, front: Front) -> Iterator[Proxy]:
    """Run `program` with `text` inside what every configuration here has in common. It listens on `port`."""
    with tempfile.TemporaryDirectory(prefix=f"streamguard-{program}-") as name:
        folder = Path(name)
        if program == "nginx":
            # Workers of a master that is root would be `nobody`, who may not write to this folder.
            user = "user root root;" if os.geteuid() == 0 else ""
            config = _NGINX.format(folder=folder, user=user, http=text)
            command = ["nginx", "-p", name, "-e", f"{name}/error.log", "-c", f"{name}/config"]
        else:
            config = _HAPROXY.format(sections=text)
            command = ["haproxy", "-db", "-f", f"{name}/config"]
        (folder / "config").write_text(config, encoding="utf-8")
        with open(folder / "output.log", "wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        proxy = Proxy(port, front, folder, process)
        try:
            _wait_until_it_listens(proxy, config)
            yield proxy
        finally:
            _end(process)


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port that only a proxy of this block gets.

    The socket that holds it does not listen, and so takes no connection from the proxy that binds the same port:
    both say SO_REUSEPORT, HAProxy by itself and nginx by `reuseport`.
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
