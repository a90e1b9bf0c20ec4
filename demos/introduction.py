"""What the demonstration is about to do: what each group is offered, its quota, and what happens to the excess.

Printed before Spark starts, which takes longer than the rest of the set-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rich.table import Table

from spark_throttle.policy.model import PolicyDocument
from spark_throttle.policy.quotas import Quota

_OUTCOMES: Final = {
    "reject": "rejected at once",
    "delay": "waits",
    "observe": "passes, is counted",
}


def introduction(policies: PolicyDocument, offered_per_second: Mapping[str, float]) -> Table:
    """Return a table of the groups, a row each."""
    table = Table(title="What is offered, and what the policies allow", title_justify="left")
    table.add_column("resource group")
    for column in ("offered /s", "quota /s"):
        table.add_column(column, justify="right")
    table.add_column("excess")
    for group, offered in offered_per_second.items():
        quota = policies.resource_groups[group].publish
        limit = "none" if quota.messages_per_second is None else f"{quota.messages_per_second:,}"
        table.add_row(group, f"{offered:,.0f}", limit, _outcome(policies, quota, offered))
    return table


def _outcome(policies: PolicyDocument, quota: Quota, offered: float) -> str:
    limit = quota.messages_per_second
    if limit is None:
        return ""
    outcome = _OUTCOMES[quota.on_excess]
    age = policies.queue.age_seconds
    if quota.on_excess == "delay" and age is not None and offered > limit:
        outcome = f"waits; rejected after {age:,} s"
    return outcome
