"""The reasons for which a row is delayed, rejected or marked: a closed set, stored as numbers and shown as words."""

from __future__ import annotations

from enum import IntEnum

from spark_throttle.core.quota import Dimension


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


REASONS = ("", *(reason.name.lower() for reason in list(Reason)[1:]))
"""The word for every `Reason`, by its number."""

DIMENSIONS = tuple(dimension.name.lower() for dimension in Dimension)
"""The word for what refused or marked a row, by its number."""

MAX_NAMESPACE_BYTES = 1024
"""The greatest length of a namespace's name, in bytes."""
