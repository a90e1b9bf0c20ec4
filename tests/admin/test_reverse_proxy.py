"""The set-up of docs/admin.md behind nginx, with a real nginx where there is one."""

from __future__ import annotations

import os
import re
import select
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.admin.browser import listening
from tests.admin.conftest import ServedApp
from tests.admin.raw_http import answer, connected, request
from tests.admin.test_server import certificate, needs_openssl

PAGE = Path(__file__).parents[2] / "docs" / "admin.md"
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def proxied(served: ServedApp, folder: Path) -> Iterator[tuple[int, ssl.SSLContext]]:
    """Yield the port of nginx in front of an application, and whom to trust."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made, key = certificate(folder)
    (block,) = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with listening(served.app) as address:
        for told, ours in (
            ("127.0.0.1:8182", address.removeprefix("http://")), ("listen 443", f"listen 127.0.0.1:{port}"),
            ("/etc/ssl/throttle.pem", made), ("/etc/ssl/throttle.key", key),
            ("client_header_timeout 10s", "client_header_timeout 1s"),
        ):  # fmt: skip
            assert told in block
            block = block.replace(told, ours)
        paths = "".join(
            f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        conf = folder / "nginx.conf"
        conf.write_text(f"daemon off; pid {folder}/pid; events {{}} http {{ access_log off; {paths} {block} }}")
        assert NGINX is not None
        with subprocess.Popen([NGINX, "-c", conf, "-p", folder, "-e", folder / "error.log"]) as process:
            try:
                for _ in range(200):
                    assert process.poll() is None, (folder / "error.log").read_text()
                    with socket.socket() as sock:
                        if sock.connect_ex(("127.0.0.1", port)) == 0:
                            break
                    select.select([], [], [], 0.05)
                yield port, ssl.create_default_context(cafile=made)
            finally:
                process.terminate()


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
