"""Spark's own cluster on loopback: a master, and workers that each have an address of their own, as processes.

The master keeps what it knows on disk (recovery mode FILESYSTEM), so that a job goes on when it was killed and comes
back. A worker is a machine: it is killed with all that runs on it.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyspark

from tests.cluster.store import Store, free_ports, running_store
from tests.recovery.processes import cpu_seconds_of, kill_process, session_members
from tests.sessions import ROOT, SHORT_LIVED, pin_interpreter

HOME: Final = Path(pyspark.__file__).parent
EXECUTOR: Final = "CoarseGrainedExecutorBackend"
_PATIENCE_SECONDS: Final = 120
_GIB: Final = 1024


class Cluster:
    """A master and its workers; what was killed is started again."""

    def __init__(self, folder: Path, workers: int, executors: int, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._executors = executors
        self._environment = dict(environment)
        (folder / "recovery").mkdir(parents=True, exist_ok=True)
        self._ports = free_ports(2)
        self.url = f"spark://127.0.0.1:{self._ports[0]}"
        self._master = self._start_master()
        self._wait_for_words(folder / "master.log", "I have been elected leader", 1)
        self._workers = [self._start_worker(number) for number in range(workers)]
        self._wait_for_words(folder / "master.log", "Registering worker", workers)

    def kill_master(self) -> None:
        """Kill the master, and start it again."""
        self._kill(self._master)
        self._master = self._start_master()

    def kill_worker(self, pid: int | None, otherwise: int) -> None:
        """Kill the worker on whose machine a process runs, or one by its number, with all there; start it again."""
        number = machine_of(pid, [session_members(worker.pid) for worker in self._workers], otherwise)
        self._kill(self._workers[number])
        self._workers[number] = self._start_worker(number)

    def kill_executor(self, pid: int | None, otherwise: int) -> bool:
        """Kill the executor that a process belongs to, or one by its number; return whether there was one."""
        executors = self.executors()
        owner = _executor_of(pid, executors)
        if owner is None and executors:
            owner = executors[otherwise % len(executors)]
        if owner is not None:
            kill_process(owner)
        return owner is not None

    def executors(self) -> list[int]:
        """Return the processes of all executors."""
        pids = [pid for worker in self._workers for pid in sorted(session_members(worker.pid))]
        return [pid for pid in pids if EXECUTOR in _command(pid)]

    def cpu_seconds(self) -> float:
        """Return the CPU time of the workers and of all that they started."""
        return sum(cpu_seconds_of(worker.pid) for worker in self._workers)

    def stop(self) -> None:
        for process in (*self._workers, self._master):
            self._kill(process)

    def _start_master(self) -> subprocess.Popen[bytes]:
        arguments = ["--host", "127.0.0.1", "--port", str(self._ports[0]), "--webui-port", str(self._ports[1])]
        return self._start("Master", arguments, "127.0.0.1", "master.log")

    def _start_worker(self, number: int) -> subprocess.Popen[bytes]:
        address = f"127.0.0.{11 + number}"
        arguments = ["--host", address, "--cores", str(self._executors), "--memory", f"{self._executors * _GIB + 512}m"]
        arguments += ["--webui-port", "0", "--work-dir", str(self._folder / f"worker-{number}"), self.url]
        return self._start("Worker", arguments, address, f"worker-{number}.log")

    def _start(self, name: str, arguments: list[str], address: str, log: str) -> subprocess.Popen[bytes]:
        options = {
            "spark.deploy.recoveryMode": "FILESYSTEM",
            "spark.deploy.recoveryDirectory": str(self._folder / "recovery"),
            "spark.deploy.maxExecutorRetries": "-1",  # a killed executor is replaced as often as the plan wants
            "spark.worker.ui.retainedExecutors": "5",
        }
        words = " ".join(f"-D{key}={value}" for key, value in options.items())
        with (self._folder / log).open("ab") as output:
            return subprocess.Popen(
                [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name.lower()}.{name}", *arguments],
                stdout=output, stderr=output, cwd=self._folder, start_new_session=True,
                env=os.environ | self._environment | {
                    "SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": address, "SPARK_DAEMON_MEMORY": "256m",
                    "SPARK_DAEMON_JAVA_OPTS": f"{SHORT_LIVED} {words}",
                },
            )  # fmt: skip

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        while members := session_members(process.pid):
            for pid in members:
                kill_process(pid)
            process.poll()
        process.wait()

    def _wait_for_words(self, log: Path, words: str, times: int) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while log.read_text(errors="replace").count(words) < times:
            assert time.monotonic() < deadline, f"{log} does not say {words!r}: {log.read_text()[-3000:]}"
            time.sleep(0.1)  # noqa: TID251 - a daemon begins


@contextmanager
def running_cluster(folder: Path, workers: int, executors: int, environment: Mapping[str, str]) -> Iterator[Cluster]:
    """Yield a cluster of so many workers, with so many executors of one core each."""
    cluster = Cluster(folder, workers, executors, environment)
    try:
        yield cluster
    finally:
        cluster.stop()


@contextmanager
def cluster_over_store(root: Path, workers: int, executors: int, seed: int = 1) -> Iterator[tuple[Store, Cluster]]:
    """Yield a store and a cluster that reaches it; what this process starts from now on has what both need."""
    os.environ["PYTHONPATH"] = str(ROOT)
    pin_interpreter()
    with running_store(root / "store", seed) as store:
        os.environ.update(store.environment())
        with running_cluster(root / "cluster", workers, executors, os.environ) as cluster:
            yield store, cluster


def machine_of(pid: int | None, machines: Sequence[Collection[int]], otherwise: int) -> int:
    """Return the machine, of those whose processes are given, on which a process runs, or one by a number."""
    return next((number for number, pids in enumerate(machines) if pid in pids), otherwise % len(machines))


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _executor_of(pid: int | None, executors: list[int]) -> int | None:
    """Return the executor that a process, or one of those that started it, is."""
    while pid is not None and pid > 1:
        if pid in executors:
            return pid
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            return None
    return None
