"""The rates of destinations that push back: what an epoch pins, and what the next one makes of the batches between.

A destination is a resource group. Its rate in messages is not its quota, but what `limits.aimd` makes of what its
batches were told. It is unavailable, and its breaker open, when every call has been refused for longer than the policy
says. Then nothing more is admitted: calls that are unsent ask again, one a batch. Without any, rows are admitted at the
floor, to ask with. Where the policy gives such rows up, they are admitted as before, and go to the dead letters if the
call that asks is refused. What was refused meanwhile says nothing about a rate, so the rate from before is in force
again once a call is accepted.

Rows are admitted an eighth faster than they are sent, up to the quota: so there is always something to send. Those that
were admitted and not yet sent take the room of others: the bucket holds no more than its burst less these. So no more
than the burst and one batch is ever unsent.

Laws: the state after a batch is a function of the state before, of what the batch was told, and of batch times. A
destination to which nothing was sent keeps its rate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
import pyarrow as pa

from spark_throttle.core.limits.aimd import Aimd
from spark_throttle.core.policy_change import former_scopes
from spark_throttle.core.quota import MICRO, CompiledPolicy, Dimension, Int64s

WHOLE: Final = 1 << 20
"""The rate in force, in the unit of `Told.part`."""

_AHEAD_PARTS: Final = 8
"""Rows are admitted faster than they are sent, by one part of so many."""

_NO_BOUND: Final = 1 << 60
"""A share that is cut to the quota (`state.rates_of_shares`)."""


@dataclass(frozen=True, slots=True)
class Told:
    """What one batch was told by one destination."""

    accepted: int
    """Calls."""

    refused: int
    part: int
    """The rate just after the last refusal, of which `WHOLE` is the rate at which the batch was to send."""

    quiet_ms: int
    """The time since then in which something was sent and nothing refused (`aimd.Aimd.quiet_ms`)."""

    refused_for_ms: int
    """For how long every call that ended was refused, at the end of the batch."""

    unsent_messages: int
    """Admitted rows, of this batch and earlier ones, that a later batch sends."""

    closed_until_ms: int = 0
    """The wall-clock time before which it asks not to be called; 0 if it does not ask."""

    @classmethod
    def together(cls, parts: list[Self]) -> Self:
        """Return what the tasks of a batch were told, as one."""
        calls = sum(each.accepted + each.refused for each in parts)
        weighted = sum(each.part * (each.accepted + each.refused) for each in parts)
        asked = [each for each in parts if each.accepted + each.refused] or parts
        refused = [each for each in asked if each.refused]
        quiet_ms = min(each.quiet_ms for each in refused) if refused else max(each.quiet_ms for each in asked)
        return cls(
            sum(each.accepted for each in parts), sum(each.refused for each in parts),
            weighted // calls if calls else WHOLE, quiet_ms,
            min((each.refused_for_ms for each in asked), default=0),
            sum(each.unsent_messages for each in parts), max((each.closed_until_ms for each in parts), default=0),
        )  # fmt: skip

    def after(self, earlier: Told) -> Told:
        """Return it with the calls of earlier tasks, from whose rate its own went on."""
        return replace(self, accepted=self.accepted + earlier.accepted, refused=self.refused + earlier.refused)


@dataclass(frozen=True, slots=True, eq=False)
class DestinationRates:
    """The destinations of an epoch's policy, in the order of `CompiledPolicy.destinations`."""

    scope: Int64s
    base_micro_per_ms: Int64s
    """The rate just after the last refusal (`aimd.Aimd.base`)."""

    quiet_ms: Int64s
    refused_for_ms: Int64s
    """For how long every call was refused; 0 if the last batch that sent had one accepted."""

    unsent_messages: Int64s
    in_force_micro_per_ms: Int64s
    """The rate at which rows are admitted, between floor and ceiling; 0 where unsent calls ask again."""

    is_open: Int64s
    """1 where the breaker is open: the destination is unavailable."""

    closed_until_ms: Int64s
    """The wall-clock time before which the destination asked not to be called; 0 where it did not ask."""

    def unavailable(self, policy: CompiledPolicy) -> set[str]:
        """Return the destinations whose breakers are open."""
        return {name for name, is_open in zip(group_names(policy), self.is_open.tolist(), strict=True) if is_open}

    def sending_micro_per_ms(self, at: int, *, floor: int, ceiling: int) -> int:
        """Return how fast rows that were admitted may be sent: as before the breaker opened, where it is open."""
        return self.aimd(at).rate(floor=floor, ceiling=ceiling)

    def aimd(self, at: int) -> Aimd:
        """Return what the rate of a destination follows."""
        return Aimd(int(self.base_micro_per_ms[at]), int(self.quiet_ms[at]))

    def share(self, share_micro_per_ms: Int64s | None, scopes: int) -> Int64s:
        """Return the shares of the shared scopes, shape (scopes, 3), none higher than its destination's rate."""
        found = (
            np.full((scopes, len(Dimension)), _NO_BOUND) if share_micro_per_ms is None else share_micro_per_ms.copy()
        )
        at = self.scope, np.full(len(self.scope), Dimension.MESSAGES)
        found[at] = np.minimum(found[at], self.in_force_micro_per_ms)
        return found

    def most_micro(self, burst_micro: Int64s) -> Int64s:
        """Return the most that shared buckets may hold: their burst, less what admitted rows that were not sent take.

        Parameters
        ----------
        burst_micro
            Shape (scopes, 3): the bursts of the shared scopes.
        """
        most = np.full_like(burst_micro, _NO_BOUND)
        at = self.scope, np.full(len(self.scope), Dimension.MESSAGES)
        left = burst_micro[at] - self.unsent_messages * MICRO
        left = np.where(self.in_force_micro_per_ms > 0, left, np.minimum(left, 0))
        most[at] = np.where(self.unsent_messages > 0, left, _NO_BOUND)
        return most


def rates_after(
    before: DestinationRates | None,
    before_policy: CompiledPolicy | None,
    told: list[dict[str, Told]],
    policy: CompiledPolicy,
    *,
    elapsed_ms: int,
) -> DestinationRates | None:
    """Return the rates of the epoch after `before`; `None` if the policy has no destinations.

    Parameters
    ----------
    told
        What the batches since then were told, by resource group, in the order of the batches.
    elapsed_ms
        The time since the last epoch.
    """
    if policy.destinations is None:
        return None
    former = _former(before, before_policy, policy)
    names = group_names(policy)
    ceilings = policy.shared.rate_micro_per_ms[policy.destinations.scope, Dimension.MESSAGES].tolist()
    floors, opens = policy.destinations.floor_micro_per_ms.tolist(), policy.destinations.open_after_ms.tolist()
    gives_up, rows = policy.destinations.gives_up.tolist(), []
    for at, (name, floor, ceiling, open_after_ms) in enumerate(zip(names, floors, ceilings, opens, strict=True)):
        state = _State(Aimd(ceiling)) if former[at] < 0 or before is None else _State.of(before, int(former[at]))
        heard, sent = [each[name] for each in told if name in each], state.aimd.rate(floor=floor, ceiling=ceiling)
        for number, each in enumerate(heard, 1):
            state = state.after(each, sent=sent, floor=floor, elapsed_ms=elapsed_ms if number == len(heard) else 0)
        is_open = state.refused_for_ms >= open_after_ms and state.refused_for_ms > 0
        rate = state.aimd.rate(floor=floor, ceiling=ceiling)
        rate = min(ceiling, rate + rate // _AHEAD_PARTS)
        if is_open and not gives_up[at]:
            rate = 0 if state.unsent_messages else floor
        rows.append((
            state.aimd.base, state.aimd.quiet_ms, state.refused_for_ms, state.unsent_messages, rate, int(is_open),
            state.closed_until_ms,
        ))  # fmt: skip
    return DestinationRates(policy.destinations.scope, *np.array(rows, dtype=np.int64).reshape(-1, 7).T)


def aimd_after(aimd: Aimd, told: Told, *, sent: int, floor: int) -> Aimd:
    """Return what the rate of a destination follows after tasks that were to send at the rate `sent`.

    Examples
    --------
    >>> aimd_after(Aimd(800, 2_000), Told(9, 1, WHOLE // 2, 300, 0, 0), sent=1_000, floor=1)
    Aimd(base=500, quiet_ms=300)
    >>> aimd_after(Aimd(800, 2_000), Told(9, 0, WHOLE, 5_000, 0, 0), sent=1_000, floor=1)
    Aimd(base=800, quiet_ms=5000)
    """
    if not told.accepted:
        return aimd
    if not told.refused:
        return Aimd(aimd.base, max(aimd.quiet_ms, told.quiet_ms))
    return Aimd(max(floor, sent * told.part // WHOLE), told.quiet_ms)


def group_names(policy: CompiledPolicy) -> list[str]:
    """Return the names of the policy's destinations."""
    if policy.destinations is None:
        return []
    first_group = 1 + len(policy.tenant_names)
    names: list[str] = policy.group_names.take(pa.array(policy.destinations.scope - first_group)).to_pylist()
    return names


@dataclass(frozen=True, slots=True)
class _State:
    aimd: Aimd
    refused_for_ms: int = 0
    unsent_messages: int = 0
    closed_until_ms: int = 0

    @classmethod
    def of(cls, rates: DestinationRates, at: int) -> _State:
        numbers = (rates.refused_for_ms, rates.unsent_messages, rates.closed_until_ms)
        return cls(rates.aimd(at), *(int(each[at]) for each in numbers))

    def after(self, told: Told, *, sent: int, floor: int, elapsed_ms: int) -> _State:
        """Return the state after a batch that was to send at the rate `sent`."""
        kept = replace(self, unsent_messages=told.unsent_messages, closed_until_ms=told.closed_until_ms)
        if not told.accepted:
            has_refused = told.refused or told.closed_until_ms
            return replace(kept, refused_for_ms=self.refused_for_ms + elapsed_ms) if has_refused else kept
        aimd = aimd_after(self.aimd, told, sent=sent, floor=floor)
        return replace(kept, aimd=aimd, refused_for_ms=told.refused_for_ms if told.refused else 0)


def _former(before: DestinationRates | None, before_policy: CompiledPolicy | None, policy: CompiledPolicy) -> Int64s:
    """Return, for each destination of the policy, its position in `before`; -1 where it is new."""
    assert policy.destinations is not None  # noqa: S101 - the caller looked
    if before is None or before_policy is None:
        return np.full(len(policy.destinations), -1)
    was = former_scopes(before_policy, policy)[policy.destinations.scope]
    known = {scope: at for at, scope in enumerate(before.scope.tolist())}
    return np.array([known.get(scope, -1) for scope in was.tolist()], dtype=np.int64)
