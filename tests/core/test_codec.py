"""What is stored comes back as it was; what is not ours, damaged or newer is refused with the right remedy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_throttle.core.lending.grants import Buckets, Lending

from spark_throttle.core.arithmetic.packing import pack, unpack
from spark_throttle.core.codec import (
    STATE_VERSION,
    Epoch,
    ShardGrant,
    StoredShard,
    pack_shard,
    pack_usage,
    unpack_epoch,
    unpack_grant,
    unpack_shard,
    unpack_usage,
)
from spark_throttle.core.limits.message_limits import MessageBuckets, MessageLimits
from spark_throttle.core.limits.paying import ClockReading, PayingTime
from spark_throttle.core.policy_codec import pack_policy, unpack_policy
from spark_throttle.core.quota import CompiledPolicy
from spark_throttle.core.state import DeciderState, Deferral, Flows, Grants, Queue
from spark_throttle.core.time_codec import EpochTime
from spark_throttle.core.time_quota.namespace_prices import NamespacePrices
from spark_throttle.core.time_quota.time_accounts import TimeAccounts
from spark_throttle.core.time_quota.time_ledger import TimeLedger, UsedTime
from spark_throttle.core.usage import UsageReport
from spark_throttle.errors import DamagedError, StoredFormatError, UnknownVersionError
from spark_throttle.testing.oracle.strategies import policies
from tests.conformance.stored import blocks

STORED = Path(blocks.__file__).parent
EDGES = [n + d for n in (0, 2**7, 2**8, 2**15, 2**16, 2**31, 2**32, 2**53, 2**63 - 2) for d in (-1, 0, 1)]

int64 = st.one_of(st.sampled_from([*EDGES, *(-n for n in EDGES), -(2**63)]), st.integers(-(2**63), 2**63 - 1))
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
paying = st.one_of(st.none(), st.builds(PayingTime, int64, int64))

UNPACK: Mapping[str, Callable[[bytes, str], Any]] = {
    "shard": unpack_shard,
    "usage": unpack_usage,
    "epoch": unpack_epoch,
    "grant": unpack_grant,
}
FILES = sorted(STORED.glob("*.bin"))


def plain(value: Any) -> Any:
    """Return a value as one that `==` compares, types and shapes included."""
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tolist()
    if isinstance(value, pa.Array):
        return str(value.type), value.to_pylist()
    return value


def round_trip(kind: str, value: Any) -> None:
    found = UNPACK[kind](blocks.PACK[kind](value), "it")
    assert plain(found) == plain(value)


def arrays(data: st.DataObject, *shape: int) -> np.ndarray:
    size = int(np.prod(shape))
    return np.array(data.draw(st.lists(int64, min_size=size, max_size=size)), dtype=np.int64).reshape(shape)


def strings(data: st.DataObject, n: int) -> pa.StringArray:
    return pa.array(data.draw(st.lists(names, min_size=n, max_size=n)), pa.string())


def message_limits(data: st.DataObject, scopes: int) -> MessageLimits | None:
    if data.draw(st.booleans()):
        return None
    n = data.draw(st.integers(0, 3))
    own = MessageBuckets(*(arrays(data, n) for _ in range(3)))
    return MessageLimits(arrays(data, scopes), arrays(data, scopes), arrays(data, scopes) > 0, strings(data, n), own)


def ledger(data: st.DataObject, as_of_ms: int, scopes: int, names: pa.StringArray) -> TimeLedger:
    n = len(names)
    shared, own = (TimeAccounts(*(arrays(data, size) for _ in range(3))) for size in (scopes, n))
    used = UsedTime(arrays(data, scopes), arrays(data, n), *(data.draw(int64) for _ in range(3)))
    prices = NamespacePrices.unknown(n, scopes=scopes)
    same = np.ones((n, 3), dtype=np.int64)
    drawn = own.time_ns[:, None] * same, arrays(data, n, 1) * same, arrays(data, n, 3)
    specific_ns = data.draw(st.sampled_from(drawn))
    specific = dataclasses.replace(
        prices.specific, time_ns=specific_ns, messages_micro=own.messages_micro[:, None] * same
    )
    each = np.arange(scopes + 1)
    common = TimeAccounts(0 * each, *(each + data.draw(st.integers(1, 2**57)) for _ in range(2)))
    prices = NamespacePrices(specific, data.draw(st.sampled_from([common, prices.common])))
    return TimeLedger(as_of_ms, shared, names, own, prices, arrays(data, n), used)


# Round trips


@pytest.mark.slow
@given(st.data())
def test_shard_comes_back_as_it_was(data: st.DataObject) -> None:
    n, rows, scopes = (data.draw(st.integers(0, 4)) for _ in range(3))
    flows = Flows(strings(data, n), arrays(data, n, 2), arrays(data, n, 2), arrays(data, n), arrays(data, n, 2))
    flow, size_bytes, arrival_ms, release_ms = (arrays(data, rows) for _ in range(4))
    is_deferred = data.draw(st.sampled_from([None, arrays(data, rows) > 0]))
    queue = Queue(flow, size_bytes, arrival_ms, release_ms, is_deferred)
    share = data.draw(st.sampled_from([None, arrays(data, scopes, 2)]) if scopes else st.none())
    bound = data.draw(st.sampled_from([None, arrays(data, scopes, 2)]))
    deferral = data.draw(st.sampled_from([None, Deferral(arrays(data, scopes, 2), arrays(data, scopes, 2))]))
    grants = Grants(
        data.draw(int64), arrays(data, scopes, 2), arrays(data, scopes, 2), data.draw(int64), share, bound, deferral,
        message_limits(data, scopes),
    )  # fmt: skip
    frames = data.draw(st.lists(st.binary(max_size=30), min_size=rows and 1, max_size=3))
    frame_of_row = np.sort(arrays(data, rows) % max(len(frames), 1))
    state = DeciderState(data.draw(int64), flows, queue, grants)
    stored = StoredShard(state, data.draw(st.binary()), frames, frame_of_row, arrays(data, rows), data.draw(paying))
    round_trip("shard", stored)


@pytest.mark.slow
@given(policies(may_fail=True))
def test_policy_comes_back_as_it_was(policy: CompiledPolicy) -> None:
    assert plain(unpack_policy(pack_policy(policy), "it")) == plain(policy)


@pytest.mark.slow
@given(st.data())
def test_usage_comes_back_as_it_was(data: st.DataObject) -> None:
    n = data.draw(st.integers(0, 5))
    report = UsageReport(
        data.draw(int64), data.draw(int64), data.draw(names), data.draw(int64), strings(data, n),
        arrays(data, n), arrays(data, n), arrays(data, n), arrays(data, n, 2), arrays(data, n, 2), arrays(data, n, 2),
        arrays(data, n, 2), arrays(data, n, 2), arrays(data, n), arrays(data, n), data.draw(int64), data.draw(int64),
        *data.draw(st.sampled_from([
            (None, None), (arrays(data, n), data.draw(int64)), (arrays(data, n), data.draw(int64), arrays(data, n, 2)),
            (arrays(data, n), data.draw(int64), arrays(data, n, 2), tuple(arrays(data, 11).tolist()), arrays(data, n),
             data.draw(st.none() | st.integers(0, 2**62))),
        ])),
    )  # fmt: skip
    round_trip("usage", report)


@pytest.mark.slow
@given(st.data())
def test_epoch_comes_back_as_it_was(data: st.DataObject) -> None:
    shards, scopes = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    lent, headroom, advance, credit = (arrays(data, shards, scopes, 2) for _ in range(4))
    buckets = Buckets(arrays(data, scopes, 2), data.draw(int64))
    share = data.draw(st.sampled_from([None, arrays(data, scopes, 2)]))
    reading = data.draw(st.one_of(st.none(), st.builds(ClockReading, int64, int64, int64, names)))
    bound = data.draw(st.sampled_from([None, arrays(data, shards, scopes, 2)]))
    if reading is None and bound is None:  # what a release wrote that kept no account of shards
        advance, credit = np.zeros_like(lent), np.zeros_like(lent)
    room_micro, flow_micro = arrays(data, shards, scopes, 2), arrays(data, shards, scopes, 2)
    deferral = data.draw(st.sampled_from([None, Deferral(room_micro, flow_micro)]))
    lending = Lending(lent, headroom, advance, credit, bound, deferral)
    owed = data.draw(st.sampled_from([None, arrays(data, scopes)]))
    limits = message_limits(data, scopes)
    time = None if limits is None else EpochTime(ledger(data, buckets.as_of_ms, scopes, limits.names), limits)
    epoch = Epoch(data.draw(int64), data.draw(names), buckets, lending, data.draw(int64), share, reading, owed, time)
    round_trip("epoch", epoch)


@pytest.mark.slow
@given(st.data())
def test_grant_comes_back_as_it_was(data: st.DataObject) -> None:
    scopes = data.draw(st.integers(1, 4))
    policy = data.draw(st.one_of(st.none(), st.binary(min_size=1)))
    share = data.draw(st.sampled_from([None, arrays(data, scopes, 2)]))
    lent, headroom = arrays(data, scopes, 2), arrays(data, scopes, 2)
    bound = data.draw(st.sampled_from([None, arrays(data, scopes, 2)]))
    deferral = data.draw(st.sampled_from([None, Deferral(arrays(data, scopes, 2), arrays(data, scopes, 2))]))
    time = message_limits(data, scopes)
    grant = ShardGrant(data.draw(int64), policy, lent, headroom, share, data.draw(paying), bound, deferral, time)
    round_trip("grant", grant)


@pytest.mark.parametrize("kind", UNPACK)
def test_equal_things_make_equal_bytes(kind: str) -> None:
    content = blocks.CONTENT[f"{kind}_v1"]
    assert blocks.PACK[kind](content()) == blocks.PACK[kind](UNPACK[kind](blocks.PACK[kind](content()), "it"))


@pytest.mark.parametrize(
    ("values", "bytes_each"),
    [([0, 255], 1), ([-1, 127], 1), ([0, 256], 2), ([-129], 2), ([2**16], 4), ([-(2**31)], 4), ([2**32], 8)],
)
def test_whole_numbers_take_as_few_bytes_as_they_need(values: list[int], bytes_each: int) -> None:
    many = np.array(values * 10_000, dtype=np.int64)
    block = pack("test", 1, {"n": many})
    assert len(block) == pytest.approx(len(many) * bytes_each, abs=1_000)
    found = unpack(block, "test", 1, "it").integers("n")
    assert found.dtype == np.int64
    assert found.tolist() == many.tolist()


# Refusals


@pytest.mark.slow
@pytest.mark.parametrize("name", blocks.BLOCKS)
def test_block_that_is_cut_anywhere_is_damaged(name: str) -> None:
    block, kind = blocks.BLOCKS[name](), name.partition("_")[0]
    for length in range(len(block)):
        with pytest.raises(DamagedError, match="the stored thing is damaged"):
            UNPACK[kind](block[:length], "the stored thing")


@pytest.mark.slow
@pytest.mark.parametrize("name", blocks.BLOCKS)
def test_no_altered_byte_is_believed(name: str) -> None:
    block, kind = blocks.BLOCKS[name](), name.partition("_")[0]
    for at in range(len(block)):
        altered = bytearray(block)
        altered[at] ^= 1 << (at % 8)
        with pytest.raises(StoredFormatError):
            UNPACK[kind](bytes(altered), "the stored thing")


def test_block_of_another_kind_is_damaged() -> None:
    with pytest.raises(DamagedError, match=r"the policy revision is damaged: .*; restore it"):
        unpack_policy(pack_usage(blocks.usage()), "the policy revision")


def test_foreign_bytes_are_damaged() -> None:
    for foreign in (b"", b"PAR1", b"\x00" * 4_000):
        with pytest.raises(DamagedError):
            unpack_shard(foreign, "the state of shard 3")


def test_block_of_a_newer_version_names_both_versions_and_the_remedy() -> None:
    with pytest.raises(
        UnknownVersionError, match=r"the state of shard 3 has format version 10 .* up to 9: run the"
    ) as e:
        unpack_shard(pack("stat", 10, {"what": "nobody knows"}), "the state of shard 3")
    assert (e.value.found, e.value.known) == (10, STATE_VERSION)


# What was stored once


def test_every_kind_has_a_stored_block_of_every_version() -> None:
    assert {path.stem for path in FILES} == blocks.CONTENT.keys()


@pytest.mark.parametrize(
    ("stored", "version"),
    [
        (blocks.shard(), 1),
        (blocks.shard(blocks.SHARE), 2),
        (blocks.shard(None, blocks.PAYING), 3),
        (blocks.shard(None, blocks.PAYING, blocks.AHEAD_MILLI), 4),
        (blocks.shard(lead_vt=blocks.LEAD), 5),
        (blocks.shard(files=blocks.FILES), 7),
        (blocks.shard(time=blocks.TIME), 8),
        (blocks.shard(time=blocks.PRICED), 9),
    ],
)
def test_shard_is_stored_in_the_least_version_that_has_what_it_holds(stored: StoredShard, version: int) -> None:
    assert pack_shard(stored)[len(b"sthrstat")] == version


@pytest.mark.parametrize("kind", ["epoch", "grant"])
def test_job_that_shares_nothing_stores_what_the_first_release_stored(kind: str) -> None:
    assert blocks.PACK[kind](blocks.CONTENT[f"{kind}_v1"]()) == (STORED / f"{kind}_v1.bin").read_bytes()


def fields_of(value: object) -> Iterator[tuple[str, bool]]:
    """Yield the fields of a dataclass and of those in it, and whether each has a value."""
    if dataclasses.is_dataclass(value):
        for each in dataclasses.fields(value):
            found = getattr(value, each.name)
            yield f"{type(value).__name__}.{each.name}", found is not None
            yield from fields_of(found)


@pytest.mark.parametrize("kind", UNPACK)
def test_every_field_has_a_value_in_some_stored_block(kind: str) -> None:
    """A field that no version stores fails here."""
    contents = [content() for name, content in blocks.CONTENT.items() if name.startswith(f"{kind}_")]
    fields = [field for content in contents for field in fields_of(content)]
    assert {name for name, _ in fields} - {name for name, has_value in fields if has_value} == set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_stored_block_stays_readable(path: Path) -> None:
    kind = path.stem.partition("_")[0]
    assert plain(UNPACK[kind](path.read_bytes(), path.name)) == plain(blocks.CONTENT[path.stem]())
