"""Where a request came from, if a proxy hands it on: `X-Forwarded-For` counts from the proxies that are configured.

The header's addresses are read from the right, where the nearest proxy has written: the first that is no configured
proxy is the client. What a client itself writes into the header stands further left, and is not looked at. From any
other address the header is ignored, so nobody chooses the address that its requests are counted and recorded under.
`X-Forwarded-Proto` says by the same rule whether the client spoke TLS to the proxy. uvicorn reads both.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any, cast

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from spark_throttle.errors import ConfigurationError


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
