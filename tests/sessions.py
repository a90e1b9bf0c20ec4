"""Spark sessions for tests: small, quiet, on loopback, offline.

A process of pytest opens one session, and its tests share it.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent
JARS = ROOT / "build" / "jars"
DELTA = os.environ.get("TESTS_DELTA", "delta")
"""Which jars of Delta tests use: `make versions` names those for another Spark, or none where there are none."""

ICEBERG = os.environ.get("TESTS_ICEBERG", "")
"""Which jars of Iceberg tests use, in the catalog `lake`; `make versions` names those for a Spark that has them."""

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m -XX:-UseCodeCacheFlushing"
"""For a JVM that lives for minutes on two cores: to optimise its code for hours takes half of its time.

A JVM that does not optimise keeps 48 MiB for its code, which Spark fills at once. To throw code out and to compile it
anew took a sixth of the CPU time of the tests.
"""

WITH_ROOM = f"{SHORT_LIVED} -Xms1g -Xmn384m -XX:MetaspaceSize=256m"
"""For one that many tests share: it has its room at once, for each time that it grows it searches all of it."""

CLASS_ARCHIVE = ROOT / "build" / "spark-classes.jsa"
"""Classes of Spark and Delta, parsed and verified; `tests.class_archive` makes it, and sessions do without it too.

A session's first query costs a third less with it. A JVM of another version or class path does not take it.
"""

LOCAL_FILES = ROOT / "build" / "local-files.jar"
"""What is written in `LocalFiles.java`; `tests.class_archive` compiles it where Java can; sessions can do without."""

SMALL_PAGES = {"spark.buffer.pageSize": "1m"}
"""A task that sorts or counts takes memory a page at a time, 64 MiB of the heap by default.

Such pages were half of what the heap of a shared session held. Only a new session takes the setting.
"""

FOR_FEW_ROWS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.ui.explainMode": "simple",
}
"""Plans are walked and not compiled, and a batch's plan is not made anew stage by stage.

Each of the two takes a tenth of the CPU time of a query of some rows. To write each plan for a page that is off takes
another 3 % of it. Programs that run for long keep Spark's defaults.
"""

WITHOUT_CALL_SITES = {"spark.python.sql.dataFrameDebugging.enabled": "false"}
"""PySpark does not note, at each call on a column, where in Python it stands: four calls of the JVM for each.

They take a twentieth of a query's CPU time, a quarter of its Python's. Without them Spark's errors have no paragraph
``== DataFrame ==``. Only a new session takes the setting. Over Spark Connect, in the jobs of the crash program and in
those of measurements, it is PySpark's default.
"""


@functools.cache
def ask_once_for_names_of_java() -> None:
    """Have Py4J keep the packages and classes that it has asked for.

    It asks anew at each mention, for each part of a name, and the JVM looks in 300 jars whether a package is a class: a
    fifteenth of its CPU time.
    """
    from py4j.java_gateway import JavaPackage, JVMView

    for kind in (JVMView, JavaPackage):
        kind.__getattr__ = _keeping(kind.__getattr__)


def _keeping(ask: Callable[[object, str], object]) -> Callable[[object, str], object]:
    def asked_once(owner: object, name: str) -> object:
        found = vars(owner)[name] = ask(owner, name)
        return found

    return asked_once


def jars(use: str) -> list[Path]:
    """Return the jars of one use (a configuration of scripts/jars/ivy.xml)."""
    found = sorted((JARS / (DELTA if use == "delta" else use)).glob("*.jar"))
    if not found:
        target = {"delta": "jars", "pulsar-admin": "tool-jars", "s3a": "s3a-jars"}.get(use, "kafka-jars")
        msg = f"{JARS / use} holds no jar: run `make {target}`"
        raise FileNotFoundError(msg)
    return found


def with_class_archive(jvm_options: str, archive: Path = CLASS_ARCHIVE) -> str:
    """Return the options of a JVM that takes its classes from an archive, if there is one."""
    is_to_be_used = archive.exists() and "ArchiveClassesAtExit" not in jvm_options
    return f"{jvm_options} -XX:SharedArchiveFile={archive} -Xlog:cds*=off" if is_to_be_used else jvm_options


def files_without_processes() -> dict[str, str]:
    """Return the settings with which Hadoop starts no process for a local file, if there is what they need."""
    if not LOCAL_FILES.exists():
        return {}
    return {
        "spark.hadoop.fs.file.impl": "tests.LocalFiles",
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "tests.LocalFiles$InContext",
    }


def checkpoints_without_processes() -> dict[str, str]:
    """Return the setting with which Spark writes a checkpoint as where there is no `FileContext`.

    On a local disk its default starts a process (`readlink`) for each file that it looks for: a hundred a query, a
    sixth of its CPU time. Jobs that are killed keep the default: to them matters how a file comes to its name. So do
    all where `LocalFiles.java` is not compiled: Hadoop's own class leaves an older state where a batch that runs again
    has a newer one.
    """
    if not LOCAL_FILES.exists():
        return {}
    package = "org.apache.spark.sql.execution.streaming.checkpointing"
    return {"spark.sql.streaming.checkpointFileManagerClass": f"{package}.FileSystemBasedCheckpointFileManager"}


def session_settings(
    scratch: Path,
    *,
    uses: tuple[str, ...] = ("delta",),
    memory: str = "2g",
    jvm_options: str = SHORT_LIVED,
    class_archive: Path = CLASS_ARCHIVE,
) -> dict[str, str]:
    """Return the settings of a test's session; all that it writes goes below `scratch`."""
    own = [LOCAL_FILES] if LOCAL_FILES.exists() else []
    own += jars(ICEBERG) if ICEBERG else []
    class_path = ":".join(str(jar) for jar in (*own, *(jars("delta") if DELTA else ())))
    with_iceberg = {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(scratch / "lake"),
    }
    with_delta = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    return {
        "spark.master": "local[2]",
        "spark.app.name": "spark-throttle tests",
        # What the JVM loads itself comes from the archive, and Spark copies no jar for its executors.
        "spark.driver.extraClassPath": class_path,
        "spark.executor.extraClassPath": class_path,
        "spark.jars": ",".join(str(jar) for use in uses if use != "delta" for jar in jars(use)),
        **(with_delta if DELTA else {}),
        **(with_iceberg if ICEBERG else {}),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.local.dir": str(scratch / "local"),
        "spark.driver.extraJavaOptions": f"-Duser.timezone=UTC -Dderby.system.home={scratch / 'derby'} "
        + with_class_archive(jvm_options, class_archive),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.geospatial.enabled": "true",  # the default since Spark 4.2
        # Two cores: more partitions, or Delta's default of 50 for a snapshot, would only cost task starts.
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
    }


def pin_interpreter(forked: Path | None = None) -> None:
    """Make Spark's workers start this interpreter, with its compiled modules, and bind to loopback.

    `forked` is the address at which their processes are forked (`forked_python`); without it they are started.
    """
    os.environ["PYSPARK_PYTHON"] = str(ROOT / "tests" / "worker_python")
    os.environ["PYSPARK_DRIVER_PYTHON"] = os.environ["TESTS_PYTHON"] = sys.executable
    os.environ["TESTS_PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    os.environ["TESTS_FORKED_PYTHON"] = str(forked or "")
    # Each worker would compile this package anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # What a developer's shell or `make run` says to spark-submit would override the settings above.
    os.environ.pop("PYSPARK_SUBMIT_ARGS", None)
    os.environ.pop("SPARK_CONF_DIR", None)


@contextmanager
def forked_python(folder: Path) -> Iterator[Path]:
    """Yield the address of a server of Python processes (`tests.forked_python`)."""
    folder.mkdir(exist_ok=True)
    address = folder / "python"
    command = [sys.executable, "-m", "tests.forked_python", "--serve", str(address)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE):
        yield address


def open_session(
    scratch: Path,
    *,
    uses: tuple[str, ...] = ("delta",),
    memory: str = "2g",
    jvm_options: str = SHORT_LIVED,
    python: Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start the JVM and return its session; the caller stops it.

    `python` is the address at which Spark's Python processes are forked; without it they are started.
    """
    from pyspark.sql import SparkSession

    ask_once_for_names_of_java()
    pin_interpreter(python)
    builder = SparkSession.builder
    own = session_settings(scratch, uses=uses, memory=memory, jvm_options=jvm_options)
    for key, value in (own | dict(settings or {})).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


@contextmanager
def brief_session(scratch: Path, *, cores: int = 2) -> Iterator[SparkSession]:
    """Yield the session of a process that runs some rows through queries and ends."""
    settings = {
        **FOR_FEW_ROWS,
        **SMALL_PAGES,
        **WITHOUT_CALL_SITES,
        **files_without_processes(),
        "spark.master": f"local[{cores}]",
    }
    with forked_python(scratch) as python:
        session = open_session(scratch, python=python, settings=settings)
        yield session
        session.stop()
