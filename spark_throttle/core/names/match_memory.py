"""The matches of the namespaces that the decider remembered last, so that a batch resolves only names that are new.

To resolve a name costs a hash and a split, which is more than anything else that a batch does for a namespace without
rows. The names that are remembered after one batch are those that are known before the next. So the process keeps
their matches, and finds them again by content: equal names under the same policy have equal matches. No decision
depends on this memory, which is empty when a process starts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa

from spark_throttle.core.names.matching import Matches, match
from spark_throttle.core.quota import CompiledPolicy, Int64s

_MOST_NAMES = 1 << 20
_MOST_TABLES = 256


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """The names that were remembered after a batch, and their matches."""

    names: pa.StringArray
    matches: Matches
    policy: CompiledPolicy

    def is_of(self, names: pa.StringArray, policy: CompiledPolicy) -> bool:
        """Return whether this table holds the matches of `names` under `policy`; its queue bounds do not matter."""
        return len(names) == len(self.names) and self._is_under(policy) and names.equals(self.names)

    def _is_under(self, policy: CompiledPolicy) -> bool:
        columns = (field.name for field in fields(policy) if field.name != "queue")
        return all(getattr(policy, column) is getattr(self.policy, column) for column in columns)


class MatchMemory:
    """The matches of the batches that this process decided last; beyond a million names, the oldest are dropped."""

    def __init__(self) -> None:
        self._tables: list[_Table] = []

    def match(self, known: pa.StringArray, new: pa.StringArray, policy: CompiledPolicy) -> Matches:
        """Resolve `known`, whose matches may have been kept, then `new`."""
        for table in reversed(self._tables):
            if table.is_of(known, policy):
                self._tables.remove(table)
                return _joined(table.matches, match(new, policy)) if len(new) else table.matches
        return match(pa.concat_arrays([known, new]), policy)

    def keep(self, names: pa.StringArray, matches: Matches, policy: CompiledPolicy) -> None:
        """Keep the matches of `names` for the next batch."""
        self._tables.append(_Table(names, matches, policy))
        while len(self._tables) > _MOST_TABLES or sum(len(table.names) for table in self._tables) > _MOST_NAMES:
            del self._tables[0]


def taken(matches: Matches, at: Int64s) -> Matches:
    """Return the matches at `at`."""
    return Matches(*(getattr(matches, field.name).take(at, axis=0) for field in fields(matches)))


def _joined(first: Matches, second: Matches) -> Matches:
    pairs = ((getattr(first, field.name), getattr(second, field.name)) for field in fields(first))
    return Matches(*(np.concatenate(pair) for pair in pairs))
