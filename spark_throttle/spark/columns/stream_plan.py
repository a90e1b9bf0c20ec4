"""The plan of a stream, as ``EXPLAIN`` prints it, shows what cannot stand before the throttle, and volatile columns.

Spark refuses most operators that cannot stand there itself, when the query starts and with the whole plan, or only
inside a batch. The plan shows them before anything is written: Spark marks a node of a stream with a tilde (tried on
4.2.0), so an aggregation of a static table that is joined is not one. Where Spark prints no plan, nothing is refused
here. `docs/streams.md` lists what works.

A *volatile* column has another value when a batch is run again. A batch that was stopped half-way is planned again from
the same input, and must then be decided in the same way: such columns are refused in decisions, and left out of size
and hash. A list of function names is not enough to find them, so two more sources are asked. Spark's analyzer refuses a
nondeterministic expression as the condition of a join, including Python functions that are marked as such. The plan
shows the functions from which the stream computes a column.

Spark treats three functions as deterministic that are not (tried on 4.2.0). ``now()`` and ``current_time()`` are set
when a batch is optimized. ``aes_encrypt()`` draws an initialization vector for each value, unless one is given or its
mode has none (``ECB``). ``current_timestamp()``, ``current_date()``, ``localtimestamp()`` and ``unix_timestamp()`` are
the batch's time, which is logged. A seed does not help: Spark draws a new one for every attempt. Spark treats
``input_file_name()`` as nondeterministic, but it is the same at every attempt.

Not detected are:

- a Python function that draws random numbers and is not marked `asNondeterministic`;
- a function that is so marked, if it computes a column of the stream before the throttle;
- the effects of a function of frames (`mapInPandas`);
- the user, catalog or schema that `current_user()` and similar functions name, if another user starts the query.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from spark_throttle.errors import ConfigurationError
from spark_throttle.files.storage import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
_PAGE: Final = "docs/streams.md"
_TABLE_BETWEEN: Final = "write its result to a table, and throttle the stream of that table in a query of its own"
_OPERATOR: Final = "DigestDecider("
"""How Spark prints the operator of a stream that `apply` has decided."""

_FUNCTION: Final = re.compile(
    r"(?<![\w.`])(rand|randn|random|uuid|shuffle|randstr|uniform|now|current_time|spark_partition_id"
    r"|monotonically_increasing_id|reflect|java_method|try_reflect|aes_encrypt)\(",
    re.IGNORECASE,
)
_SUBQUERY: Final = re.compile(r"\b(scalar-subquery|exists|list|lateral-subquery)#\d")
_BRANCH: Final = ":"
"""The mark that Spark prints before the lines of a subquery, and of every child of a node except the last."""

_NO_VECTOR: Final = ("", "cast( as binary)")
FILE_FUNCTION: Final = re.compile(r"(?<![\w.`])input_file_(name|block_start|block_length)\(", re.IGNORECASE)
"""Functions that name the file from which Spark reads a row, as a plan shows them."""

_CONDITION: Final = "INVALID_NON_DETERMINISTIC_EXPRESSIONS"
_ANALYZED: Final = re.compile(r"^== Analyzed Logical Plan ==\n(.*?)^== ", re.MULTILINE | re.DOTALL)
_NODE: Final = re.compile(r"^[\s:|+\-~'!]*")
_MADE: Final = re.compile(r" AS (.+?)#(\d+)[^#]*$")
_ATTRIBUTE: Final = re.compile(r"#(\d+)")
_PRINTED: Final = re.compile(r"^(.*)#(\d+)[^#]*$")
_FIELDS_CONF: Final = "spark.sql.debug.maxToStringFields"
_INDENT: Final = 3
"""Characters by which Spark indents a node below its parent."""

_OTHER: Final = "__throttle_other"
_PREFIX: Final = "__throttle_asked_"


@dataclass(frozen=True, slots=True)
class _Refused:
    """An operator that is refused."""

    node: str
    """How its line of a plan begins, as a regular expression."""

    what: str
    why: str
    remedy: str = _TABLE_BETWEEN
    store: str = ""
    """The state store on which it is not refused, if there is one."""


_REFUSED: Final = (
    _Refused(
        rf"FlatMapGroupsInPandasWithState {re.escape(_OPERATOR)}",
        "another throttle",
        "Spark runs one throttle in a query",
        "write what it admits to a table, and throttle the stream of that table in a query of its own",
    ),
    _Refused(
        r"FlatMapGroups(InPandas)?WithState",
        "a stateful function",
        "Spark runs no such function before another one, which the throttle is",
    ),
    _Refused(r"Aggregate", "an aggregation", "Spark runs none before a stateful function, which the throttle is"),
    _Refused(r"Sort", "an orderBy", "a stream has no end to sort to", "give the columns to the throttle as order_by"),
    _Refused(
        r"Window",
        "a window function",
        "Spark runs none over a stream",
        "write the stream to a table, and compute the function where the table is read",
    ),
    _Refused(
        r"Except|Intersect",
        "an except or an intersect",
        "Spark runs neither over a stream",
        "use a join with a static table: how='left_anti' or how='left_semi'",
    ),
    _Refused(
        r"TransformWithState\w*",
        "a transformWithState",
        "Spark runs it on RocksDB only",
        f"begin with {_PROVIDER} set to RocksDBStateStoreProvider (docs/changing-a-job.md), or {_TABLE_BETWEEN}",
        store="RocksDB",
    ),
)
_NODES: Final = tuple((re.compile(rf"^[\s:|+\-]*~({each.node})\b", re.MULTILINE), each) for each in _REFUSED)


def refuse_operators(plan: str, setting: Callable[[str, str], str | None]) -> None:
    r"""Refuse a stream with an operator that cannot stand before the throttle.

    Parameters
    ----------
    plan
        The analyzed plan of the stream, as Spark prints it.
    setting
        Returns a setting of the session, or the default that it is given.

    Raises
    ------
    ConfigurationError
        If the plan has such an operator.

    Examples
    --------
    >>> unset = {}.get
    >>> refuse_operators("~Project [ns#1]\n+- ~Join Inner\n   :- Relation [id#2]\n   +- Aggregate [id#3]", unset)
    >>> try:
    ...     refuse_operators("~Project [ns#1]\n+- ~Sort [ns#1 ASC NULLS FIRST], true", unset)
    ... except ConfigurationError as error:
    ...     str(error).partition(": ")[0]
    'the stream has an orderBy before the throttle, but a stream has no end to sort to'
    """
    for node, refused in _NODES:
        runs = bool(refused.store) and refused.store in (setting(_PROVIDER, "") or "")
        if node.search(plan) and not runs:
            raise ConfigurationError(
                f"the stream has {refused.what} before the throttle, but {refused.why}: {refused.remedy} ({_PAGE})"
            )


def volatile_columns(events: DataFrame, expressions: Mapping[str, Column]) -> frozenset[str]:
    """Return the columns of a stream that have other values at the next attempt, as far as its plan shows.

    Parameters
    ----------
    expressions
        The expressions that decide batches, by the name of the argument.

    Raises
    ------
    ConfigurationError
        If Spark cannot resolve one of `expressions`, or one has another value at the next attempt; if the stream
        filters its rows by such a value, or has an operator that cannot stand before the throttle (`refuse_operators`).
    """
    _refuse_nondeterministic(events, expressions)
    asked = {name: f"{_PREFIX}{place}" for place, name in enumerate(expressions)}
    frame = events.select("*", *(expressions[name].alias(column) for name, column in asked.items()))
    text = analyzed_plan(frame)
    refuse_operators(text, events.sparkSession.conf.get)
    if _FUNCTION.search(text) is None:
        return frozenset()
    plan = _Plan(text)
    if plan.chooser is not None:
        raise ConfigurationError(
            f"the stream chooses its rows by {plan.chooser}, {_BECAUSE}; choose rows by their own columns, or write "
            f"them to a table before the throttle"
        )
    for name, column in asked.items():
        function = plan.function_of(column)
        if function is not None:
            raise _refused(name, function, is_below=True)
    return frozenset(name for name in events.columns if plan.function_of(name) is not None)


_BECAUSE: Final = "which has another value when a batch is run again after a crash: rows would be lost and doubled"


def _refused(name: str, function: str, *, is_below: bool = False) -> ConfigurationError:
    remedy = (
        "use current_timestamp(), which is the batch's own time"
        if function in ("now()", "current_time()")
        else "use a column that comes with the row"
    )
    verb = "depends on" if is_below else "has"
    return ConfigurationError(f"{name} {verb} {function}, {_BECAUSE}; {remedy}")


def _refuse_nondeterministic(events: DataFrame, expressions: Mapping[str, Column]) -> None:
    """Refuse expressions that Spark's analyzer reports as nondeterministic, which it does in a join's condition."""
    if not expressions:
        return
    other = events.sparkSession.range(1).toDF(_OTHER)
    if _problem(events, other, expressions) is None:
        return
    for name, expression in expressions.items():
        text = _problem(events, other, {name: expression})
        if text is None:
            continue
        found = _FUNCTION.search(text)
        if found is None and FILE_FUNCTION.search(text) is not None:
            continue
        raise _refused(name, f"{found[1].lower()}()" if found else text)


def _problem(events: DataFrame, other: DataFrame, expressions: Mapping[str, Column]) -> str | None:
    """Return the nondeterministic expressions as Spark prints them; `None` if there are none."""
    try:
        _ = events.join(other, reduce(and_, map(F.isnull, expressions.values()))).schema
    except AnalysisException as error:
        if error.getCondition() != _CONDITION:
            if len(expressions) > 1:  # each of them alone, to say which
                for name, expression in expressions.items():
                    _problem(events, other, {name: expression})
            said = one_line(error).replace(f", `{_OTHER}`", "").replace(f"`{_OTHER}`, ", "").rstrip(";. ")
            raise ConfigurationError(f"Spark cannot use {' and '.join(expressions)}: {said}") from None
        text = (error.getMessageParameters() or {}).get("sqlExprs", str(error))
        return str(text).strip('"').removeprefix("(").removesuffix(" IS NULL)")
    return None


def analyzed_plan(frame: DataFrame) -> str:
    """Return the analyzed plan as Spark prints it; an empty string if Spark does not print it."""
    try:
        with setting(frame.sparkSession, _FIELDS_CONF, "100000"):  # all columns of a plan, not only the first 25
            rows = frame.sparkSession.sql("EXPLAIN EXTENDED SELECT * FROM {frame}", frame=frame).collect()
    except PySparkException:
        return ""
    found = _ANALYZED.search(str(rows[0][0]))
    return found[1] if found is not None else ""


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Give a session a setting meanwhile; where a platform forbids it, the session keeps its own."""
    before = spark.conf.get(name, None)
    try:
        spark.conf.set(name, value)
    except PySparkException:
        yield
        return
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)


class _Plan:
    """The columns of an analyzed plan, and the volatile functions from which they are computed."""

    def __init__(self, text: str) -> None:
        self.chooser: str | None = None
        """The first volatile function that decides which rows the stream has."""

        self._output: dict[str, str] = {}
        self._made: dict[str, tuple[str | None, set[str]]] = {}
        self._unions: dict[int, list[str] | None] = {}
        branches = (line for line in text.splitlines() if _BRANCH in line[: len(line) - len(_NODE.sub("", line))])
        self._in_subquery = next(filter(None, map(_function_in, branches)), None)
        for line in text.splitlines():
            node = _NODE.sub("", line)
            self._take(node, depth=len(line) - len(node))

    def function_of(self, name: str) -> str | None:
        """Return the volatile function from which an output column is computed; `None` if there is none."""
        seen: set[str] = set()
        ahead = [self._output[name]] if name in self._output else []
        while ahead:
            at = ahead.pop()
            if at in seen or at not in self._made:
                continue
            seen.add(at)
            function, sources = self._made[at]
            if function is not None:
                return function
            ahead += sources
        return None

    def _take(self, node: str, *, depth: int) -> None:
        self._unions = {at: first for at, first in self._unions.items() if at < depth}
        if node.startswith("Union"):
            self._unions[depth] = None
        elif node.startswith("Project ["):
            names = self._take_project(_items(node.removeprefix("Project ")))
            self._output = self._output or dict(names)
            self._join_branches([number for _, number in names], depth)
        elif node.startswith("Generate "):
            expression, _, made = node.rpartition("[")
            for number in _ATTRIBUTE.findall(made):
                self._note(number, expression)
        elif node.startswith(("Filter ", "Join ")) and self.chooser is None:
            self.chooser = self._function_in(node)

    def _take_project(self, items: list[str]) -> list[tuple[str, str]]:
        """Return the names and numbers of the columns of a projection."""
        names = []
        for item in items:
            made = _MADE.search(item)
            if made is not None:
                self._note(made[2], item[: made.start()])
            printed = made or _PRINTED.match(item)
            names.append((printed[1], printed[2]) if printed is not None else (item, ""))
        return names

    def _join_branches(self, numbers: list[str], depth: int) -> None:
        """Record that the columns of a union, numbered as in its first branch, come from the other branches too."""
        for at, first in self._unions.items():
            if depth != at + _INDENT:
                continue
            if first is None:
                self._unions[at] = numbers
            else:
                for number, other in zip(first, numbers, strict=False):
                    function, sources = self._made.get(number, (None, set()))
                    self._made[number] = (function, {*sources, other})

    def _note(self, number: str, expression: str) -> None:
        function, sources = self._made.get(number, (None, set()))
        self._made[number] = (function or self._function_in(expression), {*sources, *_ATTRIBUTE.findall(expression)})

    def _function_in(self, expression: str) -> str | None:
        """Return the first volatile function of an expression, or of a subquery in it."""
        return _function_in(expression) or (self._in_subquery if _SUBQUERY.search(expression) else None)


def _function_in(expression: str) -> str | None:
    """Return the first volatile function of an expression; `None` if there is none."""
    for found in _FUNCTION.finditer(expression):
        depth, end = 1, found.end()
        while depth and end < len(expression):
            depth += {"(": 1, ")": -1}.get(expression[end], 0)
            end += 1
        is_python = expression.startswith("#", end)  # Spark prints a Python function with a number
        name, arguments = found[1].lower(), expression[found.end() : end - 1]
        if not is_python and not (name == "aes_encrypt" and _has_vector(arguments)):
            return f"{found[1].lower()}()"
    return None


def _has_vector(arguments: str) -> bool:
    """Return whether `aes_encrypt` gives the same result at every call: its vector is given, or its mode has none.

    Examples
    --------
    >>> _has_vector("ns#2, key#3, GCM, DEFAULT, cast( as binary), cast( as binary)")
    False
    >>> _has_vector("ns#2, key#3, GCM, DEFAULT, iv#4, cast( as binary)")
    True
    """
    _, _, mode, _, vector, *_ = (*_items(f"[{arguments}]"), *[""] * 5)
    return mode.upper() == "ECB" or vector not in _NO_VECTOR


def _items(text: str) -> list[str]:
    """Return the parts of a printed list.

    Examples
    --------
    >>> _items("[id#1L, concat(ns#2, [1,2][0]) AS v#3]")
    ['id#1L', 'concat(ns#2, [1,2][0]) AS v#3']
    """
    items, depth, start = [], 0, 1
    for at, mark in enumerate(text):
        depth += {"[": 1, "(": 1, "{": 1, "]": -1, ")": -1, "}": -1}.get(mark, 0)
        if (depth == 1 and text.startswith(", ", at)) or (depth == 0 and at):
            items.append(text[start:at])
            start = at + 2
        if depth == 0 and at:
            break
    return [item for item in items if item]
