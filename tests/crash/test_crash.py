"""The crash program in small, and the plan that it follows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.crash.account import revisions
from tests.crash.plan import CLUSTER, draw_lives
from tests.crash.points import OF_A_BATCH_SINK
from tests.crash.run import POINTS, crash
from tests.crash.workload import AMPLE, REVISIONS


@pytest.mark.timeout(900)
def test_job_that_is_killed_while_another_shares_its_quotas_loses_and_doubles_nothing(tmp_path: Path) -> None:
    account = crash(tmp_path / "delta", "delta", kills=5, seed=20261122)
    assert account.keeps_the_laws, account
    assert account.kills == 5
    assert account.admitted + account.rejected == account.offered
    assert min(account.admitted, account.rejected) > 0


@pytest.mark.parametrize("seed", range(10))
def test_half_of_the_kills_stand_at_points_and_every_point_has_one(seed: int) -> None:
    lives = draw_lives(30, seed, POINTS["delta"], len(REVISIONS))
    kills = [kill for life in lives for kill in (*life.losses, life.end)]
    assert len(kills) == 30
    at = Counter(kill.point for kill in kills if kill.point is not None)
    assert at.total() == 15
    assert set(at) == set(POINTS["delta"])
    assert {life.master for life in lives if any(kill.victim == "executor" for kill in life.losses)} <= {CLUSTER}


def test_policies_of_the_program_differ() -> None:
    assert len(revisions((*REVISIONS, AMPLE))) == len(REVISIONS) + 1


def test_points_have_names_of_their_own() -> None:
    assert len(set(OF_A_BATCH_SINK)) == len(OF_A_BATCH_SINK)
