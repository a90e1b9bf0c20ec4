"""The stored bytes of the decider's state, reports, epochs and control rows; `policy_codec` has those of policies.

Each kind has its own format version; a reader refuses another one by number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.core.arithmetic.packing import BlockFields, Field, pack, unpack
from spark_throttle.core.limits.paying import ClockReading, PayingTime
from spark_throttle.core.queue_files import NO_FILES, QueueFiles
from spark_throttle.core.quota import UNLIMITED, Int64s
from spark_throttle.core.shared_buckets import SharedBuckets
from spark_throttle.core.shares.destinations import DestinationRates
from spark_throttle.core.state import ControlRow, DeciderState, Flows, NodeLeads, Queue
from spark_throttle.core.time_codec import (
    EpochTime,
    epoch_time_fields,
    epoch_time_of,
    message_limit_fields,
    message_limits_of,
)
from spark_throttle.core.usage import UsageReport

STATE_VERSION = USAGE_VERSION = EPOCH_VERSION = CONTROL_VERSION = 1

_NO_AGE = -1


@dataclass(frozen=True, slots=True, eq=False)
class StoredState:
    """All that Spark's state store keeps: the input of decisions, and the payload of waiting rows."""

    state: DeciderState
    policy: bytes
    """The policy in force, packed; stored so that a batch without an epoch can be decided."""

    frames: list[bytes]
    """The payloads of the waiting rows, in the order of the queue (`spark.rows.frames`), or their places in files."""

    frame_of_row: Int64s
    """For every queued row, the position in `frames` of the frame that holds it."""

    row_in_frame: Int64s
    """For every queued row, its position in that frame."""

    paying: PayingTime
    """The clock reading pinned by the last epoch."""

    files: QueueFiles = NO_FILES
    """The files that hold the payloads which are not in `frames` themselves."""


def pack_state(stored: StoredState) -> bytes:
    """Return the decider's state as a block."""
    state, files = stored.state, stored.files
    flows, queue, shared = state.flows, state.queue, state.shared
    return pack("stat", STATE_VERSION, {
        "advanced_to_ms": state.advanced_to_ms, "epoch": state.epoch,
        "flow_names": flows.names, "flow_balance": flows.balance_micro, "flow_lead": flows.lead_work,
        "flow_held": flows.held_work, "node_group": state.nodes.group, "node_tenant": state.nodes.tenant,
        "node_lead": state.nodes.lead_work,
        "flow_second": flows.window_second, "flow_units": flows.window_units,
        "queue_flow": queue.flow, "queue_size": queue.size_bytes, "queue_arrival": queue.arrival_ms,
        "queue_release": queue.release_ms,
        "shared_balance": shared.balance_micro, "shared_as_of_ms": shared.as_of_ms,
        "policy": stored.policy, "frames": stored.frames,
        "rows_of_frame": np.bincount(stored.frame_of_row, minlength=len(stored.frames)),
        "row_in_frame": stored.row_in_frame,
        **_share_fields(shared.share_micro_per_ms), **_paying_fields(stored.paying),
        **(files.to_fields() if files.written else {}),
        **({} if shared.time is None else message_limit_fields(shared.time)),
    }, is_compressed=True)  # fmt: skip


def unpack_state(block: bytes, what: str) -> StoredState:
    """Return the state that `pack_state` stored."""
    f = unpack(block, "stat", STATE_VERSION, what)
    flows = Flows(
        f.names("flow_names"), f.pairs("flow_balance"), f.pairs("flow_lead"), f.pairs("flow_held"),
        f.integers("flow_second"), f.pairs("flow_units"),
    )  # fmt: skip
    queue = Queue(*(f.integers(f"queue_{name}") for name in ("flow", "size", "arrival", "release")))
    shared = SharedBuckets(f.pairs("shared_balance"), f.integer("shared_as_of_ms"), _share(f), message_limits_of(f))
    frames = f.blobs("frames")
    frame_of_row = np.repeat(np.arange(len(frames)), f.integers("rows_of_frame"))
    nodes = NodeLeads(f.names("node_group"), f.names("node_tenant"), f.pairs("node_lead"))
    state = DeciderState(f.integer("advanced_to_ms"), flows, queue, shared, f.integer("epoch"), nodes)
    row_in_frame = f.integers("row_in_frame")
    return StoredState(state, f.raw("policy"), frames, frame_of_row, row_in_frame, _paying(f), QueueFiles.of(f))


def _share_fields(share_micro_per_ms: Int64s | None) -> dict[str, Field]:
    return {} if share_micro_per_ms is None else {"share": share_micro_per_ms}


def _share(f: BlockFields) -> Int64s | None:
    return f.pairs("share") if f.has("share") else None


def _paying_fields(paying: PayingTime) -> dict[str, Field]:
    return {"paid_ms": paying.paid_ms, "wall_ms": paying.wall_ms}


def _paying(f: BlockFields) -> PayingTime:
    return PayingTime(f.integer("paid_ms"), f.integer("wall_ms"))


def pack_usage(usage: UsageReport) -> bytes:
    """Return a usage report as a block."""
    return pack("usge", USAGE_VERSION, {
        "epoch": usage.epoch, "revision": usage.revision, "now_ms": usage.now_ms, "paid_ms": usage.as_of_ms,
        "names": usage.names, "tenant": usage.tenant, "group": usage.group, "weight": usage.weight,
        "offered": usage.offered, "admitted": usage.admitted, "rejected": usage.rejected, "waiting": usage.waiting,
        "demand": usage.demand, "observed_messages": usage.observed_messages, "delayed_ms": usage.delayed_ms,
        "shared": usage.shared_micro, "due_ms": usage.due_ms, "due_with_quotas_ms": usage.due_with_quotas_ms,
        "invalid_messages": usage.invalid_messages,
        "rejected_by_reason": np.array(usage.rejected_by_reason, dtype=np.int64),
        "oldest_waiting_ms": _NO_AGE if usage.oldest_waiting_ms is None else usage.oldest_waiting_ms,
    })  # fmt: skip


def unpack_usage(block: bytes | memoryview, what: str) -> UsageReport:
    """Return the usage report that `pack_usage` stored."""
    f = unpack(block, "usge", USAGE_VERSION, what)
    oldest_ms = f.integer("oldest_waiting_ms")
    return UsageReport(
        f.integer("epoch"), f.text("revision"), f.integer("now_ms"), f.names("names"),
        f.integers("tenant"), f.integers("group"), f.integers("weight"), f.pairs("offered"), f.pairs("admitted"),
        f.pairs("rejected"), f.pairs("waiting"), f.pairs("demand"), f.integers("observed_messages"),
        f.integers("delayed_ms"), f.pairs("shared"), f.integer("due_ms"), f.integer("due_with_quotas_ms"),
        f.integer("invalid_messages"), f.integer("paid_ms"), tuple(f.integers("rejected_by_reason").tolist()),
        None if oldest_ms == _NO_AGE else oldest_ms,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Epoch:
    """Everything that batches take from the control plane until the next epoch."""

    number: int
    revision: str
    paid_ms: int
    """The paying time at which the epoch was made."""

    reading: ClockReading
    """The clocks' reading at that time."""

    settled_batch: int
    """The last batch whose report is accounted for; -1 before the first."""

    share_micro_per_ms: Int64s | None = None
    """Shape (scopes, 2): this job's shares of the rates of the shared scopes; `None` if it shares no quota with other
    jobs."""

    earns_until_ms: Int64s | None = None
    """As in `state.ControlRow`."""

    time: EpochTime | None = None
    """What is left of the policy's quotas on processing time, and what it lets through; `None` if it has none."""

    destinations: DestinationRates | None = None
    """The rates of destinations that push back; `None` if the policy has none."""

    def share_in_force(self, scopes: int) -> Int64s | None:
        """Return the shares of the shared scopes' rates, none higher than its destination's rate."""
        if self.destinations is None:
            return self.share_micro_per_ms
        return self.destinations.share(self.share_micro_per_ms, scopes)

    @property
    def shares(self) -> Int64s | None:
        """Shape (scopes, 3): this job's shares of messages, bytes and processing time; `None` if it shares no quota."""
        share = self.share_micro_per_ms
        if share is None:
            return None
        time = None if self.time is None else self.time.share_ns_per_ms
        return np.column_stack([share, np.full(len(share), UNLIMITED, dtype=np.int64) if time is None else time])

    def control_row(self, policy: bytes | None, burst_micro: Int64s) -> ControlRow:
        """Return the row that the epoch gives the decider.

        Parameters
        ----------
        policy
            The policy, packed; `None` if the decider already has it.
        burst_micro
            Shape (scopes, 2): the bursts of the policy's shared scopes.
        """
        most_micro = None
        if self.destinations is not None:
            most_micro = self.destinations.most_micro(burst_micro)
        return ControlRow(
            self.number, policy, PayingTime(self.paid_ms, self.reading.wall_ms), self.share_in_force(len(burst_micro)),
            self.earns_until_ms, None if self.time is None else self.time.limits.needed(), most_micro,
        )  # fmt: skip


def pack_epoch(epoch: Epoch) -> bytes:
    """Return an epoch as a block."""
    reading = epoch.reading
    return pack("epch", EPOCH_VERSION, {
        "number": epoch.number, "revision": epoch.revision, "settled_batch": epoch.settled_batch,
        **_paying_fields(PayingTime(epoch.paid_ms, reading.wall_ms)),
        "latest_wall_ms": reading.latest_wall_ms, "steady_ms": reading.steady_ms, "boot": reading.boot,
        **_share_fields(epoch.share_micro_per_ms),
        **({} if epoch.earns_until_ms is None else {"earns_until_ms": epoch.earns_until_ms}),
        **({} if epoch.time is None else epoch_time_fields(epoch.time)),
        **({} if epoch.destinations is None else epoch.destinations.to_fields()),
    })  # fmt: skip


def unpack_epoch(block: bytes, what: str) -> Epoch:
    """Return the epoch that `pack_epoch` stored."""
    f = unpack(block, "epch", EPOCH_VERSION, what)
    paying = _paying(f)
    reading = ClockReading(paying.wall_ms, f.integer("latest_wall_ms"), f.integer("steady_ms"), f.text("boot"))
    return Epoch(
        f.integer("number"), f.text("revision"), paying.paid_ms, reading, f.integer("settled_batch"), _share(f),
        f.integers("earns_until_ms") if f.has("earns_until_ms") else None, epoch_time_of(f, paying.paid_ms),
        DestinationRates.of_fields(f),
    )  # fmt: skip


def pack_control_row(row: ControlRow) -> bytes:
    """Return a control row as a block."""
    return pack("ctrl", CONTROL_VERSION, {
        "epoch": row.epoch, "policy": row.policy or b"", **_paying_fields(row.paying),
        **_share_fields(row.share_micro_per_ms),
        **({} if row.earns_until_ms is None else {"earns_until_ms": row.earns_until_ms}),
        **({} if row.most_micro is None else {"most": row.most_micro}),
        **({} if row.time is None else message_limit_fields(row.time)),
    })  # fmt: skip


def unpack_control_row(block: bytes, what: str) -> ControlRow:
    """Return the control row that `pack_control_row` stored."""
    f = unpack(block, "ctrl", CONTROL_VERSION, what)
    return ControlRow(
        f.integer("epoch"), f.raw("policy") or None, _paying(f), _share(f),
        f.integers("earns_until_ms") if f.has("earns_until_ms") else None, message_limits_of(f),
        f.pairs("most") if f.has("most") else None,
    )  # fmt: skip
