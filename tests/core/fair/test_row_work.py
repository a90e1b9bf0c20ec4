"""What rows count in the fair order where scopes limit different resources: nobody loses by a limit but what it holds.

`unit_work` is compared with fractions. The decider is asked for what a user sees: a tenant with a quota of its own has
its part of the group, and a scope that only observes changes nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np
import pytest

from spark_throttle.core.fair.contenders import Measure
from spark_throttle.core.fair.tree import Level, Tree
from spark_throttle.core.fair.work import AMOUNT, MESSAGE, MILLISECOND, MOST_WORK, TOKEN_BITS, unit_work
from spark_throttle.core.quota import MICRO, UNLIMITED, CompiledPolicy, Dimension, OnExcess
from tests.effort import crossed, thorough_after
from tests.oracle.decider import Decider
from tests.oracle.worlds import Limit, Namespace, Tenant, limit, make_policy

SIZE: Final = 100
UNITS: Final = (1, 1, 1, MICRO)
ALONE: Final = (MESSAGE, AMOUNT, AMOUNT, MILLISECOND)
MOST: Final = (MOST_WORK, MESSAGE, MESSAGE, MILLISECOND)


def of_fractions(
    way: Sequence[int], of_job: Fraction, of_child: Fraction, room: np.ndarray, rates: np.ndarray
) -> list[Fraction | None]:
    """Return the work of a token of each dimension at a node; `None` where no scope of it limits them.

    Parameters
    ----------
    way
        The scopes that count of its tenant, its group and the job, -1 for the others.
    of_job, of_child
        The part of the job by weight that its child of the job has, and the node's part of that child.
    """
    widest = max(column for column in range(3) if way[column] >= 0)
    rate = [Fraction(int(each)) for each in rates[way[widest]]]
    first, *others = (d for d in Dimension if rate[d] >= 0)
    work = min([ALONE[first] * rate[first], *(MOST[d] * rate[d] for d in others)])
    own = {d: work / rate[d] for d in (first, *others)}

    def by(amount: Callable[[int, int], Fraction], d: int) -> Fraction:
        def has(scope: int) -> Fraction:
            limited = [e for e in own if scope >= 0 and rates[scope, e] != UNLIMITED]
            return min((amount(e, scope) * own[e] for e in limited), default=Fraction(1 << 62))

        child = min(has(way[2]) * of_job, has(way[1])) if widest == 2 else has(way[widest])
        column = max(column for column in range(3) if way[column] >= 0 and rates[way[column], d] != UNLIMITED)
        return (min(child * of_child, has(way[0])) if column == 0 else child) / amount(d, way[column])

    found: list[Fraction | None] = []
    for d in Dimension:
        if d in own:
            found.append(own[d])
        elif all(scope < 0 or rates[scope, d] == UNLIMITED for scope in way):
            found.append(None)
        else:
            by_room = by(lambda e, scope: Fraction(int(room[e, scope]) + 1, UNITS[e]), d)
            by_rate = by(lambda e, scope: Fraction(int(rates[scope, e])), d)
            found.append(min(by_room, by_rate))
    return found


@pytest.mark.parametrize("seed", range(30))
def test_unit_of_each_resource_counts_as_in_fractions(seed: int) -> None:
    draw = random.Random(seed)
    groups, tenants = 3, 7
    parents = sorted(draw.randrange(groups) for _ in range(tenants))
    weights = [[draw.choice([1, 1, 3, 1000]) for _ in range(n)] for n in (tenants, groups)]
    nodes, children = (np.array(each, dtype=np.int64) for each in weights)
    parent = np.array(parents)
    tree = Tree((
        Level.of(np.arange(tenants), tenants, np.ones(tenants, dtype=np.int64)),
        Level.of(parent, groups, nodes),
        Level.of(np.zeros(groups, dtype=np.int64), 1, children),
    ))  # fmt: skip
    # The job, the tenants, two nodes of which are of one tenant, and the groups.
    scopes = np.array([[1 + (at or 1), 1 + tenants + group, 0] for at, group in enumerate(parents)])
    rates = np.array([
        [draw.choice([UNLIMITED, draw.randrange(10**4, 10**6)]) for _ in Dimension] for _ in range(1 + tenants + groups)
    ])  # fmt: skip
    rates[rates.max(axis=1) == UNLIMITED, draw.choice(list(Dimension))] = 1_000
    counts = np.array([draw.random() < 0.6 for _ in rates])
    scopes = np.where(counts[scopes], scopes, -1)
    scopes[(scopes < 0).all(axis=1), 1] = parent[(scopes < 0).all(axis=1)] + 1 + tenants
    room = np.array([[draw.randrange(10**4) for _ in rates] for _ in Dimension])
    found = [each.tolist() for each in unit_work(scopes, tree, room + 1, rates)]
    for at, way in enumerate(scopes.tolist()):
        of_job = Fraction(int(children[parent[at]]), int(children.sum()))
        of_child = Fraction(int(nodes[at]), int(nodes[parent == parent[at]].sum()))
        for d, exact in enumerate(of_fractions(way, of_job, of_child, room, rates)):
            if exact is None:
                assert found[d][at] == 0
            else:
                told = Fraction(found[d][at], 1 << TOKEN_BITS)
                assert abs(told - min(exact, MOST[d])) <= exact / 100 + Fraction(2, 1 << TOKEN_BITS), (at, d)


def drawn_tokens(draw: random.Random) -> tuple[list[int], list[int]]:
    """Return the work of a token of each dimension in a batch, and as it is kept; 0 for what does not count."""
    most = (MESSAGE, MESSAGE, MESSAGE, MILLISECOND)
    now, lasting = ([draw.choice([0, draw.randrange(1, each << TOKEN_BITS)]) for each in most] for _ in range(2))
    return now, lasting


def work_of_rows(tokens: list[int], rows: list[int]) -> int:
    return max(
        rows[0], *(unit * took // (one << TOKEN_BITS) for unit, took, one in zip(tokens, rows, UNITS, strict=True))
    )


@pytest.mark.parametrize("seed", range(10))
def test_lead_of_some_rows_is_one_of_as_many_in_a_batch_that_counts_them_otherwise(seed: int) -> None:
    """Rows take the same of what is limited, however little of some; nodes have several flows with rows, or none."""
    draw = random.Random(seed)
    row = [1, draw.choice([1, 50, 10**6]), draw.choice([0, 7]), draw.choice([1, MICRO, 500 * MICRO])]
    now, lasting = drawn_tokens(draw)
    node, parent = np.array(sorted(draw.randrange(4) for _ in range(6))), np.full(4, 5)  # others have no node below
    tokens = np.array(row)[:, None] * np.array([draw.randrange(1, 9) for _ in node])
    measure = Measure.of([np.full(4, each) for each in now], np.array([lasting] * 4), tokens, node, parent)
    counted, kept = work_of_rows(now, row), work_of_rows(lasting, row)
    for rows in (Fraction(2, 3), Fraction(5), Fraction(300)):
        lead = int(rows * kept)
        exact = Fraction(lead * counted, kept)
        for found in measure.counted(np.full(4, lead)).tolist():
            assert abs(found - exact) <= exact / 10 + counted + 1


@pytest.mark.parametrize("seed", range(10))
def test_rows_of_nobody_leave_a_larger_lead_than_by_the_rates_by_which_it_is_kept(seed: int) -> None:
    draw = random.Random(seed)
    now, lasting = drawn_tokens(draw)
    flows = [
        [draw.randrange(1, 50), draw.choice([0, 10, 10**9]), draw.choice([0, 7]), draw.choice([0, 1, 10**9])]
        for _ in range(6)
    ]
    node, parent = np.array(sorted(draw.randrange(4) for _ in flows)), np.array([0, 0, 1, 1])
    measure = Measure.of([np.full(4, each) for each in now], np.array([lasting] * 4), np.array(flows).T, node, parent)
    for at, rows in zip(node.tolist(), flows, strict=True):
        (left,) = measure.take(np.array([at])).to_keep(np.array([work_of_rows(now, rows)])).tolist()
        assert left <= work_of_rows(lasting, rows) * 1.001 + 1


def served(
    limits: dict[str, Limit], group: Limit, *, batches: int = 40, size: int = SIZE, rows: int = 30
) -> Counter[str]:
    """Return what the tenants of a group send in the second half of some seconds in which all have more than enough."""
    tenants = {name: Tenant(each) for name, each in limits.items()}
    policy = make_policy(groups={"g": group}, tenants=tenants, default=Namespace(group="g"))
    return sent(policy, [f"{name}/x" for name in limits], batches=batches, size=size, rows=rows)


def sent(policy: CompiledPolicy, names: Sequence[str], *, batches: int, size: int, rows: int) -> Counter[str]:
    """Return what namespaces that get so many rows a second send in the second half of some seconds."""
    decider, went = Decider("kernel", policy), Counter[str]()
    for batch in range(batches):
        decider.batch(1_000 * batch, [(name, size) for name in names for _ in range(rows)])
        went += decider.admitted() if batch >= batches // 2 else Counter()
    return went


@pytest.mark.parametrize(
    ("others", "own", "per_second"), crossed([1, 12], ["messages_per_second", "bytes_per_second"], [2, 10, 50], of=3)
)
def test_tenant_with_a_quota_has_its_part_of_the_group_or_all_of_its_quota(
    others: int, own: str, per_second: int
) -> None:
    of_group: dict[str, dict[str, Any]] = {
        "messages_per_second": {"bytes_per_second": 10 * SIZE * (others + 1)},
        "bytes_per_second": {"messages_per_second": 10 * (others + 1)},
    }
    quota: dict[str, Any] = {own: per_second * (SIZE if own == "bytes_per_second" else 1)}
    limits = {"t": limit(**quota), **{f"u{n}": Limit() for n in range(others)}}
    went = served(limits, limit(**of_group[own]))
    assert went["t/x"] == pytest.approx(20 * min(10, per_second), abs=6)
    assert min(went.values()) >= went["t/x"] - 6


@pytest.mark.parametrize(("size", "others", "whose"), crossed([700, 1_500, 25_000], [1, 3], ["tenant", "group"], of=3))
def test_quota_that_ends_within_a_row_can_be_used_up(size: int, others: int, whose: str) -> None:
    """The row that ends the tokens of a narrower scope is not charged as many times as they had room for it."""
    batches = 100 if size > 2_000 else 50
    own, whole = limit(bytes_per_second=1_000), limit(messages_per_second=5 * (others + 1))
    limits = {"t": own, **{f"u{n}": Limit() for n in range(others)}}
    if whose == "tenant":
        went = served(limits, whole, batches=batches, size=size, rows=8)
    else:
        policy = make_policy(job=whole, groups=limits, tenants={name: Tenant(group=name) for name in limits})
        went = sent(policy, [f"{name}/x" for name in limits], batches=batches, size=size, rows=8)
    assert went["t/x"] == pytest.approx(500 * batches / size, abs=1)


def test_tenant_with_a_quota_has_its_part_of_a_group_that_passes_little_of_the_job() -> None:
    """The job passes 50 messages a second for each of two groups; one of them passes two, and half of them a tenant."""
    limits = {"t": limit(bytes_per_second=1_000), "u": Limit()}
    policy = make_policy(
        job=limit(messages_per_second=100), groups={"g": limit(messages_per_second=2), "h": Limit()},
        tenants={name: Tenant(each, "g") for name, each in limits.items()}, default=Namespace(group="h"),
    )  # fmt: skip
    went = sent(policy, ["t/x", "u/x", *(f"v/{n}" for n in range(10))], batches=60, size=500, rows=11)
    assert went["t/x"] == pytest.approx(went["u/x"], abs=4)


@pytest.mark.parametrize("bytes_per_second", [8, None])
def test_little_in_other_groups_takes_nothing_from_the_quota_of_a_tenant(bytes_per_second: int | None) -> None:
    """It asks for a byte a second in each of four groups, or they let pass as little; in the last it has a backlog."""
    names = [f"g{n}" for n in range(4)]
    policy = make_policy(
        job=limit(messages_per_second=50), tenants={"t": Tenant(limit(bytes_per_second=500))},
        groups={"g": Limit(), **{name: limit(bytes_per_second=bytes_per_second) for name in names}},
        namespaces={f"*/{name}": Namespace(group=name) for name in ("g", *names)},
    )  # fmt: skip
    decider, went = Decider("kernel", policy), Counter[str]()
    for batch in range(24):
        rows = [(f"{tenant}/g", 100) for tenant in "tu" for _ in range(15)]
        rows += [(f"t/{name}", 1) for name in names for _ in range(1 if bytes_per_second is None else 15)]
        decider.batch(1_000 * batch, rows + [(f"v/{name}", 1) for name in names for _ in range(15)])
        went += decider.admitted() if batch >= 8 else Counter()
    assert went["t/g"] == pytest.approx(16 * 4.6, rel=0.1)


def test_namespaces_of_a_tenant_that_passes_little_of_the_job_count_as_its_own_quotas_say() -> None:
    """Half a kilobyte is as much of its bytes as a message is of its messages."""
    own = limit(messages_per_second=2, bytes_per_second=1_000)
    policy = make_policy(job=limit(messages_per_second=100), tenants={"t": Tenant(own)})
    decider, went = Decider("kernel", policy), Counter[str]()
    for second in range(40):
        decider.batch(1_000 * second, [("t/large", 500), ("t/small", 1)] * 2 + [("v/x", 1)] * 100)
        went += decider.admitted()
    assert went["t/large"] == pytest.approx(went["t/small"], abs=2)


def test_tenant_that_sends_a_small_row_whenever_it_is_the_turn_of_another_gains_nothing() -> None:
    """A large row costs the same, whichever rows of others are next. The group takes eight seconds to repay one."""
    policy = make_policy(
        job=limit(messages_per_second=4), groups={"g": limit(bytes_per_second=1_000)},
        tenants={name: Tenant(group="g") for name in "ab"},
    )  # fmt: skip
    decider, went, large = Decider("kernel", policy), Counter[str](), [("a/x", 8_000), ("b/x", 8_000)]
    for second in range(60):
        before, others = decider.state, [("v/x", 1)] * 5 + large * (second % 8 == 0)
        decider.batch(1_000 * second, others)
        if decider.admitted()["b/x"]:
            decider.state = before
            decider.batch(1_000 * second, [("a/y", 1), *others])
        went += decider.admitted()
    assert went["a/x"] == pytest.approx(went["b/x"], abs=1)


def test_burst_of_a_tenant_is_not_served_at_the_rate_of_its_quota() -> None:
    """It saved 200 messages: as long as they last it has its half of the group's ten a second, and not two."""
    group = limit(bytes_per_second=10 * SIZE)
    went = served({"t": limit(messages_per_second=2, burst_seconds=100), "u": Limit()}, group, batches=30)
    assert went["t/x"] == pytest.approx(5 * 15, abs=4)


def test_rows_of_a_tenant_count_by_what_is_scarcer_for_it() -> None:
    """Where its own messages are, its namespaces send as many, however large; where the group's bytes are, as large."""
    for messages_per_second, ratio in ((2, 1), (1_000, 10)):
        policy = make_policy(
            groups={"g": limit(bytes_per_second=20_000)},
            tenants={"t": Tenant(limit(messages_per_second=messages_per_second)), "u": Tenant()},
            default=Namespace(group="g"),
        )
        decider, went = Decider("kernel", policy), Counter[str]()
        for batch in range(30):
            rows = [("t/small", 100)] * 60 + [("t/large", 1_000), ("u/x", 1_000)] * 12
            decider.batch(1_000 * batch, rows)
            went += decider.admitted()
        assert went["t/small"] / went["t/large"] == pytest.approx(ratio, rel=0.1)


@pytest.mark.parametrize("seed", thorough_after(4, range(12)))
def test_scope_that_only_observes_changes_nothing(seed: int) -> None:
    draw = random.Random(seed)

    def drawn(on_excess: OnExcess) -> Limit:
        keys = draw.sample(["messages_per_second", "bytes_per_second"], draw.choice([1, 1, 2]))
        rates: dict[str, Any] = {key: draw.choice([2, 10, 40]) * (SIZE if key[0] == "b" else 1) for key in keys}
        return limit(**rates, on_excess=on_excess)

    holding = {
        name: drawn(OnExcess.DELAY) if draw.random() < 0.5 else Limit() for name in ("", "g", "h", "t", "u", "v")
    }
    holding["g"] = holding["g"] if holding[""] != Limit() else drawn(OnExcess.DELAY)
    watched = {name: drawn(OnExcess.OBSERVE) if each == Limit() else each for name, each in holding.items()}
    groups = {name: draw.choice("gh") for name in "tuv"}
    deciders = [
        Decider("kernel", make_policy(
            job=each[""], groups={name: each[name] for name in "gh"},
            tenants={name: Tenant(each[name], groups[name]) for name in "tuv"},
        )) for each in (holding, watched)
    ]  # fmt: skip
    for batch in range(15):
        rows = [
            (f"{tenant}/{name}", draw.choice([1, SIZE, 5 * SIZE]))
            for tenant in "tuv" for name in "xy" for _ in range(draw.choice([0, 2, 20]))
        ]  # fmt: skip
        for decider in deciders:
            decider.batch(1_000 * batch, rows)
        assert deciders[0].admitted() == deciders[1].admitted(), batch


def test_namespace_that_is_ahead_and_has_no_row_has_no_next_row() -> None:
    """In the last batch the last of the namespaces that compete has a lead alone."""
    policy = make_policy(
        groups={"g": limit(messages_per_second=3)},
        tenants={name: Tenant(limit(bytes_per_second=1_000)) for name in "tu"},
        default=Namespace(group="g"),
    )
    decider = Decider("kernel", policy)
    for batch, rows in enumerate([
        [("t/y", 5_000)],
        [("u/x", 5_000), ("u/y", 700)],
        [("u/y", 700), ("t/y", 700)],
        [("u/x", 5_000), ("u/x", 5_000), ("u/x", 1), ("t/y", 5_000)],
        [("u/x", 1), ("u/x", 1), ("u/x", 5_000), ("t/x", 1), ("u/y", 700)],
        [("u/y", 5_000)],
    ]):  # fmt: skip
        decider.batch(1_000 * batch, rows)
    assert decider.admitted() == {"t/y": 2, "u/x": 0, "u/y": 0}
