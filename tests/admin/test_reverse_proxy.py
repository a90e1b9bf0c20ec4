"""The set-up of docs/admin.md behind nginx, with a real nginx where there is one."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.admin.browser import listening
from tests.admin.conftest import ServedApp
from tests.admin.proxy_process import NGINX, nginx_before
from tests.admin.raw_http import answer, connected, request
from tests.admin.test_server import certificate, needs_openssl


@contextmanager
def proxied(served: ServedApp, folder: Path) -> Iterator[tuple[int, ssl.SSLContext]]:
    """Yield the port of nginx in front of an application, and whom to trust."""
    made, key = certificate(folder)
    ours = {
        "/etc/ssl/throttle.pem": made, "/etc/ssl/throttle.key": key,
        "client_header_timeout 10s": "client_header_timeout 1s",
    }  # fmt: skip
    with listening(served.app) as address, nginx_before(address.removeprefix("http://"), folder, ours) as port:
        yield port, ssl.create_default_context(cafile=made)


@pytest.mark.slow
@needs_openssl
@pytest.mark.skipif(NGINX is None, reason="no nginx to put in front")
def test_set_up_behind_nginx_passes_callers_and_cuts_off_strangers(in_memory: ServedApp, tmp_path: Path) -> None:
    with proxied(in_memory, tmp_path) as (port, trusting):

        def ask(sent: bytes) -> int | None:
            with trusting.wrap_socket(connected(port), server_hostname="localhost") as sock:
                sock.sendall(sent)
                got = answer(sock)
                assert got is None or got.headers["strict-transport-security"] == "max-age=31536000"
                return got.status if got else None

        admin = in_memory.tokens["admin"]
        line = "PUT /admin/v2/policies/namespaces/acme%2Forders%3F HTTP/1.1"
        lengths = ("Content-Type: application/json", "Content-Length: 2")
        assert ask(request(admin, line, *lengths, "Connection: close") + b"{}") == 200
        assert in_memory.service.get("namespace", "acme/orders?").values == {}
        assert ask(request(None)) == 401
        assert ask(b"GET / HTTP/1.1\r\nHost: x\r\n") is None  # headers that never end
        assert ask(request(admin, line, "Content-Length: 70000")) == 413
