"""What the stored blocks hold, and how they were made.

A block of a released version is written once and never again: later releases must read it. After a change of a
format, add files of the new version beside these::

    python -m tests.conformance.stored.blocks

writes what has no file. A block of an older version cannot be written any more: it has its file alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from spark_throttle.core.lending.grants import Buckets, Lending

from spark_throttle.core.arithmetic.packing import unpack
from spark_throttle.core.codec import Epoch, ShardGrant, StoredShard, pack_epoch, pack_grant, pack_shard, pack_usage
from spark_throttle.core.limits.message_limits import MessageBuckets, MessageLimits
from spark_throttle.core.limits.message_prices import MessagePrices
from spark_throttle.core.limits.paying import ClockReading, PayingTime
from spark_throttle.core.queue_files import NO_FILES, QueueFiles
from spark_throttle.core.quota import (
    UNLIMITED,
    Int64s,
)
from spark_throttle.core.shares.destinations import DestinationRates
from spark_throttle.core.state import NO_BOUND, DeciderState, Deferral, Flows, Grants, Queue
from spark_throttle.core.time_codec import EpochTime
from spark_throttle.core.time_quota.namespace_prices import NamespacePrices
from spark_throttle.core.time_quota.time_accounts import TimeAccounts
from spark_throttle.core.time_quota.time_ledger import TimeLedger, UsedTime
from spark_throttle.core.usage import UsageReport

HERE = Path(__file__).parent
POLICY = unpack((HERE / "shard_v1.bin").read_bytes(), "stat", 9, "the first shard").raw("policy")
"""A policy as it stands in a shard's state: as it was stored then, whatever this release would write."""

RATES = DestinationRates(*(np.array([value]) for value in (1, 2**50, 1_500, 0, 7, 2**49, 0, 0)))
"""The rate of a destination, which epochs of version 7 have."""

CLOSED = replace(RATES, closed_until_ms=np.array([2**41]))
"""A destination that asked not to be called, which epochs of version 11 have."""

SHARE = np.array([[-1, 0], [2**50, 7]])
"""A job's shares of shared quotas, which blocks of version 2 have."""


AHEAD_MILLI = np.array([[1000, 60_000_000], [0, 2**46]])
"""How far flows are ahead, which usage reports of version 3 have; or a bound on it, which blocks of version 4 have."""


LEAD = np.array([[0, 0], [5, -9]])
"""Leads, which shards of version 5 have; those of older files are not read."""


DEFERRAL = Deferral(np.array([[0, 5], [2**61, 1]]), np.array([[NO_BOUND, 3], [0, NO_BOUND]]))
"""Tokens for which rows may wait for their verdict, which shards of version 6 and epochs of version 5 have."""

FILES = QueueFiles(17, ("3/000000000016-0123456789abcdef",), (("3/000000000002-ü", 2**40), ("3/x", 8)))
"""Files of waiting rows, which shards of version 7 have."""

TIME = MessageLimits(
    np.array([-1, 2**50]),
    np.array([0, 2**59]),
    np.array([False, True]),
    pa.array(["acme/orders", "zoë/ü/logs"]),
    MessageBuckets(np.array([-(2**59), 5]), np.array([0, 1_000]), np.array([0, 2**59])),
)
"""Limits on messages by quotas on processing time, which shards of version 8 and epochs of version 6 have."""

PRICED = replace(TIME, prices=MessagePrices(np.array([0, 2**50]), np.array([7, 0])))
"""The same with the prices of messages: shards of version 9, epochs of version 10 and grants of version 7 have them."""

ONE_PRICE = NamespacePrices(
    TimeAccounts(*(np.array([[each] * 3 for each in both]) for both in ((0, 0), (0, 3), (1, 2**61)))),
    NamespacePrices.unknown(0, scopes=2).common,
)
"""Prices of which nothing is common to a batch."""

EPOCH_TIME = EpochTime(
    TimeLedger(
        1_760_000_000_000,
        TimeAccounts(np.array([0, -(2**60)]), np.array([2**57, 1]), np.array([2**61, 0])),
        TIME.names,
        TimeAccounts(np.array([-1, 2**60]), np.array([0, 3]), np.array([1, 2**61])),
        ONE_PRICE,
        np.array([0, 1_760_000_000_000]),
        UsedTime(np.array([2**57, 5]), np.array([0, 7]), 11, 13, 1_000),
    ),
    TIME,
)
"""The ledger of processing time, which epochs of version 6 have."""

PARTED_TIME = replace(
    EPOCH_TIME,
    ledger=replace(
        EPOCH_TIME.ledger,
        prices=NamespacePrices(
            replace(ONE_PRICE.specific, time_ns=np.array([[0] * 3, [2] * 3])),
            TimeAccounts(np.zeros(3, dtype=np.int64), np.array([2**57, 3, 2]), np.full(3, 2**61)),
        ),
    ),
)
"""The same with prices in two parts, which epochs of version 12 have."""

TIME_BY_LEVEL = replace(
    PARTED_TIME,
    ledger=replace(
        PARTED_TIME.ledger,
        prices=replace(
            PARTED_TIME.ledger.prices,
            specific=replace(ONE_PRICE.specific, time_ns=np.array([[0, 1, 2**57], [2, 2, 2]])),
        ),
    ),
)
"""The same with prices by level, which epochs of version 13 have."""

SHARED_TIME = replace(EPOCH_TIME, share_ns_per_ms=np.array([UNLIMITED, 2**50]))
"""The same with a job's shares of quotas on processing time, which epochs of version 8 have."""

OF_SHARDS = Deferral(*(np.stack([each, each // 3]) for each in (DEFERRAL.room_micro, DEFERRAL.flow_micro)))


def shard(
    share: Int64s | None = None,
    paying: PayingTime | None = None,
    bound_milli: Int64s | None = None,
    lead_vt: Int64s | None = None,
    deferral: Deferral | None = None,
    files: QueueFiles = NO_FILES,
    time: MessageLimits | None = None,
) -> StoredShard:
    """Return a shard with two flows and three waiting rows in two frames."""
    flows = Flows(
        pa.array(["acme/orders", "zoë/ü/logs"]), np.array([[-1, 0], [2**60, -(2**61)]]),
        np.zeros((2, 2), dtype=np.int64) if lead_vt is None else lead_vt,
        np.array([1_760_000_000, 0]), np.array([[3, 300], [0, 0]]),
    )  # fmt: skip
    queue = Queue(
        np.array([0, 1, 1]), np.array([100, 0, 2**36]), 1_760_000_000_000 + np.arange(3),
        np.array([0, 1_760_000_000_100, 0]),
        None if deferral is None else np.array([False, True, False]),
    )  # fmt: skip
    grants = Grants(
        9, np.array([[0, -1], [10**12, 2]]), np.array([[0, 5], [2**60, 0]]), 1_760_000_000_003, share, bound_milli,
        deferral, time,
    )  # fmt: skip
    state = DeciderState(1_760_000_000_003, flows, queue, grants)
    frames = [b"the first frame", b"\x00\xff"]
    return StoredShard(state, POLICY, frames, np.array([0, 0, 1]), np.array([4, 7, 0]), paying, files)


LEAVES_MS = np.array([1_760_000_000_103, 2**62])
"""When first waiting rows may leave, which usage reports of version 2 have, and the paying time."""

PAYING = PayingTime(1_760_000_000_000, 1_795_000_000_000)
READING = ClockReading(1_795_000_000_000, 1_800_000_000_000, 86_400_123, "fcae03b0-04d4-4257-a5ec-e06aa65b2712")
"""What blocks of version 3 have of the clocks."""


REJECTED_BY_REASON = (0, 5, 0, 2**40, 0, 0, 0, 0, 0, 0, 1)
"""Rejected messages by reason, which usage reports of version 4 have, and the age of the oldest waiting row."""


def usage(
    leaves_ms: Int64s | None = None,
    ahead_milli: Int64s | None = None,
    rejected_by_reason: tuple[int, ...] | None = None,
) -> UsageReport:
    """Return the report of a shard."""
    offered, admitted, rejected, waiting, demand = (np.array([[n, 100 * n], [0, 2**40 + n]]) for n in range(5))
    return UsageReport(
        3, 9, "0123456789abcdef", 1_760_000_000_003, pa.array(["acme/orders", "zoë/ü/logs"]), np.array([0, -1]),
        np.array([-1, 0]), np.array([1, 1000]), offered, admitted, rejected, waiting, demand, np.array([0, 2]),
        np.array([0, 12_345]), 2**62, 4, leaves_ms, None if leaves_ms is None else 1_760_000_000_001,
        ahead_milli, rejected_by_reason, None if rejected_by_reason is None else np.array([0, 2**40]),
        None if rejected_by_reason is None else 86_400_000,
    )  # fmt: skip


def epoch(
    share: Int64s | None = None,
    reading: ClockReading | None = None,
    bound_milli: Int64s | None = None,
    deferral: Deferral | None = None,
    time: EpochTime | None = None,
    destinations: DestinationRates | None = None,
    handover: str = "",
) -> Epoch:
    """Return an epoch of two shards and two scopes."""
    lent, headroom = np.arange(8).reshape(2, 2, 2) - 3, np.arange(8).reshape(2, 2, 2) * 2**58
    advances = (lent * 7, np.maximum(-lent, 0)) if reading is not None else (lent * 0, lent * 0)
    return Epoch(
        9, "0123456789abcdef", Buckets(np.array([[1, -2], [3, 2**60]]), 1_760_000_000_000),
        Lending(lent, headroom, advances[0], advances[1], bound_milli, deferral), 8, share, reading,
        None if deferral is None else np.array([0, 3_000]), time, destinations, handover,
    )  # fmt: skip


def grant(
    share: Int64s | None = None,
    paying: PayingTime | None = None,
    bound_milli: Int64s | None = None,
    deferral: Deferral | None = None,
    time: MessageLimits | None = None,
) -> ShardGrant:
    """Return a control row that brings a policy."""
    balance, headroom = np.array([[0, -1], [10**12, 2]]), np.array([[0, 5], [2**60, 0]])
    return ShardGrant(9, POLICY, balance, headroom, share, paying, bound_milli, deferral, time)


CONTENT: Mapping[str, Callable[[], Any]] = {
    "shard_v1": shard,
    "usage_v1": usage,
    "usage_v2": lambda: usage(LEAVES_MS),
    "epoch_v1": epoch,
    "grant_v1": grant,
    "shard_v2": lambda: shard(SHARE),
    "epoch_v2": lambda: epoch(SHARE),
    "grant_v2": lambda: grant(SHARE),
    "shard_v3": lambda: shard(None, PAYING),
    "epoch_v3": lambda: epoch(SHARE, READING),
    "grant_v3": lambda: grant(None, PAYING),
    "usage_v3": lambda: usage(LEAVES_MS, AHEAD_MILLI),
    "usage_v4": lambda: usage(LEAVES_MS, AHEAD_MILLI, REJECTED_BY_REASON),
    "shard_v4": lambda: shard(None, PAYING, AHEAD_MILLI),
    "shard_v5": lambda: shard(None, PAYING, AHEAD_MILLI, LEAD),
    "epoch_v4": lambda: epoch(SHARE, READING, np.stack([AHEAD_MILLI, AHEAD_MILLI // 3])),
    "grant_v4": lambda: grant(SHARE, PAYING, AHEAD_MILLI),
    "shard_v6": lambda: shard(None, PAYING, AHEAD_MILLI, LEAD, DEFERRAL),
    "shard_v7": lambda: shard(None, PAYING, AHEAD_MILLI, LEAD, DEFERRAL, FILES),
    "shard_v8": lambda: shard(None, PAYING, AHEAD_MILLI, LEAD, DEFERRAL, FILES, TIME),
    "epoch_v6": lambda: epoch(SHARE, READING, None, OF_SHARDS, EPOCH_TIME),
    "grant_v6": lambda: grant(SHARE, PAYING, None, DEFERRAL, TIME),
    "epoch_v9": lambda: epoch(SHARE, READING, None, OF_SHARDS, EPOCH_TIME, handover="000000000008-5eed"),
    "epoch_v8": lambda: epoch(SHARE, READING, None, OF_SHARDS, SHARED_TIME),
    "shard_v9": lambda: shard(None, PAYING, AHEAD_MILLI, LEAD, DEFERRAL, FILES, PRICED),
    "epoch_v10": lambda: epoch(SHARE, READING, None, OF_SHARDS, replace(SHARED_TIME, limits=PRICED)),
    "grant_v7": lambda: grant(SHARE, PAYING, None, DEFERRAL, PRICED),
    "epoch_v5": lambda: epoch(SHARE, READING, None, OF_SHARDS),
    "epoch_v7": lambda: epoch(SHARE, READING, None, OF_SHARDS, destinations=RATES),
    "epoch_v11": lambda: epoch(SHARE, READING, None, OF_SHARDS, destinations=CLOSED),
    "epoch_v12": lambda: epoch(SHARE, READING, None, OF_SHARDS, PARTED_TIME),
    "epoch_v13": lambda: epoch(SHARE, READING, None, OF_SHARDS, TIME_BY_LEVEL),
    "grant_v5": lambda: grant(SHARE, PAYING, None, DEFERRAL),
}
"""What every stored block holds, by the name of its file. A new version of a format is a line here."""

PACK: Mapping[str, Callable[[Any], bytes]] = {
    "shard": pack_shard, "usage": pack_usage, "epoch": pack_epoch, "grant": pack_grant,
}  # fmt: skip

_NO_LONGER_WRITTEN = ("shard_v1", "shard_v2", "shard_v3", "shard_v4")


def packed(name: str) -> bytes:
    """Return a block as this release writes it."""
    return PACK[name.partition("_")[0]](CONTENT[name]())


BLOCKS: Mapping[str, Callable[[], bytes]] = {
    name: partial(packed, name) for name in CONTENT if name not in _NO_LONGER_WRITTEN
}
"""The blocks that this release can write."""


def main() -> None:
    """Write the files that are missing."""
    for name, block in BLOCKS.items():
        path = HERE / f"{name}.bin"
        if not path.exists():
            path.write_bytes(block())


if __name__ == "__main__":
    main()
