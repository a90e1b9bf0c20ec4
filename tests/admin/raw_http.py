"""Requests as bytes over sockets, for what no well-behaved client sends."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """An answer as it came over the socket."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        """The problem document; the answer must be one, with the headers of every answer."""
        assert self.headers["content-type"] == "application/problem+json", self
        assert self.headers["x-content-type-options"] == "nosniff", self
        assert self.headers["content-security-policy"].startswith("default-src 'none'"), self
        assert self.headers["cache-control"] == "no-store", self
        fields: dict[str, Any] = json.loads(self.body)
        assert fields["status"] == self.status
        assert fields["detail"]
        assert self.status not in {429, 503} or int(self.headers["retry-after"]) >= 1
        return fields


def connected(port: int, *, timeout_seconds: float = 20) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=timeout_seconds)


def request(token: str | None, line: str = "GET /admin/v2/caller HTTP/1.1", *headers: str) -> bytes:
    """Return the head of a request."""
    lines = [line, "Host: x", *([f"Authorization: Bearer {token}"] if token else []), *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def answer(sock: socket.socket) -> RawAnswer | None:
    """Return the next answer, or `None` if the server closes without one."""
    read = b""
    while b"\r\n\r\n" not in read:
        more = _received(sock)
        if not more:
            return None
        read += more
    head, _, body = read.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", "0")) or _is_open_chunked(headers, body):
        more = _received(sock)
        assert more, "the answer is cut off"
        body += more
    return RawAnswer(int(first.split()[1]), headers, body)


def asked(port: int, sent: bytes) -> RawAnswer:
    """Return the answer to one request on a connection of its own."""
    with connected(port) as sock:
        sock.sendall(sent)
        got = answer(sock)
    assert got is not None, "the server closed without an answer"
    return got


def silent(stack: ExitStack, port: int, n: int) -> list[socket.socket]:
    """Open `n` connections that send nothing."""
    return [stack.enter_context(connected(port)) for _ in range(n)]


def _received(sock: socket.socket) -> bytes:
    try:
        return sock.recv(65536)
    except ConnectionResetError:
        return b""


def _is_open_chunked(headers: Mapping[str, str], body: bytes) -> bool:
    return headers.get("transfer-encoding") == "chunked" and not body.endswith(b"0\r\n\r\n")
