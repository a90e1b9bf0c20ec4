"""The laws that compare namespaces see made-up violations, and nothing in histories that are right."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from spark_throttle.testing.simulation.exchange import SimulatedMachine
from spark_throttle.testing.simulation.job import SimulatedJob
from spark_throttle.testing.simulation.query import SimulatedBatch
from spark_throttle.testing.simulation.rows import Row
from tests.life.account import Account
from tests.life.contract import Contracts
from tests.life.laws import Law, World
from tests.life.laws_of_fairness import Fairness, Starvation, changed

GROUP: Final[dict[str, Any]] = {
    "version": 1,
    "resource_groups": {"gold": {"publish": {"messages_per_second": 10}}},
    "defaults": {"resource_group": "gold"},
}
ONE, OTHER = "acme/a", "blue/a"


@dataclass
class ToldHistory:
    """A history that is told to a law, not played: who was served what, in batches of one second."""

    law: Law
    policy: Mapping[str, Any]
    world: World = field(init=False)
    batches: int = 0

    def __post_init__(self) -> None:
        job = SimulatedJob(self.policy)
        self.world = World(job, Account())

    def batch(self, served: Mapping[str, int], arrive: Mapping[str, int] | None = None) -> list[str]:
        """Tell a batch; by default as many arrive as are served, so that backlogs stay."""
        arrived = self.world.job.offer(
            [(name, 1) for name, count in (served if arrive is None else arrive).items() for _ in range(count)]
        )
        waiting = {name: list(rows) for name, rows in self.world.waiting.items()}
        for row in arrived:
            waiting.setdefault(str(row.namespace), []).append(row)
        admitted: list[Row] = []
        for name, count in served.items():
            admitted += waiting[name][:count]
            waiting[name] = waiting[name][count:]
        self.world.waited, self.world.waiting = self.world.waiting, {n: rows for n, rows in waiting.items() if rows}
        self.batches += 1
        revision, at_ms = self.world.job.revision, 1_000 * self.batches
        made = SimulatedBatch(
            self.batches, at_ms, at_ms, revision, self.batches, tuple(arrived), tuple(admitted), (), b"", ""
        )
        self.world.account.advance(self.world.contracts(revision), self.world.waiting, at_ms=at_ms)
        self.world.account.debit(self.world.contracts(revision), made)
        return list(self.law.after_batch(self.world, made))

    def batches_until_it_speaks(self, each: Callable[[int], list[str]], most: int = 200) -> int | None:
        """Return in which batch the law speaks first."""
        return next((number for number in range(most) if each(number)), None)


def told(
    policy: Mapping[str, Any] = GROUP, law: type[Law] = Fairness, names: Sequence[str] = (ONE, OTHER)
) -> ToldHistory:
    """Return a history in which some have a backlog."""
    history = ToldHistory(law(), policy)
    assert not history.batch({}, dict.fromkeys(names, 20))
    assert not history.batch({}, {})
    return history


def test_a_tenant_that_is_further_behind_than_its_bound_is_seen() -> None:
    history = told()
    found = history.batches_until_it_speaks(lambda _: history.batch({ONE: 4, OTHER: 3}))
    assert found == 8  # half a message further behind in each batch, and 4 are allowed


def test_a_namespace_is_compared_with_its_part_of_what_its_tenant_gets() -> None:
    names = ("acme/a", "acme/b", OTHER)
    history = told(names=names)
    found = history.batches_until_it_speaks(lambda _: history.batch({"acme/a": 3, "acme/b": 2, OTHER: 5}))
    assert found == 12
    history = told(names=names)
    assert history.batches_until_it_speaks(lambda _: history.batch({"acme/a": 2, "acme/b": 2, OTHER: 4})) is None


def nudged(by: float) -> dict[str, Any]:
    """Return the group with another rate."""
    policy = copy.deepcopy(GROUP)
    policy["resource_groups"]["gold"]["publish"]["messages_per_second"] += by
    return policy


@pytest.mark.parametrize(
    "other",
    [nudged(0.1), GROUP | {"resource_groups": GROUP["resource_groups"] | {"iron": {}}}],
    ids=["a rate", "a group that does not concern them"],
)
def test_small_changes_of_a_policy_do_not_let_two_come_apart(other: dict[str, Any]) -> None:
    history = told()

    def batch(number: int) -> list[str]:
        history.world.job.set_policies((GROUP, other)[number % 2])
        return history.batch({ONE: 6, OTHER: 5})

    assert history.batches_until_it_speaks(batch) == 8


def test_what_was_behind_when_another_scope_begins_to_hold_two_may_be_behind_once_more() -> None:
    history = told()
    assert history.batches_until_it_speaks(lambda _: history.batch({ONE: 4, OTHER: 3}), 8) is None
    history.world.job.set_policies({"version": 1, "job": {"publish": {"messages_per_second": 10}}})
    assert history.batches_until_it_speaks(lambda _: history.batch({ONE: 4, OTHER: 3})) == 16


@pytest.mark.parametrize(
    ("before", "after", "part"),
    [
        (GROUP, GROUP, 0),
        (nudged(90), nudged(0), 0.9),
        (GROUP, {"version": 1}, 1),
        (GROUP, GROUP | {"namespaces": {ONE: {"resource_group": "gold", "publish": {"weight": 4}}}}, 0.75),
    ],
)
def test_a_change_counts_by_its_part(before: Mapping[str, Any], after: Mapping[str, Any], part: float) -> None:
    job = SimulatedJob(before)
    contracts = [Contracts(job.policies)]
    job.set_policies(after)
    contracts.append(Contracts(job.policies))
    assert float(changed(contracts[0].of(ONE), contracts[1].of(ONE))) == pytest.approx(part)


TIGHT: Final[dict[str, Any]] = {
    "version": 1,
    "job": {"publish": {"messages_per_second": 6, "burst_seconds": 1}},
    "resource_groups": {
        "gold": {"publish": {"messages_per_second": 100, "weight": 4}},
        "iron": {"publish": {"messages_per_second": 100}},
    },
    "tenants": {"acme": {"resource_group": "gold"}, "blue": {"resource_group": "iron"}},
}


def test_one_of_another_group_that_starves_under_the_jobs_limit_is_seen() -> None:
    history = told(TIGHT, Starvation)
    found = history.batches_until_it_speaks(lambda number: history.batch({ONE: 6, OTHER: int(number % 50 == 9)}))
    assert found is not None
    assert found <= 15  # (3 + 1) messages of each and 3 of the largest, times a weight of 4, at 6 a batch


@pytest.mark.slow
@pytest.mark.parametrize("served", [(5, 1), (1, 5)])
def test_shares_of_five_to_one_between_groups_are_no_starvation(served: tuple[int, int]) -> None:
    history = told(TIGHT, Starvation)
    each = dict(zip((ONE, OTHER), served, strict=True))
    assert history.batches_until_it_speaks(lambda _: history.batch(each)) is None


def test_one_whose_own_group_has_no_tokens_does_not_starve() -> None:
    policy = copy.deepcopy(TIGHT)
    policy["resource_groups"]["iron"]["publish"] = {"messages_per_second": 0.001, "burst_seconds": 1}
    history = told(policy, Starvation)
    history.batch({OTHER: 1})
    assert history.batches_until_it_speaks(lambda _: history.batch({ONE: 6})) is None


@pytest.mark.slow
def test_a_job_that_moves_sees_the_clocks_of_the_machine_that_it_moves_to() -> None:
    job = SimulatedJob(GROUP)
    job.offer([(ONE, 1)] * 500)
    job.trigger(1_000)
    for name, ahead_ms in (("one", 3_600_000), ("two", 0), ("one", 3_600_000), ("two", -5)):
        job.move(SimulatedMachine(name, ahead_ms, up_ms=ahead_ms * 7))
        assert job.is_down
        job.restart(1_000)
        before = len(job.admitted)
        job.trigger(0)
        job.trigger(1_000)
        assert len(job.admitted) > before
    assert job.wall_ms - job.ahead_ms - job.steady_ms == SimulatedJob(GROUP).wall_ms
