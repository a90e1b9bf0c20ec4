"""A tenant is explained with its levels, and with those of its namespaces that wait, each with what holds it.

A name without a slash is a tenant's if the policies or the last batch know a tenant of that name, unless they know it
as a namespace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.names.matching import Matches
from spark_throttle.core.names.shown_names import shown
from spark_throttle.core.quota import CompiledPolicy, Dimension, Int64s
from spark_throttle.core.usage import UsageReport
from spark_throttle.status.explanation import (
    OF_ONE_TENANT,
    Explanation,
    LevelExplanation,
    WaitingNamespace,
    counts_of,
    flows_of,
    is_shut,
    level_of,
    namespace_of_tenant,
    position_of,
)
from spark_throttle.status.ranking import worst_first

MOST_NAMESPACES: Final = 10
"""The most of a tenant's waiting namespaces that are told."""


@dataclass(frozen=True, slots=True, eq=False)
class WaitingPart:
    """The namespaces of a tenant that wait after a batch; arrays run over the first of them, the worst first."""

    levels: list[LevelExplanation]
    """What limits each by itself."""

    flows: Int64s
    """Where the report has them."""

    group_of: list[str | None]
    groups: list[str]
    """The groups of all that wait."""

    count: int
    """How many wait in all."""

    @classmethod
    def of(cls, policy: CompiledPolicy, tenant: str, last: UsageReport | None, found: Matches) -> WaitingPart:
        """Return what waits of a tenant, by the report of the last batch and the scopes of its namespaces."""
        if last is None:
            return cls([], np.zeros(0, np.int64), [], [], 0)
        waiting = last.waiting[:, Dimension.MESSAGES]
        flows = np.flatnonzero(flows_of(last, tenant, is_tenant=True) & (waiting > 0))
        order = worst_first(
            oldest_ms=flows if last.oldest_ms is None else last.oldest_ms[flows],
            rejected=last.rejected[flows, Dimension.MESSAGES],
            used_ratio=np.zeros(len(flows)), waiting=waiting[flows], offered=last.offered[flows, Dimension.MESSAGES],
        )  # fmt: skip
        first, own = flows[order[:MOST_NAMESPACES]], found.own_limits(policy)
        names = [*policy.group_names.to_pylist(), None]  # -1 stands for none
        return cls(
            [
                level_of("namespace", last.names[at].as_py(), policy, int(found.rule[at]), own=own.take(np.array([at])))
                for at in first.tolist()
            ],
            first,
            [names[at] for at in found.group[first].tolist()],
            [names[at] for at in np.unique(found.group[flows]).tolist() if at >= 0],
            len(flows),
        )

    def passed(self, levels: Sequence[LevelExplanation]) -> list[LevelExplanation]:
        """Return the levels without the groups in which nothing waits."""
        return [each for each in levels if each.level != "resource_group" or each.scope in self.groups]

    def told(
        self, last: UsageReport, own: Sequence[LevelExplanation], shared: Sequence[LevelExplanation], *, is_wide: bool
    ) -> Iterator[WaitingNamespace]:
        """Yield what holds each of them, by what was observed of it and of the levels that it shares."""
        names = shown(last.names.take(pa.array(self.flows))).to_pylist()
        for at, name, group, level in zip(self.flows.tolist(), names, self.group_of, own, strict=True):
            passed = [level, *(each for each in shared if each.level != "resource_group" or each.scope == group)]
            shut = next((each for each in passed if is_shut(each)), None)
            held = shut or max(passed, key=lambda each: each.release_ms or 0)
            is_told = shut is None and (is_wide or held.level in OF_ONE_TENANT)
            yield WaitingNamespace(
                name, group, counts_of(last.waiting[at]), counts_of(last.rejected[at]),
                (held.level, name if held is level else held.scope), held.release_ms if is_told else None,
            )  # fmt: skip


def is_tenant(policy: CompiledPolicy, name: str, last: UsageReport | None) -> bool:
    """Return whether a name is a tenant's, and no namespace's."""
    known = [policy.namespace_names] if last is None else [policy.namespace_names, last.names]
    if "/" in name or any(pc.index(names, name).as_py() >= 0 for names in known):
        return False
    has_entry = position_of(policy, "tenant", name) >= 0
    return has_entry or (last is not None and namespace_of_tenant(name, last) is not None)


def explained_tenant(policy: CompiledPolicy, tenant: str, direction: str, groups: Sequence[str]) -> Explanation:
    """Return what the policies say of a tenant, and of the groups in which its namespaces wait."""
    place = position_of(policy, "tenant", tenant)
    at_group = int(policy.tenant_group[place - 1]) if place >= 0 else -1
    group = policy.group_names[at_group].as_py() if at_group >= 0 else None
    reasons = (
        "tenant: it has an entry of its own"
        if place >= 0
        else "tenant: it has no entry, so no quota holds its namespaces together",
        f"resource group: {group}, named by its entry; an entry or a glob of its namespaces may name another"
        if group is not None
        else "resource group: it names none; the rules of its namespaces may",
    )
    scopes = [("tenant", tenant)] if place >= 0 else []
    scopes += [("resource_group", each) for each in dict.fromkeys([*([] if group is None else [group]), *groups])]
    levels = [level_of(*scope, policy, position_of(policy, *scope)) for scope in [*scopes, ("job", "job")]]
    matched = tenant if place >= 0 else ""
    return Explanation(
        tenant, direction, "tenant", matched, reasons, group, tuple(levels), policy.revision, unit=policy.unit
    )
