"""The server's process is uvicorn, with its sockets, its TLS files, and an end in time.

It trusts its peers to be quick: it listens on loopback, or with TLS, or behind a proxy that cuts off slow strangers
(`docs/admin.md` has a set-up of nginx). What it bounds itself is what callers cost it: connections, the size of
headers, the time between two requests, and in `gate` bodies, turns and time.

From the proxies that are configured, and from no other address, it believes `X-Forwarded-For`: so nobody chooses the
address that its requests are counted and recorded under. The header's addresses are read from the right, where the
nearest proxy has written: the first that is no configured proxy is the client. What a client itself writes into the
header stands further left, and is not looked at. `X-Forwarded-Proto` says by the same rule whether the client spoke TLS
to the proxy. uvicorn reads both.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import resource
import socket
import ssl
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final, cast

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from spark_throttle.admin.redaction import AccessLogFilter
from spark_throttle.errors import AddressInUseError, ConfigurationError

logger = logging.getLogger("uvicorn.error")  # uvicorn configures it: what the server says goes where uvicorn's goes

CONNECTIONS: Final = 800
"""Connections at once, if the process may open so many files; usually it may open 1,024 (`connections_at_once`)."""

OTHER_FILES: Final = 224
"""Files that are left to the store, the jobs and the logs."""

LEAST_CONNECTIONS: Final = 32

HEADER_BYTES: Final = 64 * 1024
IDLE_SECONDS: Final = 30
"""From an answer to the next request on the same connection."""

ENDING_SECONDS: Final = 3
"""From SIGTERM or SIGINT to the moment in which requests that are worked on are cut off."""

EXIT_SECONDS: Final = 4.5
"""From SIGTERM or SIGINT to the end of the process, even if a store does not answer."""

_BACKLOG: Final = 2048
_ACCESS_LOG: Final = AccessLogFilter()


class AdminServer(uvicorn.Server):
    """A uvicorn server that ends in time."""

    def __init__(self, config: uvicorn.Config, listeners: list[socket.socket]) -> None:
        super().__init__(config)
        self._listeners = listeners

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        port: int = self._listeners[0].getsockname()[1]
        return port

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets=sockets if sockets is not None else list(self._listeners))
        scheme = "https" if self.config.is_ssl else "http"
        for listener in self._listeners:
            host, port = listener.getsockname()[:2]
            logger.info("listening on %s://%s:%d", scheme, f"[{host}]" if ":" in host else host, port)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End: answer what has arrived, and wait for nobody else."""
        await super().shutdown(sockets=sockets if sockets is not None else list(self._listeners))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End soon; a thread that a store keeps waiting cannot be cut off, so the process then ends without it."""
        if not self.should_exit:
            timer = threading.Timer(EXIT_SECONDS, os._exit, (128 + sig,))
            timer.daemon = True
            timer.start()
        super().handle_exit(sig, frame)


def make_server(
    app: ASGIApp,
    *,
    host: str,
    port: int,
    tls_certificate: str | None = None,
    tls_key: str | None = None,
    log_level: str = "info",
) -> AdminServer:
    """Return a server that listens; clients wait until `run` serves them.

    Raises
    ------
    AddressInUseError
        If another program listens there.
    ConfigurationError
        If the address or the TLS files cannot be used, or the process may open too few files.
    """
    if tls_certificate is not None and tls_key is not None:
        check_tls_files(tls_certificate, tls_key)
    connections = connections_at_once()
    # uvicorn's access log has no headers, and queries and secrets are taken out of its paths. Its own reading of
    # X-Forwarded-For is off, because it believes every proxy on loopback; `ForwardedFor` does it.
    config = uvicorn.Config(
        app, host=host, port=port, ssl_certfile=tls_certificate, ssl_keyfile=tls_key, log_level=log_level,
        server_header=False, proxy_headers=False, timeout_keep_alive=IDLE_SECONDS,
        limit_concurrency=connections, timeout_graceful_shutdown=ENDING_SECONDS,
        h11_max_incomplete_event_size=HEADER_BYTES, backlog=_BACKLOG, ws="none", http="h11",
    )  # fmt: skip
    logging.getLogger("uvicorn.access").addFilter(_ACCESS_LOG)
    if connections < CONNECTIONS:
        logger.warning(
            "%d connections at once, for the process may not open files for %d; ulimit -n %d allows that",
            connections, CONNECTIONS, CONNECTIONS + OTHER_FILES,
        )  # fmt: skip
    return AdminServer(config, _bound(host, port))


def connections_at_once() -> int:
    """Return how many connections the server has at once: `CONNECTIONS`, or as many as the process may open files for.

    Raises
    ------
    ConfigurationError
        If that are fewer than `LEAST_CONNECTIONS`.
    """
    may_open, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if may_open == resource.RLIM_INFINITY:
        return CONNECTIONS
    if may_open < LEAST_CONNECTIONS + OTHER_FILES:
        raise ConfigurationError(
            f"the process may open {may_open} files; {LEAST_CONNECTIONS} connections, the store, the jobs and the logs "
            f"need {LEAST_CONNECTIONS + OTHER_FILES}: raise the limit, as with ulimit -n {CONNECTIONS + OTHER_FILES}"
        )
    return min(CONNECTIONS, may_open - OTHER_FILES)


def check_tls_files(certificate: str, key: str) -> None:
    """Refuse TLS files that a server could not use.

    Raises
    ------
    ConfigurationError
        If a file is missing, is not what it is given as, or if the key is not the certificate's.
    """
    for path in (certificate, key):
        if not Path(path).is_file():
            raise ConfigurationError(f"there is no file {path}; TLS needs the certificate and its key as PEM files")
    reason = _tls_fault(certificate, key)
    if reason is None:
        return
    if _tls_fault(key, certificate) is None:
        raise ConfigurationError(
            f"the TLS files are swapped: {certificate} is a key and {key} a certificate; give them the other way round"
        )
    raise ConfigurationError(f"TLS cannot use the certificate {certificate} with the key {key}: {reason}")


def _tls_fault(certificate: str, key: str) -> str | None:
    def no_password() -> str:
        raise ConfigurationError(f"the key {key} is encrypted; the server cannot ask for its password: decrypt it")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, no_password)
    except ssl.SSLError as error:
        return "the key is not this certificate's" if "MISMATCH" in str(error.reason) else "they are not PEM files"
    return None


def check_address(host: str, port: int) -> None:
    """Refuse an address that a server could not listen on, before anything is made for it.

    Raises
    ------
    AddressInUseError
        If another program listens there.
    ConfigurationError
        If the address cannot be used.
    """
    for listener in _bound(host, port):
        listener.close()


def _bound(host: str, port: int) -> list[socket.socket]:
    """Return a socket that listens for each address of a host."""
    listeners: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in found:
            listener = socket.socket(family, socket.SOCK_STREAM)
            listeners.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
    except OSError as error:
        for listener in listeners:
            listener.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUseError(host, port) from error
        raise ConfigurationError(
            f"cannot listen on {host}, port {port}: {error.strerror}; choose another address or port"
        ) from error
    return listeners


def check_proxies(proxies: Sequence[str]) -> None:
    """Refuse a proxy that is not named by its address or network.

    Raises
    ------
    ConfigurationError
        If it is not.
    """
    for proxy in proxies:
        try:
            ipaddress.ip_network(proxy)
        except ValueError as error:
            raise ConfigurationError(
                f"the proxy {proxy!r} is no address and no network ({error}); write one such as 10.0.0.7 or 10.0.0.0/24"
            ) from error


def peer_of(address: Sequence[Any]) -> str:
    """Return the name under which requests from an address are counted: IPv4's, or the first 64 bits of IPv6's.

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


class ForwardedFor:
    """ASGI middleware that sets the address of a request to that of the client behind configured proxies.

    Parameters
    ----------
    proxies
        Addresses and networks of the proxies.
    """

    def __init__(self, app: ASGIApp, proxies: Sequence[str]) -> None:
        check_proxies(proxies)
        self._app = app
        self._headers = ProxyHeadersMiddleware(cast("Any", self._checked), list(proxies))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand one request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})["peer"] = scope.get("client")
        await self._headers(cast("Any", scope), cast("Any", receive), cast("Any", send))

    async def _checked(self, scope: Scope, receive: Receive, send: Send) -> None:
        peer = scope["state"].pop("peer")
        if scope.get("client") != peer:
            scope["state"]["proxy"] = str(peer[0])
            try:
                ipaddress.ip_address(scope["client"][0])
            except ValueError:
                # The proxy wrote what is no address: the request counts as the proxy's own.
                scope["client"] = peer
                del scope["state"]["proxy"]
        await self._app(scope, receive, send)
