"""A proxy in front of the store: counts requests, and lets them be late, refused, or cut before or after they are done.

Run with the packages of the extra `cluster`:
``python -m tests.cluster.proxy --port P --control-port C --store http://127.0.0.1:S --seed N``.
``GET /counts`` at the second port tells the requests so far, ``PUT /faults`` sets what happens to those that come.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web
from yarl import URL

from tests.cluster.faults import Faults
from tests.cluster.requests import request_of

_SLOW_DOWN: Final = (
    '<?xml version="1.0" encoding="UTF-8"?>'
    "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
_OF_ONE_CONNECTION: Final = frozenset({"connection", "expect", "keep-alive", "transfer-encoding", "upgrade"})
_LARGEST_BYTES: Final = 1 << 30


@dataclass
class Proxy:
    """The proxy, with what it counts and does."""

    store: str
    dice: random.Random
    faults: Faults = field(default_factory=Faults)
    counts: Counter[str] = field(default_factory=Counter)
    session: Any = None
    speaks: asyncio.Event = field(default_factory=asyncio.Event)
    """Set unless requests get no answer."""

    async def forward(self, request: web.Request) -> web.StreamResponse:
        """Answer with what the store says, or with a fault."""
        place, kind = request_of(request.method, request.raw_path, is_copy="x-amz-copy-source" in request.headers)
        self.counts[f"{place} {kind}"] += 1
        faults = self.faults
        content = await request.read()
        await asyncio.sleep(faults.latency_ms / 1000)
        if self.faults.is_silent:
            await self.speaks.wait()
            return _cut(request)
        drawn = self.dice.random()
        if faults.is_out or drawn < faults.cut_share / 2:
            return _cut(request)
        if drawn < faults.cut_share / 2 + faults.slow_down_share:
            self.counts["refused 503"] += 1
            return web.Response(status=503, text=_SLOW_DOWN, content_type="application/xml")
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _OF_ONE_CONNECTION}
        url = URL(self.store + request.raw_path, encoded=True)
        async with self.session.request(
            request.method, url, data=content or None, headers=headers, allow_redirects=False
        ) as answer:
            body = await answer.read()
        if drawn > 1 - faults.cut_share / 2:
            return _cut(request)  # it is done, and nobody is told
        kept = {
            name: value
            for name, value in answer.headers.items()
            if name.lower() not in _OF_ONE_CONNECTION and (name.lower() != "content-length" or request.method == "HEAD")
        }
        return web.Response(status=answer.status, body=body or None, headers=kept)

    async def tell(self, _request: web.Request) -> web.Response:
        """Tell the counts."""
        return web.json_response(self.counts)

    async def set_faults(self, request: web.Request) -> web.Response:
        """Set what happens from now on."""
        self.faults = Faults(**await request.json())
        if self.faults.is_silent:
            self.speaks.clear()
        else:
            self.speaks.set()
        return web.Response()


def _cut(request: web.Request) -> web.Response:
    """Reset the connection that a request came by."""
    transport = request.transport
    if transport is not None:
        end = transport.get_extra_info("socket")
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    return web.Response()


async def serve(proxy: Proxy, port: int, control_port: int) -> None:
    """Serve until the process is ended."""
    proxy.session = ClientSession(
        connector=TCPConnector(limit=0), auto_decompress=False, timeout=ClientTimeout(total=600),
        cookie_jar=DummyCookieJar(), skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
    )  # fmt: skip
    front, control = web.Application(client_max_size=_LARGEST_BYTES), web.Application()
    front.router.add_route("*", "/{address:.*}", proxy.forward)
    control.router.add_get("/counts", proxy.tell)
    control.router.add_put("/faults", proxy.set_faults)
    for application, its_port in ((front, port), (control, control_port)):
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", its_port).start()
    await asyncio.Event().wait()


def main() -> None:
    """Run the proxy."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--control-port", type=int, required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    asyncio.run(serve(Proxy(asked.store, random.Random(asked.seed)), asked.port, asked.control_port))


if __name__ == "__main__":
    main()
