"""What a job's namespaces want and use of each shared scope, as rates: the result of `control.demand`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from spark_throttle.core.quota import Int64s
from spark_throttle.sharing.report import found_in

_Number = TypeVar("_Number", bound=np.generic)


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """What a job's namespaces want and use of each shared scope, as rates."""

    ids: Int64s
    """Hashes of the scopes' names, ascending."""

    quota: Int64s
    """Shape (n, 2): micro-tokens per millisecond, `UNLIMITED` where there is no limit."""

    usage: Int64s
    """Shape (n, 2): micro-tokens per millisecond."""

    bin_row: Int64s
    """Position in `ids` of each bin of the histograms, ascending."""

    bin_demand: Int64s
    bin_weight: Int64s

    def with_scopes(self, ids: Int64s, quota: Int64s) -> Measurement:
        """Return this measurement with more scopes, in which nothing is wanted or used."""
        if not len(ids):
            return self
        order = np.argsort(np.concatenate([self.ids, ids]), kind="stable")
        position = np.empty_like(order)
        position[order] = np.arange(len(order))
        nothing = np.zeros((len(ids), 2), dtype=np.int64)
        return Measurement(
            np.concatenate([self.ids, ids])[order], np.concatenate([self.quota, quota]).take(order, axis=0),
            np.concatenate([self.usage, nothing]).take(order, axis=0), position[self.bin_row],
            self.bin_demand, self.bin_weight,
        )  # fmt: skip


def moved(values: npt.NDArray[_Number], old: Int64s, new: Int64s) -> npt.NDArray[_Number]:
    """Return the rows of `values`, which are of the scopes `old`, for the scopes `new`; 0 where `old` lacks a scope."""
    out = np.zeros((len(new), *values.shape[1:]), dtype=values.dtype)
    rows = np.flatnonzero(found_in(new, old))
    out[rows] = values.take(np.searchsorted(old, new[rows]), axis=0)
    return out
