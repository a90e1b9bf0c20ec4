"""Rows may wait for the tokens that a quota earns in the owed time: for these and for no more."""

from __future__ import annotations

import numpy as np
import pytest
from spark_throttle.core.lending.deferrals import Outlook
from spark_throttle.core.lending.grants import Lending
from spark_throttle.core.lending.owed_time import is_overloaded, with_owed

from spark_throttle.core.quota import MICRO, Int64s, OnExcess
from spark_throttle.core.state import NO_BOUND, Deferral
from spark_throttle.testing.oracle.worlds import limit, make_policy

POLICY = make_policy(
    groups={
        "gold": limit(messages_per_second=100, bytes_per_second=1_000, on_excess=OnExcess.REJECT),
        "slow": limit(messages_per_second=100, on_excess=OnExcess.DELAY),
        "free": limit(),
    }
)
SCOPES = len(POLICY.shared)
GOLD, SLOW = 1, 2
OWED_MS = np.full(SCOPES, 3_000, dtype=np.int64)
"""In three seconds, gold earns 300 messages and 3,000 bytes."""


def outlook(*gold: tuple[int, int], has_rejected: bool = False) -> Outlook:
    """Return what waits for gold in each shard."""
    waiting = np.zeros((len(gold), SCOPES, 2), dtype=np.int64)
    waiting[:, GOLD] = gold
    return Outlook(waiting, np.full(SCOPES, has_rejected), 1_000)


def lending(shards: int, deferral: Deferral | None = None) -> Lending:
    nothing = np.zeros((shards, SCOPES, 2), dtype=np.int64)
    return Lending(nothing, nothing, nothing, nothing, None, deferral)


def room_tokens(after: Lending) -> Int64s:
    assert after.deferral is not None
    return after.deferral.room_micro // MICRO


def test_rows_may_wait_for_the_tokens_of_the_owed_time() -> None:
    assert room_tokens(with_owed(lending(1), OWED_MS, outlook((0, 0)), POLICY))[0, GOLD].tolist() == [300, 3_000]


def test_shards_divide_the_owed_tokens_by_what_waits_and_each_may_take_what_is_free() -> None:
    room = room_tokens(with_owed(lending(3), OWED_MS, outlook((150, 0), (50, 0), (0, 0)), POLICY))
    assert room[:, GOLD, 0].tolist() == [100 + 151, 100 + 51, 100]  # rounded up where rows wait


def test_shards_in_which_more_waits_than_is_owed_have_no_more_than_is_owed() -> None:
    room = room_tokens(with_owed(lending(2), OWED_MS, outlook((900, 0), (300, 0)), POLICY))
    assert room[:, GOLD, 0].tolist() == pytest.approx([225, 75], abs=1)


def test_scope_that_does_not_reject_is_owed_no_tokens() -> None:
    assert not room_tokens(with_owed(lending(1), OWED_MS, outlook((0, 0)), POLICY))[0, SLOW:].any()


def test_owed_tokens_come_on_top_of_those_for_which_rows_wait_already() -> None:
    five = np.full((1, SCOPES, 2), 5 * MICRO)
    after = with_owed(lending(1, Deferral(five, np.full_like(five, NO_BOUND))), OWED_MS, outlook((0, 0)), POLICY)
    assert room_tokens(after)[0, [GOLD, SLOW]].tolist() == [[305, 3_005], [5, 5]]


@pytest.mark.parametrize("waits", [262, 263])
def test_scope_is_overloaded_from_seven_eighths_of_the_owed_tokens_on(waits: int) -> None:
    is_found = is_overloaded(OWED_MS, outlook((waits, 0), has_rejected=True), POLICY)
    assert is_found.tolist() == [at == GOLD and waits >= 263 for at in range(SCOPES)]
    assert not is_overloaded(OWED_MS, outlook((waits, 0)), POLICY).any()


def test_nothing_is_lent_for_time_that_nobody_owes() -> None:
    before = lending(1)
    assert with_owed(before, None, outlook((0, 0)), POLICY) is before
    assert with_owed(before, OWED_MS, None, POLICY) is before
