"""Calls for the groups and tenants of a job: all of them, the worst first, and one of them over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

import numpy as np
from fastapi import Query
from pydantic import BaseModel

from spark_throttle.admin.api.calls import ApiContext, Calls, SeenTenant, check_tenant, view_of
from spark_throttle.admin.api.requests import Segment
from spark_throttle.admin.watch.batch_numbers import COLUMNS
from spark_throttle.admin.watch.job_numbers import balances_of, shared_positions
from spark_throttle.admin.watch.job_watch import JobView
from spark_throttle.admin.watch.scope_history import Counted, ScopeHistory, seen_history
from spark_throttle.core.quota import Dimension
from spark_throttle.policy.model import Direction
from spark_throttle.policy.values import MAX_NAME_BYTES
from spark_throttle.status.explanation import NO_NUMBERS
from spark_throttle.status.ranking import Key
from spark_throttle.status.usage_table import AT, WAIT_SCHEMA, per_second, scope_shares

calls = Calls("jobs")

MOST_SECONDS: Final = 30 * 24 * 3600
_OF_A_SHARE: Final = (
    "share_messages_per_second", "share_bytes_per_second", "share_units_per_second", "utilisation"
)  # fmt: skip
_IDLE_WAITS: Final[dict[str, Any]] = {
    name: 0 if name in ("held_messages", "waited_p50_ms", "waited_p95_ms", "waited_p99_ms") else None
    for name in WAIT_SCHEMA.names
}

SharedLevel: TypeAlias = Literal["resource_group", "tenant"]


class ScopeNumbers(BaseModel):
    """Numbers of the job, a resource group or a tenant in the newest batch; null where there is no quota."""

    level: str
    scope: str
    offered_messages: int
    offered_bytes: int
    offered_units: int
    admitted_messages: int
    admitted_bytes: int
    admitted_units: int
    rejected_messages: int
    rejected_bytes: int
    rejected_units: int
    waiting_messages: int
    waiting_bytes: int
    waiting_units: int
    oldest_waiting_ms: int | None
    """How long its oldest waiting message had waited when the newest batch began; null if none waits."""

    held_messages: int
    """The waiting messages that this quota holds back, and not a narrower one."""

    waited_p50_ms: int
    """The time within which half of the messages that the newest batch admitted had left; most often 0."""

    waited_p95_ms: int
    waited_p99_ms: int
    reserved_messages: int
    """Messages that have left, and whose costs are not told yet."""

    reserved_units: int
    """What these were estimated to cost."""

    messages_per_second: float | None
    bytes_per_second: float | None
    units_per_second: float | None
    balance_messages: float | None
    """Tokens in the bucket when the newest batch was planned; below 0 the bucket is in debt."""

    balance_bytes: float | None
    balance_units: float | None
    share_messages_per_second: float | None = None
    """This job's share of the quota now; null also where it is not shared with other jobs, as are the next three."""

    share_bytes_per_second: float | None = None
    share_units_per_second: float | None = None
    utilisation: float | None = None
    """The part of the quota that all jobs use together, in messages, bytes or units, whichever is largest."""


class ScopePage(BaseModel):
    """Some groups or tenants of a job, the worst first."""

    scopes: list[ScopeNumbers]
    found: int
    """How many there are that fit the request, shown or not."""

    throttled: int
    """How many of these have waiting or rejected messages."""


@calls.at("GET /status/{job}/scopes", errors=[404])
def list_scopes(  # noqa: PLR0913 - what a caller may ask for
    served: ApiContext, tenant: SeenTenant, job: Segment, level: SharedLevel = "resource_group",
    search: Annotated[str, Query(max_length=MAX_NAME_BYTES, description="Part of the names, in any case.")] = "",
    *, throttled: Annotated[bool, Query(description="Only those with waiting or rejected messages.")] = False,
    skip: Annotated[int, Query(ge=0, le=1_000_000)] = 0, limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> ScopePage:  # fmt: skip
    """Return the groups or the tenants that the job's policy names, the worst first, then those without traffic.

    A tenant admin sees its own tenant.
    """
    view = view_of(served.watch, job)
    newest, policy = view.newest, view.epoch_policy
    if newest is None or policy is None:
        return ScopePage(scopes=[], found=0, throttled=0)
    names = (policy.group_names if level == "resource_group" else policy.tenant_names).to_pylist()
    if tenant is not None:
        names = [tenant] if level == "tenant" and tenant in names else []
    part, known = search.casefold(), frozenset(names)
    ranked = [key for key in view.totals.ranked.get(level, ()) if key[1] in known]
    idle = sorted(known.difference(scope for _, scope in ranked))
    keys = [key for key in (*ranked, *((level, scope) for scope in idle)) if part in key[1].casefold()]
    held = [key for key in keys if key in view.totals.throttled]
    found = held if throttled else keys
    shown = found[skip : skip + limit]
    return ScopePage(scopes=scope_numbers(view, shown), found=len(found), throttled=len(held))


@calls.at("GET /status/{job}/series", errors=[404])
def get_series(
    served: ApiContext, tenant: SeenTenant, job: Segment,
    level: Literal["job", "resource_group", "tenant", "namespace"] = "job",
    scope: Annotated[str, Query(max_length=MAX_NAME_BYTES)] = "job",
    dimension: Counted = "messages",
    seconds: Annotated[int, Query(ge=1, le=MOST_SECONDS, description="How far back; at most 30 days.")] = 300,
) -> ScopeHistory:  # fmt: skip
    """Return the rates and the backlog of a scope over time.

    They come from the batches that the server has seen, or, for a namespace and for what was before, from the job's
    usage table, if the server was told where it is. A tenant admin sees its tenant and its namespaces.
    """
    view, key = view_of(served.watch, job), (level, scope)
    check_tenant(tenant, scope if level in ("tenant", "namespace") else "")
    until_ms = view.clock.wall_ms() if view.newest is None else view.newest.now_ms
    since_ms = until_ms - 1000 * seconds
    is_seen = level != "namespace" and bool(view.batches) and view.batches[0].now_ms <= since_ms
    if view.usage is not None and not is_seen:
        return view.usage.history(key, dimension, since_ms=since_ms, until_ms=until_ms)
    return seen_history([kept for kept in view.batches if kept.now_ms > since_ms], key, dimension)


def scope_numbers(view: JobView, keys: Sequence[Key]) -> list[ScopeNumbers]:
    """Return the numbers of some scopes in the newest batch of a job; nothing before the first."""
    newest = view.newest
    if newest is None:
        return []
    tenants = frozenset(scope for level, scope in keys if level == "tenant")
    balances, quotas, shares = balances_of(view, tenants), {}, {}
    if view.epoch_policy is not None:
        rates = view.epoch_policy.shared.rate_micro_per_ms[:, : Dimension.TIME]
        quotas = {key: per_second(rates[at]) for key, at in shared_positions(view.epoch_policy, tenants).items()}
    if view.exchange is not None and view.epoch_policy is not None:
        direction: Direction = "dispatch" if view.direction == "dispatch" else "publish"
        shares = scope_shares(view.exchange, view.epoch_policy, direction, frozenset(keys))
    found, idle = [], np.zeros(COLUMNS, np.int64)
    for key in keys:
        balance = balances.get(key, (NO_NUMBERS, NO_NUMBERS))[0]
        messages, size_bytes, units = newest.quotas.get(key) or quotas.get(key, NO_NUMBERS)
        counts: dict[str, Any] = {
            name: count
            for name, count in (
                *zip(AT, newest.shared.get(key, idle).tolist(), strict=False),
                *newest.waits.get(key, _IDLE_WAITS).items(),
            )
            if name in ScopeNumbers.model_fields
        }
        shared = shares.get(key)
        if shared is not None:
            counts |= {name: getattr(shared, name) for name in _OF_A_SHARE}
        found.append(ScopeNumbers(
            level=key[0], scope=key[1], messages_per_second=messages, bytes_per_second=size_bytes,
            units_per_second=units, balance_messages=balance[0], balance_bytes=balance[1], balance_units=balance[2],
            **counts,
        ))  # fmt: skip
    return found
