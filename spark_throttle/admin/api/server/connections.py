"""Who is connected: bounds on a server's connections, in all and for each peer, and who leaves if one is reached.

A newcomer is refused only if nobody can leave for it. The one that leaves has waited longest, for its own client: to
begin a request, to send the rest of it, or to take the answer. A connection on which a request has arrived and is not
read yet does not count as waiting, so that a burst of requests does not push itself out; one that drips has no such
excuse. Connections on which a valid token came leave last.

`Listener` counts a connection when it is accepted, which is before TLS: a handshake that never ends counts too.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final, TypeAlias

Address: TypeAlias = tuple[Any, ...]
"""A socket address, of IPv4 (host, port) or IPv6 (host, port, flow, scope)."""

_ACCEPTED_AT_ONCE: Final = 64
"""Between two rounds of the event loop, so that what has arrived is read before others are let in."""

_LOOKED_AT: Final = 64
"""How many of those who wait are looked at, whether they have asked."""


@dataclass(frozen=True, slots=True)
class ServerBounds:
    """How long a client may keep the server waiting, and how many may."""

    first_byte_seconds: float = 10
    """From the connection to its first byte; with TLS, the handshake is included."""

    headers_seconds: float = 10
    """From the first byte of a request to the end of its headers."""

    body_seconds: float = 20
    """From the end of the headers to the end of the body."""

    answer_seconds: float = 30
    """From an answer to the moment in which the client has taken it."""

    idle_seconds: float = 30
    """From an answer to the next request on the same connection."""

    connections: int = 8192
    """Connections at once, of 8 KB each; fewer if the process may not open as many files."""

    connections_per_peer: int = 2048
    """Connections at once of an IPv4 address, or of the first 64 bits of an IPv6 address."""

    ending_seconds: float = 3
    """From SIGTERM or SIGINT to the moment in which requests that are worked on are cut off."""

    exit_seconds: float = 4.5
    """From SIGTERM or SIGINT to the end of the process, even if a store does not answer."""


@dataclass(eq=False, slots=True)
class Connection:
    """One client's connection."""

    sock: socket.socket
    address: Address
    is_known: bool = False
    """Whether a valid token came on it."""

    is_working: bool = False
    """Whether the server works on a request of it, so that the client waits and not the server."""

    has_begun: bool = False
    """Whether a part of a request was read, and the rest has not arrived."""

    leave: Callable[[], None] | None = None
    """How the protocol ends it; `None` before there is one, such as in TLS's handshake."""

    timer: asyncio.TimerHandle | None = None
    """Ends it if no protocol takes it over in time."""

    @property
    def has_asked(self) -> bool:
        """Whether the beginning of a request has arrived, which the server has not read."""
        if self.has_begun:
            return False
        try:
            return bool(self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False

    def end(self) -> None:
        """End it, with an answer if its client has asked something."""
        if self.leave is not None:
            self.leave()
        else:
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)


class _Waiting:
    """Connections that wait for their clients, longest first."""

    def __init__(self) -> None:
        self._strangers: OrderedDict[Connection, None] = OrderedDict()
        self._known: OrderedDict[Connection, None] = OrderedDict()

    def add(self, connection: Connection) -> None:
        (self._known if connection.is_known else self._strangers)[connection] = None

    def remove(self, connection: Connection) -> None:
        self._strangers.pop(connection, None)
        self._known.pop(connection, None)

    def first_to_leave(self) -> Connection | None:
        for group in (self._strangers, self._known):
            for connection in islice(group, _LOOKED_AT):
                if not connection.has_asked:
                    return connection
        return None


@dataclass(slots=True)
class _Peer:
    connections: int = 0
    waiting: _Waiting = field(default_factory=_Waiting)


class Connections:
    """The open connections of a server, for use in one event loop.

    Parameters
    ----------
    most
        Bound on all connections.
    most_per_peer
        Bound on the connections of one peer: an IPv4 address, or the first 64 bits of an IPv6 address.
    """

    def __init__(self, most: int, most_per_peer: int) -> None:
        self._most = most
        self._most_per_peer = most_per_peer
        self._open: dict[Address, Connection] = {}
        self._waiting = _Waiting()
        self._peers: dict[str, _Peer] = {}

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, sock: socket.socket, address: Address) -> Connection | None:
        """Count a new connection, which waits; `None` if it must be refused because nobody can leave for it."""
        name = peer_of(address)
        peer = self._peers.get(name)
        if peer is not None and peer.connections >= self._most_per_peer and not self._end_one(peer.waiting):
            return None
        if len(self._open) >= self._most and not self._end_one(self._waiting):
            return None
        connection = Connection(sock, address)
        peer = self._peers.setdefault(name, _Peer())
        peer.connections += 1
        self._open[address] = connection
        self._waiting.add(connection)
        peer.waiting.add(connection)
        return connection

    def find(self, address: Address) -> Connection | None:
        """Return the open connection of an address; `None` if it had to leave."""
        return self._open.get(address)

    def works(self, connection: Connection) -> None:
        """Say that the server works on a request, which no newcomer interrupts."""
        if not connection.is_working and self._is_open(connection):
            connection.is_working = True
            self._waiting.remove(connection)
            self._peers[peer_of(connection.address)].waiting.remove(connection)

    def waits(self, connection: Connection) -> None:
        """Say that the server waits for the client again."""
        if connection.is_working and self._is_open(connection):
            connection.is_working = False
            self._waiting.add(connection)
            self._peers[peer_of(connection.address)].waiting.add(connection)

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        if not self._is_open(connection):
            return
        del self._open[connection.address]
        if connection.timer is not None:
            connection.timer.cancel()
        name = peer_of(connection.address)
        peer = self._peers[name]
        peer.connections -= 1
        peer.waiting.remove(connection)
        self._waiting.remove(connection)
        if peer.connections == 0:
            del self._peers[name]

    def _is_open(self, connection: Connection) -> bool:
        return self._open.get(connection.address) is connection

    def _end_one(self, waiting: _Waiting) -> bool:
        connection = waiting.first_to_leave()
        if connection is None:
            return False
        self.closed(connection)
        connection.end()
        return True


def peer_of(address: Address) -> str:
    """Return the name under which connections from an address are counted.

    Examples
    --------
    >>> peer_of(("192.0.2.7", 50000)), peer_of(("2001:db8::7:1", 50000, 0, 0)), peer_of(("::ffff:192.0.2.7", 1, 0, 0))
    ('192.0.2.7', '2001:db8::/64', '192.0.2.7')
    """
    host = str(address[0])
    if ":" not in host:
        return host
    parsed = ipaddress.IPv6Address(host.partition("%")[0])
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((parsed, 64), strict=False))


class Listener(socket.socket):
    """A listening socket that accepts only what `Connections` admits.

    Parameters
    ----------
    first_byte_seconds
        Time in which a protocol must have taken the connection over, that is, in which TLS's handshake must end.
    refusal
        What a refused client is sent, if it can read it (without TLS).
    """

    def __init__(
        self, family: int, connections: Connections, *, first_byte_seconds: float, refusal: bytes = b""
    ) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._connections = connections
        self._first_byte_seconds = first_byte_seconds
        self._refusal = refusal
        self._accepted = 0

    def accept(self) -> tuple[socket.socket, Address]:
        """Return the next admitted connection, as a socket that says when it is closed."""
        while True:
            if self._accepted == _ACCEPTED_AT_ONCE:
                self._accepted = 0
                raise BlockingIOError
            self._accepted += 1
            raw, address = super().accept()
            sock = _Accepted(fileno=raw.detach())
            connection = self._connections.admit(sock, address)
            if connection is not None:
                sock.forget = partial(self._connections.closed, connection)
                connection.timer = asyncio.get_running_loop().call_later(self._first_byte_seconds, connection.end)
                return sock, address
            self._refuse(sock)

    def _refuse(self, sock: socket.socket) -> None:
        sock.settimeout(0)
        with suppress(OSError):
            sock.recv(1 << 16)  # bytes left unread would make the kernel reset the connection, and the answer with it
        with suppress(OSError):
            sock.send(self._refusal)
        sock.close()


class _Accepted(socket.socket):
    forget: Callable[[], None] | None = None

    def close(self) -> None:
        super().close()
        if self.forget is not None:
            self.forget()
