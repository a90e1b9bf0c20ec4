"""`spark-throttle serve` as a process of its own, on a free port of loopback."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from spark_throttle.admin.tokens import TokenFile


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A server that listens."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path


@contextmanager
def server_process(folder: Path, tokens: TokenFile, *options: str, store: str = "memory:") -> Iterator[ServerProcess]:
    """Start the server, wait until it listens, and end it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "server.log"
    command = [
        sys.executable, "-m", "spark_throttle.command_line", "serve", "--store", store, "--tokens", str(tokens.path),
        "--port", str(port), *options,
    ]  # fmt: skip
    with log.open("wb") as written, subprocess.Popen(command, stdout=written, stderr=written) as process:
        try:
            for _ in range(600):
                if f"127.0.0.1:{port}" in log.read_text():
                    break
                assert process.poll() is None, log.read_text()
                select.select([], [], [], 0.1)
            yield ServerProcess(process, port, log)
        finally:
            process.kill()
