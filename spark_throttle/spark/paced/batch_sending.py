"""A batch's report and epoch say how fast its namespaces may go, and how fast each of its destinations is sent to.

They are the same when the batch is run again, and so are the costs: counts, policy and shares are pinned with the
batch's epoch.

A scope's rate is divided over the batch's namespaces by what each of them has to send, so that the namespaces of a
scope all need the same time. A namespace is sent by one task, so no two tasks need to talk.

Laws: what the costs allow all namespaces of a scope together is at most the scope's rate, in messages, bytes and units;
a namespace without a limit anywhere costs nothing. Scopes that only observe hold nothing back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.control.epochs import EpochName, logged_epoch
from spark_throttle.core.epoch import Epoch
from spark_throttle.core.names.matching import enforcing_scopes, match, positions_in
from spark_throttle.core.names.shown_names import shown
from spark_throttle.core.quota import KNOWN, Bools, CompiledPolicy, Dimension, Int64s, OnExcess
from spark_throttle.core.shared_buckets import rates_of_shares
from spark_throttle.core.shares.destinations import WHOLE, Aimd, destinations_of, group_names
from spark_throttle.core.undelivered import Undelivered, UndeliveredCall
from spark_throttle.core.usage import UsageReport
from spark_throttle.errors import EpochMissingError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.paced.calls import HASTE
from spark_throttle.spark.paced.gate import Terms
from spark_throttle.spark.paced.sending import BatchName

_PS_OF_A_MILLITOKEN: Final = 10**15
"""Picoseconds in which one thousandth of a token per second adds a token; rates are in micro-tokens per millisecond."""

MOST_PS: Final = 2**53
"""The highest cost of one row, two and a half hours: so sums fit into 64 bits."""

_NS_MILLI: Final = 10**12
"""Nanoseconds in which a rate of one micro-token per millisecond adds a token."""

_PS_PER_NS: Final = 1_000


class RowCost(NamedTuple):
    """The time for which one row of a namespace uses up the namespace's rate."""

    message_ps: int
    """Picoseconds for each row; 0 where messages are not limited."""

    byte_ps: int
    """Picoseconds for each byte of a row; 0 where bytes are not limited."""

    unit_ps: int
    """Picoseconds for each unit of a row; 0 where units are not limited."""

    def of_rows_ns(self, sizes_bytes: Int64s, units: Int64s) -> Int64s:
        """Return the cost of each row in nanoseconds: of its message, its bytes or its units, whichever is most.

        Examples
        --------
        >>> cost = RowCost(message_ps=1_000_000, byte_ps=10_000, unit_ps=0)
        >>> cost.of_rows_ns(np.array([1, 500]), np.array([7, 7])).tolist()
        [1000, 5000]
        """
        costs_ps = np.full(len(sizes_bytes), min(self.message_ps, MOST_PS), dtype=np.int64)
        for tokens, token_ps in ((sizes_bytes, self.byte_ps), (units, self.unit_ps)):
            if token_ps:
                each_ps = min(token_ps, MOST_PS)
                costs_ps = np.maximum(costs_ps, np.minimum(tokens, MOST_PS // each_ps) * each_ps)
        rounded: Int64s = -(-costs_ps // 1000)
        return rounded


def row_costs(
    names: pa.StringArray, admitted: Int64s, policy: CompiledPolicy, share_micro_per_ms: Int64s | None = None
) -> dict[str, RowCost]:
    """Return the cost of a row of each namespace of a batch.

    Parameters
    ----------
    admitted
        Shape (n, 3) or more: the messages, bytes and units of each namespace that the batch admitted.
    share_micro_per_ms
        This job's shares of the shared scopes' rates, if it shares quotas with other jobs.

    Examples
    --------
    Two namespaces share 100 messages per second, and one of them has three times the rows of the other.

    >>> from spark_throttle.policy.compile import compile_policy
    >>> from spark_throttle.policy.model import PolicyDocument
    >>> limits = {"tenants": {"acme": {"publish": {"messages_per_second": 100}}}}
    >>> policy = compile_policy(PolicyDocument.model_validate(limits), "publish")
    >>> costs = row_costs(pa.array(["acme/a", "acme/b"]), np.array([[30, 0, 0], [10, 0, 0]]), policy)
    >>> [cost.message_ps // 10**6 for cost in costs.values()]  # in microseconds: 75 and 25 per second
    [13333, 40000]
    """
    matches = match(names, policy)
    own = matches.own_limits(policy)
    own_rates = np.where((own.on_excess == OnExcess.OBSERVE)[:, None], -1, own.rate_micro_per_ms)
    shared_rates = policy.shared.rate_micro_per_ms
    if share_micro_per_ms is not None:
        shared_rates = rates_of_shares(share_micro_per_ms, policy)
    scopes = enforcing_scopes(matches.shared_scope, policy)
    pairs = zip(
        *(
            _costs_ps(admitted[:, dimension], own_rates[:, dimension], scopes, shared_rates[:, dimension])
            for dimension in KNOWN
        ),
        strict=True,
    )
    return dict(zip(shown(names).to_pylist(), map(RowCost._make, pairs), strict=True))


def _costs_ps(counts: Int64s, own_rates: Int64s, scopes: Int64s, shared_rates: Int64s) -> list[int]:
    """Return the picoseconds that a token of each namespace costs in one dimension; 0 where nothing limits it."""
    totals = np.zeros(len(shared_rates), dtype=np.int64)
    for level in scopes.T:
        np.add.at(totals, level[level >= 0], counts[level >= 0])
    # Products are wider than 64 bits: they are made in Python, once for each scope and each rate, then taken by number.
    busy = np.flatnonzero((totals > 0) & (shared_rates > 0))
    needed = {
        scope: -(-total * _PS_OF_A_MILLITOKEN // rate)
        for scope, total, rate in zip(busy.tolist(), totals[busy].tolist(), shared_rates[busy].tolist(), strict=True)
    }
    longest_ps = [0, *sorted(set(needed.values()))]
    rank_of = {ps: rank for rank, ps in enumerate(longest_ps)}
    ranks = np.zeros(len(shared_rates) + 1, dtype=np.int64)  # the last is of no scope
    ranks[busy] = [rank_of[ps] for ps in needed.values()]
    longest = ranks.take(scopes).max(axis=1, initial=0)

    rates, rate_of = np.unique(own_rates, return_inverse=True)
    own_ps = [-(-_PS_OF_A_MILLITOKEN // rate) if rate > 0 else 0 for rate in rates.tolist()]
    found = [own_ps[at] for at in rate_of.tolist()]
    shared = np.flatnonzero((longest > 0) & (counts > 0))
    for at, rank, count in zip(shared.tolist(), longest[shared].tolist(), counts[shared].tolist(), strict=True):
        part_ps = -(-longest_ps[rank] // count)
        found[at] = max(found[at], part_ps)
    return found


@dataclass(frozen=True, slots=True)
class BatchDestination:
    """A destination that the policy names, in one batch. Rates are in messages a second, times 1,000."""

    rows: int
    """The rows that go there."""

    sent_micro_per_ms: int
    """The rate by the batch's epoch, of which `Told.part` is a part."""

    floor_micro_per_ms: int
    ceiling_micro_per_ms: int
    aimd: Aimd
    """What its rate follows."""

    is_unavailable: bool
    closed_until_ms: int = 0
    """The wall-clock time before which it asked not to be called."""

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
            asks_once=not is_timed,
            ceiling_part=self.ceiling_micro_per_ms * hasty * WHOLE // (sent * usual),
            began=Aimd(max(1, self.aimd.base * WHOLE // sent), self.aimd.quiet_ms),
            closed_until_ms=self.closed_until_ms,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Departure:
    """The rows that leave in a batch, by namespace; those included that are sent again."""

    names: pa.StringArray
    admitted: Int64s
    """Shape (n, 3): messages, bytes and units; of rows that are sent again nobody knows the last two: 0."""

    destination: Int64s
    """The position of each namespace's destination in the policy, -1 where it has none."""

    @classmethod
    def of(cls, report: UsageReport, epoch: Epoch, policy: CompiledPolicy) -> Departure:
        """Return what leaves in the batch of a report."""
        has_left = report.admitted[:, Dimension.MESSAGES] > 0
        names, admitted = report.names.filter(pa.array(has_left)), report.admitted[has_left, : len(KNOWN)]
        if epoch.undelivered is not None and epoch.undelivered.is_again.any():
            again = epoch.undelivered
            others = again.names.filter(pa.array(again.is_again)).unique()
            new = others.filter(pa.array(positions_in(names, others) < 0))
            names = pa.concat_arrays([names, new])
            admitted = np.concatenate([admitted, np.zeros((len(new), len(KNOWN)), dtype=np.int64)])
            at = positions_in(names, again.names)[again.is_again]
            np.add.at(admitted[:, Dimension.MESSAGES], at, again.rows[again.is_again])
        return cls(names, admitted, destinations_of(names, policy))

    @property
    def messages(self) -> Int64s:
        """Return the rows of each namespace."""
        messages: Int64s = self.admitted[:, Dimension.MESSAGES]
        return messages

    def where(self, is_wanted: Bools) -> Departure:
        """Return the rows of some of the namespaces."""
        names = self.names.filter(pa.array(is_wanted))
        return Departure(names, self.admitted[is_wanted], self.destination[is_wanted])


@dataclass(frozen=True, slots=True, eq=False)
class BatchSending:
    """What a batch's epoch and report say of its sending; namespaces are named as they are shown."""

    name: BatchName
    left: Departure
    costs: dict[str, RowCost]
    again: Mapping[str, Sequence[UndeliveredCall]]
    """The calls that are made again, which are the first of their namespaces."""

    others_ns: int
    """The longest time for which a namespace without a destination sends."""

    destinations: Mapping[str, BatchDestination]
    destination_of: Mapping[str, str]

    @classmethod
    def of(
        cls,
        epoch: Epoch,
        policy: CompiledPolicy,
        mark: BatchMark,
        report: UsageReport,
    ) -> BatchSending:
        """Return what a batch has to send."""
        left = Departure.of(report, epoch, policy)
        names = shown(left.names).to_pylist()
        costs = row_costs(left.names, left.admitted, policy, epoch.share_micro_per_ms)
        at, known = left.destination, group_names(policy)
        destination_of = {name: known[each] for name, each in zip(names, at.tolist(), strict=True) if each >= 0}
        rows = np.bincount(at[at >= 0], weights=left.messages[at >= 0], minlength=len(known)).astype(np.int64).tolist()
        destinations = {known[each]: _destination(epoch, policy, each, rows[each]) for each in np.unique(at[at >= 0])}
        others = (
            max(token_ps * tokens for token_ps, tokens in zip(costs[name], admitted, strict=True))
            for name, admitted, each in zip(names, left.admitted.tolist(), at.tolist(), strict=True)
            if each < 0
        )
        return cls(
            BatchName(mark.query, mark.batch, mark.identity), left, costs, _again(epoch.undelivered),
            max(others, default=0) // _PS_PER_NS, destinations, destination_of,
        )  # fmt: skip

    def undelivered(self, calls: Sequence[UndeliveredCall]) -> Undelivered:
        """Return calls that were not taken, under the names that namespaces really have."""
        at = {name: place for place, name in enumerate(shown(self.left.names).to_pylist())}
        names = self.left.names.take(pa.array([at[each.namespace] for each in calls], pa.int64()))
        return Undelivered.of(calls, names)


def _destination(epoch: Epoch, policy: CompiledPolicy, at: int, rows: int) -> BatchDestination:
    rates, known = epoch.destinations, policy.destinations
    assert rates is not None and known is not None  # noqa: S101, PT018 - a namespace goes there
    floor = int(known.floor_micro_per_ms[at])
    ceiling = int(policy.shared.rate_micro_per_ms[known.scope[at], Dimension.MESSAGES])
    sent = rates.sending_micro_per_ms(at, floor=floor, ceiling=ceiling)
    closed_until_ms = int(rates.closed_until_ms[at])
    return BatchDestination(rows, sent, floor, ceiling, rates.aimd(at), bool(rates.is_open[at]), closed_until_ms)


def _again(undelivered: Undelivered | None) -> dict[str, list[UndeliveredCall]]:
    found = defaultdict[str, list[UndeliveredCall]](list)
    for call in _calls_of(undelivered):
        found[call.namespace].append(call)
    return {name: sorted(calls, key=lambda call: call.place) for name, calls in found.items()}


def _calls_of(undelivered: Undelivered | None) -> Iterator[UndeliveredCall]:
    """Yield the calls that are made again."""
    if undelivered is None:
        return
    at = np.flatnonzero(undelivered.is_again)
    names = shown(undelivered.names.take(pa.array(at))).to_pylist()
    identities = undelivered.key_identity.take(pa.array(at)).to_pylist()
    for name, identity, each in zip(names, identities, at.tolist(), strict=True):
        yield UndeliveredCall(
            name, int(undelivered.place[each]), int(undelivered.rows[each]), int(undelivered.key_batch[each]), identity,
            int(undelivered.key_place[each]),
        )  # fmt: skip


def epoch_of(directory: Directory, batch: int) -> EpochName:
    """Return the name of the epoch that a batch's offsets name.

    Raises
    ------
    EpochMissingError
        If the offsets are gone.
    """
    checkpoint = Directory(directory.location.rstrip("/").rpartition("/")[0])
    found = logged_epoch(checkpoint, batch)
    if found is None:
        raise EpochMissingError(-1, checkpoint.path(f"offsets/{batch}"))
    return found
