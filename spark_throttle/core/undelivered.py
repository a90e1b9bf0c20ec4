"""Rows of a batch that were not delivered, by namespace and place, and whether anybody may have taken them.

An epoch pins it for the batch that follows (`left_rows`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_throttle.core.quota import Bools, Int64s


class UndeliveredCall(NamedTuple):
    """Consecutive rows of a namespace, by their place among its rows that left in the batch."""

    namespace: str
    place: int
    rows: int
    key_batch: int = -1
    """The batch of the key under which they are sent again, if they may have been taken; else -1."""

    key_identity: str = ""
    key_place: int = 0

    def ends_at(self, namespace: str, place: int) -> bool:
        """Return whether the next row is that of a namespace at a place."""
        return self.namespace == namespace and self.place + self.rows == place


@dataclass(frozen=True, slots=True, eq=False)
class Undelivered:
    """What was not delivered; arrays run over runs of rows, which do not overlap."""

    names: pa.StringArray
    """The namespace of each run."""

    place: Int64s
    """The place of its first row among the namespace's rows that left in the batch."""

    rows: Int64s
    key_batch: Int64s
    """The batch of the key under which the run is sent again, if it may have been taken; else -1."""

    key_identity: pa.StringArray
    key_place: Int64s

    @property
    def is_again(self) -> Bools:
        """Whether the rows of each run may have been taken."""
        return self.key_batch >= 0

    @classmethod
    def of(cls, calls: Iterable[UndeliveredCall], names: pa.StringArray | None = None) -> Undelivered:
        """Return runs as arrays.

        Parameters
        ----------
        names
            The names of their namespaces, where these are no text.
        """
        found = list(calls)
        numbers = np.array(
            [(each.place, each.rows, each.key_batch, each.key_place) for each in found], dtype=np.int64
        ).reshape(-1, 4)
        given = pa.array([each.namespace for each in found], pa.string()) if names is None else names
        place, rows, key_batch, key_place = (np.ascontiguousarray(column) for column in numbers.T)
        return cls(
            given, place, rows, key_batch, pa.array([each.key_identity for each in found], pa.string()), key_place
        )
