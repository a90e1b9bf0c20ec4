"""`throttle_load` without a JVM: its rows are a function of the options, its offsets one of the clock."""

from __future__ import annotations

import inspect
import json
import pickle
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from spark_throttle.errors import ConfigurationError
from spark_throttle.load import source as load_source
from spark_throttle.load import traffic as load_traffic
from spark_throttle.load.source import LoadReader, LoadStreamReader, RowRange, ThrottleLoadSource, plan_ranges
from spark_throttle.load.traffic import SCHEMA, LoadOptions, Traffic, TrafficGroup
from spark_throttle.spark.spark_version import to_arrow

limits = pytest.importorskip("pyspark.sql.streaming.datasource", reason="throttle_load is no stream before Spark 4.2")

GROUPS = [
    {"prefix": "gold", "namespaces": 5, "messages_per_second": 300, "tenants": 2},
    {"prefix": "free", "namespaces": 3, "messages_per_second": 100, "zipf_exponent": 0.0, "bursts": False},
]
SECOND_NS = 1_000_000_000


class SteppedClock:
    """Stands still until it is told to move."""

    def __init__(self) -> None:
        self.now_ns = 17 * SECOND_NS

    def __call__(self) -> int:
        return self.now_ns


def stream_reader(**options: Any) -> tuple[LoadStreamReader, SteppedClock]:
    clock = SteppedClock()
    parsed = LoadOptions.parse({name: str(value) for name, value in options.items()})
    return LoadStreamReader(parsed, clock), clock


def read_all(reader: LoadReader | LoadStreamReader, ranges: list[RowRange]) -> pa.Table:
    batches: Iterator[pa.RecordBatch] = (batch for each in ranges for batch in reader.read(each))
    return pa.Table.from_batches(batches, SCHEMA).combine_chunks()


# ------------------------------------------------------------------------------------------------------ rows


def test_first_rows_are_what_they_have_always_been() -> None:
    traffic = LoadOptions.parse({"groups": json.dumps(GROUPS), "seed": "7", "burstFactor": "2"}).traffic
    rows = traffic.rows(0, 4).to_pylist()
    assert [(row["namespace"], row["size_bytes"], row["payload"][:2]) for row in rows] == FIRST_ROWS
    assert [row["ts"].isoformat() for row in rows] == [
        "2026-01-01T00:00:00+00:00",
        "2026-01-01T00:00:00.002500+00:00",
        "2026-01-01T00:00:00.005000+00:00",
        "2026-01-01T00:00:00.007500+00:00",
    ]


FIRST_ROWS = [
    ("free-00/ns-0001", 385, b"\x00\x00"),
    ("gold-01/ns-0001", 6954, b"\x01\x00"),
    ("gold-01/ns-0003", 631, b"\x02\x00"),
    ("gold-01/ns-0003", 1702, b"\x03\x00"),
]


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**63 - 1),
    bounds=st.lists(st.integers(0, 30_000), min_size=2, max_size=2).map(sorted),
    cut=st.floats(0, 1),
)
def test_any_range_equals_the_same_rows_of_any_other_range(seed: int, bounds: list[int], cut: float) -> None:
    traffic = Traffic((TrafficGroup("t", 7, 2, 1000, 1.0),), seed, burst_factor=3, burst_seconds=2, payload_bytes=11)
    start, end = bounds
    middle = start + int(cut * (end - start))
    pieces = pa.Table.from_batches([traffic.rows(start, middle), traffic.rows(middle, end)])
    assert pieces.combine_chunks().equals(pa.Table.from_batches([traffic.rows(start, end)]).combine_chunks())


def test_columns_alone_equal_the_rows_columns() -> None:
    traffic = LoadOptions.parse({"groups": json.dumps(GROUPS), "burstFactor": "2"}).traffic
    rows = traffic.rows(4321, 9876)
    names = traffic.namespaces().take(pa.array(traffic.entry_index(4321, 9876)))
    assert rows["namespace"].equals(names)
    assert rows["size_bytes"].equals(pa.array(traffic.size_bytes(4321, 9876)))
    assert rows["id"].to_numpy().tolist() == list(range(4321, 9876))


def test_another_seed_gives_other_rows() -> None:
    one, other = (LoadOptions.parse({"seed": str(seed)}).traffic.size_bytes(0, 100) for seed in (1, 2))
    assert (one != other).sum() > 90


def test_schema_is_the_arrow_form_of_the_declared_one() -> None:
    declared = ThrottleLoadSource({}).schema()
    assert declared.simpleString() == "struct<id:bigint,namespace:string,ts:timestamp,size_bytes:int,payload:binary>"
    assert to_arrow(declared).equals(SCHEMA)
    assert Traffic((TrafficGroup("t", 1, 1, 1, 1.0),)).rows(0, 3).schema.equals(SCHEMA)


def test_payload_repeats_the_id_up_to_its_length() -> None:
    options = {"payloadBytes": "10", "rowsPerSecond": "5"}
    rows = LoadOptions.parse(options).traffic.rows(258, 259)
    assert rows["payload"][0].as_py() == bytes([2, 1, 0, 0, 0, 0, 0, 0, 2, 1])
    assert LoadOptions.parse({"payloadBytes": "0"}).traffic.rows(0, 2)["payload"].to_pylist() == [b"", b""]


# ---------------------------------------------------------------------------------------------- distributions


def test_groups_get_rows_in_proportion_to_their_rates() -> None:
    traffic = LoadOptions.parse({"groups": json.dumps(GROUPS), "seed": "3", "burstFactor": "2"}).traffic
    index = traffic.entry_index(0, 400_000)
    # 400,000 rows at 3:1; the standard deviation is 274.
    assert abs(int((index < 5).sum()) - 300_000) < 4 * 274


def test_namespaces_follow_zipf() -> None:
    traffic = LoadOptions.parse({"namespaces": "4", "zipfExponent": "1", "seed": "11"}).traffic
    counts = np.bincount(traffic.entry_index(0, 250_000), minlength=4)
    # 12 : 6 : 4 : 3 of 25; no standard deviation is above 250.
    assert np.abs(counts - np.array([120_000, 60_000, 40_000, 30_000])).max() < 4 * 250


def test_sizes_have_the_median_and_the_sigma_asked_for() -> None:
    traffic = LoadOptions.parse({"sizeMedianBytes": "2000", "sizeSigma": "0.5", "seed": "5"}).traffic
    sizes = traffic.size_bytes(0, 200_000)
    assert abs(float(np.median(sizes)) - 2000) < 20
    assert abs(float(np.log(sizes).std()) - 0.5) < 0.005


def test_sizes_are_alike_without_sigma() -> None:
    traffic = LoadOptions.parse({"sizeMedianBytes": "77", "sizeSigma": "0"}).traffic
    assert set(traffic.size_bytes(0, 1000).tolist()) == {77}


def test_sizes_stay_in_an_int() -> None:
    traffic = LoadOptions.parse({"sizeMedianBytes": str(2**31 - 1), "sizeSigma": "10"}).traffic
    sizes = traffic.size_bytes(0, 10_000)
    assert sizes.min() >= 1
    assert sizes.max() == 2**31 - 1


def test_bursting_namespace_sends_in_one_slot_of_each_cycle_and_keeps_its_mean() -> None:
    steady, bursting = (
        LoadOptions.parse(
            {"namespaces": "60", "zipfExponent": "0", "burstFactor": str(factor), "burstSeconds": "2", "seed": "1"}
        ).traffic
        for factor in (1, 3)
    )
    slots = [np.bincount(bursting.entry_index(2000 * s, 2000 * (s + 1)), minlength=60) for s in range(6)]
    active = np.array(slots) > 0
    assert (active[:3] == active[3:]).all()
    assert (active[:3].sum(axis=0) == 1).all()
    one_slot = np.bincount(steady.entry_index(0, 2000), minlength=60)
    assert 2 < max(slots[0]) / one_slot.mean() < 5


def test_group_without_bursts_sends_all_the_time() -> None:
    traffic = LoadOptions.parse({"groups": json.dumps(GROUPS), "burstFactor": "4", "burstSeconds": "1"}).traffic
    for second in range(4):
        counts = np.bincount(traffic.entry_index(400 * second, 400 * (second + 1)), minlength=8)
        assert (counts[5:] > 0).all()


# ------------------------------------------------------------------------------------------------- the stream


def test_first_batch_carries_a_tenth_of_a_second_and_the_clock_starts_after_it() -> None:
    reader, clock = stream_reader(rowsPerSecond=20_000)
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    clock.now_ns += 60 * SECOND_NS
    first = reader.latestOffset(start, limit)
    clock.now_ns += 9 * SECOND_NS
    assert first == reader.latestOffset(start, limit) == {"rows": 2000}
    assert reader.latestOffset(first, limit) == first
    clock.now_ns += SECOND_NS + SECOND_NS // 2
    assert reader.latestOffset(first, limit) == {"rows": 32_000}


def test_restart_goes_on_from_the_logged_offset_without_a_flood() -> None:
    reader, clock = stream_reader(rowsPerSecond=1000)
    logged = {"rows": 123_456}
    first = reader.latestOffset(logged, reader.getDefaultReadLimit())
    assert first == {"rows": 123_556}
    assert reader.latestOffset(first, reader.getDefaultReadLimit()) == first
    clock.now_ns += SECOND_NS
    assert reader.latestOffset(first, reader.getDefaultReadLimit()) == {"rows": 124_556}


def test_offset_stays_where_nothing_is_due() -> None:
    reader, clock = stream_reader(rowsPerSecond=1)
    reader.latestOffset({"rows": 0}, limits.ReadAllAvailable())
    reader.latestOffset({"rows": 1}, limits.ReadAllAvailable())
    clock.now_ns += SECOND_NS - 1
    assert reader.latestOffset({"rows": 1}, limits.ReadAllAvailable()) == {"rows": 1}


def test_batch_is_bounded_and_the_rest_comes_later() -> None:
    reader, clock = stream_reader(rowsPerSecond=1000, maxRowsPerBatch=250)
    offset = reader.latestOffset({"rows": 0}, reader.getDefaultReadLimit())
    reader.latestOffset(offset, reader.getDefaultReadLimit())
    clock.now_ns += SECOND_NS
    seen = [offset := reader.latestOffset(offset, reader.getDefaultReadLimit()) for _ in range(5)]
    assert seen == [{"rows": n} for n in (350, 600, 850, 1100, 1100)]


def test_limit_ends_the_offering() -> None:
    reader, clock = stream_reader(rowsPerSecond=1000, limit=150)
    offset = reader.latestOffset({"rows": 0}, limits.ReadMaxRows(10**6))
    reader.latestOffset(offset, limits.ReadMaxRows(10**6))
    clock.now_ns += 3600 * SECOND_NS
    assert reader.latestOffset(offset, limits.ReadMaxRows(10**6)) == {"rows": 150}
    assert reader.latestOffset({"rows": 150}, limits.ReadAllAvailable()) == {"rows": 150}


def test_limit_of_zero_offers_nothing() -> None:
    reader, _ = stream_reader(limit=0)
    assert reader.latestOffset({"rows": 0}, limits.ReadMaxRows(100)) == {"rows": 0}
    assert list(reader.partitions({"rows": 0}, {"rows": 0})) == []


def test_offset_never_goes_back_below_a_smaller_limit() -> None:
    reader, _ = stream_reader(limit=100)
    assert reader.latestOffset({"rows": 170}, limits.ReadMaxRows(10)) == {"rows": 170}


def test_available_now_offers_everything_in_bounded_batches_and_ends() -> None:
    reader, _ = stream_reader(rowsPerSecond=1, limit=1000, maxRowsPerBatch=400)
    reader.prepareForTriggerAvailableNow()
    offset, seen = reader.initialOffset(), []
    while (latest := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        seen.append(latest["rows"])
        offset = latest
    assert seen == [400, 800, 1000]


def test_available_now_needs_a_limit() -> None:
    reader, _ = stream_reader()
    with pytest.raises(ConfigurationError, match="availableNow needs the option limit"):
        reader.prepareForTriggerAvailableNow()


@pytest.mark.slow
@given(start=st.integers(0, 10**9), rows=st.integers(0, 10**6), tasks=st.integers(1, 50))
def test_ranges_cover_their_rows_once_and_are_of_one_length(start: int, rows: int, tasks: int) -> None:
    ranges = plan_ranges(start, start + rows, tasks)
    assert [n for each in ranges for n in (each.start, each.end)][1:-1:2] == [each.start for each in ranges[1:]]
    assert sum(each.end - each.start for each in ranges) == rows
    assert len(ranges) <= tasks
    if ranges:
        assert (ranges[0].start, ranges[-1].end) == (start, start + rows)
        lengths = [each.end - each.start for each in ranges]
        assert max(lengths) - min(lengths) <= 1


def test_stream_offers_exactly_the_table() -> None:
    options = {"rowsPerSecond": "9000", "limit": "30000", "partitions": "3", "seed": "21"}
    reader, clock = stream_reader(**options)
    offset, batches = reader.initialOffset(), []
    for _ in range(8):
        latest = reader.latestOffset(offset, reader.getDefaultReadLimit())
        batches.append(read_all(reader, [*map(as_range, reader.partitions(offset, latest))]))
        offset = latest
        clock.now_ns += SECOND_NS
    table = LoadReader(LoadOptions.parse(options))
    assert offset == {"rows": 30_000}
    whole = read_all(table, [*map(as_range, table.partitions())])
    assert pa.concat_tables(batches).combine_chunks().equals(whole)


def as_range(partition: Any) -> RowRange:
    assert isinstance(partition, RowRange)
    return partition


def test_reader_travels_to_executors_and_reads_the_same() -> None:
    reader, _ = stream_reader(rowsPerSecond=100, seed=4)
    parsed = LoadOptions.parse({"rowsPerSecond": "100", "seed": "4"})
    copy = pickle.loads(pickle.dumps(LoadStreamReader(parsed)))  # noqa: S301
    ranges = [RowRange(0, 50)]
    assert read_all(copy, ranges).equals(read_all(reader, ranges))


@pytest.mark.slow
def test_a_million_namespaces_can_come_in_one_batch() -> None:
    traffic = LoadOptions.parse({"namespaces": "1000000", "tenants": "100", "zipfExponent": "0"}).traffic
    assert len(np.unique(traffic.entry_index(0, 1_000_000))) > 600_000


# ------------------------------------------------------------------------------------------------- the options


def test_source_reads_options_of_any_case() -> None:
    source = ThrottleLoadSource({"ROWSPERSECOND": "50", "Limit": "10"})
    assert source.name() == "throttle_load"
    reader = source.reader(StructType())
    assert isinstance(reader, LoadReader)
    assert [*map(as_range, reader.partitions())] == [RowRange(0, 10)]
    assert isinstance(source.streamReader(StructType()), LoadStreamReader)


def test_table_needs_a_limit() -> None:
    with pytest.raises(ConfigurationError, match="a table needs the option limit"):
        LoadReader(LoadOptions.parse({})).partitions()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rowPerSecond": "5"}, r"unknown option rowPerSecond; did you mean rowsPerSecond\?"),
        ({"rowsPerSecond": "many"}, "rowsPerSecond must be a whole number, not 'many'"),
        ({"rowsPerSecond": "0"}, "rowsPerSecond must be from 1 to 100000000, not 0"),
        ({"zipfExponent": "-1"}, r"zipfExponent must be from 0 to 10.0, not -1"),
        ({"sizeSigma": "wide"}, "sizeSigma must be a number, not 'wide'"),
        ({"sizeSigma": "nan"}, "sizeSigma must be from 0 to 10.0, not nan"),
        ({"groups": "gold"}, "groups is not JSON"),
        ({"groups": "[]"}, "groups must be a JSON list with at least one group"),
        ({"groups": "[5]"}, r"groups\[0\] must be an object, not 5"),
        ({"groups": '[{"prefix": "a", "namespace": 5}]'}, r"groups\[0\].namespace; did you mean namespaces\?"),
        ({"groups": '[{"prefix": "a", "namespaces": 5}]'}, r"groups\[0\].messages_per_second must be from 1 to"),
        ({"groups": '[{"namespaces": 5, "messages_per_second": 1}]'}, r"groups\[0\] needs a string as prefix"),
        ({"groups": json.dumps(GROUPS), "namespaces": "3"}, "namespaces and groups were both given"),
        ({"groups": json.dumps(GROUPS), "rowsPerSecond": "3"}, "rowsPerSecond and groups were both given"),
    ],
)
def test_bad_option_is_an_error_that_says_which(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        LoadOptions.parse(options)


def test_every_option_stands_in_the_table_of_the_module() -> None:
    table = (load_source.__doc__ or "").split("=\n")[2]
    listed = {line.split()[0] for line in table.splitlines() if line[:1].isalpha()}
    asked = re.findall(r'given\.\w+\("(\w+)"', inspect.getsource(load_traffic))
    assert listed == set(asked)
