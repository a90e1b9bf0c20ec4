"""The scan over shared scopes: equal to the loop that it stands for, row by row."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.contention import Contenders, Refusals, Room, admit_in_order, first_refusals, totals_before
from spark_throttle.core.quota import Dimension

UNBOUNDED = 1 << 62


def loop(rows: Contenders, room: Room) -> tuple[list[bool], dict[int, tuple[int, int, int]]]:
    """Return what is admitted, and by flow the column, the scope and the dimension that stopped it."""
    messages, room_bytes = room.messages.tolist(), room.bytes.tolist()
    admitted: list[bool] = []
    stopped: dict[int, tuple[int, int, int]] = {}
    for flow, size, scopes in zip(rows.flow.tolist(), rows.size_bytes.tolist(), rows.scope.tolist(), strict=True):
        if flow not in stopped:
            for column, scope in enumerate(scopes):
                if scope >= 0 and (messages[scope] <= 0 or room_bytes[scope] < 0):
                    dimension = Dimension.MESSAGES if messages[scope] <= 0 else Dimension.BYTES
                    stopped[flow] = (column, scope, dimension)
                    break
        admitted.append(flow not in stopped)
        if admitted[-1]:
            for scope in scopes:
                if scope >= 0:
                    messages[scope] -= 1
                    room_bytes[scope] -= size
    return admitted, stopped


def as_dict(refusals: Refusals) -> dict[int, tuple[int, int, int]]:
    rows = np.stack([refusals.flow, refusals.level, refusals.scope, refusals.dimension], axis=1).tolist()
    return {flow: (level, scope, dimension) for flow, level, scope, dimension in rows}


def check(rows: Contenders, room: Room) -> None:
    admitted, stopped = loop(rows, room)
    found = admit_in_order(rows, room)
    assert found.tolist() == admitted
    assert as_dict(first_refusals(rows, room, found)) == stopped


@st.composite
def contests(draw: st.DrawFn) -> tuple[Contenders, Room]:
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
    flow = draw(st.lists(st.integers(0, len(flow_scopes) - 1), max_size=30))
    sizes = draw(st.lists(st.integers(0, 12), min_size=len(flow), max_size=len(flow)))
    scopes = 1 + tenants + groups
    messages = draw(st.lists(st.one_of(st.integers(0, 12), st.just(UNBOUNDED)), min_size=scopes, max_size=scopes))
    in_bytes = draw(st.lists(st.one_of(st.integers(-1, 60), st.just(UNBOUNDED)), min_size=scopes, max_size=scopes))
    rows = Contenders(
        np.array(flow, dtype=np.int64),
        np.array(sizes, dtype=np.int64),
        np.array([flow_scopes[f] for f in flow], dtype=np.int64).reshape(-1, 3),
    )
    return rows, Room(np.array(messages, dtype=np.int64), np.array(in_bytes, dtype=np.int64))


@given(contests())
def test_scan_admits_and_stops_what_the_loop_does(contest: tuple[Contenders, Room]) -> None:
    check(*contest)


@pytest.mark.parametrize("seed", range(5))
def test_scan_equals_the_loop_for_thousands_of_rows(seed: int) -> None:
    rng = random.Random(seed)
    tenants, groups, flows = 8, 5, 60
    scope_of = [
        (1 + rng.randrange(tenants), 1 + tenants + rng.randrange(groups), rng.choice([0, -1])) for _ in range(flows)
    ]
    flow = [min(int(rng.expovariate(0.1)), flows - 1) for _ in range(3_000)]
    rows = Contenders(
        np.array(flow),
        np.array([rng.choice([0, 1, 100, 1_500]) for _ in flow]),
        np.array([scope_of[f] for f in flow]),
    )
    scopes = 1 + tenants + groups
    room = Room(
        np.array([rng.choice([0, 5, 80, 400, UNBOUNDED]) for _ in range(scopes)]),
        np.array([rng.choice([-1, 0, 9_000, 90_000, UNBOUNDED]) for _ in range(scopes)]),
    )
    check(rows, room)


def test_a_stopped_flow_leaves_its_tokens_to_the_others() -> None:
    # Flow 0 is stopped by its tenant (scope 1) after one; the group (scope 0) has two more for flow 1.
    rows = Contenders(np.array([0, 0, 0, 1, 1]), np.ones(5, dtype=np.int64), np.array([[1, 0]] * 3 + [[-1, 0]] * 2))
    room = Room(np.array([3, 1]), np.array([UNBOUNDED, UNBOUNDED]))
    assert admit_in_order(rows, room).tolist() == [True, False, False, True, True]


def test_refusal_names_the_first_level_that_was_short() -> None:
    rows = Contenders(np.array([0, 0]), np.array([5, 5]), np.array([[1, 0], [1, 0]]))
    room = Room(np.array([1, 9]), np.array([9, 4]))
    admitted = admit_in_order(rows, room)
    assert admitted.tolist() == [True, False]
    assert as_dict(first_refusals(rows, room, admitted)) == {0: (0, 1, Dimension.BYTES)}


def test_message_larger_than_the_room_passes_once() -> None:
    rows = Contenders(np.array([0, 1]), np.array([1_000, 0]), np.array([[0], [0]]))
    assert admit_in_order(rows, Room(np.array([9]), np.array([0]))).tolist() == [True, False]


def test_no_rows_are_no_error() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    rows = Contenders(nothing, nothing, nothing.reshape(0, 3))
    room = Room(np.array([1]), np.array([1]))
    assert admit_in_order(rows, room).tolist() == []
    assert first_refusals(rows, room, nothing.astype(bool)).flow.tolist() == []


def test_totals_before_are_counted_by_scope() -> None:
    messages, in_bytes = totals_before(np.array([1, 0, 1, 1]), np.array([5, 6, 7, 8]), 2)
    assert messages.tolist() == [0, 0, 1, 2]
    assert in_bytes.tolist() == [0, 0, 5, 12]
