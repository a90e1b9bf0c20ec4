"""The processing time of a job's scopes since the watch began, from the epochs that settled it.

A scope has a total of its own while it is named (`totals`); the rest of a level is summed. A total never shrinks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.admin.watch.totals import OTHER
from spark_throttle.status.ranking import Key
from spark_throttle.status.time_status import ScopeTime, TimeStatus


@dataclass(frozen=True, slots=True)
class TimeTotals:
    """Sums over the epochs that the watch saw."""

    used_ns: Mapping[Key, int] = field(default_factory=dict)
    """The time that was charged, by level and scope; empty if no policy had a quota on processing time."""

    exempt_ns: int = 0
    unattributed_ns: int = 0

    def with_epoch(self, time: TimeStatus, named: Collection[Key]) -> TimeTotals:
        """Return the totals with those of one more epoch; scopes that are not `named` are summed."""
        used_ns = dict(self.used_ns)
        for level in ("job", "tenant", "resource_group"):
            scopes = [scope for of, scope in named if of == level and scope != OTHER]
            rows = time.scopes.filter(pc.equal(time.scopes["level"], level))
            is_named = pc.is_in(rows["scope"], value_set=pa.array(scopes, pa.string()))
            for scope, each_ns in zip(
                *rows.filter(is_named).select(["scope", "used_ns"]).to_pydict().values(), strict=True
            ):
                used_ns[level, scope] = used_ns.get((level, scope), 0) + each_ns
            rest_ns = pc.sum(rows.filter(pc.invert(is_named))["used_ns"]).as_py() or 0
            if rest_ns:
                used_ns[level, OTHER] = used_ns.get((level, OTHER), 0) + rest_ns
        job = time.job
        return TimeTotals(used_ns, self.exempt_ns + job.exempt_ns, self.unattributed_ns + job.unattributed_ns)


def times_of(time: TimeStatus | None, keys: Collection[Key]) -> dict[Key, ScopeTime]:
    """Return the processing time of these scopes, by the newest epoch; nothing without a quota on processing time."""
    if time is None or not keys:
        return {}
    levels, scopes = (pa.chunked_array([pa.array(words, pa.string())]) for words in zip(*keys, strict=True))
    rows = time.of(levels, scopes).to_pylist()
    return {
        (level, scope): ScopeTime(**row)
        for row in rows
        if (level := row.pop("level")) is not None and (scope := row.pop("scope")) is not None
    }
