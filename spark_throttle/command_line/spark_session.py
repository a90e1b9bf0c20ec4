"""A command that needs Spark starts it in its process, or uses the session that runs there.

It starts Spark by PySpark's launcher, which is `spark-submit`: it reads `spark-defaults.conf`, and is given
`--properties-file` and `--conf`. No other command needs Spark, nor pandas, whose import takes half of a command's time;
so the others hide it from Arrow.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from spark_throttle.errors import ConfigurationError, FileUnusableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _WithoutPandas:
    """A hack: Arrow imports pandas where it is installed, which no command without Spark needs."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        """Answer Arrow's import of pandas as if it were not installed."""
        if name == "pandas":
            raise ModuleNotFoundError("the command line does without pandas", name=name)


def hide_pandas() -> None:
    """Let imports of pandas fail in this process, as if it were not installed."""
    sys.meta_path.insert(0, _WithoutPandas)


def show_pandas() -> None:
    """Let pandas be imported again; called before Arrow is."""
    if _WithoutPandas in sys.meta_path:
        sys.meta_path.remove(_WithoutPandas)


_SUBMIT_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"
_QUIET: Final = ("--conf", "spark.ui.showConsoleProgress=false")
"""Spark's progress bars have no line of their own: an error behind one would be no JSON. Later options override it."""

_REFUSALS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark's loggers of what Spark refuses: some kilobytes of JSON on stderr, in front of the line that tells it."""

PropertiesFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Spark's settings, as for `spark-submit`; by default its own.")
]
Conf = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of Spark, as for `spark-submit`; repeatable.")
]


@contextmanager
def spark_session(place: str, properties_file: Path | None, conf: Sequence[str]) -> Iterator[SparkSession]:
    """Return the session of this process; one that is made here is stopped again.

    A store that cannot be reached while the session is used is told as that, with the `place` that is worked on.
    """
    if properties_file is not None and not properties_file.is_file():
        raise ConfigurationError(
            f"--properties-file: there is no file {properties_file}; give a file of Spark's settings, or leave it out"
        )
    for each in conf:
        if not each.partition("=")[0].strip() or "=" not in each:
            raise ConfigurationError(f"--conf is {each!r}; give KEY=VALUE, a setting of Spark and its value")
    show_pandas()
    try:
        from pyspark.logger import PySparkLogger
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        raise ConfigurationError(
            f"{missing} is not installed, and this command starts Spark: pip install 'spark-throttle[admin,delta]'"
        ) from None
    for name in _REFUSALS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    active = SparkSession.getActiveSession()
    if active is not None:
        with _reached(place):
            yield active
        return
    options = [*_QUIET, *([] if properties_file is None else ["--properties-file", str(properties_file)])]
    for each in conf:
        options += ["--conf", each]
    others = os.environ.get(_SUBMIT_ARGUMENTS, "pyspark-shell")
    os.environ[_SUBMIT_ARGUMENTS] = f"{shlex.join(options)} {others}"
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        spark = SparkSession.builder.appName("spark-throttle").getOrCreate()
    except Exception as error:  # PySpark's, or any of the JVM's
        said = " ".join(str(error).split("\n")[:2])
        raise ConfigurationError(
            f"Spark does not start ({said}): see what it says above, and correct its settings, or install Java"
        ) from error
    try:
        with _reached(place):
            yield spark
    finally:
        spark.stop()


@contextmanager
def _reached(place: str) -> Iterator[None]:
    """Tell in one line that a file system does not do what it is asked."""
    try:
        yield
    except OSError as error:
        from spark_throttle.files.storage import one_line

        problem = f"{one_line(error).rstrip(';. ')}; mend that, or give another place, then run the same again"
        raise FileUnusableError(error.filename or place, problem) from None
