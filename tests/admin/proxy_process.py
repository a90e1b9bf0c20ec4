"""A real nginx in front of the server, set up as docs/admin.md has it."""

from __future__ import annotations

import os
import re
import select
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "admin.md"
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def nginx_before(address: str, folder: Path, ours: dict[str, str]) -> Iterator[int]:
    """Yield the port on which nginx listens for the server at `address`, until the context ends.

    Parameters
    ----------
    address
        The server's host and port.
    folder
        For nginx's own files.
    ours
        What takes the place of lines of the page's set-up, such as its certificate.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    events, http = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(), re.DOTALL)
    listens = f"listen 127.0.0.1:{port}"
    for told, mine in {"127.0.0.1:8182": address, "listen 443": listens, **ours}.items():
        assert told in http
        http = http.replace(told, mine)
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    conf = folder / "nginx.conf"
    conf.write_text(f"daemon off; pid {folder}/pid; {events} http {{ access_log off; {paths} {http} }}")
    assert NGINX is not None
    with subprocess.Popen([NGINX, "-c", conf, "-p", folder, "-e", folder / "error.log"]) as process:
        try:
            for _ in range(200):
                assert process.poll() is None, (folder / "error.log").read_text()
                with socket.socket() as sock:
                    if sock.connect_ex(("127.0.0.1", port)) == 0:
                        break
                select.select([], [], [], 0.05)
            yield port
        finally:
            process.terminate()
