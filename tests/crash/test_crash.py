"""The crash program in small, and the plan that it follows."""

from __future__ import annotations

import os
import random
import zoneinfo
from collections import Counter
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_throttle.policy import values
from spark_throttle.spark.reference_pipeline import REFERENCES, way_of
from tests.crash.contracts import Promises
from tests.crash.history import contracts_of
from tests.crash.plan import CLUSTER, draw_lives
from tests.crash.points import OF_A_BATCH_SINK
from tests.crash.policies import AMPLE, NAMESPACES, draw_policies, text_of
from tests.crash.put_back import PUT_BACKS
from tests.crash.run import crash, points_of
from tests.crash.zones import know_zones, make_zones

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OF_DELTA = points_of("delta", "files")


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_job_that_is_killed_while_another_shares_its_quotas_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    account = crash(tmp_path / "delta", "delta", kills=4, seed=1, session=spark)
    assert account.keeps_the_laws, account
    assert (account.kills, account.put_back) == (4, 1)
    assert account.admitted + account.rejected == account.offered
    assert min(account.admitted, account.rejected) > 0


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_job_that_decides_on_references_loses_and_doubles_nothing(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "function"
    account = crash(root, "function", kills=3, seed=7, source="references", session=spark)
    assert way_of(str(root / "checkpoint" / "throttle")) == REFERENCES
    assert account.keeps_the_laws, account
    assert account.admitted + account.rejected == account.offered
    assert min(account.admitted, account.rejected) > 0


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sink", ["delta", "merge"])
def test_job_that_is_frozen_and_wakes_up_beside_the_next_run_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, sink: str
) -> None:
    account = crash(tmp_path / sink, sink, kills=4, seed=13, session=spark, is_frozen=True)
    assert account.keeps_the_laws, account
    assert account.admitted + account.rejected == account.offered
    assert min(account.admitted, account.rejected) > 0


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_job_whose_costs_are_known_late_charges_each_row_what_it_really_cost(
    spark: SparkSession, tmp_path: Path
) -> None:
    account = crash(tmp_path / "costs", "delta", kills=3, seed=1, session=spark, quotas="costs")
    assert account.keeps_the_laws, account
    assert account.unsettled == 0
    assert account.admitted > 0


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_table_whose_catalog_commits_has_every_row_once_though_its_job_is_killed(tmp_path: Path) -> None:
    account = crash(tmp_path / "catalog", "delta-catalog", kills=3, seed=2)
    assert account.keeps_the_laws, account


@pytest.mark.parametrize("seed", range(10))
def test_half_of_the_kills_stand_at_points_and_every_point_has_one(seed: int) -> None:
    lives = draw_lives(30, seed, OF_DELTA)
    kills = [kill for life in lives for kill in (*life.losses, life.end)]
    assert len(kills) == 30
    at = Counter(kill.point for kill in kills if kill.point is not None)
    assert at.total() == 15
    assert set(at) == set(OF_DELTA)
    assert {life.master for life in lives if any(kill.victim == "executor" for kill in life.losses)} <= {CLUSTER}


@pytest.mark.parametrize("seed", range(10))
def test_what_is_put_back_was_copied_a_life_or_two_before(seed: int) -> None:
    lives = draw_lives(100, seed, OF_DELTA, put_backs=PUT_BACKS["delta"])
    kept: int | None = None
    for number, life in enumerate(lives):
        if life.put_back is not None:
            assert kept is not None
            assert 1 <= number - kept <= 2
            kept = None
        if life.is_kept:
            assert (kept, life.put_back) == (None, None)
            kept = number
    assert {life.put_back for life in lives} == {None, *PUT_BACKS["delta"]}


@pytest.mark.parametrize("seed", range(10))
def test_job_is_frozen_only_where_what_it_has_need_not_lie_still(seed: int) -> None:
    lives = draw_lives(100, seed, OF_DELTA, put_backs=PUT_BACKS["delta"], may_freeze=True)
    after = [then for life, then in pairwise(lives) if life.end.victim == "frozen"]
    assert after
    assert {(life.is_kept, life.put_back) for life in after} == {(False, None)}


def test_policies_of_the_program_differ_and_are_such_as_can_be_put_in_force() -> None:
    drawn = list(islice(draw_policies(random.Random(1)), 200))
    revisions = contracts_of({str(number): text for number, text in enumerate((*drawn, text_of(AMPLE)))})
    assert len(revisions) == 201
    assert len(set(drawn)) > 100
    actions = {scope.on_excess for policy in revisions.values() for scope in policy.shared}
    assert actions == {"observe", "delay", "reject"}


@pytest.fixture
def zones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = zoneinfo.TZPATH
    monkeypatch.setenv("PYTHONTZPATH", os.pathsep.join(before))
    make_zones(tmp_path)
    know_zones(tmp_path)
    yield
    zoneinfo.reset_tzpath(before)
    values._time_zones.cache_clear()


@pytest.mark.usefixtures("zones")
def test_guarantees_and_budgets_of_the_program_are_such_as_can_be_put_in_force() -> None:
    promises = Promises(1)
    drawn = [promises.with_promises(text) for text in islice(draw_policies(random.Random(1)), 50)]
    policies = contracts_of({str(number): text for number, text in enumerate(drawn)}).values()
    assert {each.has_guarantees for each in policies} == {True, False}
    assert any(each.of(name).is_budgeted for each in policies for name in NAMESPACES)
    assert promises.with_promises(text_of(AMPLE)) == text_of(AMPLE)


def test_points_have_names_of_their_own() -> None:
    assert len(set(OF_A_BATCH_SINK)) == len(OF_A_BATCH_SINK)
