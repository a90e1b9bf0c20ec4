"""What a job will report of its own scopes, held in the few bytes that it is reported in.

What was measured is put at once as it will be told, and not kept: rates as codes, and what changed too little as it was
told before. After a report, its arrays are the job's only ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from spark_throttle.core.arithmetic.rate_codes import Codes, decode, encode
from spark_throttle.core.quota import UNLIMITED, Int64s
from spark_throttle.sharing.division import is_news
from spark_throttle.sharing.measurement import Measurement
from spark_throttle.sharing.report import ScopeRows, found_in, narrowed
from spark_throttle.sharing.settings import ShareSettings

Numbers: TypeAlias = npt.NDArray[np.int32]

_UNLIMITED = np.uint32(0xFFFF_FFFF)
"""No rate has this code."""


@dataclass(frozen=True, slots=True, eq=False)
class OwnScopes:
    """The scopes that a job uses."""

    ids: Int64s
    """Ascending."""

    quota_codes: Codes
    rows: ScopeRows
    """Of the next report, but for the claims."""

    reported_at: Numbers
    """Number of the report that each row is of."""

    @classmethod
    def nothing(cls) -> OwnScopes:
        """Return no scopes."""
        rows = ScopeRows.empty()
        return cls(rows.ids, rows.claim, rows, np.zeros(0, dtype=np.int32))

    @classmethod
    def drafted(
        cls,
        settings: ShareSettings,
        measured: Measurement,
        old: ScopeRows,
        reported_at: Numbers,
        number: int,
        ids: Int64s,
    ) -> OwnScopes:
        """Return what the report `number` will say of a measurement.

        Parameters
        ----------
        old, reported_at
            The rows of the last report, and of which report each is.
        ids
            An array that is kept if it holds the same scopes.
        """
        ids = ids if np.array_equal(ids, measured.ids) else measured.ids
        n = len(ids)
        pairs = np.zeros((n, 2), dtype=np.uint32)
        bins = np.bincount(measured.bin_row, minlength=n).astype(np.uint8)
        weight = np.minimum(measured.bin_weight, np.iinfo(np.uint32).max).astype(np.uint32)
        new = ScopeRows(
            ids, pairs, pairs.astype(np.uint8), encode(measured.usage), bins, encode(measured.bin_demand),
            narrowed(weight),
        )  # fmt: skip
        numbers = np.full(n, number, dtype=np.int32)
        mine = np.flatnonzero(found_in(old.ids, ids))
        at = np.searchsorted(ids, old.ids[mine])
        known = old.take(mine)
        stands = np.flatnonzero(~is_news(settings, new.take(at), known, number - reported_at[mine].astype(np.int64)))
        numbers[at[stands]] = reported_at[mine[stands]]
        rows = new.updated(known.take(stands), np.zeros(0, dtype=np.int64))
        quota = np.where(measured.quota == UNLIMITED, _UNLIMITED, encode(np.maximum(measured.quota, 0)))
        return cls(ids, quota.astype(np.uint32), replace(rows, ids=ids), numbers)

    @property
    def quota(self) -> Int64s:
        """Shape (n, 2): rounded down to what has a code, by every job alike; `UNLIMITED` where there is none."""
        return np.where(self.quota_codes == _UNLIMITED, UNLIMITED, decode(self.quota_codes))
