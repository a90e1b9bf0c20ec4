"""Budgets that jobs share, rule by rule; each fault that would give out more is put in, and seen.

`share_world.World` counts what all jobs use, and asserts that it is within the budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from spark_throttle.core.arithmetic.rate_codes import encode
from spark_throttle.sharing import sharing
from spark_throttle.sharing.budget_claims import divide_budgets
from spark_throttle.sharing.peers import News, Peers
from spark_throttle.sharing.report import ScopeRows, joined
from tests.sharing import share_world
from tests.sharing.share_world import BUDGET, FIRST_WINDOW, SETTINGS, WINDOW_MS, SimulatedJob, World

ASKS = {11: 100_000}


def world_of(jobs: int) -> World:
    """Return jobs that begin together in a window, and want much of it."""
    return World(
        [SimulatedJob(f"job{n}", 7_777 * n, demands=dict(ASKS), ahead_ms=0, uses_all=True) for n in range(jobs)]
    )


def put_back(world: World, job: SimulatedJob) -> None:
    """Put a job back to before it used anything, and start it."""
    job.known, job.spent, job.incarnation = {}, {}, 1
    job.start()


def all_is_given_out() -> None:
    world = world_of(3)
    world.cycle(6)
    assert world.spent[FIRST_WINDOW] == BUDGET


def one_is_put_back() -> None:
    world = world_of(2)
    world.cycle(2)
    assert 0 < world.spent[FIRST_WINDOW] < BUDGET
    put_back(world, world.jobs[0])
    world.cycle(8)


def one_is_put_back_without_its_register() -> None:
    world = world_of(2)
    world.cycle(2)
    world.store.delete(world.now_ms, "job0")
    put_back(world, world.jobs[0])
    world.cycle(8)


def who_remembers_it_is_started_again() -> None:
    world = world_of(2)
    world.cycle(2)
    world.store.delete(world.now_ms, "job0")
    put_back(world, world.jobs[0])
    world.cycle(2)
    world.jobs[1].start()
    world.cycle(8)


def one_is_gone_for_good() -> None:
    world = world_of(2)
    world.cycle(2)
    world.jobs[0].is_alive = False
    world.now_ms += SETTINGS.lease_ms
    world._began_ms = world.now_ms
    world.cycle(8)
    assert world.now_ms < WINDOW_MS


def one_is_ahead_of_the_edge() -> None:
    world = world_of(2)
    world.jobs[0].ahead_ms = WINDOW_MS - 2_500
    world.cycle(14)
    assert set(world.spent) >= {FIRST_WINDOW, FIRST_WINDOW + 1}


STORIES = (
    all_is_given_out, one_is_put_back, one_is_put_back_without_its_register, who_remembers_it_is_started_again,
    one_is_gone_for_good, one_is_ahead_of_the_edge,
)  # fmt: skip


@pytest.mark.parametrize("story", STORIES)
def test_jobs_together_use_no_more_than_their_budget(story: Callable[[], None]) -> None:
    story()


def forget_at_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sharing, "used_by_runs", lambda _reports, ids: np.zeros(len(ids), dtype=np.int64))
    forget_replaced_runs(patch)


def forget_replaced_runs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("spark_throttle.sharing.peers.unclaimed", lambda _report, carried: np.zeros_like(carried[1]))


def tell_nothing_of_replaced_runs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Peers, "replaced", lambda _self: {})


def forget_the_dead(patch: pytest.MonkeyPatch) -> None:
    bury = Peers.bury

    def and_forget(self: Peers, started_ms: int) -> News:
        news = bury(self, started_ms)
        for peer in self._known.values():
            if peer.is_dead:  # as if its window had ended
                rates = np.flatnonzero(~peer.report.rows.is_budget)
                peer.report = replace(peer.report, rows=peer.report.rows.take(rates))
        return news

    patch.setattr(Peers, "bury", and_forget)


def forget_the_window_before(patch: pytest.MonkeyPatch) -> None:
    of_budgets = share_world.of_budgets
    patch.setattr(share_world, "of_budgets", lambda asks, *others: of_budgets({max(asks): asks[max(asks)]}, *others))


FAULTS = (
    (forget_at_restart, one_is_put_back),
    (forget_replaced_runs, one_is_put_back_without_its_register),
    (tell_nothing_of_replaced_runs, who_remembers_it_is_started_again),
    (forget_the_dead, one_is_gone_for_good),
    (forget_the_window_before, one_is_ahead_of_the_edge),
)


@pytest.mark.parametrize(("fault", "story"), FAULTS)
def test_each_fault_gives_out_more_than_the_budget(
    fault: Callable[[pytest.MonkeyPatch], None], story: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError, match=f"of {BUDGET} are used"):
        story()


def test_what_others_used_of_a_budget_is_all_that_the_dead_and_the_replaced_claimed_and_the_living_used() -> None:
    def rows(used: int, claimed: int) -> ScopeRows:
        pair, one = np.array([[used, 0]]), np.ones(1, dtype=np.uint8)
        claim = encode(np.array([[claimed, 0]]))
        return replace(
            ScopeRows.empty(), ids=np.array([1]), claim=claim, floor=np.zeros((1, 2), dtype=np.uint8),
            usage=encode(pair), bins=one, bin_demand=encode(np.array([[9, 0]])), bin_weight=one, period=one,
        )  # fmt: skip

    others = joined([rows(1, 3), rows(5, 20)])
    claim, by_others = divide_budgets(
        rows(2, 2), np.array([50]), others, np.array([0, 0]), np.array([True, False]), np.array([0, 1]), np.array([1])
    )
    assert by_others.tolist() == [3 + 1 + 5]
    assert claim.tolist() == [2 + 9]
