"""The scan over shared scopes: equal to the loop that it stands for, row by row."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_throttle.core.fair import ends
from spark_throttle.core.fair.contention import Refusals, admit_in_order, first_refusals
from spark_throttle.core.fair.ends import Claims, PrefixCounts, Room, rows_before_end
from spark_throttle.core.quota import Dimension, Int64s

UNBOUNDED = 1 << 62
FEW_ROWS = ends._FEW_ROWS


@dataclass
class Table:
    """Rows written down: of every flow, the keys and the sizes of its rows, its scopes, and its place among ties."""

    key: list[list[int]]
    size: list[list[int]]
    scope: Sequence[tuple[int, ...]]
    tie: list[int]

    def keys(self, flow: Int64s, rank: Int64s) -> Int64s:
        return np.array([self.key[f][r] for f, r in zip(flow, rank, strict=True)], dtype=np.int64)

    def ties(self, flow: Int64s) -> Int64s:
        return np.array([self.tie[f] for f in flow], dtype=np.int64)

    def bytes_before(self, flow: Int64s, rank: Int64s) -> Int64s:
        return np.array([sum(self.size[f][:r]) for f, r in zip(flow, rank, strict=True)], dtype=np.int64)

    def rows_within(self, flow: Int64s, size_bytes: Int64s) -> Int64s:
        return np.array([
            sum(sum(self.size[f][:r]) <= most for r in range(len(self.size[f]) + 1))
            for f, most in zip(flow, size_bytes, strict=True)
        ])  # fmt: skip

    def counts(self, flow: Int64s, most: Int64s) -> PrefixCounts:
        return TableCounts(self, flow, most)

    @property
    def count(self) -> Int64s:
        return np.array([len(keys) for keys in self.key], dtype=np.int64)

    @property
    def scopes(self) -> Int64s:
        return np.array(self.scope, dtype=np.int64).reshape(len(self.scope), -1)


@dataclass
class TableCounts:
    """Counts rows up to a key one by one."""

    table: Table
    flow: Int64s
    most: Int64s

    def take(self, at: Int64s) -> PrefixCounts:
        return TableCounts(self.table, self.flow[at], self.most[at])

    def up_to(self, key: Int64s) -> Int64s:
        return np.array([
            sum(one <= bound for one in self.table.key[f][:most])
            for f, most, bound in zip(self.flow, self.most, key, strict=True)
        ], dtype=np.int64)  # fmt: skip


def loop(rows: Table, room: Room) -> tuple[list[int], dict[int, tuple[int, int, int]]]:
    """Return how many rows of each flow are admitted, and by flow the column, scope and dimension that stopped it."""
    messages, room_bytes = room.messages.tolist(), room.bytes.tolist()
    admitted = [0] * len(rows.key)
    stopped: dict[int, tuple[int, int, int]] = {}
    in_order = [(key, rows.tie[f], r, f) for f, keys in enumerate(rows.key) for r, key in enumerate(keys)]
    for _, _, rank, flow in sorted(in_order):
        scopes = rows.scope[flow]
        if flow not in stopped:
            for column, scope in enumerate(scopes):
                if scope >= 0 and (messages[scope] <= 0 or room_bytes[scope] < 0):
                    dimension = Dimension.MESSAGES if messages[scope] <= 0 else Dimension.BYTES
                    stopped[flow] = (column, scope, dimension)
                    break
        if flow not in stopped:
            admitted[flow] += 1
            for scope in scopes:
                if scope >= 0:
                    messages[scope] -= 1
                    room_bytes[scope] -= rows.size[flow][rank]
    return admitted, stopped


def as_dict(refusals: Refusals) -> dict[int, tuple[int, int, int]]:
    rows = np.stack([refusals.flow, refusals.level, refusals.scope, refusals.dimension], axis=1).tolist()
    return {flow: (level, scope, dimension) for flow, level, scope, dimension in rows}


def check(rows: Table, room: Room) -> None:
    admitted, stopped = loop(rows, room)
    found = admit_in_order(rows, rows.count, rows.scopes, room)
    assert found.tolist() == admitted
    assert as_dict(first_refusals(rows, rows.count, rows.scopes, room, found)) == stopped


@pytest.fixture(params=[1, FEW_ROWS], ids=["searched", "put in order"])
def few_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the keys of small contests searched for too, from small samples."""
    monkeypatch.setattr(ends, "_FEW_ROWS", request.param)
    monkeypatch.setattr(ends, "_SAMPLE_ROWS", 3)


@st.composite
def contests(draw: st.DrawFn) -> tuple[Table, Room]:
    """Tenants that cross groups, and a job over all of them; each may have no scope at a level."""
    tenants, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    flow_scopes = draw(
        st.lists(
            st.tuples(
                st.integers(-1, tenants - 1).map(lambda t: t + 1 if t >= 0 else -1),
                st.integers(-1, groups - 1).map(lambda g: g + 1 + tenants if g >= 0 else -1),
                st.sampled_from([-1, 0, 0]),
            ),
            min_size=1,
            max_size=6,
        )
    )
    flows = len(flow_scopes)
    highest = draw(st.sampled_from([0, 3, 40, 2**61]))
    keys = [sorted(draw(st.lists(st.integers(0, highest), max_size=9))) for _ in range(flows)]
    sizes = [draw(st.lists(st.integers(0, 12), min_size=len(own), max_size=len(own))) for own in keys]
    scopes = 1 + tenants + groups
    messages = draw(st.lists(st.one_of(st.integers(0, 12), st.just(UNBOUNDED)), min_size=scopes, max_size=scopes))
    in_bytes = draw(st.lists(st.one_of(st.integers(-1, 60), st.just(UNBOUNDED)), min_size=scopes, max_size=scopes))
    rows = Table(keys, sizes, flow_scopes, draw(st.permutations(range(flows))))
    return rows, Room(np.array(messages, dtype=np.int64), np.array(in_bytes, dtype=np.int64))


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contests())
def test_scan_admits_and_stops_what_the_loop_does(few_rows: None, contest: tuple[Table, Room]) -> None:
    check(*contest)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("highest_key", [0, 20, 5_000, 2**61])
def test_scan_equals_the_loop_for_thousands_of_rows(few_rows: None, seed: int, highest_key: int) -> None:
    rng = random.Random(seed)
    tenants, groups, flows = 8, 5, 60
    scope_of = [
        (1 + rng.randrange(tenants), 1 + tenants + rng.randrange(groups), rng.choice([0, -1])) for _ in range(flows)
    ]
    counts = [min(int(rng.paretovariate(0.5)), 100) for _ in range(flows)]
    keys = [sorted(rng.randint(0, highest_key) for _ in range(count)) for count in counts]
    sizes = [[rng.choice([0, 1, 100, 1_500]) for _ in range(count)] for count in counts]
    rows = Table(keys, sizes, scope_of, rng.sample(range(flows), flows))
    scopes = 1 + tenants + groups
    room = Room(
        np.array([rng.choice([0, 5, 80, 400, UNBOUNDED]) for _ in range(scopes)]),
        np.array([rng.choice([-1, 0, 9_000, 90_000, UNBOUNDED]) for _ in range(scopes)]),
    )
    check(rows, room)


def test_a_stopped_flow_leaves_its_tokens_to_the_others() -> None:
    # Flow 0 is stopped by its tenant (scope 1) after one; the group (scope 0) has two more for flow 1.
    rows = Table([[0, 1, 2], [3, 4]], [[1] * 3, [1] * 2], [(1, 0), (-1, 0)], [0, 1])
    room = Room(np.array([3, 1]), np.array([UNBOUNDED, UNBOUNDED]))
    assert admit_in_order(rows, rows.count, rows.scopes, room).tolist() == [1, 2]


def test_refusal_names_the_first_level_that_was_short() -> None:
    rows = Table([[0, 1]], [[5, 5]], [(1, 0)], [0])
    room = Room(np.array([1, 9]), np.array([9, 4]))
    admitted = admit_in_order(rows, rows.count, rows.scopes, room)
    assert admitted.tolist() == [1]
    assert as_dict(first_refusals(rows, rows.count, rows.scopes, room, admitted)) == {0: (0, 1, Dimension.BYTES)}


def test_message_larger_than_the_room_passes_once() -> None:
    rows = Table([[0], [1]], [[1_000], [0]], [(0,), (0,)], [0, 1])
    assert admit_in_order(rows, rows.count, rows.scopes, Room(np.array([9]), np.array([0]))).tolist() == [1, 0]


def test_no_rows_are_no_error() -> None:
    rows = Table([], [], [], [])
    room = Room(np.array([1]), np.array([1]))
    nothing = np.zeros((0, 3), dtype=np.int64)
    admitted = admit_in_order(rows, rows.count, nothing, room)
    assert admitted.tolist() == []
    assert first_refusals(rows, rows.count, nothing, room, admitted).flow.tolist() == []


def test_end_of_a_scope_lies_where_all_that_is_claimed_has_used_it_up() -> None:
    # The scope has room for 10 bytes before a message: the row that crosses it passes, the one behind it does not.
    rows = Table([[0, 2, 4], [1, 3]], [[4, 4, 4], [4, 4]], [(0,), (0,)], [0, 1])
    claims = Claims(np.arange(2), np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int64), rows.count)
    assert rows_before_end(rows, claims, Room(np.array([9]), np.array([10]))).tolist() == [2, 1]


def test_row_that_overdraws_a_scope_does_not_stop_one_that_comes_before_it() -> None:
    # If both rows of flow 0 passed, the job (scope 0) would stop flow 1; but the tenant (scope 1) stops flow 0 before.
    # Flow 2 overdraws scope 2 behind flow 1, whose turn comes before: so both pass.
    rows = Table([[0, 1], [2], [3]], [[1, 1], [1], [5]], [(1, 0), (2, 0), (2, -1)], [0, 1, 2])
    room = Room(np.array([2, 1, 2]), np.array([3, 0, 1]))
    assert admit_in_order(rows, rows.count, rows.scopes, room).tolist() == [1, 1, 1]


@pytest.mark.slow
def test_a_search_looks_at_few_of_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "_SAMPLE_ROWS", 64)

    class Counted(Table):
        looked = 0

        def keys(self, flow: Int64s, rank: Int64s) -> Int64s:
            Counted.looked += len(flow)
            return super().keys(flow, rank)

    flows, each = 8, 4_000
    keys = [[r * (f + 1) for r in range(each)] for f in range(flows)]
    rows = Counted(keys, [[0] * each] * flows, [(0,)] * flows, list(range(flows)))
    admitted = admit_in_order(rows, rows.count, rows.scopes, Room(np.array([10_000]), np.array([0])))
    assert int(admitted.sum()) == 10_000
    assert 0 < Counted.looked < flows * each // 2
