"""What a batch has to send: how fast its namespaces may go, and how fast each of its destinations is to be sent to.

Both by its epoch, and for destinations by what they have said since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import numpy as np
import pyarrow as pa

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.core.epoch import Epoch
from spark_throttle.core.limits.aimd import Aimd
from spark_throttle.core.names.matching import match
from spark_throttle.core.names.shown_names import shown
from spark_throttle.core.quota import CompiledPolicy, Dimension
from spark_throttle.core.shares.destinations import WHOLE, Told, aimd_after, group_names
from spark_throttle.core.usage import UsageReport, admitted_messages
from spark_throttle.spark.paced.calls import HASTE
from spark_throttle.spark.paced.gate import Terms
from spark_throttle.spark.paced.kept_sender import Heard, SentMeanwhile
from spark_throttle.spark.paced.row_costs import RowCost, row_costs
from spark_throttle.spark.paced.sending import BatchName
from spark_throttle.spark.paced.unsent_calls import rows_by_namespace

_NS_MILLI: Final = 10**12
"""Nanoseconds in which a rate of one micro-token per millisecond adds a token."""

_PS_PER_NS: Final = 1_000

_NONE_CLOSED: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class BatchDestination:
    """A destination that the policy names, in one batch. Rates are in messages a second, times 1,000."""

    rows: int
    """The rows that go there, unsent ones included."""

    sent_micro_per_ms: int
    """The rate by the batch's epoch, of which `Told.part` is a part."""

    floor_micro_per_ms: int
    ceiling_micro_per_ms: int
    heard: Heard
    is_unavailable: bool
    gives_up: bool
    """Whether rows that it does not take, while it is unavailable, go to the dead letters."""

    def terms(self, rows: int, seconds: float, *, is_timed: bool) -> Terms:
        """Return how a task sends that has so many of the rows: at its part of the rate.

        Nothing is sent while a batch is planned. To make good for that, more than the quota may be sent (`calls`).
        """
        sent, (usual, hasty) = self.sent_micro_per_ms, HASTE
        return Terms(
            _NS_MILLI * self.rows // (sent * rows),
            min(WHOLE, max(1, self.floor_micro_per_ms * WHOLE // sent)),
            seconds,
            is_timed,
            self.is_unavailable,
            asks_once=self.gives_up or not is_timed,
            ceiling_part=self.ceiling_micro_per_ms * hasty * WHOLE // (sent * usual),
            began=Aimd(max(1, self.heard.aimd.base * WHOLE // sent), self.heard.aimd.quiet_ms),
            closed_until_ms=self.heard.closed_until_ms,
        )

    def told(self, earlier: Told, aimd: Aimd) -> Told:
        """Return what was said earlier, as if it had been said in this batch, which found that rate.

        None of the calls is unsent, or the batch would have had rows for it.
        """
        part = aimd.base * WHOLE // self.sent_micro_per_ms
        return replace(earlier, part=part, quiet_ms=aimd.quiet_ms, unsent_messages=0)

    def after(self, told: Told) -> Heard:
        """Return what is known after the batch's tasks were told something."""
        aimd = aimd_after(self.heard.aimd, told, sent=self.sent_micro_per_ms, floor=self.floor_micro_per_ms)
        return Heard(aimd, told.closed_until_ms)


def destinations_of(
    epoch: Epoch, policy: CompiledPolicy, messages: Mapping[str, int], heard: Mapping[str, Heard]
) -> tuple[dict[str, BatchDestination], dict[str, str]]:
    """Return the destinations of a policy in one batch, and the destination of each namespace that has one.

    Parameters
    ----------
    messages
        How many rows there are to send, by namespace.
    heard
        What is known of the destinations.
    """
    rates, destinations = epoch.destinations, policy.destinations
    if rates is None or destinations is None:
        return {}, {}
    names = group_names(policy)
    first_group = 1 + len(policy.tenant_names)
    at_group = {int(scope) - first_group: at for at, scope in enumerate(rates.scope)}
    groups = match(pa.array(list(messages), pa.string()), policy).group.tolist() if messages else []
    destination_of = {
        name: names[at_group[group]] for name, group in zip(messages, groups, strict=True) if group in at_group
    }
    rows = Counter[str]()
    for name, destination in destination_of.items():
        rows[destination] += messages[name]
    batch = {}
    for at, name in enumerate(names):
        floor = int(destinations.floor_micro_per_ms[at])
        ceiling = int(policy.shared.rate_micro_per_ms[rates.scope[at], Dimension.MESSAGES])
        sent = rates.sending_micro_per_ms(at, floor=floor, ceiling=ceiling)
        batch[name] = BatchDestination(
            rows[name], sent, floor, ceiling, heard[name], bool(rates.is_open[at]), bool(destinations.gives_up[at])
        )  # fmt: skip
    return batch, destination_of


@dataclass(frozen=True, slots=True, eq=False)
class BatchSending:
    """What a batch's epoch and reports say of its sending."""

    name: BatchName
    epoch: Epoch
    policy: CompiledPolicy
    costs: dict[str, RowCost]
    moved: Mapping[str, int]
    """The admitted rows, by namespace."""

    messages: Mapping[str, int]
    """These and the unsent ones."""

    others_ns: int
    known: Mapping[str, BatchDestination]
    """All destinations."""

    destination_of: Mapping[str, str]

    @classmethod
    def of(
        cls,
        epoch: Epoch,
        policy: CompiledPolicy,
        mark: BatchMark,
        reports: Sequence[UsageReport],
        kept: Sequence[bytes],
        closed: Mapping[str, int] = _NONE_CLOSED,
        *,
        now_ms: int = 0,
    ) -> BatchSending:
        """Return what a batch has to send, with the calls that earlier ones left unsent.

        Parameters
        ----------
        closed
            Until when destinations asked not to be called, where more is known than the epoch knows.
        now_ms
            The wall-clock time.
        """
        names, admitted = admitted_messages(reports)
        moved = {name: count for name, count in zip(shown(names).to_pylist(), admitted.tolist(), strict=True) if count}
        messages = Counter(moved) + rows_by_namespace(kept)
        known, destination_of = destinations_of(epoch, policy, messages, heard_of(epoch, policy, closed, now_ms))
        costs = costs_of(epoch, policy, reports)
        return cls(
            BatchName(mark.query, mark.batch, mark.identity), epoch, policy, costs, moved, messages,
            longest_ns(reports, costs, destination_of), known, destination_of,
        )  # fmt: skip

    @property
    def destinations(self) -> dict[str, BatchDestination]:
        """The destinations of its rows."""
        return {name: each for name, each in self.known.items() if each.rows}

    @property
    def heard(self) -> dict[str, Heard]:
        """What is known of all destinations."""
        return {name: each.heard for name, each in self.known.items()}

    @property
    def may_give_up(self) -> bool:
        """Whether a destination is unavailable whose rows are then given up."""
        return any(each.is_unavailable and each.gives_up for each in self.destinations.values())

    @property
    def unsent_costs(self) -> dict[str, RowCost]:
        """The cost of a row of unsent calls, whose sizes nobody knows, by namespace."""
        counts = np.array([[count, 0] for count in self.messages.values()], dtype=np.int64).reshape(-1, 2)
        names = pa.array(list(self.messages), pa.string())
        return row_costs(names, counts, self.policy, self.epoch.share_micro_per_ms)

    def after(self, meanwhile: SentMeanwhile, kept: Sequence[bytes]) -> BatchSending:
        """Return it where of the kept calls only some are still unsent."""
        return self._with(Counter(self.moved) + rows_by_namespace(kept), meanwhile.heard)

    def left(self, heard: Mapping[str, Heard], kept: Sequence[bytes]) -> BatchSending:
        """Return what is left of it: kept calls."""
        return self._with(rows_by_namespace(kept), heard)

    def told_with(self, told: Mapping[str, Told], meanwhile: SentMeanwhile | None) -> dict[str, Told]:
        """Return what its tasks were told, with what was said since the batch before."""
        found = dict(told)
        if meanwhile is None:
            return found
        for name, each in meanwhile.told.items():
            if name in found:
                found[name] = found[name].after(each)
            elif name in self.known:
                found[name] = self.known[name].told(each, meanwhile.heard[name].aimd)
        return found

    def told_of_kept(self, told: Mapping[str, Told], kept: Sequence[bytes]) -> dict[str, Told]:
        """Return what was said, with how many rows are kept."""
        rows = Counter(dict.fromkeys(told, 0))
        for name, count in rows_by_namespace(kept).items():
            rows[self.destination_of[name]] += count
        nothing = {name: Told(0, 0, WHOLE, 0, 0, 0, each.heard.closed_until_ms) for name, each in self.known.items()}
        said = {**nothing, **told}
        return {name: replace(said[name], unsent_messages=count) for name, count in sorted(rows.items())}

    def _with(self, messages: Mapping[str, int], heard: Mapping[str, Heard]) -> BatchSending:
        known, destination_of = destinations_of(self.epoch, self.policy, messages, {**self.heard, **heard})
        return replace(self, messages=messages, known=known, destination_of=destination_of)


def heard_of(epoch: Epoch, policy: CompiledPolicy, closed: Mapping[str, int], now_ms: int) -> dict[str, Heard]:
    """Return what is known of the destinations of an epoch.

    Parameters
    ----------
    closed
        Until when destinations asked not to be called, as far as this process was told.
    """
    rates = epoch.destinations
    if rates is None:
        return {}
    found = {}
    for at, name in enumerate(group_names(policy)):
        closed_until_ms = closed.get(name, int(rates.closed_until_ms[at]))
        found[name] = Heard(rates.aimd(at), closed_until_ms if closed_until_ms > now_ms else 0)
    return found


def costs_of(epoch: Epoch, policy: CompiledPolicy, reports: Sequence[UsageReport]) -> dict[str, RowCost]:
    """Return the cost of a row of each namespace of which a batch admitted rows."""
    moved = [report.admitted[:, Dimension.MESSAGES] > 0 for report in reports]
    names = pa.chunked_array(
        [report.names.filter(pa.array(is_moved)) for report, is_moved in zip(reports, moved, strict=True)], pa.string()
    ).combine_chunks()
    admitted = [report.admitted[is_moved] for report, is_moved in zip(reports, moved, strict=True)]
    return row_costs(names, np.concatenate([np.zeros((0, 3), np.int64), *admitted]), policy, epoch.share_micro_per_ms)


def longest_ns(reports: Sequence[UsageReport], costs: Mapping[str, RowCost], destination_of: Mapping[str, str]) -> int:
    """Return the longest time for which a namespace without a destination sends."""
    admitted = (
        (costs[name], int(messages), int(size_bytes))
        for report in reports
        for name, (messages, size_bytes, _) in zip(
            shown(report.names).to_pylist(), report.admitted.tolist(), strict=True
        )
        if messages and name not in destination_of
    )
    times_ps = (max(cost.message_ps * messages, cost.byte_ps * size_bytes) for cost, messages, size_bytes in admitted)
    return max(times_ps, default=0) // _PS_PER_NS
