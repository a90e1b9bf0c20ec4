"""The executors of a query are asked, before it runs, how many they are, what they lack, and which files they reach.

A query runs Python in four places: this process, Spark's process for Python data sources beside the driver, the
executors and, with Spark Connect, the server. Without this package there, Spark fails in its own words, at length, and
for the executors only in the first batch. So they are asked by a function that travels by value and needs nothing of
this package. What ``--py-files`` ships reaches neither of Spark's processes for streaming sources (tried on 4.2.0): the
start is refused if this package came that way. `docs/install.md` says how to install instead.

Rows are staged by the executors. If these are other machines, a path on the local disk is a different place on each of
them, so data files of committed rows would lie where no reader looks. A store with a name of its own is the same for
all machines, or fails with an error.

They write with pyarrow, which knows nothing of the credentials that Spark was given. If they cannot write to the
control directory, files travel with their digests (`move.waiting_files`).
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.utils import is_remote

import spark_throttle
from spark_throttle.errors import ConfigurationError, NotInstalledError, ThrottleError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.spark_errors import NO_PY_FILES, PYTHON_OF_SOURCES
from spark_throttle.spark.spark_version import check_version, warn_of_version
from spark_throttle.spark.start.spark_paths import local_path

_PROBE_ROWS: Final = 1 << 16
"""More rows than a cluster has slots: a shorter range would have fewer partitions."""

_ALONE: Final = "local"
_ONE_MACHINE: Final = re.compile(r"local(?:\[(\d+)(?:,\s*\d+)?\])?")

_PROBLEM_DDL: Final = "host string, problem string"
_PACKAGE: Final = "spark-throttle"
_NEEDED: Final = ("numpy", "pyarrow", "pandas", "spark_throttle")
_PY_FILES_CONF: Final = "spark.submit.pyFiles"


def task_slots(spark: SparkSession) -> int:
    """Return the number of tasks at the same time.

    It is Spark's own number of partitions of a range, for which a small job runs, unless the master names its cores.
    """
    cores = _named_cores(spark)
    if cores is not None:
        return max(1, cores // _task_cpus(spark))
    return int(spark.range(_PROBE_ROWS).select(F.spark_partition_id()).distinct().count())


def cluster_cores(spark: SparkSession) -> int:
    """Return the number of cores on which the session's tasks run now; runs a small job unless the master names it."""
    return _named_cores(spark) or max(1, task_slots(spark)) * _task_cpus(spark)


def _named_cores(spark: SparkSession) -> int | None:
    master = _ONE_MACHINE.fullmatch(str(spark.conf.get("spark.master", "") or ""))
    return None if master is None else max(1, int(master[1] or 1))


def _task_cpus(spark: SparkSession) -> int:
    return int(str(spark.conf.get("spark.task.cpus", "1")))


@dataclass(frozen=True, slots=True)
class _Look:
    """A function for executors that returns which of the given paths they do not find."""

    paths: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            missing = [path for path in self.paths if not Path(path).exists()]
            yield pa.record_batch({"host": [platform.node()] * len(missing), "path": pa.array(missing, pa.string())})


def check_executors_see(spark: SparkSession, control_path: str, tables: Sequence[str] = ()) -> None:
    """Refuse a control directory, or tables, on a local disk that executors do not share.

    Runs two small Spark jobs with a task for each slot of the executors, or none if the session runs on one machine or
    is remote.

    Raises
    ------
    ConfigurationError
        If an executor does not find the control directory or a table.
    """
    if is_remote() or is_one_machine(spark):
        return
    missing = look(spark, control_path, tables)
    if missing:
        host, path = missing[0]
        raise ConfigurationError(
            f"the executors on {host} do not see {path}, which is on the driver's disk and which they must reach: put "
            f"the checkpoint and the tables on storage that all machines reach under the same path"
        )


def refuse_unwritable(spark: SparkSession, control_path: str) -> None:
    """Refuse a control directory in which the executors cannot write the files of rows.

    Raises
    ------
    ConfigurationError
        If an executor cannot.
    """
    check_executors_see(spark, control_path)
    problem = control_problem(spark, control_path, is_seen=True)
    if problem is not None:
        raise ConfigurationError(
            f"the executors cannot write to {control_path} ({problem}), where rows are staged: give their processes "
            f"the access that pyarrow needs, as by environment variables"
        )


@dataclass(frozen=True, slots=True)
class _Try:
    """A function for executors that writes, reads and deletes a file of a directory, and returns what prevents it."""

    location: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            problem = self._problem()
            found = [] if problem is None else [problem]
            yield pa.record_batch({"host": [platform.node()] * len(found), "problem": pa.array(found, pa.string())})

    def _problem(self) -> str | None:
        name, content = f".probe-{uuid.uuid4().hex}", b"probe"
        try:
            directory = Directory(self.location)
            directory.write(name, content)
            is_there = directory.read(name) == content
            directory.delete(name)
        except (OSError, ThrottleError, pa.ArrowException) as error:
            return str(error)
        return None if is_there else "what was written there is not there"


def control_problem(spark: SparkSession, control_path: str, *, is_seen: bool) -> str | None:
    """Return what prevents the executors from keeping files in the control directory; `None` if nothing does.

    Runs two small Spark jobs with a task for each slot of the executors, or none if the session runs on one machine.

    Parameters
    ----------
    is_seen
        Whether `check_executors_see` took the directory: one on a local disk is not looked for again.
    """
    if is_one_machine(spark):
        return None
    if not is_remote() and local_path(control_path).startswith("/"):
        missing = [] if is_seen else look(spark, control_path)
        return f"the executors on {missing[0][0]} do not see the driver's disk" if missing else None
    found = on_executors(spark, _Try(control_path), _PROBLEM_DDL)
    return f"on {found[0][0]}: {found[0][1]}" if found else None


def is_one_machine(spark: SparkSession) -> bool:
    """Return whether the executors of a session are threads of its driver."""
    master = str(spark.conf.get("spark.master", "") or "")
    return master.startswith(_ALONE) and not master.startswith("local-cluster")


def is_served(spark: SparkSession) -> bool:
    """Return whether the session uses Spark Connect, whose server may see files that this process does not."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def on_executors(
    spark: SparkSession, function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str
) -> list[tuple[str, str]]:
    """Return the rows of two texts that a function yields, in as many tasks as the executors run at the same time."""
    tasks = task_slots(spark)
    return sorted({(row[0], row[1]) for row in spark.range(0, tasks, 1, tasks).mapInArrow(function, schema).collect()})


def look(spark: SparkSession, control_path: str, tables: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return the host and the path of each file that executors do not see."""
    paths = [f"{local_path(table).rstrip('/')}/_delta_log" for table in tables]
    probe = f".probe-{uuid.uuid4().hex}"
    directory = Directory(control_path)
    directory.write(probe, b"")
    try:
        local = tuple(path for path in (local_path(f"{control_path}/{probe}"), *paths) if path.startswith("/"))
        if not local:
            return []
        return on_executors(spark, _Look(local), "host string, path string")
    finally:
        directory.delete(probe)


def check_installation(spark: SparkSession) -> None:
    """Check the version of Spark, how this package came here, and what the executors have.

    The executors are asked by one small Spark job, unless they are on this machine.

    Raises
    ------
    NotInstalledError
        If something is missing, or of another version.
    """
    check_version(spark.version, "the cluster")
    warn_of_version(spark.version)
    here = str(spark_throttle.__file__)
    for shipped in str(spark.conf.get(_PY_FILES_CONF, "") or "").split(","):
        name = shipped.rpartition("/")[2]
        if name and f"/{name}/" in here:
            raise NotInstalledError("spark_throttle", PYTHON_OF_SOURCES, f"it came by {name}; {NO_PY_FILES}")
    if is_one_machine(spark):
        return
    found = on_executors(spark, _inspection(_version(), platform.python_version_tuple()[:2]), _PROBLEM_DDL)
    if found:
        host, what = found[0]
        raise NotInstalledError(
            what, f"the Python of the executors on {host}", "install there what the driver has, in the same versions"
        )


def _version() -> str | None:
    """Return the version of this package; `None` if it is not known, because nothing was installed."""
    try:
        return importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None


def _inspection(
    version: str | None, python: tuple[str, ...]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for executors that yields what they lack.

    It is defined here so that it is pickled by value: an executor without this package could not load it otherwise.
    """
    needed = _NEEDED

    def inspect(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import importlib.metadata
        import importlib.util
        import platform

        import pyarrow as pa

        for _ in batches:
            problems = [name for name in needed if importlib.util.find_spec(name) is None]
            if platform.python_version_tuple()[:2] != python:
                problems.append(f"Python {'.'.join(python)}")
            try:
                there: str | None = importlib.metadata.version("spark-throttle")
            except importlib.metadata.PackageNotFoundError:
                there = None
            if None not in (version, there) and version != there:
                problems.append(f"spark-throttle {version} (there is {there})")
            hosts = [platform.node()] * len(problems)
            yield pa.record_batch({"host": pa.array(hosts, pa.string()), "problem": pa.array(problems, pa.string())})

    return inspect
