"""The strangers of `make api-load`: connections that send nothing, or very slowly, or do not take their answers.

One thread holds them all, in a process of its own, so that they take as little as possible of the callers' time.
"""

from __future__ import annotations

import heapq
import random
import resource
import selectors
import socket
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from typing import TYPE_CHECKING, Final

from tests.admin.raw_http import request

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

SLOW: Final = ("headers", "body", "headers", "answers")
OPENED_PER_SECOND: Final = 500
"""Connections opened per second when the run begins."""

BACK_SECONDS: Final = 1.0
"""How long a stranger that was cut off stays away."""

DRIP_SECONDS: Final = 1.0


@dataclass(slots=True)
class _Stranger:
    kind: str
    source: str
    sock: socket.socket | None = None


class Strangers:
    """Strangers of one server.

    Parameters
    ----------
    token
        Of an administrator: only such a caller's body is read.
    """

    def __init__(self, port: int, token: str, *, silent: int, slow: int, seed: int) -> None:
        self.opened: Counter[str] = Counter()
        """Connections, those of strangers who came back included."""

        self._port = port
        self._begin = {
            "headers": b"GET /admin/v2/caller HTTP/1.1\r\nHost: x\r\n",
            "body": request(token, "PUT /admin/v2/resourcegroup/slow HTTP/1.1", "Content-Length: 5000") + b"{",
            "answers": request(None, "GET /openapi.json HTTP/1.1") * 20,
        }
        self._looking = selectors.DefaultSelector()
        self._due: list[tuple[float, int]] = []
        drawn = random.Random(seed)
        kinds = ["silent"] * silent + [SLOW[at % len(SLOW)] for at in range(slow)]
        drawn.shuffle(kinds)
        self._strangers = [
            _Stranger(kind, f"127.0.{1 + at % 4}.{1 + drawn.randrange(250)}") for at, kind in enumerate(kinds)
        ]

    def run(self, is_over: Event) -> None:
        """Come, drip, and come back, until it is over."""
        began = time.monotonic()
        self._due = [(began + at / OPENED_PER_SECOND, at) for at in range(len(self._strangers))]
        while not is_over.is_set():
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                self._act(heapq.heappop(self._due)[1], now)
            for key, _ in self._looking.select(0.02):
                self._read(key.data, now)

    def _act(self, at: int, now: float) -> None:
        """Connect; or send, or take, one more byte."""
        stranger = self._strangers[at]
        if stranger.sock is None:
            self._connect(stranger, at)
        else:
            try:
                is_there = stranger.sock.recv(1) if stranger.kind == "answers" else stranger.sock.send(b"a")
            except BlockingIOError:
                is_there = True
            except OSError:
                is_there = False
            if not is_there:
                self._gone(at)
        if stranger.kind != "silent":
            heapq.heappush(self._due, (now + DRIP_SECONDS, at))

    def _connect(self, stranger: _Stranger, at: int) -> None:
        stranger.sock = socket.socket()
        if stranger.kind == "answers":
            stranger.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stranger.sock.bind((stranger.source, 0))
        stranger.sock.setblocking(False)
        with suppress(BlockingIOError):
            stranger.sock.connect(("127.0.0.1", self._port))
        self.opened[stranger.kind] += 1
        if stranger.kind != "answers":
            self._looking.register(stranger.sock, selectors.EVENT_READ, at)
        if stranger.kind in self._begin:
            select_writable(stranger.sock)
            with suppress(OSError):
                stranger.sock.send(self._begin[stranger.kind])

    def _read(self, at: int, now: float) -> None:
        sock = self._strangers[at].sock
        assert sock is not None
        try:
            if sock.recv(65536):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._gone(at)
        if self._strangers[at].kind == "silent":  # the others are due anyway
            heapq.heappush(self._due, (now + BACK_SECONDS, at))

    def _gone(self, at: int) -> None:
        stranger = self._strangers[at]
        assert stranger.sock is not None
        with suppress(KeyError):
            self._looking.unregister(stranger.sock)
        stranger.sock.close()
        stranger.sock = None


def select_writable(sock: socket.socket) -> None:
    """Wait until a connection stands."""
    with selectors.DefaultSelector() as one:
        one.register(sock, selectors.EVENT_WRITE)
        one.select(5)


def besiege(
    port: int, token: str, counts: tuple[int, int], seed: int, is_over: Event, told: Queue[Counter[str]]
) -> None:
    """Be the strangers of a server, in a process of their own, and tell how many came."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    strangers = Strangers(port, token, silent=counts[0], slow=counts[1], seed=seed)
    strangers.run(is_over)
    told.put(strangers.opened)
