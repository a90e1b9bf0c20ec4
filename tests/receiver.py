"""A real HTTP server on loopback that records what arrives: when, from which process, under which key, which bytes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.loopback import serving


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request."""

    at_ns: int
    key: str
    body: bytes
    connection: tuple[str, int]
    """Address and port of the sender's end."""

    headers: dict[str, str]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return json.loads(self.body)

    @property
    def namespace(self) -> str:
        return self.key.split("/")[3].replace("%2F", "/")


@dataclass
class Record:
    """What a server has seen, and what it answers: 200 unless `answer` says otherwise, with `headers` if it refuses."""

    url: str = ""
    arrivals: list[Arrival] = field(default_factory=list)
    answer: Callable[[Arrival], int] = lambda _: 200
    headers: dict[str, str] = field(default_factory=dict)

    def by_key(self) -> dict[str, bytes]:
        """Return what a receiver that honours keys has; all bytes under a key must be the same."""
        found: dict[str, bytes] = {}
        for arrival in self.arrivals:
            kept = found.setdefault(arrival.key, arrival.body)
            assert kept == arrival.body, (arrival.key, kept, arrival.body)
        return found


@contextmanager
def receiver() -> Iterator[Record]:
    """Yield the record of a server that listens on loopback."""
    record = Record()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            at_ns = time.monotonic_ns()
            size = int(self.headers["Content-Length"])
            body = self.rfile.read(size)
            if len(body) < size:  # the sender was killed between header and body: this is no request
                self.close_connection = True
                return
            arrival = Arrival(at_ns, self.headers["Idempotency-Key"], body, self.client_address, dict(self.headers))
            record.arrivals.append(arrival)
            status = record.answer(arrival)
            self.send_response(status)
            for name, value in record.headers.items() if status >= 400 else ():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 128
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Print nothing of a sender that was killed."""
            if not isinstance(sys.exception(), ConnectionError):
                super().handle_error(request, client_address)

    with serving(Server(("127.0.0.1", 0), Handler)) as port:
        record.url = f"http://127.0.0.1:{port}/events"
        yield record
