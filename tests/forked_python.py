"""Forks Spark's Python processes from one that has loaded what they load.

Spark starts a Python process for the source of each query, and one for each kind of work, from which it forks those
that do it. To load PySpark, pandas and the package costs each 0.6 CPU seconds, a quarter of a warm query's and together
a fifth of a new session's; a fork costs 0.02.

Who opens a session starts the server (`tests.sessions.forked_python`). `tests/worker_python` runs this file as a
client, which sends its arguments, environment, directory and standard streams, and ends as the forked process ends. A
client that is killed ends its process. A job that is killed has a server in its own session of processes, so that what
is forked is killed with it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

_STREAMS = (0, 1, 2)


def ask(address: str, arguments: list[str]) -> int:
    """Have the server run `python <arguments>` and return its exit code: the client's whole work.

    It runs with `python -I -S`: it imports what costs nothing.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [b"."], _STREAMS)
        request = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}  # noqa: PTH109 - pathlib costs a quarter of the client
        connection.sendall(json.dumps(request).encode() + b"\n")
        code = connection.recv(1)
    return code[0] if code else 1


def serve(address: str) -> None:
    """Fork a process for each request until standard input ends, which is when pytest ends."""
    import selectors

    _preload()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps them
    with socket.socket(socket.AF_UNIX) as listening, selectors.DefaultSelector() as selector:
        listening.bind(f"{address}.new")
        listening.listen(64)
        os.rename(f"{address}.new", address)  # noqa: PTH104 - as above
        for waited_for in (listening, sys.stdin):
            selector.register(waited_for, selectors.EVENT_READ)
        while all(key.fileobj is listening for key, _ in selector.select()):
            connection, _ = listening.accept()
            if os.fork() == 0:
                _run(connection)
                return
            connection.close()


def _preload() -> None:
    import pandas as pd  # noqa: F401 - pyarrow loads it
    from pyspark import daemon
    from pyspark.sql.streaming import python_streaming_source_runner as runner

    import spark_throttle.spark.pipeline  # noqa: F401 - Spark unpickles what it makes

    # They are run as programs.
    for program in (daemon, runner):
        del sys.modules[program.__name__]


def _run(connection: socket.socket) -> None:
    """Become the process that the client stands for."""
    import runpy
    import threading
    import time

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, streams, _, _ = socket.recv_fds(connection, 1, len(_STREAMS))
    for given, own in zip(streams, _STREAMS, strict=True):
        os.dup2(given, own)
        os.close(given)
    with connection.makefile("rb") as lines:
        request = json.loads(lines.readline())
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["folder"])
    threading.Thread(target=_end_with_the_client, args=(connection,), daemon=True).start()
    code = 1
    flag, module, *sys.argv[1:] = request["arguments"]
    assert flag == "-m", flag
    with open("/proc/self/comm", "w") as name:  # noqa: PTH123 - as above
        name.write(module)  # by which it is found (`tests.recovery.processes`), as by its command line elsewhere
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
        raise
    finally:
        connection.sendall(bytes([code & 0xFF]))


def _end_with_the_client(connection: socket.socket) -> None:
    if not connection.recv(1):
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2])
    else:
        sys.exit(ask(sys.argv[1], sys.argv[2:]))
