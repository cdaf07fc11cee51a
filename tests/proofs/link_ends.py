"""One end of a link: a network namespace of its own, whose only device is a TUN that another process reads and writes.

    python -m tests.proofs.link_ends FD ADDRESS PEER serve     a saturating stream for each request: /WINDOW
    python -m tests.proofs.link_ends FD ADDRESS PEER read      for each line `PORT WINDOW WARM SECONDS`: bytes

The descriptor of the TUN is sent over the socket FD. Ports say how the server's system controls congestion.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import uvicorn

from streamguard.adapters.asgi import GuardedAnswer, SealMiddleware

__all__ = ["PORTS", "app"]

PORTS = {"cubic": 8001, "bbr": 8002}

_NEWNET = 0x40000000  # of unshare(2)
_SETIFF = 0x400454CA  # TUNSETIFF, and its flags: TUN, without a header of its own
_TUN = 0x1001


def enter(channel: socket.socket, address: str, peer: str) -> None:
    """Leave this process's network for one with the link alone, and send its other side's descriptor."""
    import fcntl  # which not every system has that lists the proofs

    if ctypes.CDLL(None, use_errno=True).unshare(_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, _SETIFF, struct.pack("16sH22x", b"sg0", _TUN))
    for command in ("link set lo up", f"addr add {address} peer {peer} dev sg0", "link set sg0 mtu 1400 up"):
        subprocess.run(["ip", *command.split()], check=True)
    socket.send_fds(channel, [b"t"], [tun])
    os.close(tun)


async def saturating() -> AsyncIterator[str]:
    while True:
        yield "x" * 4000


async def app(scope: Any, receive: Any, send: Any) -> None:
    asked = scope["path"].strip("/")
    window = True if asked == "adaptive" else int(asked) or False
    await GuardedAnswer(saturating(), window=window)(scope, receive, send)


def serve(address: str) -> None:
    listening = []
    for control, port in PORTS.items():
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        one.bind((address, port))
        one.listen()
        listening.append(one)
    config = uvicorn.Config(SealMiddleware(app), log_level="warning", access_log=False, lifespan="off")
    uvicorn.Server(config).run(sockets=listening)


def read(peer: str) -> None:
    """Bytes that came in so many seconds, after those in which a connection warms up."""
    for line in sys.stdin:
        port, window, warm, seconds = line.split()
        came, began, until = 0, time.monotonic() + float(warm), time.monotonic() + float(warm) + float(seconds)
        with socket.create_connection((peer, int(port)), timeout=20.0) as connection:
            connection.sendall(f"GET /{window} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            while (now := time.monotonic()) < until:
                data = connection.recv(65536)
                assert data, "the stream ended"
                came += len(data) if now >= began else 0
        print(came, flush=True)


if __name__ == "__main__":
    number, address, peer, what = sys.argv[1:]
    enter(socket.socket(fileno=int(number)), address, peer)
    serve(address) if what == "serve" else read(peer)
