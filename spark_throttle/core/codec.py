"""The stored bytes of shard states, usage reports and epochs; `policy_codec` has those of policies.

Each kind has its own format version. A reader accepts every version up to its own, and refuses a newer one by number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.core.arithmetic.packing import BlockFields, Field, pack, unpack
from spark_throttle.core.lending.destinations import DestinationRates
from spark_throttle.core.lending.grants import Buckets, Lending
from spark_throttle.core.limits.message_limits import MessageLimits
from spark_throttle.core.limits.paying import ClockReading, PayingTime
from spark_throttle.core.queue_files import NO_FILES, QueueFiles
from spark_throttle.core.quota import UNLIMITED, Int64s
from spark_throttle.core.state import Deferral, Flows, Grants, Queue, ShardState
from spark_throttle.core.time_codec import (
    EpochTime,
    epoch_time_fields,
    epoch_time_of,
    message_limit_fields,
    message_limits_of,
)
from spark_throttle.core.usage import UsageReport

STATE_VERSION = 9
"""The newest version of a shard's state. Version 2 added the job's shares of shared quotas, 3 the paying time of the
last epoch, 4 a bound for flows that are ahead, 5 leads in the common time, 6 rows that wait for their verdict, 7 files
of waiting rows, 8 limits on messages by time quotas, 9 the prices of messages in time. Leads of versions before 5 are
in another time, and are read as none.

A block is written in the lowest version that has all of its content."""

USAGE_VERSION = 4
"""The newest version of a usage report. Version 2 added the time at which every flow's first waiting row may leave, and
the batch's paying time; 3 added how far flows are ahead, 4 the rejected messages by reason, those that shared quotas
rejected, and the age of the oldest waiting row."""

EPOCH_VERSION = 13
"""The newest version of an epoch. Version 2 added the job's shares of shared quotas, 3 the clocks' readings and how far
shards are ahead, 4 a bound for flows that are ahead, 5 the tokens for which rows may wait for their verdict, 6 what
quotas on processing time have left, 7 the rates of destinations, 8 the job's shares of quotas on processing time, 9 the
handover with which new shards begin, 10 the prices by which scopes that are short of time are divided, 11 until when
destinations asked not to be called, 12 prices of messages in two parts, 13 such prices by level."""

GRANT_VERSION = 7
"""The newest version of a control row. Up to 6 they are those of epochs; handovers travel in rows of their own."""

_NO_AGE = -1
_WITH_BOUND = 4
_WITH_LEADS = 5
_EPOCH_WITH_DEFERRAL = 5
_EPOCH_WITH_TIME = 6
_EPOCH_WITH_DESTINATIONS = 7
_EPOCH_WITH_TIME_SHARES = 8
_EPOCH_WITH_HANDOVER = 9
_EPOCH_WITH_PRICES, _GRANT_WITH_PRICES = 10, 7
_EPOCH_WITH_CLOSED = 11
_EPOCH_WITH_PARTED_PRICES, _EPOCH_WITH_PRICES_BY_LEVEL = 12, 13
_STATE_WITH_DEFERRAL = 6
_STATE_WITH_FILES = 7
_STATE_WITH_TIME = 8
_STATE_WITH_PRICES = 9


@dataclass(frozen=True, slots=True, eq=False)
class StoredShard:
    """All that Spark's state store keeps for a shard: the input of its decisions, and the payload of waiting rows."""

    state: ShardState
    policy: bytes
    """The policy in force, packed; stored so that a batch without an epoch can be decided."""

    frames: list[bytes]
    """The payloads of the waiting rows, in the order of the queue (`spark.rows.frames`), or their places in files."""

    frame_of_row: Int64s
    """For every queued row, the position in `frames` of the frame that holds it."""

    row_in_frame: Int64s
    """For every queued row, its position in that frame."""

    paying: PayingTime | None = None
    """The clock reading pinned by the last epoch; `None` after an epoch of an older version."""

    files: QueueFiles = NO_FILES
    """The files that hold the payloads which are not in `frames` themselves."""


def pack_shard(stored: StoredShard) -> bytes:
    """Return a shard's state as a block."""
    state = stored.state
    flows, queue, grants = state.flows, state.queue, state.grants
    version, more = _later_fields(grants.share_micro_per_ms, stored.paying, grants.ahead_bound_milli)
    if flows.lead_vt.any():
        version = _WITH_LEADS
    if grants.deferral is not None:
        version, more = _STATE_WITH_DEFERRAL, {**more, **_deferral_fields(grants.deferral)}
    if queue.is_deferred is not None:
        version, more = _STATE_WITH_DEFERRAL, {**more, "queue_deferred": queue.is_deferred.astype(np.int64)}
    if stored.files.written:
        version, more = _STATE_WITH_FILES, {**more, **stored.files.to_fields()}
    if grants.time is not None:
        version = _STATE_WITH_TIME if grants.time.prices is None else _STATE_WITH_PRICES
        more |= message_limit_fields(grants.time)
    return pack("stat", version, {
        "advanced_to_ms": state.advanced_to_ms,
        "flow_names": flows.names, "flow_balance": flows.balance_micro, "flow_lead": flows.lead_vt,
        "flow_second": flows.window_second, "flow_units": flows.window_units,
        "queue_flow": queue.flow, "queue_size": queue.size_bytes, "queue_arrival": queue.arrival_ms,
        "queue_release": queue.release_ms,
        "grant_epoch": grants.epoch, "grant_balance": grants.balance_micro, "grant_headroom": grants.headroom_micro,
        "grant_as_of_ms": grants.as_of_ms,
        "policy": stored.policy, "frames": stored.frames,
        "rows_of_frame": np.bincount(stored.frame_of_row, minlength=len(stored.frames)),
        "row_in_frame": stored.row_in_frame, **more,
    }, is_compressed=True)  # fmt: skip


def _later_fields(
    share: Int64s | None, paying: PayingTime | None, ahead_bound_milli: Int64s | None
) -> tuple[int, dict[str, Field]]:
    """Return the lowest version of a block that has these values, and their fields."""
    kept = np.zeros((0, 2), dtype=np.int64) if share is None else share
    times: dict[str, Field] = {} if paying is None else {"paid_ms": paying.paid_ms, "wall_ms": paying.wall_ms}
    if ahead_bound_milli is not None:
        return _WITH_BOUND, {"share": kept, **times, "ahead_bound": ahead_bound_milli}
    if paying is not None:
        return 3, {"share": kept, **times}
    return (1, {}) if share is None else (2, {"share": share})


def _share(f: BlockFields) -> Int64s | None:
    share = f.pairs("share") if f.has("share") else None
    return share if share is not None and len(share) else None


def _paying(f: BlockFields) -> PayingTime | None:
    return PayingTime(f.integer("paid_ms"), f.integer("wall_ms")) if f.has("paid_ms") else None


def _ahead_bound(f: BlockFields, shape: tuple[int, ...] = (-1, 2)) -> Int64s | None:
    return f.integers("ahead_bound").reshape(shape) if f.has("ahead_bound") else None


def _deferral_fields(deferral: Deferral) -> dict[str, Field]:
    return {"deferral": deferral.room_micro, "deferral_of_flow": deferral.flow_micro}


def _deferral(f: BlockFields, shape: tuple[int, ...] = (-1, 2)) -> Deferral | None:
    if not f.has("deferral"):
        return None
    return Deferral(*(f.integers(name).reshape(shape) for name in ("deferral", "deferral_of_flow")))


def unpack_shard(block: bytes, what: str) -> StoredShard:
    """Return the shard's state that `pack_shard` stored."""
    f = unpack(block, "stat", STATE_VERSION, what)
    lead_vt = f.pairs("flow_lead")
    flows = Flows(
        f.names("flow_names"), f.pairs("flow_balance"), lead_vt if f.version >= _WITH_LEADS else np.zeros_like(lead_vt),
        f.integers("flow_second"), f.pairs("flow_units"),
    )  # fmt: skip
    queue = Queue(
        f.integers("queue_flow"), f.integers("queue_size"), f.integers("queue_arrival"), f.integers("queue_release"),
        f.integers("queue_deferred").astype(np.bool_) if f.has("queue_deferred") else None,
    )  # fmt: skip
    grants = Grants(
        f.integer("grant_epoch"), f.pairs("grant_balance"), f.pairs("grant_headroom"), f.integer("grant_as_of_ms"),
        _share(f), _ahead_bound(f), _deferral(f), message_limits_of(f),
    )  # fmt: skip
    frames = f.blobs("frames")
    frame_of_row = np.repeat(np.arange(len(frames)), f.integers("rows_of_frame"))
    state = ShardState(f.integer("advanced_to_ms"), flows, queue, grants)
    row_in_frame, files = f.integers("row_in_frame"), QueueFiles.of(f)
    return StoredShard(state, f.raw("policy"), frames, frame_of_row, row_in_frame, _paying(f), files)


def pack_usage(usage: UsageReport) -> bytes:
    """Return a usage report as a block."""
    version, more = 1, dict[str, Field]()
    if usage.leaves_ms is not None:
        version, more = 2, {"leaves_ms": usage.leaves_ms, "paid_ms": usage.as_of_ms}
        if usage.ahead_milli is not None:
            version, more = 3, {**more, "ahead": usage.ahead_milli}
            if usage.rejected_by_reason is not None and usage.rejected_by_shared_messages is not None:
                oldest_ms = _NO_AGE if usage.oldest_waiting_ms is None else usage.oldest_waiting_ms
                by_reason = np.array(usage.rejected_by_reason, dtype=np.int64)
                version, more = 4, {
                    **more, "rejected_by_reason": by_reason, "rejected_by_shared": usage.rejected_by_shared_messages,
                    "oldest_waiting_ms": oldest_ms,
                }  # fmt: skip
    return pack("usge", version, {
        "shard": usage.shard, "epoch": usage.epoch, "revision": usage.revision, "now_ms": usage.now_ms,
        "names": usage.names, "tenant": usage.tenant, "group": usage.group, "weight": usage.weight,
        "offered": usage.offered, "admitted": usage.admitted, "rejected": usage.rejected, "waiting": usage.waiting,
        "demand": usage.demand, "observed_messages": usage.observed_messages, "delayed_ms": usage.delayed_ms,
        "next_event_ms": usage.expires_ms, "invalid_messages": usage.invalid_messages, **more,
    })  # fmt: skip


def unpack_usage(block: bytes | memoryview, what: str) -> UsageReport:
    """Return the usage report that `pack_usage` stored."""
    f = unpack(block, "usge", USAGE_VERSION, what)
    oldest_ms = f.integer("oldest_waiting_ms") if f.version > 3 else _NO_AGE
    return UsageReport(
        f.integer("shard"), f.integer("epoch"), f.text("revision"), f.integer("now_ms"), f.names("names"),
        f.integers("tenant"), f.integers("group"), f.integers("weight"), f.pairs("offered"), f.pairs("admitted"),
        f.pairs("rejected"), f.pairs("waiting"), f.pairs("demand"), f.integers("observed_messages"),
        f.integers("delayed_ms"), f.integer("next_event_ms"), f.integer("invalid_messages"),
        f.integers("leaves_ms") if f.version > 1 else None, f.integer("paid_ms") if f.version > 1 else None,
        f.pairs("ahead") if f.version > 2 else None,
        tuple(f.integers("rejected_by_reason").tolist()) if f.version > 3 else None,
        f.integers("rejected_by_shared") if f.version > 3 else None,
        None if oldest_ms == _NO_AGE else oldest_ms,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Epoch:
    """A version of all grants: everything that batches take from the control plane until the next epoch."""

    number: int
    revision: str
    buckets: Buckets
    """The buckets of the control plane, before any of their tokens are used."""

    lending: Lending
    settled_batch: int
    """The last batch whose usage is accounted for; -1 before the first."""

    share_micro_per_ms: Int64s | None = None
    """Shape (scopes, 2): this job's shares of the rates of the shared scopes; `None` if it shares no quota with other
    jobs."""

    reading: ClockReading | None = None
    """The clocks' reading when the epoch was made, at the paying time of `buckets`; `None` in an older version."""

    owed_ms: Int64s | None = None
    """Shape (scopes,): the time for which this job has missed a share (`lending.owed_time`); `None` if it has missed
    none."""

    time: EpochTime | None = None
    """What is left of the policy's quotas on processing time, and what it lets through; `None` if it has none."""

    destinations: DestinationRates | None = None
    """The rates of destinations that push back; `None` if the policy has none."""

    handover: str = ""
    """The name of the states with which the shards begin, in the first epoch after their number has changed."""

    @property
    def share_in_force(self) -> Int64s | None:
        """The shares of the shared scopes' rates, none higher than its destination's rate."""
        if self.destinations is None:
            return self.share_micro_per_ms
        return self.destinations.share(self.share_micro_per_ms, len(self.buckets.balance_micro))

    @property
    def shares(self) -> Int64s | None:
        """Shape (scopes, 3): this job's shares of messages, bytes and processing time; `None` if it shares no quota."""
        share = self.share_micro_per_ms
        if share is None:
            return None
        time = None if self.time is None else self.time.share_ns_per_ms
        return np.column_stack([share, np.full(len(share), UNLIMITED, dtype=np.int64) if time is None else time])

    def grant(self, shard: int, policy: bytes | None) -> ShardGrant:
        """Return the epoch's control row for a shard.

        Parameters
        ----------
        policy
            The shard's slice of the policy, packed; `None` if the shard already has it.
        """
        paying = None if self.reading is None else PayingTime(self.buckets.as_of_ms, self.reading.wall_ms)
        lending = self.lending
        bound_milli = None if lending.ahead_bound_milli is None else lending.ahead_bound_milli[shard]
        deferral = None if lending.deferral is None else lending.deferral.of_shard(shard)
        time, share = None, self.share_in_force
        if self.time is not None:
            time = self.time.of_shard(shard, len(lending.balance_micro))
            if share is not None and self.share_micro_per_ms is not None:
                share = self.time.messages_under(share)
        return ShardGrant(
            self.number, policy, lending.balance_micro[shard], lending.headroom_micro[shard], share, paying,
            bound_milli, deferral, time,
        )  # fmt: skip


def pack_epoch(epoch: Epoch) -> bytes:
    """Return an epoch as a block."""
    reading, paying = epoch.reading, None
    more: dict[str, Field] = {}
    if reading is not None:
        paying = PayingTime(epoch.buckets.as_of_ms, reading.wall_ms)
        more = {"latest_wall_ms": reading.latest_wall_ms, "steady_ms": reading.steady_ms, "boot": reading.boot}
    bound_milli = epoch.lending.ahead_bound_milli
    if reading is not None or bound_milli is not None:
        more |= {"advance": epoch.lending.advance_micro, "credit": epoch.lending.credit_micro}
    version, later = _later_fields(epoch.share_micro_per_ms, paying, bound_milli)
    if epoch.lending.deferral is not None:
        version, more = _EPOCH_WITH_DEFERRAL, {**more, **_deferral_fields(epoch.lending.deferral)}
    if epoch.owed_ms is not None:
        version, more = _EPOCH_WITH_DEFERRAL, {**more, "owed_ms": epoch.owed_ms}
    if epoch.time is not None:
        is_shared = epoch.time.share_ns_per_ms is not None
        version = _EPOCH_WITH_TIME_SHARES if is_shared else _EPOCH_WITH_TIME
        version = version if epoch.time.limits.prices is None else _EPOCH_WITH_PRICES
        version = _EPOCH_WITH_PARTED_PRICES if epoch.time.has_parted_prices else version
        version = _EPOCH_WITH_PRICES_BY_LEVEL if epoch.time.has_prices_by_level else version
        more |= epoch_time_fields(epoch.time)
    if epoch.destinations is not None:
        is_closed = bool(epoch.destinations.closed_until_ms.any())
        version = max(version, _EPOCH_WITH_CLOSED if is_closed else _EPOCH_WITH_DESTINATIONS)
        more |= epoch.destinations.to_fields()
    if epoch.handover:
        version, more = max(version, _EPOCH_WITH_HANDOVER), {**more, "handover": epoch.handover}
    return pack("epch", version, {
        "number": epoch.number, "revision": epoch.revision, "balance": epoch.buckets.balance_micro,
        "as_of_ms": epoch.buckets.as_of_ms, "shards": len(epoch.lending.balance_micro),
        "lent": epoch.lending.balance_micro, "headroom": epoch.lending.headroom_micro,
        "settled_batch": epoch.settled_batch, **later, **more,
    })  # fmt: skip


def unpack_epoch(block: bytes, what: str) -> Epoch:
    """Return the epoch that `pack_epoch` stored."""
    f = unpack(block, "epch", EPOCH_VERSION, what)
    shape = (f.integer("shards"), -1, 2)
    lent, headroom = f.integers("lent").reshape(shape), f.integers("headroom").reshape(shape)
    advance, credit = (
        f.integers(name).reshape(shape) if f.has(name) else np.zeros_like(lent) for name in ("advance", "credit")
    )
    lending = Lending(lent, headroom, advance, credit, _ahead_bound(f, shape), _deferral(f, shape))
    buckets = Buckets(f.pairs("balance"), f.integer("as_of_ms"))
    paying, reading = _paying(f), None
    if paying is not None:
        latest_ms, steady_ms = f.integer("latest_wall_ms"), f.integer("steady_ms")
        reading = ClockReading(paying.wall_ms, latest_ms, steady_ms, f.text("boot"))
    return Epoch(
        f.integer("number"), f.text("revision"), buckets, lending, f.integer("settled_batch"), _share(f), reading,
        f.integers("owed_ms") if f.has("owed_ms") else None, epoch_time_of(f, buckets.as_of_ms),
        DestinationRates.of_fields(f), f.text("handover") if f.has("handover") else "",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class ShardGrant:
    """A control row: the part of an epoch that is for one shard."""

    epoch: int
    policy: bytes | None
    """The shard's slice of the policy, packed; `None` if the shard already has it."""

    balance_micro: Int64s
    headroom_micro: Int64s
    share_micro_per_ms: Int64s | None = None
    """This job's shares, as in `Epoch.share_micro_per_ms`."""

    paying: PayingTime | None = None
    """The clock reading at which the epoch was made."""

    ahead_bound_milli: Int64s | None = None
    """The bound for flows that are ahead, as in `state.Grants.ahead_bound_milli`."""

    deferral: Deferral | None = None
    """The tokens for which rows may wait for their verdict, as in `state.Grants.deferral`."""

    time: MessageLimits | None = None
    """The quotas on processing time, as in `state.Grants.time`."""


def pack_grant(grant: ShardGrant) -> bytes:
    """Return a control row as a block."""
    version, more = _later_fields(grant.share_micro_per_ms, grant.paying, grant.ahead_bound_milli)
    if grant.deferral is not None:
        version, more = _EPOCH_WITH_DEFERRAL, {**more, **_deferral_fields(grant.deferral)}
    if grant.time is not None:
        version = _EPOCH_WITH_TIME if grant.time.prices is None else _GRANT_WITH_PRICES
        more |= message_limit_fields(grant.time)
    return pack("grnt", version, {
        "epoch": grant.epoch, "policy": grant.policy or b"", "balance": grant.balance_micro,
        "headroom": grant.headroom_micro, **more,
    })  # fmt: skip


def unpack_grant(block: bytes, what: str) -> ShardGrant:
    """Return the control row that `pack_grant` stored."""
    f = unpack(block, "grnt", GRANT_VERSION, what)
    return ShardGrant(
        f.integer("epoch"), f.raw("policy") or None, f.pairs("balance"), f.pairs("headroom"), _share(f), _paying(f),
        _ahead_bound(f), _deferral(f), message_limits_of(f),
    )  # fmt: skip
