"""The rates of destinations that push back: what an epoch pins, and what the next one makes of the batches between.

A destination is a resource group. Its rate in messages is not its quota: it goes down by a part when the destination
refuses, and up in growing steps while it does not (`Aimd`). It reaches the decider as a share. A destination is
unavailable, and its breaker open, when every call has been refused for longer than the policy says. Then rows are
admitted at the floor, to ask with. What was refused meanwhile says nothing about a rate, so the rate from before is in
force again once a call is accepted. While it asks not to be called nothing is admitted, nor while it is unavailable and
the query is to end.

Rows are admitted an eighth faster than they are sent, up to the quota: so there is always something to send. What is
not sent comes back (`left_rows`).

AIMD is as Flink's async sink has it, with one difference. A constant step cannot both be refused rarely and find a rate
that was raised fourfold within ten seconds. So the steps have the size that CUBIC gives a TCP sender: they shrink until
the rate is near what was refused last, which is two seconds after the refusal, and grow from there on, as the third
power of the time. A rate that was raised fourfold is reached within eight seconds. A refusal says that for some time
more was sent than the destination takes: whatever it had saved up is used by then. So the rate falls by an eighth of
what it was a second before, where it was lower then. A refusal within a second of the last takes a quarter.

Laws: the state after a batch is a function of the state before, of what the batch was told, and of the times of epochs.
A destination to which nothing was sent keeps its rate. A rate is a whole number, and a function of the last base and of
the quiet time alone, so it makes no difference in how many parts the time is told; it never leaves floor and ceiling,
and never falls while nothing is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
import pyarrow as pa

from spark_throttle.core.names.matching import match
from spark_throttle.core.policy_change import former_scopes
from spark_throttle.core.quota import NEVER_MS, CompiledPolicy, Dimension, Int64s

_LEVEL_MS: Final = 2_000
"""By then the rate is what it was before the last refusal, and grows slowest."""

_LONGEST_QUIET_MS: Final = 3_600_000
"""By then a rate has grown 800 million times."""

_SOON_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Aimd:
    """A rate, by what was refused last."""

    base: int
    """The rate just after the last refusal."""

    quiet_ms: int = _LONGEST_QUIET_MS
    """The time since then in which something was sent and nothing refused."""

    def rate(self, *, floor: int, ceiling: int) -> int:
        """Return the rate now.

        Examples
        --------
        >>> [Aimd(7_000, quiet_ms).rate(floor=1, ceiling=60_000) for quiet_ms in (0, 1_000, 2_000, 4_000, 8_000, 10**6)]
        [7000, 7875, 8000, 9000, 35000, 60000]
        """
        grown = self.base * ((self.quiet_ms - _LEVEL_MS) ** 3 + _LEVEL_MS**3) // (7 * _LEVEL_MS**3)
        return max(floor, min(ceiling, self.base + grown))

    def after_quiet(self, elapsed_ms: int) -> Aimd:
        """Return it after a time in which something was sent and nothing refused."""
        return Aimd(self.base, min(self.quiet_ms + elapsed_ms, _LONGEST_QUIET_MS))

    def after_refusal(self, *, floor: int, ceiling: int) -> Aimd:
        """Return it after a refusal.

        Examples
        --------
        >>> Aimd(800).after_refusal(floor=1, ceiling=800), Aimd(800, 500).after_refusal(floor=1, ceiling=800)
        (Aimd(base=700, quiet_ms=0), Aimd(base=600, quiet_ms=0))
        """
        if self.quiet_ms < _SOON_MS:
            rate = self.rate(floor=floor, ceiling=ceiling)
            return Aimd(max(floor, rate - rate // 4), 0)
        before = Aimd(self.base, self.quiet_ms - _SOON_MS).rate(floor=floor, ceiling=ceiling)
        return Aimd(max(floor, before - before // 8), 0)


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
    """The time since then in which something was sent and nothing refused (`Aimd.quiet_ms`)."""

    refused_for_ms: int
    """For how long every call that ended was refused, at the end of the batch."""

    closed_until_ms: int = 0
    """The wall-clock time before which it asks not to be called; 0 if it does not ask."""

    slows: int = 0
    """1 if `part` counts although nothing was accepted: it takes all that it is offered or nothing."""

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
            max((each.closed_until_ms for each in parts), default=0),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class DestinationRates:
    """The destinations of an epoch's policy, in the order of `CompiledPolicy.destinations`."""

    scope: Int64s
    base_micro_per_ms: Int64s
    """The rate just after the last refusal (`Aimd.base`)."""

    quiet_ms: Int64s
    refused_for_ms: Int64s
    """For how long every call was refused; 0 if the last batch that sent had one accepted."""

    in_force_micro_per_ms: Int64s
    """The rate at which rows are admitted, between floor and ceiling; 0 where none are."""

    is_open: Int64s
    """1 where the breaker is open: the destination is unavailable."""

    closed_until_ms: Int64s
    """The wall-clock time before which the destination asked not to be called; 0 where it did not ask."""

    def sending_micro_per_ms(self, at: int, *, floor: int, ceiling: int) -> int:
        """Return how fast rows that were admitted may be sent: as before the breaker opened, where it is open."""
        return self.aimd(at).rate(floor=floor, ceiling=ceiling)

    def aimd(self, at: int) -> Aimd:
        """Return what the rate of a destination follows."""
        return Aimd(int(self.base_micro_per_ms[at]), int(self.quiet_ms[at]))

    def share(self, share_micro_per_ms: Int64s | None, scopes: int) -> Int64s:
        """Return the shares of the shared scopes, shape (scopes, 4), none higher than its destination's rate."""
        found = (
            np.full((scopes, len(Dimension)), _NO_BOUND) if share_micro_per_ms is None else share_micro_per_ms.copy()
        )
        at = self.scope, np.full(len(self.scope), Dimension.MESSAGES)
        found[at] = np.minimum(found[at], self.in_force_micro_per_ms)
        return found

    def given_up(self, policy: CompiledPolicy) -> Int64s | None:
        """Return the scopes that are unavailable and whose rows the policy gives up; `None` if there are none."""
        if policy.destinations is None:
            return None
        found: Int64s = self.scope[(self.is_open > 0) & (policy.destinations.gives_up > 0)]
        return found if len(found) else None

    def due_ms(self, policy: CompiledPolicy, *, paid_ms: int, wall_ms: int, is_to_end: bool = False) -> int:
        """Return the paying time at which a destination to which nothing goes may be called again, or is unavailable.

        Parameters
        ----------
        paid_ms, wall_ms
            The time of the epoch.
        is_to_end
            As in `rates_after`.
        """
        is_closed = self.closed_until_ms > wall_ms
        if policy.destinations is None or self.in_force_micro_per_ms.all():
            return NEVER_MS
        is_left = (self.in_force_micro_per_ms == 0) & (not is_to_end)  # by a run that was to end
        waits_ms = np.where(is_closed, self.closed_until_ms - wall_ms, np.where(is_left, 0, NEVER_MS))
        opens_ms = np.maximum(policy.destinations.open_after_ms - self.refused_for_ms, 1)
        opens_ms = np.where(is_closed & (self.is_open == 0), opens_ms, NEVER_MS)
        return min(NEVER_MS, paid_ms + int(np.minimum(waits_ms, opens_ms).min()))


def rates_after(
    before: DestinationRates | None,
    before_policy: CompiledPolicy | None,
    told: list[dict[str, Told]],
    policy: CompiledPolicy,
    *,
    elapsed_ms: int,
    wall_ms: int,
    is_to_end: bool = False,
) -> DestinationRates | None:
    """Return the rates of the epoch after `before`; `None` if the policy has no destinations.

    Parameters
    ----------
    told
        What the batches since then were told, by resource group, in the order of the batches.
    elapsed_ms
        The time since the last epoch.
    wall_ms
        The wall-clock time of this one.
    is_to_end
        Whether the query is to end without waiting for destinations that are unavailable.
    """
    if policy.destinations is None:
        return None
    former = _former(before, before_policy, policy)
    names = group_names(policy)
    ceilings = policy.shared.rate_micro_per_ms[policy.destinations.scope, Dimension.MESSAGES].tolist()
    floors, opens = policy.destinations.floor_micro_per_ms.tolist(), policy.destinations.open_after_ms.tolist()
    rows = []
    for at, (name, floor, ceiling, open_after_ms) in enumerate(zip(names, floors, ceilings, opens, strict=True)):
        state = _State(Aimd(ceiling)) if former[at] < 0 or before is None else _State.of(before, int(former[at]))
        heard, sent = [each[name] for each in told if name in each], state.aimd.rate(floor=floor, ceiling=ceiling)
        is_closed = state.closed_until_ms > max(0, wall_ms - elapsed_ms)
        if not heard and is_closed:
            state = replace(state, refused_for_ms=state.refused_for_ms + elapsed_ms)
        for number, each in enumerate(heard, 1):
            state = state.after(each, sent=sent, floor=floor, elapsed_ms=elapsed_ms if number == len(heard) else 0)
        is_open = state.refused_for_ms >= open_after_ms and state.refused_for_ms > 0
        rate = state.aimd.rate(floor=floor, ceiling=ceiling)
        rate = floor if is_open else min(ceiling, rate + rate // _AHEAD_PARTS)
        if state.closed_until_ms > wall_ms or (is_open and is_to_end):
            rate = 0
        rows.append((
            state.aimd.base, state.aimd.quiet_ms, state.refused_for_ms, rate, int(is_open), state.closed_until_ms,
        ))  # fmt: skip
    return DestinationRates(policy.destinations.scope, *np.array(rows, dtype=np.int64).reshape(-1, 6).T)


def aimd_after(aimd: Aimd, told: Told, *, sent: int, floor: int) -> Aimd:
    """Return what the rate of a destination follows after tasks that were to send at the rate `sent`.

    Examples
    --------
    >>> aimd_after(Aimd(800, 2_000), Told(9, 1, WHOLE // 2, 300, 0), sent=1_000, floor=1)
    Aimd(base=500, quiet_ms=300)
    >>> aimd_after(Aimd(800, 2_000), Told(9, 0, WHOLE, 5_000, 0), sent=1_000, floor=1)
    Aimd(base=800, quiet_ms=5000)
    """
    if not told.accepted and not told.slows:
        return aimd
    if not told.refused:
        return Aimd(aimd.base, max(aimd.quiet_ms, told.quiet_ms))
    return Aimd(max(floor, sent * told.part // WHOLE), told.quiet_ms)


def destinations_of(names: pa.StringArray, policy: CompiledPolicy) -> Int64s:
    """Return the destination of each namespace, by its position; -1 where it has none."""
    if policy.destinations is None:
        return np.full(len(names), -1, dtype=np.int64)
    at = np.full(len(policy.shared) + 1, -1, dtype=np.int64)  # the last is of no group
    at[policy.destinations.scope] = np.arange(len(policy.destinations))
    return at[match(names, policy).group_scope]


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
    closed_until_ms: int = 0

    @classmethod
    def of(cls, rates: DestinationRates, at: int) -> _State:
        numbers = (rates.refused_for_ms, rates.closed_until_ms)
        return cls(rates.aimd(at), *(int(each[at]) for each in numbers))

    def after(self, told: Told, *, sent: int, floor: int, elapsed_ms: int) -> _State:
        """Return the state after a batch that was to send at the rate `sent`."""
        aimd = aimd_after(self.aimd, told, sent=sent, floor=floor)
        kept = replace(self, aimd=aimd, closed_until_ms=told.closed_until_ms)
        if not told.accepted:
            has_refused = told.refused or told.closed_until_ms
            return replace(kept, refused_for_ms=self.refused_for_ms + elapsed_ms) if has_refused else kept
        return replace(kept, refused_for_ms=told.refused_for_ms if told.refused else 0)


def _former(before: DestinationRates | None, before_policy: CompiledPolicy | None, policy: CompiledPolicy) -> Int64s:
    """Return, for each destination of the policy, its position in `before`; -1 where it is new."""
    assert policy.destinations is not None  # noqa: S101 - the caller looked
    if before is None or before_policy is None:
        return np.full(len(policy.destinations), -1)
    was = former_scopes(before_policy, policy)[policy.destinations.scope]
    known = {scope: at for at, scope in enumerate(before.scope.tolist())}
    return np.array([known.get(scope, -1) for scope in was.tolist()], dtype=np.int64)
