"""The stream that `Throttle.read_stream` returns: a source whose rows can be read again, and row-wise expressions.

A query over it decides on references where it can: the source's columns that decide are read by themselves, and the
payload is read once, by Spark, when its rows leave. `ReferenceStream.problem` says what stands against it; then the
rows are staged, as those of any other stream, from Spark's own source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.types import StructType

from spark_throttle.errors import ConfigurationError
from spark_throttle.files.storage import one_line
from spark_throttle.spark.columns.payload_columns import ColumnLike, check_columns
from spark_throttle.spark.columns.stream_plan import FILE_FUNCTION, analyzed_plan
from spark_throttle.spark.delta.table_log import table_at
from spark_throttle.spark.references.extents import FileFeed
from spark_throttle.spark.references.feeds import DeltaFeed, FolderFeed, columns_of, folder_problem, reading_problem
from spark_throttle.spark.references.row_expressions import RowCondition, both, kinds_of, row_condition
from spark_throttle.spark.rows.frames import HELPER_PREFIX, THROTTLE
from spark_throttle.spark.start.spark_paths import SparkPaths

_MANY_ROWS: Final = re.compile(r"^[\s:|+\-~'!]*(Window|Generate|Aggregate|Expand|WithCTE)\b", re.MULTILINE)
"""Nodes of a plan by which a row does not become one row by itself."""

_PATTERN: Final = frozenset("{}[]*?")
_FILES_OPTION, _VERSION_OPTION, _SKIP_OPTION = "maxfilespertrigger", "startingversion", "skipchangecommits"
_DELTA_FILES: Final = 1000
"""Most files of a batch where the user sets no bound; Delta's own default."""

_SETTINGS: Final = {
    "spark.sql.caseSensitive": "names are told apart by case",
    "spark.sql.ansi.doubleQuotedIdentifiers": "words in double quotes are names",
}
_FIRST_INTERFACE, _PARQUET = "spark.sql.sources.useV1SourceList", "parquet"
"""The formats that Spark reads by the interface that has ``_metadata``."""


@dataclass(frozen=True, slots=True)
class StreamSource:
    """What `spark.readStream` is told about a source."""

    format: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    schema: StructType | str | None = None
    path: str | None = None
    table: str | None = None

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the source as a stream, by Spark's own reader."""
        reader = spark.readStream.options(**self.options)
        if self.format is not None:
            reader = reader.format(self.format)
        if self.schema is not None:
            reader = reader.schema(self.schema)
        if self.table is not None:
            return reader.table(self.table)
        return reader.load() if self.path is None else reader.load(self.path)


@dataclass(frozen=True, slots=True)
class _Step:
    """A row-wise expression of the user."""

    apply: Callable[[DataFrame, Sequence[str]], DataFrame]
    """The expression on rows; the columns that are named beside the rows are kept."""

    kept: Callable[[Mapping[str, str]], dict[str, str]]
    """The source's column for each column that is still one, after the expression."""

    condition: ColumnLike | None = None
    """The condition by which it drops rows."""


@dataclass(frozen=True, slots=True)
class RowSteps:
    """The row-wise expressions of a user, in their order."""

    steps: tuple[_Step, ...] = ()

    def __call__(self, rows: DataFrame, keep: Sequence[str]) -> DataFrame:
        """Return rows of the source after the expressions, with the columns `keep` beside them."""
        for step in self.steps:
            rows = step.apply(rows, keep)
        return rows

    def of_decided(self) -> RowSteps:
        """Return the same expressions for rows that were decided on: they met the conditions when they arrived.

        To ask them again could lose a row, where Spark computes a condition otherwise meanwhile.
        """
        return RowSteps(tuple(step for step in self.steps if step.condition is None))

    def then(self, step: _Step) -> RowSteps:
        """Return these expressions and one more."""
        return RowSteps((*self.steps, step))


@dataclass(frozen=True)
class ReferenceStream:
    """A stream of rows that can be read again, with row-wise expressions on top.

    It takes the expressions of a `DataFrame` that work row by row. ``throttle.write_stream`` takes it as it takes a
    stream of ``spark.readStream``.
    """

    spark: SparkSession
    source: StreamSource
    source_schema: StructType
    """The schema of the source, before any expression."""

    rows: RowSteps = RowSteps()

    def select(self, *columns: ColumnLike) -> ReferenceStream:
        """Select columns, by name or as expressions."""
        names = [column for column in columns if isinstance(column, str)]

        def kept(known: Mapping[str, str]) -> dict[str, str]:
            return dict(known) if "*" in names else {name: known[name] for name in names if name in known}

        def apply(rows: DataFrame, keep: Sequence[str]) -> DataFrame:
            found = rows.select(*columns)
            lacking = [name for name in keep if name not in found.columns]  # a star has kept them already
            return rows.select(*columns, *lacking) if lacking else found

        return self._then(_Step(apply, kept))

    def selectExpr(self, *expressions: str) -> ReferenceStream:  # noqa: N802 - Spark's name
        """Select SQL expressions."""
        plain = {text: text for text in expressions}
        step = self.select(*(text if text == "*" else F.expr(text) for text in expressions)).rows.steps[-1]
        return self._then(replace(step, kept=lambda known: _selected(plain, known)))

    def withColumn(self, name: str, column: Column) -> ReferenceStream:  # noqa: N802 - Spark's name
        """Add a column, or replace the one of that name."""
        return self._then(
            _Step(
                lambda rows, _: rows.withColumn(name, column),
                lambda known: {each: of for each, of in known.items() if each.lower() != name.lower()},
            )
        )

    def withColumnRenamed(self, existing: str, new: str) -> ReferenceStream:  # noqa: N802 - Spark's name
        """Rename a column."""
        return self._then(
            _Step(
                lambda rows, _: rows.withColumnRenamed(existing, new),
                lambda known: {(new if each.lower() == existing.lower() else each): of for each, of in known.items()},
            )
        )

    def drop(self, *names: str) -> ReferenceStream:
        """Drop columns."""
        dropped = {name.lower() for name in names}
        return self._then(
            _Step(
                lambda rows, _: rows.drop(*names),
                lambda known: {each: of for each, of in known.items() if each.lower() not in dropped},
            )
        )

    def where(self, condition: ColumnLike) -> ReferenceStream:
        """Keep the rows that meet a condition.

        A text that compares columns of the source with each other or with constants is computed without Spark
        (`references.row_expressions`). With any other condition, rows are staged.
        """
        return self._then(_Step(lambda rows, _: rows.where(condition), dict, condition))

    filter = where

    @property
    def schema(self) -> StructType:
        """The schema of the stream."""
        return self.empty().schema

    @property
    def columns(self) -> list[str]:
        """The names of the stream's columns."""
        return self.schema.names

    def stream(self) -> DataFrame:
        """Return the stream by Spark's own source, whose rows are staged."""
        return self.rows(self.source.read(self.spark), ())

    def empty(self) -> DataFrame:
        """Return no rows, with the stream's columns."""
        return self.rows(self.spark.createDataFrame([], self.source_schema), ())

    @cached_property
    def root(self) -> str:
        """The location of the source's files, for which Spark is asked once.

        Raises
        ------
        ConfigurationError
            If the source has no files of its own.
        """
        if self.source.path is not None:
            return SparkPaths(self.spark).resolve(self.source.path)
        if self.source.table is None:
            raise ConfigurationError("the source has neither a path nor a table; give one to load() or table()")
        return SparkPaths(self.spark).of_table(self.source.table)

    def feed(self) -> FileFeed:
        """Return the finder of the source's files."""
        options = {key.lower(): value for key, value in self.source.options.items()}
        most_files = options.get(_FILES_OPTION)
        if self._is_delta:
            version = options.get(_VERSION_OPTION)
            columns = columns_of(self.source_schema.json())
            starting_version = None if version is None else int(version)
            skips_changes = options.get(_SKIP_OPTION) == "true"
            most = int(most_files or _DELTA_FILES)
            return DeltaFeed(self.root, most, starting_version, columns, skips_changes=skips_changes)
        return FolderFeed(self.root, None if most_files is None else int(most_files))

    @property
    def _is_delta(self) -> bool:
        return self.source.format == "delta" or self.source.table is not None

    def problem(self) -> str | None:
        """Return why the source cannot be decided on by references; `None` if it can."""
        given = self.source
        if given.format not in ("parquet", "delta") and given.table is None:
            return f"the source's format is {given.format!r}, not 'parquet' or 'delta'"
        if given.path is not None and set(given.path) & _PATTERN:
            return "the source's path is a pattern"
        return (
            self._setting_problem()
            or self._expression_problem()
            or self._option_problem()
            or (self._delta_problem() if self._is_delta else folder_problem(self.root))
        )

    def _setting_problem(self) -> str | None:
        settings = (name for name in _SETTINGS if str(self.spark.conf.get(name, "false")).lower() == "true")
        setting = next(settings, None)
        if setting is not None:
            return f"{_SETTINGS[setting]} ({setting})"
        is_known = _PARQUET in str(self.spark.conf.get(_FIRST_INTERFACE, _PARQUET)).lower().split(",")
        return None if is_known else f"Spark does not tell the places of rows ({_FIRST_INTERFACE} lacks {_PARQUET})"

    def _expression_problem(self) -> str | None:
        taken = [name for name in self.source_schema.names if _is_taken(name.lower())]
        if taken:
            return f"the source has the column {taken[0]!r}, a name that the second reading uses"
        try:
            check_columns(self.source_schema)
        except ConfigurationError as error:
            return f"rows of the source cannot be copied where they wait ({one_line(error)})"
        condition = self.condition()
        if isinstance(condition, str):
            return condition
        plan = analyzed_plan(self.empty())
        if _MANY_ROWS.search(plan):
            return "an expression makes several rows of one, or depends on other rows"
        function = FILE_FUNCTION.search(plan)
        if function is not None:
            return f"an expression has {function[0]}), and a row that has waited is read from another file"
        return None

    def _option_problem(self) -> str | None:
        allowed = {_FILES_OPTION, _VERSION_OPTION, _SKIP_OPTION} if self._is_delta else {_FILES_OPTION}
        for key, value in self.source.options.items():
            if key.lower() not in allowed:
                return f"the source has the option {key!r}, which only Spark's source knows"
            if key.lower() == _SKIP_OPTION and value in ("true", "false"):
                continue
            if not value.isdigit() or (key.lower() == _FILES_OPTION and int(value) == 0):
                return f"the source's option {key!r} is {value!r}, which only Spark's source knows"
        return None

    def _delta_problem(self) -> str | None:
        try:
            from deltalake.exceptions import DeltaError
        except ImportError:
            return "the package 'deltalake' is not installed"
        try:
            return reading_problem(table_at(self.root))
        except (DeltaError, OSError, ValueError, pa.ArrowException, ConfigurationError, PySparkException) as error:
            return f"the table's log cannot be read without Spark ({one_line(error)})"

    def known_columns(self) -> dict[str, str]:
        """Return the source's column for each column of the stream that is one."""
        known = {name: name for name in self.source_schema.names}
        for step in self.rows.steps:
            known = step.kept(known)
        return known

    def condition(self) -> RowCondition | str | None:
        """Return which rows the stream keeps, over the columns of the source; a text says which takes Spark."""
        known = {name: name for name in self.source_schema.names}
        found: RowCondition | None = None
        for step in self.rows.steps:
            if step.condition is not None:
                text = step.condition if isinstance(step.condition, str) else None
                one = None if text is None else row_condition(text, kinds_of(self.source_schema, known))
                if one is None:
                    what = "a Column" if text is None else repr(text)
                    return f"the stream drops rows by a condition ({what}) that takes Spark to compute"
                found = both(found, one.renamed(known))
            known = step.kept(known)
        return found

    def _then(self, step: _Step) -> ReferenceStream:
        return replace(self, rows=self.rows.then(step))


def _is_taken(name: str) -> bool:
    return name in (THROTTLE, "_metadata") or name.startswith(HELPER_PREFIX)


def _selected(expressions: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """Return the known columns that SQL expressions select as they are; ``a AS b`` is one of them."""
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    found: dict[str, str] = dict(known) if "*" in expressions else {}
    for text in expressions:
        try:
            node = sqlglot.parse_one(text, read="spark")
        except SqlglotError:
            continue
        alias = node.alias if isinstance(node, exp.Alias) else node.name
        inner = node.this if isinstance(node, exp.Alias) else node
        if isinstance(inner, exp.Column) and not inner.table and inner.name in known:
            found[alias] = known[inner.name]
        else:
            found.pop(alias, None)
    return found


def _of_files(format_: str) -> Callable[..., ReferenceStream]:
    """Return the method of a reader that reads files of a format."""

    def read(
        reader: ThrottledStreamReader,
        path: str,
        schema: StructType | str | None = None,
        **options: Any,  # noqa: ANN401 - as Spark's
    ) -> ReferenceStream:
        return reader.load(path, format_, schema, **options)

    read.__name__, read.__doc__ = format_, f"Return the stream of a folder of files in the format ``{format_}``."
    return read


class ThrottledStreamReader:
    """A reader like `pyspark.sql.streaming.DataStreamReader`, whose streams can be decided on by references."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._source = StreamSource()

    def format(self, source: str) -> ThrottledStreamReader:
        """Set the format of the source."""
        self._source = replace(self._source, format=source)
        return self

    def schema(self, schema: StructType | str) -> ThrottledStreamReader:
        """Set the schema of the source."""
        self._source = replace(self._source, schema=schema)
        return self

    def option(self, key: str, value: Any) -> ThrottledStreamReader:  # noqa: ANN401 - as Spark's
        """Set an option of the source."""
        text = str(value).lower() if isinstance(value, bool) else str(value)
        self._source = replace(self._source, options={**self._source.options, key: text})
        return self

    def options(self, **options: Any) -> ThrottledStreamReader:  # noqa: ANN401 - as Spark's
        """Set several options, as `option` does."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def load(
        self,
        path: str | None = None,
        format: str | None = None,  # noqa: A002 - as Spark's
        schema: StructType | str | None = None,
        **options: Any,  # noqa: ANN401 - as Spark's
    ) -> ReferenceStream:
        """Return the stream of a source, which has a path unless its format needs none."""
        if format is not None:
            self.format(format)
        if schema is not None:
            self.schema(schema)
        self.options(**options)
        return self._stream(replace(self._source, path=path))

    parquet = _of_files("parquet")
    csv = _of_files("csv")
    json = _of_files("json")
    orc = _of_files("orc")
    text = _of_files("text")
    xml = _of_files("xml")

    def table(self, table_name: str) -> ReferenceStream:
        """Return the stream of a table of the catalog."""
        return self._stream(replace(self._source, table=table_name))

    def _stream(self, source: StreamSource) -> ReferenceStream:
        return ReferenceStream(self._spark, source, source.read(self._spark).schema)
