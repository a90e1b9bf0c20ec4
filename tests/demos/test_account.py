"""A made-up run from its tables to the last line of the demonstration and its picture."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from PIL import Image

from demos.account import Books, Run, take_account
from demos.plots import Story, draw
from spark_throttle.load.traffic import SCHEMA, Traffic, TrafficGroup
from spark_throttle.policy.compile import compile_policy
from spark_throttle.store.policy_location import load_policies
from tests.demos.made_up import write_checkpoint, write_table

TRAFFIC = Traffic(
    (TrafficGroup("bronze", 2, 1, 900, 0.0), TrafficGroup("gold", 3, 1, 100, 1.0)), seed=2, size_sigma=0.0
)
POLICY = """
resource_groups:
  bronze: {publish: {messages_per_second: 300, burst_seconds: 1}}
  gold: {publish: {messages_per_second: 1000}}
tenants: {bronze-00: {resource_group: bronze}, gold-00: {resource_group: gold}}
"""
BATCHES = [(0, 100), (1000, 1000), (2000, 2000), (3000, 3000), (4000, 3000)]


def made_up_run(root: Path, *, greed: int = 0) -> tuple[Run, pa.Table]:
    """Write a run that shares bronze alike, `greed` rows a batch above its quota; return it and its queue."""
    whole = pa.Table.from_batches(TRAFFIC.batches(0, 3000), SCHEMA)
    names = whole["namespace"].to_pylist()
    waiting: list[int] = []
    admitted, rejected, start = {}, {}, 0
    for batch_id, (_, end) in enumerate(BATCHES):
        arrived = range(start, end)
        waiting += [row for row in arrived if names[row].startswith("bronze")]
        turns = [[row for row in waiting if names[row].endswith(suffix)][: 150 + greed // 2] for suffix in ("0", "1")]
        passed = sorted([*turns[0], *turns[1], *(row for row in arrived if names[row].startswith("gold"))])
        waiting = [row for row in waiting if row not in set(passed)]
        refused, waiting = waiting[:50], waiting[50:]
        admitted[batch_id] = whole.take(pa.array(passed, pa.int64()))
        rejected[batch_id] = whole.take(pa.array(refused, pa.int64()))
        start = end
    run = Run(
        checkpoint=write_checkpoint(root / "checkpoint", BATCHES),
        admitted=write_table(root / "admitted", admitted),
        rejected=write_table(root / "rejected", rejected),
        traffic=TRAFFIC,
        policy=compile_policy(load_policies(POLICY), "publish"),
        overloaded="bronze",
    )
    return run, whole.take(pa.array(waiting, pa.int64()))


@pytest.fixture
def books(tmp_path: Path) -> Books:
    return take_account(*made_up_run(tmp_path))


@pytest.mark.slow
def test_account_of_a_good_run_balances(books: Books) -> None:
    account = books.account
    assert account.offered == 3000 == account.admitted + account.rejected + account.queued
    assert account.rejected == 250 - 50  # nothing of batch 0 was left to refuse
    assert account.keeps_the_laws
    assert account.fairness_ratio == 1.0


@pytest.mark.slow
def test_last_line_has_the_eight_numbers(books: Books) -> None:
    assert [*json.loads(books.account.to_json())] == [
        "offered",
        "admitted",
        "rejected",
        "queued",
        "lost",
        "doubled",
        "over_limit",
        "fairness_ratio",
    ]


@pytest.mark.slow
def test_forgotten_queue_is_lost(tmp_path: Path) -> None:
    run, queued = made_up_run(tmp_path)
    account = take_account(run, queued.slice(7)).account
    assert (account.lost, account.doubled, account.keeps_the_laws) == (7, 0, False)


@pytest.mark.slow
def test_row_both_admitted_and_queued_is_doubled(tmp_path: Path) -> None:
    run, queued = made_up_run(tmp_path)
    account = take_account(run, pa.concat_tables([queued, queued.slice(0, 2)])).account
    assert (account.lost, account.doubled, account.keeps_the_laws) == (0, 2, False)


@pytest.mark.slow
def test_quota_passed_is_over_limit(tmp_path: Path) -> None:
    run, queued = made_up_run(tmp_path, greed=4)
    account = take_account(run, queued).account
    assert account.over_limit > 0
    assert not account.keeps_the_laws


@pytest.mark.slow
def test_picture_is_drawn(books: Books, tmp_path: Path) -> None:
    policy = compile_policy(load_policies(POLICY), "publish")
    draw(Story(policy, books, ["gold", "bronze"], "bronze"), tmp_path / "throttle.png")
    with Image.open(tmp_path / "throttle.png") as picture:
        assert picture.size == (1650, 935)
        assert len(picture.getcolors(maxcolors=2**20) or []) > 100


@pytest.mark.slow
@pytest.mark.parametrize("batches", [0, 1, 2, 3])
def test_run_that_was_cut_short_is_recounted_and_drawn(tmp_path: Path, batches: int) -> None:
    run, queued = made_up_run(tmp_path)
    for batch_id in range(batches, len(BATCHES)):
        (run.checkpoint / "commits" / str(batch_id)).unlink()
    books = take_account(run, queued.slice(0, 0))
    assert books.account.offered == ([0] + [end for _, end in BATCHES])[batches]
    draw(Story(run.policy, books, ["gold", "bronze"], "bronze"), tmp_path / "throttle.png")
    assert (tmp_path / "throttle.png").exists()
