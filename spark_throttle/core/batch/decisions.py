"""The decision on every row of a batch, and its cause.

One cause may explain many decisions: one scope stopped a flow, and all rows behind that point share the reason, the
scope and the wait. So the causes are a table, and a row holds a position in it.

Reasons are a closed set, stored as numbers and shown as words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from spark_throttle.core.quota import BUDGETS, Dimension, Int64s, Verdict


class Reason(IntEnum):
    """The reason why a row was not simply admitted; `NONE` if it was."""

    NONE = 0
    QUOTA = 1
    THROTTLING = 2
    """A Pegasus rule of the namespace delayed or rejected the row."""

    QUEUE_FULL = 3
    QUEUE_AGE = 4
    NAMESPACE_MISSING = 5
    NAMESPACE_TOO_LONG = 6
    SIZE_MISSING = 7
    SIZE_NEGATIVE = 8
    SIZE_TOO_LARGE = 9
    PARTITION_UNWRITABLE = 10
    """The sink cannot store the value by which the row is partitioned (`spark.rows.partition_names`)."""

    DESTINATION_UNAVAILABLE = 11
    """The row's destination refuses everything, and its policy gives such rows up."""

    UNITS_MISSING = 12
    UNITS_NEGATIVE = 13
    UNITS_TOO_LARGE = 14


REASONS = ("", *(reason.name.lower() for reason in list(Reason)[1:]))
"""The word for every `Reason`, by its number."""

UNUSABLE_AMOUNTS = (
    (Reason.SIZE_MISSING, Reason.SIZE_NEGATIVE, Reason.SIZE_TOO_LARGE),
    (Reason.UNITS_MISSING, Reason.UNITS_NEGATIVE, Reason.UNITS_TOO_LARGE),
)
"""By the place of an amount in `AMOUNTS`: why a row is rejected that has none, a negative one, or too much of it."""

DIMENSIONS = (*(dimension.name.lower() for dimension in Dimension), *(key for key, _, _ in BUDGETS))
"""The word for what refused or marked a row, by its number: a `Dimension`, or a budget."""


def counted_as(dimension: int, unit: str) -> str:
    """Return the word of `DIMENSIONS` with the name that a policy gives its unit.

    Examples
    --------
    >>> counted_as(2, "tokens"), counted_as(10, "tokens"), counted_as(1, "tokens")
    ('tokens', 'tokens_per_hour', 'bytes')
    """
    return re.sub("^units", unit, DIMENSIONS[dimension])


MAX_NAMESPACE_BYTES = 1024
"""The greatest length of a namespace's name, in bytes."""


Int8s = npt.NDArray[np.int8]
Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Causes:
    """The causes of decisions; arrays run over the causes."""

    reason: Int8s
    """The `Reason` for the decision; for an admitted row, the reason why an observing scope would have held it."""

    level: Int8s
    """The `Level` that refused or marked the row, -1 where none did."""

    dimension: Int8s
    """What refused or marked the row, as a position in `DIMENSIONS`; -1 where nothing did."""

    scope: Int64s
    """The position of the shared scope that refused or marked the row; -1 for the row's own namespace, or for none."""

    throttle_time_ms: Int64s

    def __len__(self) -> int:
        return len(self.scope)

    @classmethod
    def of(
        cls,
        reason: Reason | Int8s,
        *,
        level: Int64s | int = -1,
        dimension: Int64s | int = -1,
        scope: Int64s | int = -1,
        wait_ms: Int64s | int = 0,
    ) -> Causes:
        """Return one cause per position of the longest argument; a scalar argument applies to all causes."""
        rows = max(np.size(column) for column in (reason, level, dimension, scope, wait_ms))

        def filled(value: Int8s | Int64s | int, dtype: type[np.int8 | np.int64]) -> np.ndarray:
            return np.full(rows, value, dtype=dtype) if np.ndim(value) == 0 else np.asarray(value, dtype=dtype)

        return cls(
            filled(reason, np.int8), filled(level, np.int8), filled(dimension, np.int8), filled(scope, np.int64),
            filled(wait_ms, np.int64),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Decisions:
    """The decisions on all rows; arrays run over the queued rows, then the arrivals."""

    verdict: Int8s
    cause: Int32s
    """The cause of the decision, as a position in `causes`."""

    causes: Causes

    def take(self, rows: Int64s) -> Decisions:
        """Return the decisions on `rows`."""
        return Decisions(self.verdict[rows], self.cause[rows], self.causes)

    @property
    def reason(self) -> Int8s:
        """`Causes.reason` of every row."""
        return self.causes.reason[self.cause]

    @property
    def level(self) -> Int8s:
        """`Causes.level` of every row."""
        return self.causes.level[self.cause]

    @property
    def dimension(self) -> Int8s:
        """`Causes.dimension` of every row."""
        return self.causes.dimension[self.cause]

    @property
    def scope(self) -> Int64s:
        """`Causes.scope` of every row."""
        return self.causes.scope[self.cause]

    @property
    def throttle_time_ms(self) -> Int64s:
        """`Causes.throttle_time_ms` of every row."""
        return self.causes.throttle_time_ms[self.cause]


class DecisionDraft:
    """Decisions in the making: a row is admitted unless it is decided otherwise, and the last decision counts."""

    def __init__(self, rows: int) -> None:
        self.verdict = np.full(rows, Verdict.ADMIT, dtype=np.int8)
        self._cause = np.zeros(rows, dtype=np.int32)
        self._causes = [Causes.of(Reason.NONE)]

    def decide(self, rows: Int64s, verdict: Verdict | Int8s, causes: Causes, cause: Int64s | int = 0) -> None:
        """Overwrite the decisions on `rows`; `cause` is a position in `causes`."""
        if len(rows):
            self.verdict[rows] = verdict
            # NumPy puts numbers of the same type in their places several times as fast as others.
            self._cause[rows] = np.asarray(cause, dtype=np.int32) + np.int32(sum(map(len, self._causes)))
            self._causes.append(causes)

    def decided(self) -> Decisions:
        """Return the decisions."""
        tables = self._causes
        return Decisions(
            self.verdict,
            self._cause,
            Causes(*(np.concatenate([getattr(table, column) for table in tables]) for column in Causes.__slots__)),
        )
