"""What functions charge for the rows of a batch: processing time by namespace, and late costs by identity.

Both are known after the work was done, so they are charged afterwards: what a batch charged is known when the next one
is planned. Time is debited from the quotas on it (`measured_time`), and a late cost settles a reservation
(`reservations`). Measuring is not the core's business; it is given sums.

Source: KIP-124, "Request rate quotas".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.arithmetic.segments import sums
from spark_throttle.core.quota import MOST_NS, Int64s
from spark_throttle.core.reservations import LateCosts

_HALF_BITS = 28


@dataclass(frozen=True, slots=True, eq=False)
class Lot:
    """Rows that were worked on together, by namespace."""

    time_ns: int
    names: pa.StringArray
    """The namespaces; null for rows of none."""

    rows: Int64s
    """For each entry, the number of its rows; less than ``2**31`` together."""


@dataclass(frozen=True, slots=True, eq=False)
class TimeCharges:
    """The processing time that functions used for rows, and what they told of late costs.

    Examples
    --------
    >>> parts = [TimeCharges.of({"acme/a": 5, "acme/b": 7}), TimeCharges.of({"acme/a": 1}, unattributed_ns=2)]
    >>> both = TimeCharges.sum_of(parts)
    >>> both.names.to_pylist(), both.time_ns.tolist(), both.unattributed_ns
    (['acme/a', 'acme/b'], [6, 7], 2)
    """

    names: pa.StringArray
    """The namespaces, each once, in the order of their bytes."""

    time_ns: Int64s
    """For each of them, the time that was used for its rows."""

    unattributed_ns: int = 0
    """The time that was used for no namespace's rows; it is measured, and limits nobody."""

    common_ns: Int64s | None = None
    """For each namespace, the part of its time that all rows of the batch used together, divided by rows; `None` if
    there is none."""

    costs: LateCosts | None = None
    """What rows that were reserved really cost; `None` if nothing was told of any."""

    @classmethod
    def of(cls, time_ns: dict[str, int], *, unattributed_ns: int = 0, costs: LateCosts | None = None) -> TimeCharges:
        """Return the charges of namespaces by name, and late costs."""
        each_ns = np.fromiter((min(each, MOST_NS) for each in time_ns.values()), np.int64, len(time_ns))
        names = pa.array(list(time_ns), pa.string())
        return cls.sum_of([cls(names, each_ns, unattributed_ns, costs=costs)])

    @classmethod
    def divided(cls, lots: Sequence[Lot]) -> TimeCharges:
        """Return the charges for lots of rows that were worked on together: each row of a lot costs the same.

        No nanosecond is lost. A part differs by less than one from its exact value.

        Examples
        --------
        >>> charges = TimeCharges.divided([Lot(1000, pa.array(["acme/b", "acme/a"]), np.array([2, 1]))])
        >>> charges.names.to_pylist(), charges.time_ns.tolist()
        (['acme/a', 'acme/b'], [334, 666])
        """
        rows = np.concatenate([np.zeros(0, dtype=np.int64), *(lot.rows for lot in lots)])
        of_lot = np.repeat(np.arange(len(lots)), [len(lot.rows) for lot in lots])
        time_ns, total = np.array([lot.time_ns for lot in lots], dtype=np.int64), sums(of_lot, rows, len(lots))
        nobody_ns = int(time_ns[total == 0].sum())
        a_row_ns, rest_ns = np.divmod(time_ns, np.maximum(total, 1))
        until = np.cumsum(rows)
        end = until - (np.cumsum(total) - total)[of_lot]

        def up_to(row: Int64s) -> Int64s:
            return a_row_ns[of_lot] * row + rest_ns[of_lot] * row // np.maximum(total, 1)[of_lot]

        each_ns = up_to(end) - up_to(end - rows)
        names = pa.concat_arrays([pa.array([], pa.string()), *(lot.names for lot in lots)])
        if names.null_count:
            is_named = names.is_valid().to_numpy(zero_copy_only=False)
            nobody_ns += int(each_ns[~is_named].sum())
            names, each_ns = names.drop_null(), each_ns[is_named]
        return cls.sum_of([cls(names, each_ns, nobody_ns)])

    @classmethod
    def common(cls, time_ns: int, names: pa.StringArray, rows: Int64s) -> TimeCharges:
        """Return the charges for time that all rows of a batch used together: each row costs the same.

        Parameters
        ----------
        names, rows
            The namespaces of the batch, and the number of rows of each.

        Examples
        --------
        >>> charges = TimeCharges.common(30, pa.array(["acme/a", "acme/b"]), np.array([1, 2]))
        >>> both = TimeCharges.sum_of([charges, TimeCharges.of({"acme/b": 7})])
        >>> both.time_ns.tolist(), both.specific_ns.tolist()
        ([10, 27], [0, 7])
        """
        divided = cls.divided([Lot(time_ns, names, rows)])
        return replace(divided, common_ns=divided.time_ns)

    @classmethod
    def sum_of(cls, parts: Sequence[TimeCharges]) -> TimeCharges:
        """Return the charges of all parts together; none for no parts."""
        unattributed_ns = min(sum(part.unattributed_ns for part in parts), MOST_NS)
        told = [part.costs for part in parts if part.costs is not None]
        costs = LateCosts.sum_of(told) if told else None
        names = pa.concat_arrays([pa.array([], pa.string()), *(part.names for part in parts)])
        if not len(names):
            return cls(names, np.zeros(0, dtype=np.int64), unattributed_ns, costs=costs)
        coded = names.dictionary_encode()
        key = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        time_ns = sums_of_time(key, np.concatenate([part.time_ns for part in parts]), len(coded.dictionary))
        order = pc.sort_indices(coded.dictionary)
        sorted_names, at, common_ns = coded.dictionary.take(order), order.to_numpy(), None
        if any(part.common_ns is not None for part in parts):
            each_ns = np.concatenate([part.time_ns - part.specific_ns for part in parts])
            common_ns = sums_of_time(key, each_ns, len(coded.dictionary))[at]
        return cls(sorted_names, time_ns[at], unattributed_ns, common_ns, costs)

    @property
    def specific_ns(self) -> Int64s:
        """The time of each namespace that was not common to the batch."""
        return self.time_ns if self.common_ns is None else np.maximum(self.time_ns - self.common_ns, 0)


def sums_of_time(key: Int64s, time_ns: Int64s, keys: int) -> Int64s:
    """Return the sum of processing times for each key, at most `MOST_NS`.

    Examples
    --------
    >>> sums_of_time(np.array([0, 1, 1]), np.array([7, MOST_NS, MOST_NS]), 2).tolist() == [7, MOST_NS]
    True
    """
    each_ns = np.clip(time_ns, 0, MOST_NS)
    is_over = sums(key, each_ns >> _HALF_BITS, keys) >= MOST_NS >> _HALF_BITS  # else the sum itself fits in int64
    return np.where(is_over, MOST_NS, np.minimum(sums(key, each_ns, keys), MOST_NS))
