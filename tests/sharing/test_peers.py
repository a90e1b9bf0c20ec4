"""A job remembers another one report by report."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spark_throttle.core.arithmetic.rate_codes import encode
from spark_throttle.sharing.peers import Peers
from spark_throttle.sharing.report import Mark, ReplacedRuns, ScopeRows, ShareReport
from tests.sharing.share_world import GOLD, SETTINGS

RUN = 2**62 + 1
CLAIM = 900_000
IDS = np.array([GOLD])
RATE = replace(
    ScopeRows.empty(), ids=IDS, claim=encode(np.array([[CLAIM, 0]])), floor=np.zeros((1, 2), dtype=np.uint8),
    usage=np.zeros((1, 2), dtype=np.uint32), bins=np.zeros(1, dtype=np.uint8), period=np.zeros(1, dtype=np.uint8),
)  # fmt: skip


@pytest.mark.parametrize(
    ("mark", "runs_before"),
    [
        (Mark(1, int(str(RUN)), 2), 0),
        (Mark(2, int(str(RUN)), 1), 0),
        (Mark(1, RUN + 1, 1), 1),
        (Mark(2, RUN + 1, 1), 1),
        (Mark(2, RUN - 1, 1), 1),
    ],
)
def test_claims_of_a_run_are_kept_until_it_has_surely_heard_of_the_next(mark: Mark, runs_before: int) -> None:
    """Runs are told apart by random bits: those of the next run are larger or smaller."""
    peers = Peers(SETTINGS)
    first = ShareReport("m", "a job", Mark(1, RUN, 1), 0, {}, ScopeRows.empty(), SETTINGS.terms)
    peers.see(first, 1_000, since=1)
    peers.see(replace(first, mark=mark), 5_000, since=2)
    (peer,) = peers.everyone
    assert [left.until_ms for left in peer.before] == [5_000 + 2 * SETTINGS.margin_ms] * runs_before


@pytest.mark.parametrize(("told_before", "told"), [(5, CLAIM), (CLAIM, 5)])
def test_of_what_two_jobs_tell_of_a_replaced_run_the_larger_counts(told_before: int, told: int) -> None:
    peers, by = Peers(SETTINGS), RUN + 1
    report = ShareReport("m", "a job", Mark(2, by, 1), 0, {}, ScopeRows.empty(), SETTINGS.terms)
    peers.see(report, 0, since=1)
    for amount in (told_before, told):
        teller = replace(report, member="other", replaced={"m": ReplacedRuns(by, IDS, np.array([amount]))})
        peers.learn([teller])
    assert peers.unknown(IDS) == CLAIM


def test_rate_that_a_job_claims_counts_though_a_run_of_it_was_replaced() -> None:
    peers = Peers(SETTINGS)
    first = ShareReport("m", "a job", Mark(1, RUN, 1), 0, {}, RATE, SETTINGS.terms)
    for started_ms, report in ((0, first), (1_000, replace(first, mark=Mark(2, RUN + 1, 1)))):
        peers.see(report, started_ms, since=1)
        seats = peers.seats(IDS, "another")
        now_ms = started_ms + 3 * SETTINGS.margin_ms  # the run before has stopped
        assert peers.claimed(seats, IDS, np.array([[1_000_000, -1]]), now_ms)[:, 0] == CLAIM


@pytest.mark.parametrize("is_there", [False, True])
def test_what_a_replaced_run_used_of_a_budget_is_told_only_once_its_register_is_lost(*, is_there: bool) -> None:
    peers, rows = Peers(SETTINGS), replace(RATE, period=np.ones(1, dtype=np.uint8))
    first = ShareReport("m", "a job", Mark(1, RUN, 1), 0, {}, rows, SETTINGS.terms)
    second = replace(first, mark=Mark(2, RUN + 1, 1), rows=ScopeRows.empty())
    peers.see(first, 0, since=1)
    peers.see(second, 0, since=1)
    peers.learn([first, second] if is_there else [second])
    assert peers.replaced()["m"].amount == CLAIM  # though its register is there: the listing may be old
    peers.claimed(peers.seats(IDS, "another"), IDS, np.array([[CLAIM, -1]]), 3 * SETTINGS.margin_ms)
    assert list(peers.replaced()) == ([] if is_there else ["m"])
    assert peers.unknown(IDS) == CLAIM
