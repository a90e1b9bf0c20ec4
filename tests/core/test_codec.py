"""What is stored comes back as it was; what is not ours, damaged or newer is refused with the right remedy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core import codec
from spark_throttle.core.arithmetic.packing import pack, unpack
from spark_throttle.core.codec import STATE_VERSION, Epoch, StoredState
from spark_throttle.core.limits.message_limits import MessageBuckets, MessageLimits
from spark_throttle.core.limits.paying import ClockReading, PayingTime
from spark_throttle.core.policy_codec import pack_policy, unpack_policy
from spark_throttle.core.quota import CompiledPolicy
from spark_throttle.core.shared_buckets import SharedBuckets
from spark_throttle.core.state import ControlRow, DeciderState, Flows, Queue
from spark_throttle.core.time_codec import EpochTime
from spark_throttle.core.time_quota.namespace_prices import NamespacePrices
from spark_throttle.core.time_quota.time_accounts import TimeAccounts
from spark_throttle.core.time_quota.time_ledger import TimeLedger, UsedTime
from spark_throttle.core.usage import UsageReport
from spark_throttle.errors import DamagedError, StoredFormatError, UnknownVersionError
from spark_throttle.testing.oracle.strategies import policies
from tests.core.reports import usage_of_two

EDGES = [n + d for n in (0, 2**7, 2**8, 2**15, 2**16, 2**31, 2**32, 2**53, 2**63 - 2) for d in (-1, 0, 1)]

int64 = st.one_of(st.sampled_from([*EDGES, *(-n for n in EDGES), -(2**63)]), st.integers(-(2**63), 2**63 - 1))
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
paying = st.builds(PayingTime, int64, int64)


def plain(value: Any) -> Any:
    """Return a value as one that `==` compares, types and shapes included."""
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tolist()
    if isinstance(value, pa.Array):
        return str(value.type), value.to_pylist()
    return value


def came_back(pack_it: Callable[[Any], bytes], unpack_it: Callable[[bytes, str], Any], value: Any) -> None:
    block = pack_it(value)
    found = unpack_it(block, "it")
    assert plain(found) == plain(value)
    assert pack_it(found) == block


def arrays(data: st.DataObject, *shape: int) -> np.ndarray:
    size = int(np.prod(shape))
    return np.array(data.draw(st.lists(int64, min_size=size, max_size=size)), dtype=np.int64).reshape(shape)


def strings(data: st.DataObject, n: int) -> pa.StringArray:
    return pa.array(data.draw(st.lists(names, min_size=n, max_size=n)), pa.string())


def message_limits(data: st.DataObject, scopes: int) -> MessageLimits | None:
    if data.draw(st.booleans()):
        return None
    n = data.draw(st.integers(0, 3))
    shared, own = (MessageBuckets(*(arrays(data, size) for _ in range(3))) for size in (scopes, n))
    return MessageLimits(shared, arrays(data, scopes) > 0, strings(data, n), own)


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
def test_state_comes_back_as_it_was(data: st.DataObject) -> None:
    n, rows, scopes = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 4)), data.draw(st.integers(1, 4))
    flows = Flows(strings(data, n), arrays(data, n, 2), arrays(data, n, 2), arrays(data, n), arrays(data, n, 2))
    queue = Queue(*(arrays(data, rows) for _ in range(4)))
    share = data.draw(st.sampled_from([None, arrays(data, scopes, 2)]))
    shared = SharedBuckets(arrays(data, scopes, 2), data.draw(int64), share, message_limits(data, scopes))
    frames = data.draw(st.lists(st.binary(max_size=30), min_size=rows and 1, max_size=3))
    frame_of_row = np.sort(arrays(data, rows) % max(len(frames), 1))
    state = DeciderState(data.draw(int64), flows, queue, shared, data.draw(int64))
    stored = StoredState(state, data.draw(st.binary()), frames, frame_of_row, arrays(data, rows), data.draw(paying))
    came_back(codec.pack_state, codec.unpack_state, stored)


@pytest.mark.slow
@given(policies(may_fail=True))
def test_policy_comes_back_as_it_was(policy: CompiledPolicy) -> None:
    came_back(pack_policy, unpack_policy, policy)


@pytest.mark.slow
@given(st.data())
def test_usage_comes_back_as_it_was(data: st.DataObject) -> None:
    n, scopes = data.draw(st.integers(0, 5)), data.draw(st.integers(1, 4))
    report = UsageReport(
        data.draw(int64), data.draw(names), data.draw(int64), strings(data, n),
        arrays(data, n), arrays(data, n), arrays(data, n), arrays(data, n, 2), arrays(data, n, 2), arrays(data, n, 2),
        arrays(data, n, 2), arrays(data, n, 2), arrays(data, n), arrays(data, n), arrays(data, scopes, 2),
        data.draw(int64), data.draw(int64), data.draw(int64), data.draw(int64),
        tuple(arrays(data, 11).tolist()), data.draw(st.none() | st.integers(0, 2**62)),
    )  # fmt: skip
    came_back(codec.pack_usage, codec.unpack_usage, report)


@pytest.mark.slow
@given(st.data())
def test_epoch_comes_back_as_it_was(data: st.DataObject) -> None:
    scopes, as_of_ms = data.draw(st.integers(1, 4)), data.draw(int64)
    share = data.draw(st.sampled_from([None, arrays(data, scopes, 2)]))
    until = data.draw(st.sampled_from([None, arrays(data, scopes)]))
    reading = ClockReading(data.draw(int64), data.draw(int64), data.draw(int64), data.draw(names))
    limits, time = message_limits(data, scopes), None
    if limits is not None:
        owned = ledger(data, as_of_ms, scopes, strings(data, data.draw(st.integers(0, 3))))
        limits = dataclasses.replace(limits, names=owned.names, own=owned_buckets(data, len(owned.names)))
        time = EpochTime(owned, limits, data.draw(st.sampled_from([None, arrays(data, scopes)])))
    epoch = Epoch(data.draw(int64), data.draw(names), as_of_ms, reading, data.draw(int64), share, until, time)
    came_back(codec.pack_epoch, codec.unpack_epoch, epoch)


def owned_buckets(data: st.DataObject, n: int) -> MessageBuckets:
    return MessageBuckets(*(arrays(data, n) for _ in range(3)))


@pytest.mark.slow
@given(st.data())
def test_control_row_comes_back_as_it_was(data: st.DataObject) -> None:
    scopes = data.draw(st.integers(1, 4))
    pairs = [data.draw(st.sampled_from([None, arrays(data, scopes, 2)])) for _ in range(2)]
    until = data.draw(st.sampled_from([None, arrays(data, scopes)]))
    policy = data.draw(st.none() | st.binary(min_size=1))
    time = message_limits(data, scopes)
    row = ControlRow(data.draw(int64), policy, data.draw(paying), pairs[0], until, time, pairs[1])
    came_back(codec.pack_control_row, codec.unpack_control_row, row)


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
def test_block_that_is_cut_anywhere_or_altered_in_a_bit_is_refused() -> None:
    block = codec.pack_usage(usage_of_two())
    for at in range(len(block)):
        with pytest.raises(DamagedError, match="the report is damaged"):
            codec.unpack_usage(block[:at], "the report")
        altered = bytearray(block)
        altered[at] ^= 1 << (at % 8)
        with pytest.raises(StoredFormatError):
            codec.unpack_usage(bytes(altered), "the report")


@pytest.mark.parametrize("foreign", [b"", b"PAR1", b"\x00" * 4_000, codec.pack_usage(usage_of_two())])
def test_foreign_bytes_are_damaged(foreign: bytes) -> None:
    with pytest.raises(DamagedError, match="the decider's state is damaged"):
        codec.unpack_state(foreign, "the decider's state")


def test_block_of_a_newer_version_names_both_versions_and_the_remedy() -> None:
    with pytest.raises(UnknownVersionError, match=r"the decider's state has format version 2 .* up to 1: run the") as e:
        codec.unpack_state(pack("stat", 2, {"what": "nobody knows"}), "the decider's state")
    assert (e.value.found, e.value.known) == (2, STATE_VERSION)
