"""Why a row was delayed, rejected or marked: a closed set, stored as numbers, shown as words."""

from __future__ import annotations

from enum import IntEnum


class Reason(IntEnum):
    """Why a row was not simply admitted; `NONE` where it was."""

    NONE = 0
    QUOTA = 1
    THROTTLING = 2
    """A Pegasus rule of the namespace."""

    QUEUE_FULL = 3
    QUEUE_AGE = 4
    NAMESPACE_MISSING = 5
    NAMESPACE_TOO_LONG = 6
    SIZE_MISSING = 7
    SIZE_NEGATIVE = 8
    SIZE_TOO_LARGE = 9
    PARTITION_UNWRITABLE = 10
    """The sink has no place for the value that the row is partitioned by (`spark.rows.partition_names`)."""


REASONS = ("", *(reason.name.lower() for reason in list(Reason)[1:]))
"""The word of every `Reason`, by its number."""

MAX_NAMESPACE_BYTES = 1024
"""Longest name of a namespace, in UTF-8."""
