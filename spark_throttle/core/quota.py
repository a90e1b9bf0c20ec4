"""Quotas as columns: what every scope may use, ready for arithmetic over all scopes at once.

A token is a message or a byte. Rates are whole millitokens a second, which are whole micro-tokens a
millisecond, so a refill over Spark's millisecond clock is an exact integer product. Bursts and balances
are micro-tokens. A rate of `UNLIMITED` means that the scope has no limit in that dimension; a rate of 0
is a limit that admits nothing.

Shared scopes (the job, tenants, resource groups) have one index space, in this order::

    0                     the job
    1 … T                 tenants, in the order of `tenant_names`
    T+1 … T+G             resource groups, in the order of `group_names`
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64s: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

MICRO = 1_000_000
"""Micro-tokens a token."""

UNLIMITED = -1
"""The rate of a dimension that has no limit."""

MAX_BURST_TOKENS = 2**40
"""Largest burst, and largest rate a second: with a message of debt, micro-tokens stay far inside int64."""

MAX_SIZE_BYTES = 2**36
"""Largest size of one message; the sizes of 2**27 of them can be summed in int64."""

MIN_BALANCE_MICRO = -(2**61)
"""Where every debt stops growing."""

NEVER_MS = 2**62
"""A wait that does not end, in arrays of throttle times."""


class Dimension(IntEnum):
    """What a limit counts."""

    MESSAGES = 0
    BYTES = 1


class Level(IntEnum):
    """Where a limit stands, from the narrowest to the widest."""

    NAMESPACE = 0
    TENANT = 1
    RESOURCE_GROUP = 2
    JOB = 3


class OnExcess(IntEnum):
    """What a scope does with what exceeds its quota; `OBSERVE` only reports."""

    DELAY = 0
    REJECT = 1
    OBSERVE = 2


class Verdict(IntEnum):
    """What becomes of a row."""

    ADMIT = 0
    DELAY = 1
    REJECT = 2


class Overflow(IntEnum):
    """What a full queue does with a row that should wait."""

    REJECT = 0
    FAIL = 1


@dataclass(frozen=True, slots=True, eq=False)
class Limits:
    """The limits of many scopes, one position a scope."""

    rate_micro_per_ms: Int64s
    """Shape (n, 2), by `Dimension`: micro-tokens a millisecond, `UNLIMITED` where absent."""

    burst_micro: Int64s
    """Shape (n, 2): what a full bucket holds; 0 where unlimited."""

    on_excess: Int64s
    """Shape (n,): an `OnExcess`."""

    weight: Int64s
    """Shape (n,): claim in the division of what is shared, at least 1."""

    max_message_bytes: Int64s | None = None
    """Shape (n,): size of the largest message that may pass, `MAX_SIZE_BYTES` where absent; `None` where all are."""

    def __len__(self) -> int:
        return len(self.weight)

    @property
    def is_limited(self) -> Bools:
        """Shape (n, 2): whether the dimension has a limit."""
        return self.rate_micro_per_ms != UNLIMITED

    def take(self, index: Int64s) -> Limits:
        """Return the limits at `index`, in that order."""
        return Limits(
            self.rate_micro_per_ms.take(index, axis=0),
            self.burst_micro.take(index, axis=0),
            self.on_excess[index],
            self.weight[index],
            None if self.max_message_bytes is None else self.max_message_bytes[index],
        )


@dataclass(frozen=True, slots=True, eq=False)
class WindowRules:
    """Pegasus' rules of many namespaces: thresholds a wall-clock second, by `Dimension`; 0 units is off."""

    delay_units: Int64s
    """Shape (n, 2): what may pass in a second before delay begins."""

    delay_ms: Int64s
    """Shape (n, 2): how long a delayed row waits."""

    reject_units: Int64s
    """Shape (n, 2): what may pass in a second before rejection begins."""

    reject_ms: Int64s
    """Shape (n, 2): the throttle time that a rejected row is told."""

    def __len__(self) -> int:
        return len(self.delay_units)

    @property
    def has_rule(self) -> Bools:
        """Shape (n,): whether the rules do anything."""
        return np.logical_or.reduce((self.delay_units > 0) | (self.reject_units > 0), axis=1)

    def take(self, index: Int64s) -> WindowRules:
        """Return the rules at `index`, in that order."""
        return WindowRules(
            self.delay_units[index], self.delay_ms[index], self.reject_units[index], self.reject_ms[index]
        )


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """How much may wait in the whole job, and for how long; `None` is no bound on age."""

    messages: int
    bytes: int
    age_ms: int | None
    on_overflow: Overflow


@dataclass(frozen=True, slots=True, eq=False)
class CompiledPolicy:
    """One direction of one policy revision, with every name resolved to an index."""

    revision: str
    """Names the content; equal revisions hold equal policies."""

    shared: Limits
    """The shared scopes: the job, the tenants, the resource groups (see the module's header)."""

    tenant_names: pa.StringArray
    group_names: pa.StringArray

    tenant_group: Int64s
    """Shape (T,): the position in `group_names` that a tenant names, -1 for none."""

    namespace_names: pa.StringArray
    """The namespaces that the policy names."""

    glob_patterns: pa.StringArray
    """The globs over namespaces that the policy has, most specific first (`globs.specificity`)."""

    exempt_names: pa.StringArray
    """Namespaces that no quota holds."""

    exempt_globs: pa.StringArray
    """Globs of such namespaces."""

    namespace_limits: Limits
    """Of the named namespaces, then of those under each glob, then, where the policy exempts any, one position without
    limits for these, then one for those that no name and no glob means."""

    namespace_windows: WindowRules
    """As `namespace_limits`."""

    namespace_group: Int64s
    """As `namespace_limits`: own group as a position in `group_names`, -1 for none."""

    queue: QueueBounds

    @property
    def exempt_rule(self) -> int:
        """Position in `namespace_limits` of the exempt namespaces, where there are any."""
        return len(self.namespace_limits) - 2

    @property
    def default_rule(self) -> int:
        """Position in `namespace_limits` of the namespaces that no name and no glob means."""
        return len(self.namespace_limits) - 1
