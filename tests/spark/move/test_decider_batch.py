"""A batch of the decider with its payloads: each leaves once, in order, as it came, whatever happens around it."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise

import pyarrow as pa
import pytest

from spark_throttle.core.quota import CompiledPolicy, Int64s, OnExcess, Overflow, QueueBounds
from spark_throttle.core.usage import pack_usage, unpack_usage
from spark_throttle.errors import ConfigurationError, DamagedError, QueueOverflowError
from spark_throttle.record import pack
from spark_throttle.spark.move import decider_batch
from spark_throttle.spark.move.decider_batch import VERDICT_TYPE, run_batch
from spark_throttle.spark.rows.frames import NAMESPACE, ORDER_PREFIX, SIZE, THROTTLE, TIE, decode, encode
from spark_throttle.spark.rows.gathering import gathered
from tests.effort import first_of
from tests.oracle.worlds import Namespace, Window, limit, make_policy
from tests.spark.move.played import PLENTY, START_MS, PlayedDecider, column, control_block, with_helpers, with_tokens

QUEUE = QueueBounds(60, 2**30, 30_000, Overflow.REJECT)


def everything() -> CompiledPolicy:
    """Return a policy under which rows are admitted, delayed, rejected, held and outgrow the queue."""
    return make_policy(
        groups={"gold": limit(messages_per_second=20)},
        namespaces={
            "slow/a": Namespace(limit(messages_per_second=3), "gold"),
            "strict/b": Namespace(limit(bytes_per_second=200, on_excess=OnExcess.REJECT)),
            "held/c": Namespace(by_count=Window(delay_units=2, delay_ms=1_700, reject_units=8, reject_ms=50)),
            "free/d": Namespace(),
        },
        default=Namespace(limit(messages_per_second=1, burst_seconds=2)),
        queue=QUEUE,
    )


NAMES = ["slow/a", "strict/b", "held/c", "free/d", "other/e", None, "x" * 1_025]


def rows_of(ids: list[int], rng: random.Random) -> pa.Table:
    names = [rng.choice(NAMES) for _ in ids]
    payload = pa.table({
        "id": pa.array(ids),
        "name": pa.array(names, pa.string()),
        "nested": pa.array([{"at": i, "tags": [str(i), None] * (i % 3)} if i % 5 else None for i in ids]),
        "text": pa.array(["é" * rng.choice([0, 3, 4_000]) for _ in ids]),
    })  # fmt: skip
    return with_helpers(payload, names, [rng.choice([0, 1, 90, 300, None, -1]) for _ in ids])


@pytest.mark.slow
@pytest.mark.parametrize("seed", first_of(3, range(8)))
def test_every_payload_leaves_once_and_in_order_over_many_batches(seed: int) -> None:
    rng = random.Random(seed)
    decider = PlayedDecider(everything())
    sent: dict[int, dict[str, object]] = {}
    left: list[int] = []
    by_name: dict[str, list[int]] = defaultdict(list)
    total = 0
    for step in range(40):
        ids = list(range(total, total + rng.choice([0, 1, 30, 120]))) if step < 30 else []
        total += len(ids)
        rows = rows_of(ids, rng) if ids else None
        for row in rows.select(["id", "name", "nested", "text"]).to_pylist() if rows is not None else []:
            sent[row["id"]] = row
        tokens = rng.choice([None, [(9, PLENTY), (9, PLENTY)], [(PLENTY, PLENTY)] * 2, [(-1, -1)] * 2])
        outcome = decider.batch(rows, after_ms=rng.choice([0, 300, 1_000, 9_000]), tokens=tokens)
        for table in [*outcome.admitted, *outcome.rejected]:
            plain = table.select(["id", "name", "nested", "text"]).to_pylist()
            assert plain == [sent[row["id"]] for row in plain]
            left += [row["id"] for row in plain]
        for i, name in zip(column(outcome.admitted, "id"), column(outcome.admitted, "name"), strict=True):
            by_name[str(name)].append(int(str(i)))
        stored = decider.stored
        assert len(stored.frame_of_row) == len(stored.row_in_frame) == len(stored.state.queue) == total - len(left)
    for _ in range(20):
        outcome = decider.batch(after_ms=20_000, tokens=[(PLENTY, PLENTY)] * 2)
        left += [int(str(i)) for i in column([*outcome.admitted, *outcome.rejected], "id")]
    assert Counter(left) == Counter(range(total))
    assert decider.stored.frames == []
    for ids in by_name.values():
        assert ids == sorted(ids)


@pytest.mark.slow
@pytest.mark.parametrize("seed", first_of(2, range(5)))
def test_output_and_state_do_not_depend_on_how_rows_arrive(seed: int) -> None:
    rng = random.Random(seed)
    decider = PlayedDecider(everything())
    for step in range(6):
        rows = rows_of(list(range(100 * step, 100 * step + rng.choice([3, 80]))), rng)
        is_ordered = rng.random() < 0.5
        rows = rows if is_ordered else rows.drop_columns([rows.column_names[-1]])
        now_ms = decider.now_ms + 1_000
        before = with_tokens(decider.state, decider.policy, [(5, PLENTY)] * 2, now_ms)
        row = control_block(decider.policy, now_ms=now_ms)
        outcomes = []
        for _ in range(4):
            shuffled = rows.take(pa.array(rng.sample(range(rows.num_rows), rows.num_rows)))
            cuts = sorted({0, rows.num_rows, *(rng.randrange(rows.num_rows) for _ in range(rng.randrange(4)))})
            parts = [shuffled.slice(i, j - i) for i, j in pairwise(cuts)]
            done = run_batch(before, row, parts, now_ms=now_ms, is_explained=True)
            tables = [[f for t in ts for f in encode(t)] for ts in (done.admitted, done.rejected)]
            outcomes.append((done.state, tables, done.usage))
        assert all(outcome == outcomes[0] for outcome in outcomes[1:])
        decider.state, decider.now_ms = outcomes[0][0], now_ms


def test_values_that_pandas_would_harm_come_through_the_queue_unchanged() -> None:
    payload = pa.table({
        "big": pa.array([2**53 + 1, None, -(2**63), 2**63 - 1]),
        "far": pa.array([datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), None] * 2, pa.timestamp("us", "UTC")),
        "exact": pa.array([Decimal("123456789012345678901234567890.12345678"), None] * 2, pa.decimal128(38, 8)),
        "float": pa.array([float("inf"), None, -0.0, 5e-324]),
        "raw": pa.array([b"\x00\xff", b"", None, b"x"]),
        "nested": pa.array([[{"a": [1, None]}], [], None, [None]], pa.list_(pa.struct([("a", pa.list_(pa.int32()))]))),
        "map": pa.array([[("k", None)], [], None, [("", 2**40)]], pa.map_(pa.string(), pa.int64())),
        "nothing": pa.nulls(4, pa.int8()),
    })  # fmt: skip
    decider = PlayedDecider(make_policy(default=Namespace(limit(messages_per_second=1))))
    rows = with_helpers(payload, ["a/x"] * 4, [1] * 4)
    got = [*decider.batch(rows).admitted]
    assert 0 < sum(table.num_rows for table in got) < 4
    while decider.stored.frames:
        got += decider.batch().admitted
    found = pa.concat_tables(got)
    assert found.schema == payload.schema
    assert repr(found.to_pylist()) == repr(payload.to_pylist())


def explained(decider: PlayedDecider, rows: pa.Table | None, **more: object) -> list[dict[str, object]]:
    outcome = decider.batch(rows, is_explained=True, **more)  # type: ignore[arg-type]
    tables = [*outcome.admitted, *outcome.rejected]
    assert all(table.schema.field(THROTTLE).type == VERDICT_TYPE for table in tables)
    return [{"id": i, **what} for i, what in zip(column(tables, "id"), column(tables, THROTTLE), strict=True)]  # type: ignore[dict-item]


def ids(count: int, names: list[str | None], sizes: list[int | None], *, start: int = 0) -> pa.Table:
    payload = pa.table({"id": pa.array(range(start, start + count))})
    return with_helpers(payload, names * (count // len(names)), sizes * (count // len(sizes)))


NOTHING = {"reason": None, "level": None, "dimension": None, "scope": None, "throttle_time_ms": 0, "delayed_ms": 0}


@pytest.mark.parametrize(("free", "most"), [(90, 10), (3, 14)])
def test_batch_of_which_few_rows_join_the_queue_copies_only_these_to_put_them_in_order(
    monkeypatch: pytest.MonkeyPatch, free: int, most: int
) -> None:
    given: list[int] = []

    def counted(rows: pa.Table, at: Int64s) -> pa.Table:
        given.append(rows.num_rows)
        return gathered(rows, at)

    monkeypatch.setattr(decider_batch, "gathered", counted)
    decider = PlayedDecider(
        make_policy(namespaces={"slow/a": Namespace(limit(messages_per_second=1, burst_seconds=0))})
    )
    names = ["free/d"] * free + ["slow/a"] * 11
    rows = pa.table({"id": list(range(free + 11))})
    decider.batch(with_helpers(rows, names, [1] * len(names)))
    assert given == [most]
    assert column([decode(frame) for frame in decider.stored.frames], "id") == list(range(free + 1, free + 11))


def test_admitted_row_says_how_long_it_waited() -> None:
    decider = PlayedDecider(make_policy(default=Namespace(limit(messages_per_second=1))))
    admitted = explained(decider, ids(4, ["a/x"], [1]))
    assert admitted == [{"id": i, "verdict": "ADMIT", **NOTHING} for i in (0, 1)]
    assert explained(decider, None, after_ms=1_500) == [{"id": 2, "verdict": "ADMIT", **NOTHING, "delayed_ms": 1_500}]


def test_clock_that_went_back_makes_no_delay_negative() -> None:
    decider = PlayedDecider(make_policy(default=Namespace(limit(messages_per_second=1))))
    decider.batch(ids(4, ["a/x"], [1]))
    decider.epoch = 2
    decider.batch(after_ms=-60_000)
    (row,) = explained(decider, None, after_ms=1_000)
    assert row == {"id": 2, "verdict": "ADMIT", **NOTHING}


def test_row_over_its_own_quota_is_told_namespace_dimension_and_time() -> None:
    rules = Namespace(limit(bytes_per_second=10, on_excess=OnExcess.REJECT))
    got = explained(PlayedDecider(make_policy(default=rules)), ids(2, ["a/x"], [25]))
    assert got[1] == {
        "id": 1, "verdict": "REJECT", "reason": "quota", "level": "namespace", "dimension": "bytes", "scope": "a/x",
        "throttle_time_ms": 1_500, "delayed_ms": 0,
    }  # fmt: skip


@pytest.mark.parametrize("on_excess", [OnExcess.REJECT, OnExcess.OBSERVE])
def test_shared_scope_is_named(on_excess: OnExcess) -> None:
    gold = limit(messages_per_second=2, on_excess=on_excess)
    decider = PlayedDecider(make_policy(groups={"gold": gold}, default=Namespace(group="gold")))
    got = explained(decider, ids(3, ["a/x"], [1]), tokens=[(0, 0), (0, 0)])
    verdict = "REJECT" if on_excess == OnExcess.REJECT else "ADMIT"
    assert {row["id"]: row["verdict"] for row in got} == {0: "ADMIT", 1: verdict, 2: verdict}
    last = got[-1]
    assert (last["reason"], last["level"], last["dimension"], last["scope"]) == (
        "quota", "resource_group", "messages", "gold",
    )  # fmt: skip


def test_job_is_named_job() -> None:
    decider = PlayedDecider(make_policy(job=limit(messages_per_second=1, on_excess=OnExcess.REJECT)))
    assert explained(decider, ids(2, ["a/x"], [1]), tokens=[(0, 0)])[1]["scope"] == "job"


def test_wait_that_never_ends_is_null() -> None:
    decider = PlayedDecider(make_policy(default=Namespace(limit(messages_per_second=0, on_excess=OnExcess.REJECT))))
    (row,) = explained(decider, ids(1, ["a/x"], [1]))
    assert (row["reason"], row["throttle_time_ms"]) == ("quota", None)


def test_row_over_a_bound_on_its_size_is_told_whose_bound_it_is_and_that_it_never_passes() -> None:
    gold = limit(max_message_bytes=100)
    decider = PlayedDecider(make_policy(groups={"gold": gold}, default=Namespace(group="gold")))
    got = explained(decider, ids(1, ["a/x"], [101]), tokens=[(9, 999), (9, 999)])
    assert got == [
        {
            "id": 0, "verdict": "REJECT", "reason": "size_too_large", "level": "resource_group", "dimension": "bytes",
            "scope": "gold", "throttle_time_ms": None, "delayed_ms": 0,
        }
    ]  # fmt: skip


def test_pegasus_rule_is_told_as_throttling() -> None:
    decider = PlayedDecider(make_policy(default=Namespace(by_count=Window(1, 100, 2, 70))))
    got = explained(decider, ids(3, ["a/x"], [1]))
    assert got[-1] == {
        "id": 2, "verdict": "REJECT", "reason": "throttling", "level": "namespace", "dimension": "messages",
        "scope": "a/x", "throttle_time_ms": 70, "delayed_ms": 0,
    }  # fmt: skip


def test_rows_that_no_level_refused_name_none() -> None:
    policy = make_policy(default=Namespace(limit(messages_per_second=0.001)), queue=replace(QUEUE, messages=1))
    decider = PlayedDecider(policy)
    names: list[str | None] = ["a/x", "a/x", "a/x", None, "", "é" * 513, "a/y", "a/y", "a/y"]
    sizes: list[int | None] = [1, 1, 1, 1, 1, 1, None, -1, 2**36 + 1]
    got = {row["id"]: row for row in explained(decider, ids(9, names, sizes))}
    reasons = {
        2: "queue_full", 3: "namespace_missing", 4: "namespace_missing", 5: "namespace_too_long", 6: "size_missing",
        7: "size_negative", 8: "size_too_large",
    }  # fmt: skip
    for i, reason in reasons.items():
        again = 0 if reason == "queue_full" else None  # what is unusable never passes
        assert got[i] == {"id": i, "verdict": "REJECT", **NOTHING, "reason": reason, "throttle_time_ms": again}
    (late,) = explained(decider, None, after_ms=30_001)
    assert late == {"id": 1, "verdict": "REJECT", **NOTHING, "reason": "queue_age", "delayed_ms": 30_001}


def test_rows_that_waited_and_are_put_out_say_how_long_they_waited() -> None:
    policy = make_policy(default=Namespace(limit(messages_per_second=0)), queue=replace(QUEUE, messages=4))
    decider = PlayedDecider(policy)
    assert explained(decider, ids(4, ["a/x"], [1])) == []
    got = explained(decider, ids(3, ["b/y"], [1], start=4), after_ms=700)
    full = {"verdict": "REJECT", **NOTHING, "reason": "queue_full"}
    assert got == [
        {"id": 2, **full, "delayed_ms": 700}, {"id": 3, **full, "delayed_ms": 700}, {"id": 6, **full},
    ]  # fmt: skip
    report = unpack_usage(decider.outcome.usage, "it")
    assert dict(zip(report.names.to_pylist(), report.rejected.tolist(), strict=True)) == {
        "a/x": [2, 2, 0, 0],
        "b/y": [1, 1, 0, 0],
    }
    assert report.waiting.tolist() == [[2, 2, 0, 0], [2, 2, 0, 0]]
    # What is left waits with its payload, in order.
    assert [row["id"] for row in explained(decider, None, after_ms=29_301)] == [0, 1]
    assert [row["id"] for row in explained(decider, None, after_ms=700)] == [4, 5]


def test_namespaces_that_are_no_utf8_are_kept_apart_and_shown() -> None:
    names = pa.array([b"a/\xe9", b"a/\\xe9", b"a/\xff", b"a/\xe9", b"a/\xe9"], pa.binary()).view(pa.string())
    rows = ids(5, ["x"], [1])
    decider = PlayedDecider(make_policy(default=Namespace(limit(messages_per_second=1, on_excess=OnExcess.REJECT))))
    got = explained(decider, rows.set_column(rows.schema.get_field_index(NAMESPACE), NAMESPACE, names))
    refused = [(row["id"], row["scope"]) for row in got if row["verdict"] == "REJECT"]
    assert refused == [(4, "a/\\xE9")]  # the third of its name; the other names have one each
    report = unpack_usage(decider.outcome.usage, "it")
    assert sorted(name.as_buffer().to_pybytes() for name in report.names) == [b"a/\\xe9", b"a/\xe9", b"a/\xff"]


@pytest.mark.parametrize("ordered", [True, False])
def test_attempts_admit_the_same_of_rows_whose_hashes_are_equal(ordered: bool) -> None:
    values = [[None, 1], [1, None], [1], [], [None], [None, None]]
    policy = make_policy(default=Namespace(limit(messages_per_second=2, burst_seconds=1)))
    rows = pa.table({"xs": pa.array(values, pa.list_(pa.int64()))})
    rows = rows.append_column(NAMESPACE, pa.array(["a/x"] * 6)).append_column(SIZE, pa.array([1] * 6))
    rows = rows.append_column(TIE, pa.array([42] * 6))
    if ordered:
        rows = rows.append_column(f"{ORDER_PREFIX}000", pa.array([0.0, -0.0] * 3))
    outcomes = set()
    for seed in range(10):
        shuffled = rows.take(pa.array(random.Random(seed).sample(range(6), 6)))
        decider = PlayedDecider(policy)
        outcome = decider.batch(shuffled)
        left = column(outcome.admitted, "xs")
        assert 0 < len(left) < 6
        outcomes.add((repr(left), outcome.state))
    assert len(outcomes) == 1


def test_row_that_the_sink_has_no_folder_for_is_rejected_and_costs_nothing() -> None:
    decider = PlayedDecider(make_policy(default=Namespace(limit(messages_per_second=1, on_excess=OnExcess.REJECT))))
    rows = ids(3, ["a/x"], [1]).append_column("p", pa.array(["a" * 300, "b\0", "漢" * 60]))
    outcome = run_batch(
        None, control_block(decider.policy), [rows], now_ms=START_MS,
        is_explained=False, partition_columns=("p",),
    )  # fmt: skip
    assert column(outcome.admitted, "id") == [2]
    reasons = [row["throttle"]["reason"] for table in outcome.rejected for row in table.to_pylist()]
    assert reasons == ["partition_unwritable"] * 2
    report = unpack_usage(outcome.usage, "it")
    assert (report.offered.tolist(), report.rejected.tolist(), report.invalid_messages) == (
        [[1, 1, 0, 0]],
        [[0, 0, 0, 0]],
        2,
    )


def test_large_strings_of_a_session_are_names_too() -> None:
    rows = ids(2, ["a/x"], [1])
    wide = rows.set_column(1, rows.schema.field(1).name, rows.column(1).cast(pa.large_string()))
    assert column(PlayedDecider(make_policy()).batch(wide).admitted, "id") == [0, 1]


def test_batch_without_rows_or_control_row_still_reports() -> None:
    decider = PlayedDecider(make_policy())
    decider.batch()
    outcome = decider.batch()
    report = unpack_usage(outcome.usage, "it")
    assert (report.epoch, len(report.names), report.now_ms) == (1, 0, START_MS + 2_000)
    assert (outcome.admitted, outcome.rejected) == ([], [])


# Errors


def test_decider_without_state_and_policy_says_that_the_state_is_gone() -> None:
    for row in (None, control_block(None)):
        with pytest.raises(ConfigurationError, match=r"the decider has no state .* restore the checkpoint"):
            run_batch(None, row, [], now_ms=START_MS, is_explained=False)


def test_state_of_another_kind_or_damaged_is_refused() -> None:
    decider = PlayedDecider(make_policy())
    decider.batch()
    usage = pack_usage(unpack_usage(decider.outcome.usage, "it"))
    for damaged in (usage, pack(decider.stored, is_compressed=True)[:-1]):
        with pytest.raises(DamagedError, match="the decider's state"):
            run_batch(damaged, None, [], now_ms=START_MS, is_explained=False)


def test_queue_that_may_not_overflow_stops_the_batch() -> None:
    policy = make_policy(
        default=Namespace(limit(messages_per_second=0)), queue=QueueBounds(2, 2**20, None, Overflow.FAIL)
    )
    decider = PlayedDecider(policy)
    decider.batch(ids(2, ["a/x"], [1]))
    kept = decider.state
    with pytest.raises(QueueOverflowError, match="would hold 3 delayed messages, over its bound of 2"):
        decider.batch(ids(1, ["a/x"], [1], start=2))
    assert decider.state is kept
