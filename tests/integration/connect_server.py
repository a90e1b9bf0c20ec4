"""A Spark Connect server in a process of its own, which ends with its standard input: one JVM runs in a process.

PySpark starts it as the server of a local session, which has no other use. Run as ``python -m
tests.integration.connect_server DIRECTORY``. Prints one line of JSON: its address and its token.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.connect.client import DefaultChannelBuilder

from tests.sessions import (
    FOR_FEW_ROWS,
    ROOT,
    SMALL_PAGES,
    WITH_ROOM,
    checkpoints_without_processes,
    files_without_processes,
    forked_python,
    pin_interpreter,
    session_settings,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class ConnectServer:
    """A server that runs."""

    remote: str
    token: str
    warehouse: Path

    @property
    def environment(self) -> dict[str, str]:
        """What a client's process is given."""
        own = {"SPARK_REMOTE": self.remote, "SPARK_CONNECT_AUTHENTICATE_TOKEN": self.token}
        return {**os.environ, **own, "PYTHONPATH": str(ROOT)}


@contextmanager
def connect_server(scratch: Path) -> Iterator[ConnectServer]:
    """Yield a server that writes below a directory."""
    command = [sys.executable, "-m", "tests.integration.connect_server", str(scratch)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        remote, token = json.loads(process.stdout.readline())
        yield ConnectServer(remote, token, scratch / "warehouse")


def start(scratch: Path, python: Path) -> tuple[str, str]:
    """Start a server on a port of its own, and return its address and its token.

    `python` is the address at which Spark's Python processes are forked.
    """
    pin_interpreter(python)
    settings = session_settings(scratch, jvm_options=WITH_ROOM) | FOR_FEW_ROWS | checkpoints_without_processes()
    settings |= SMALL_PAGES | files_without_processes()
    token = os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = secrets.token_hex()
    SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(settings.items())))
    # What makes PySpark choose a free port. A JVM that sees it runs rules twice, and finds no class in the archive.
    os.environ["SPARK_TESTING"] = "1"
    builder = SparkSession.builder.remote(settings.pop("spark.master"))
    for key, value in settings.items():
        builder = builder.config(key, value)
    builder.getOrCreate()
    return f"sc://localhost:{DefaultChannelBuilder.default_port()}", token


if __name__ == "__main__":
    place = Path(sys.argv[1])
    with forked_python(place) as address:
        sys.stdout.write(json.dumps(start(place, address)) + "\n")
        sys.stdout.flush()
        sys.stdin.read()
        os._exit(0)  # the server's JVM ends with this process; an orderly stop would wait for it
