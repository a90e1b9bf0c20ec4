"""Quotas as columns: what every scope may use, ready for arithmetic over all scopes at once.

A token is a message, a byte, a unit of what the policy names, or a millisecond of one core. Rates are whole millitokens
per second, which are whole micro-tokens per millisecond, so a refill over Spark's millisecond clock is an exact integer
product. Bursts and balances are in micro-tokens; of time, these are nanoseconds. A rate of `UNLIMITED` means that the
scope has no limit in that dimension; a rate of 0 is a limit that admits nothing.

What rows take is counted in messages, bytes, units and nanoseconds (`token_bucket.in_micro`). A batch is estimated to
take at most `MOST_NS` of time, and is charged at most as much, so that every sum of it stays in int64.

Shared scopes (the job, tenants, resource groups) share one index space, in this order::

    0                     the job
    1 … T                 tenants, in the order of `tenant_names`
    T+1 … T+G             resource groups, in the order of `group_names`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64s: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

MICRO = 1_000_000
"""Micro-tokens in a token."""

UNLIMITED = -1
"""The rate of a dimension that has no limit."""

UNBOUNDED = 2**62
"""A bound that holds nothing back: greater than any that can be set."""

MAX_BURST_TOKENS = 2**40
"""The largest burst, and the largest rate per second: with a message of debt, micro-tokens stay far inside int64."""

MAX_BUDGET_TOKENS = 2**53
"""The largest budget of an hour, a day or a month: JSON's numbers are exact up to it."""

MAX_SIZE_BYTES = 2**36
"""The largest size of one message; the sizes of 2**27 such messages can be summed in int64."""

MAX_UNITS = MAX_SIZE_BYTES
"""The most units of one message."""

MIN_BALANCE_MICRO = -(2**61)
"""The balance at which every debt stops growing."""

MOST_NS = 2**56
"""The most time that a batch takes, and that it is charged to anybody: 834 days of a core. What is more is cut."""

NEVER_MS = 2**62
"""A wait without end, in arrays of throttle times."""


class Dimension(IntEnum):
    """What a limit counts."""

    MESSAGES = 0
    BYTES = 1
    UNITS = 2
    """What the rows say that they cost, in a unit that the policy names."""

    TIME = 3
    """Processing time (KIP-124), which is measured afterwards; the others are known when a row arrives."""


KNOWN = tuple(dimension for dimension in Dimension if dimension < Dimension.TIME)
"""The dimensions in which a row's cost is known when it arrives: a table of them has the first columns of all."""

AMOUNTS = KNOWN[1:]
"""Those in which it differs from row to row: each row has its amount of them, behind being one message."""

MOST_OF_AMOUNTS = (MAX_SIZE_BYTES, MAX_UNITS)
"""The largest amounts of one message."""


class Period(IntEnum):
    """The time of a budget, from the shortest to the longest."""

    HOUR = 0
    DAY = 1
    MONTH = 2


BOUNDS_OF_AMOUNTS = tuple(f"max_message_{dimension.name.lower()}" for dimension in AMOUNTS)
"""The keys that bound the amounts of one message."""

BUDGETS = tuple(
    (f"{dimension.name}_per_{period.name}".lower(), dimension, period) for dimension in KNOWN for period in Period
)
"""The keys of budgets, with what they count and in which time."""


class Level(IntEnum):
    """The kind of scope that a limit belongs to, from the narrowest to the widest."""

    NAMESPACE = 0
    TENANT = 1
    RESOURCE_GROUP = 2
    JOB = 3


class OnExcess(IntEnum):
    """What a scope does with rows beyond its quota; `OBSERVE` only reports them."""

    DELAY = 0
    REJECT = 1
    OBSERVE = 2


class Verdict(IntEnum):
    """The decision on a row."""

    ADMIT = 0
    DELAY = 1
    REJECT = 2


class Overflow(IntEnum):
    """What to do when a row has to wait and the queue is full."""

    REJECT = 0
    FAIL = 1


@dataclass(frozen=True, slots=True, eq=False)
class Limits:
    """The limits of many scopes, one position per scope."""

    rate_micro_per_ms: Int64s
    """Shape (n, 4), by `Dimension`: micro-tokens per millisecond, `UNLIMITED` where no limit is set."""

    burst_micro: Int64s
    """Shape (n, 4): the balance of a full bucket; 0 where unlimited."""

    on_excess: Int64s
    """Shape (n,): an `OnExcess`."""

    weight: Int64s
    """Shape (n,): the weight in the division of shared tokens, at least 1."""

    settings: Mapping[str, Int64s] = field(default_factory=dict)
    """Shape (n,), by the key of a policy, such as `max_message_bytes` or `fair_between`: a number, `UNBOUNDED` where a
    scope has none, or the position of a word among those that the key may have. A key that no scope sets is absent."""

    def __len__(self) -> int:
        return len(self.weight)

    @property
    def is_limited(self) -> Bools:
        """Whether each dimension has a limit, shape (n, 4)."""
        return self.rate_micro_per_ms != UNLIMITED

    @property
    def is_enforced(self) -> Bools:
        """Whether each dimension has a limit that can hold rows back, shape (n, 4); one that observes cannot."""
        return self.is_limited & (self.on_excess != OnExcess.OBSERVE)[:, None]

    @property
    def budgets(self) -> tuple[int, ...]:
        """Which of `BUDGETS` any scope has, ascending."""
        return tuple(at for at, (key, _, _) in enumerate(BUDGETS) if key in self.settings) if self.settings else ()

    @property
    def periods(self) -> tuple[Period, ...]:
        """The periods for which any scope has a budget."""
        return tuple(BUDGETS[at][2] for at in self.budgets)

    @property
    def has_any(self) -> Bools:
        """Whether each scope has a limit or a budget, shape (n,)."""
        found: Bools = np.logical_or.reduce(self.is_limited.T)
        for at in self.budgets:
            found |= self.settings[BUDGETS[at][0]] < UNBOUNDED
        return found

    @property
    def may_hold(self) -> Bools:
        """Whether each scope has a limit or a budget that can hold rows back, shape (n,)."""
        return self.has_any & (self.on_excess != OnExcess.OBSERVE)

    @property
    def has_time(self) -> bool:
        """Whether any scope has a limit on processing time."""
        return int(self.rate_micro_per_ms[:, Dimension.TIME].max(initial=UNLIMITED)) > UNLIMITED

    @property
    def has_units(self) -> bool:
        """Whether any scope has a limit, a budget or a bound of units."""
        is_limited = int(self.rate_micro_per_ms[:, Dimension.UNITS].max(initial=UNLIMITED)) > UNLIMITED
        has_budget = any(BUDGETS[at][1] == Dimension.UNITS for at in self.budgets)
        return is_limited or has_budget or BOUNDS_OF_AMOUNTS[1] in self.settings

    def take(self, index: Int64s) -> Limits:
        """Return the limits at `index`, in that order."""
        return Limits(
            self.rate_micro_per_ms.take(index, axis=0),
            self.burst_micro.take(index, axis=0),
            self.on_excess[index],
            self.weight[index],
            {key: column[index] for key, column in self.settings.items()},
        )


@dataclass(frozen=True, slots=True, eq=False)
class WindowRules:
    """The Pegasus rules of namespaces: thresholds per wall-clock second, of messages and bytes; 0 units means off."""

    delay_units: Int64s
    """Shape (n, 2): the units that may pass in a second before delay begins."""

    delay_ms: Int64s
    """Shape (n, 2): how long a delayed row waits."""

    reject_units: Int64s
    """Shape (n, 2): the units that may pass in a second before rejection begins."""

    reject_ms: Int64s
    """Shape (n, 2): the throttle time reported with a rejected row."""

    def __len__(self) -> int:
        return len(self.delay_units)

    @property
    def has_rule(self) -> Bools:
        """Whether each namespace has a threshold that is on, shape (n,)."""
        return np.logical_or.reduce((self.delay_units > 0) | (self.reject_units > 0), axis=1)

    def take(self, index: Int64s) -> WindowRules:
        """Return the rules at `index`, in that order."""
        return WindowRules(
            self.delay_units.take(index, axis=0),
            self.delay_ms.take(index, axis=0),
            self.reject_units.take(index, axis=0),
            self.reject_ms.take(index, axis=0),
        )


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """How much may wait in the whole job, and for how long; an age of `None` is unbounded."""

    messages: int
    bytes: int
    age_ms: int | None
    on_overflow: Overflow


@dataclass(frozen=True, slots=True, eq=False)
class Destinations:
    """The resource groups that stand for destinations, one position each; their quotas in messages are the ceilings."""

    scope: Int64s
    """Shape (n,): the position among the shared scopes."""

    floor_micro_per_ms: Int64s
    """Shape (n,): the lowest rate in messages, above 0."""

    open_after_ms: Int64s
    """Shape (n,): for how long every call must be refused before the destination counts as unavailable."""

    gives_up: Int64s
    """Shape (n,): 1 where rows go to the dead letters while the destination is unavailable."""

    def __len__(self) -> int:
        return len(self.scope)


@dataclass(frozen=True, slots=True, eq=False)
class Guarantees:
    """What scopes are guaranteed of the tokens of those above them, one position each (`fair.guarantees`)."""

    level: Int64s
    """Shape (n,): the `Level` of each scope, none of which is the job."""

    rule: Int64s
    """Shape (n,): the position of a namespace in `namespace_limits`, -1 for the others."""

    way: Int64s
    """Shape (n, 3): the shared scopes of its tenant, its group and the job, -1 where there is none; a tenant and a
    group stand on their own way. What a tenant is guaranteed is for its namespaces in this group alone."""

    rate_micro_per_ms: Int64s
    """Shape (n, 4), by `Dimension`: as in `Limits`; `UNLIMITED` where nothing is said, because no scope above limits
    it."""

    burst_ms: Int64s
    """Shape (n,): the longest time whose tokens are kept for rows that wait."""

    earning_ms: Int64s
    """Shape (n, 4): the longest time whose tokens are earned at once: the scopes above keep those of no longer."""

    def __len__(self) -> int:
        return len(self.level)

    @property
    def scope(self) -> Int64s:
        """Shape (n,): the shared scope itself, -1 for a namespace."""
        at = np.maximum(self.level - Level.TENANT, 0)
        return np.where(self.level == Level.NAMESPACE, -1, self.way[np.arange(len(self)), at])


@dataclass(frozen=True, slots=True, eq=False)
class CompiledPolicy:
    """One direction of one policy revision, with every name resolved to an index."""

    revision: str
    """The name of the content; equal revisions hold equal policies."""

    shared: Limits
    """The limits of the shared scopes: the job, the tenants, the resource groups (see the module's header)."""

    tenant_names: pa.StringArray
    group_names: pa.StringArray

    tenant_group: Int64s
    """Shape (T,): the group that each tenant names, as a position in `group_names`; -1 for none."""

    namespace_names: pa.StringArray
    """The namespaces that the policy names."""

    glob_patterns: pa.StringArray
    """The policy's globs over namespaces, most specific first (`globs.specificity`)."""

    exempt_names: pa.StringArray
    """The namespaces to which no quota applies, by name."""

    exempt_globs: pa.StringArray
    """The namespaces to which no quota applies, by glob."""

    namespace_limits: Limits
    """The limits of namespaces by themselves, one position per rule: the named namespaces, then the globs, then, if the
    policy exempts any namespace, one position without limits for those, then the default for all other namespaces."""

    namespace_windows: WindowRules
    """The Pegasus rules, at the positions of `namespace_limits`."""

    namespace_group: Int64s
    """The group that each rule itself names, at the positions of `namespace_limits`: a position in `group_names`, or -1
    for none."""

    queue: QueueBounds

    destinations: Destinations | None = None
    """`None` if no resource group stands for a destination."""

    guarantees: Guarantees | None = None
    """`None` if nobody is guaranteed anything."""

    time_zone: str = "UTC"
    """The zone of the calendar by which budgets begin anew."""

    reservation_ms: int = 600_000
    """After how long a row whose cost nobody tells has cost what was estimated."""

    unit: str = "units"
    """What units are called."""

    @property
    def is_between_namespaces(self) -> Bools:
        """Shape (scopes,): whether namespaces, and not tenants, divide the tokens of each shared scope."""
        nowhere = np.zeros(len(self.shared), dtype=np.int64)
        return self.shared.settings.get("fair_between", nowhere) > 0

    @property
    def has_time(self) -> bool:
        """Whether any scope has a quota on processing time."""
        return self.shared.has_time or self.namespace_limits.has_time

    @property
    def has_units(self) -> bool:
        """Whether any scope has a limit, a budget or a bound of units."""
        return self.shared.has_units or self.namespace_limits.has_units

    @property
    def limits_nothing(self) -> bool:
        """Whether no scope has a quota, a budget, a bound of its messages, or a rule of Pegasus."""
        each = self.shared, self.namespace_limits
        has_limit = any(limits.has_any.any() or {*BOUNDS_OF_AMOUNTS} & limits.settings.keys() for limits in each)
        return not (has_limit or self.namespace_windows.has_rule.any())

    @property
    def exempt_rule(self) -> int:
        """The position of the exempt namespaces in `namespace_limits`, if the policy exempts any."""
        return len(self.namespace_limits) - 2

    @property
    def default_rule(self) -> int:
        """The position in `namespace_limits` of the default: the namespaces that no name and no glob covers."""
        return len(self.namespace_limits) - 1
