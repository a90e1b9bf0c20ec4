"""A job remembers another one report by report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_throttle.sharing.peers import Peers
from spark_throttle.sharing.report import Mark, ScopeRows, ShareReport
from tests.sharing.share_world import SETTINGS

RUN = 2**62 + 1


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
