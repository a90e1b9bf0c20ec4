"""Operators that cannot stand before the throttle in its query, refused in one sentence that says the way out.

Spark refuses most of them itself, when the query starts and with the whole plan, or only inside a batch. The plan of
the stream, as ``EXPLAIN`` prints it, shows them before anything is written: Spark marks a node of a stream with a tilde
(tried on 4.2.0), so an aggregation of a static table that is joined is not one. Where Spark prints no plan, nothing is
refused here. `docs/streams.md` lists what works.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.errors import AnalysisException

from spark_throttle.errors import ConfigurationError
from spark_throttle.files.storage import one_line

_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
_PAGE: Final = "docs/streams.md"
_TABLE_BETWEEN: Final = "write its result to a table, and throttle the stream of that table in a query of its own"
_OPERATOR: Final = "DigestDecider("
"""How Spark prints the operator of a stream that `apply` has decided."""


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


def refused_by_spark(error: AnalysisException) -> ConfigurationError:
    """Return Spark's refusal to start a query as one line, without its plan."""
    line = one_line(error).rstrip(";. ")
    return ConfigurationError(f"Spark refuses the query: {line} ({_PAGE} lists what may stand before the throttle)")
