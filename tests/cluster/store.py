"""An S3-compatible server on loopback, SeaweedFS, with the proxy in front of it; both are processes of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

import httpx
from pyarrow import fs

from tests.cluster.faults import CALM, OUT, SILENT, Faults
from tests.recovery.processes import session_members
from tests.sessions import ROOT

ENVIRONMENT: Final = ROOT / "build" / "cluster-venv" / "bin"
BUCKET: Final = "lake"
KEY: Final = "cluster"
"""The access key, and the secret."""

_PATIENCE_SECONDS: Final = 60
_FIRST_PORT, _PORTS = 20_000, 8_000
_GRPC: Final = 10_000
"""SeaweedFS listens at each port, and at that port and so much more."""

_GIVEN: Final = set[int]()
"""The ports that `free_ports` has returned: who asked for one may not listen at it yet."""


class Store:
    """The running server, its proxy, and a look at its files past the proxy."""

    def __init__(self, port: int, proxy_port: int, control_port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{proxy_port}"
        """Where the job finds the store."""

        self._control = f"http://127.0.0.1:{control_port}"
        self.files = fs.S3FileSystem(
            access_key=KEY, secret_key=KEY, region="us-east-1", scheme="http", endpoint_override=f"127.0.0.1:{port}"
        )

    def environment(self) -> dict[str, str]:
        """Return what Python's processes need to find the store: pyarrow and deltalake read the same variables."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": KEY,
            "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true",
            "AWS_EC2_METADATA_DISABLED": "true",
        }  # fmt: skip

    def settings(self) -> dict[str, str]:
        """Return what Spark needs to find the store."""
        s3a = {
            "endpoint": self.endpoint, "endpoint.region": "us-east-1", "path.style.access": "true",
            "connection.ssl.enabled": "false", "access.key": KEY, "secret.key": KEY,
        }  # fmt: skip
        return {f"spark.hadoop.fs.s3a.{key}": value for key, value in s3a.items()}

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder."""
        selector = fs.FileSelector(f"{BUCKET}/{folder}", allow_not_found=True)
        return [info.base_name for info in self.files.get_file_info(selector)]

    def write(self, name: str, content: bytes) -> None:
        with self.files.open_output_stream(f"{BUCKET}/{name}") as stream:
            stream.write(content)

    def copy_to(self, root: Path) -> None:
        """Copy all that is in the bucket."""
        root.mkdir(parents=True, exist_ok=True)
        found = self.files.get_file_info(fs.FileSelector(BUCKET, recursive=True))
        for info in found:
            if info.type == fs.FileType.File:
                target = root / info.path.removeprefix(f"{BUCKET}/")
                target.parent.mkdir(parents=True, exist_ok=True)
                with self.files.open_input_file(info.path) as stream:
                    target.write_bytes(stream.read())

    def set_faults(self, faults: Faults) -> None:
        """Set what requests meet from now on."""
        httpx.put(f"{self._control}/faults", json=asdict(faults), trust_env=False).raise_for_status()

    def go_out(self, *, is_silent: bool) -> None:
        """Be out of reach: with a word to those who ask, or without one."""
        self.set_faults(SILENT if is_silent else OUT)

    def counts(self) -> dict[str, int]:
        """Return how many requests of each kind came to the proxy so far."""
        found: dict[str, int] = httpx.get(f"{self._control}/counts", trust_env=False).json()
        return found


@contextmanager
def running_store(folder: Path, seed: int) -> Iterator[Store]:
    """Yield a store whose files are below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    ports = free_ports(8)
    store = Store(ports[0], ports[1], ports[2])
    flags = {
        "dir": folder / "data", "ip": "127.0.0.1", "ip.bind": "127.0.0.1", "s3.port": ports[0], "master.port": ports[3],
        "volume.port": ports[4], "filer.port": ports[5], "s3.port.iceberg": 0, "webdav": "false", "admin.ui": "false",
        "master.telemetry": "false", "bucket": BUCKET,
    }  # fmt: skip
    (folder / "data").mkdir(exist_ok=True)
    server = [str(ENVIRONMENT / "weed"), "mini", *(f"-{name}={value}" for name, value in flags.items())]
    proxy = [str(ENVIRONMENT / "python"), "-m", "tests.cluster.proxy", "--seed", str(seed)]
    proxy += ["--store", f"http://127.0.0.1:{ports[0]}", "--port", str(ports[1]), "--control-port", str(ports[2])]
    with _process(server, folder / "store.log"), _process(proxy, folder / "proxy.log"):
        _wait_for(ports[0])
        _wait_for(ports[1])
        _wait_for(ports[2])
        store.set_faults(CALM)
        yield store


def free_ports(count: int) -> list[int]:
    """Return ports of loopback at which nobody listens, nor at their neighbours for gRPC; none is returned twice."""
    found: list[int] = []
    for port in range(_FIRST_PORT + os.getpid() % 1000 * 8, _FIRST_PORT + _PORTS + 8_000):
        if port not in _GIVEN and _is_free(port) and _is_free(port + _GRPC):
            found.append(port)
        if len(found) == count:
            _GIVEN.update(found)
            return found
    raise OSError(f"loopback has no {count} free ports from {_FIRST_PORT} on")


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)  # noqa: TID251 - a server begins
        else:
            return


@contextmanager
def _process(command: Sequence[str], log: Path) -> Iterator[None]:
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, cwd=ROOT, start_new_session=True,
            env=os.environ | {"PYTHONPATH": str(ROOT), "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": KEY},
        )  # fmt: skip
    try:
        yield
    finally:
        for pid in session_members(process.pid):
            os.kill(pid, 9)
        process.wait()
