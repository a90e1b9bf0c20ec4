"""A destination's rate is within its bounds, rises while nothing is refused and falls at once; an epoch makes the next.

The breaker opens and closes as the policy says, and a policy that changes is followed.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.quota import CompiledPolicy
from spark_throttle.core.shared_buckets import under_share
from spark_throttle.core.shares.destinations import WHOLE, Aimd, DestinationRates, Told, rates_after
from spark_throttle.policy.compile import compile_policy
from spark_throttle.policy.model import PolicyDocument

RATES = st.integers(1, 2**50)
TIMES_MS = st.integers(0, 10**6)
AIMDS = st.builds(Aimd, RATES, TIMES_MS)


@pytest.mark.slow
@given(AIMDS, RATES, RATES)
def test_rate_is_within_its_bounds_and_a_refusal_lowers_it_unless_it_is_at_the_floor(
    aimd: Aimd, one: int, other: int
) -> None:
    floor, ceiling = min(one, other), max(one, other)
    before = aimd.rate(floor=floor, ceiling=ceiling)
    after = aimd.after_refusal(floor=floor, ceiling=ceiling).rate(floor=floor, ceiling=ceiling)
    assert floor <= after <= before <= ceiling
    assert after < before or before - before // 8 == before or before == floor


@pytest.mark.slow
@given(AIMDS, st.lists(TIMES_MS, max_size=5))
def test_it_makes_no_difference_in_how_many_parts_the_quiet_time_is_told(aimd: Aimd, times_ms: list[int]) -> None:
    parts = aimd
    for time_ms in times_ms:
        parts = parts.after_quiet(time_ms)
    bounds = {"floor": 1, "ceiling": 2**60}
    assert parts.rate(**bounds) == aimd.after_quiet(sum(times_ms)).rate(**bounds)


@pytest.mark.slow
@given(RATES, st.integers(0, 60_000), st.integers(0, 60_000))
def test_rate_grows_with_the_quiet_time(base: int, one_ms: int, other_ms: int) -> None:
    early, late = (Aimd(base, ms).rate(floor=1, ceiling=2**60) for ms in sorted((one_ms, other_ms)))
    assert early <= late


@given(RATES, st.integers(0, 30_000))
def test_rate_comes_back_to_what_was_refused_in_two_seconds_and_leaves_it_by_a_third_power(
    base: int, quiet_ms: int
) -> None:
    before = base * Fraction(8, 7)
    expected = before * (1 + Fraction(quiet_ms - 2_000, 2_000) ** 3 / 8)
    assert Aimd(base, quiet_ms).rate(floor=1, ceiling=2**200) == int(expected)


def test_destination_that_allows_four_times_as_much_is_found_within_eight_seconds() -> None:
    aimd = Aimd(1_000).after_refusal(floor=1, ceiling=1_000)
    assert aimd.after_quiet(8_000).rate(floor=1, ceiling=10**9) >= 4_000


@pytest.mark.parametrize("saved_seconds", [0.2, 0.5, 2])
@pytest.mark.parametrize("allowed", [30, 120, 1_000])
def test_destination_with_a_bucket_is_used_for_nine_tenths_and_refuses_a_few_calls_from_whatever_rate_it_began(
    allowed: int, saved_seconds: float
) -> None:
    """Calls of one row each, in steps of 10 ms; a refusal is followed by a pause of 100 ms."""
    for began in (allowed // 4, allowed, 4 * allowed):
        aimd, saved, due, taken, refused, pause_ms = Aimd(1_000 * began, 0), 0.0, 0.0, 0, 0, 0
        for at_ms in range(0, 60_000, 10):
            saved = min(max(1.0, allowed * saved_seconds), saved + allowed / 100)
            if pause_ms:
                pause_ms -= 10
                continue
            due += aimd.rate(floor=1, ceiling=10**9) / 100_000
            is_refused = False
            while due >= 1 and not is_refused:
                due, is_refused = due - 1, saved < 1
                saved -= not is_refused
                if at_ms >= 10_000:
                    taken, refused = taken + (not is_refused), refused + is_refused
            aimd = aimd.after_quiet(10)
            if is_refused:
                aimd, pause_ms, due = aimd.after_refusal(floor=1, ceiling=10**9), 100, 0.0
        assert taken >= 0.9 * allowed * 50, (began, taken)
        assert refused <= 0.02 * taken, (began, refused)


FLOOR, CEILING = 5_000, 100_000
QUIET = Told(10, 0, WHOLE, 3_000, 0)


def policy(ceiling: int = 100, **others: Any) -> CompiledPolicy:
    api = {
        "publish": {"messages_per_second": ceiling, "bytes_per_second": 10**6, "burst_seconds": 2},
        "destination": {"floor_messages_per_second": 5, "open_after_seconds": 3},
    }
    groups = {"api": api, **others}
    return compile_policy(PolicyDocument.model_validate({"resource_groups": groups}), "publish")


def after(
    before: DestinationRates | None, *told: Told, elapsed_ms: int = 2_000, wall_ms: int = 0, is_to_end: bool = False
) -> DestinationRates:
    one = policy()
    found = rates_after(
        before, one, [{"api": each} for each in told], one, elapsed_ms=elapsed_ms, wall_ms=wall_ms, is_to_end=is_to_end
    )
    assert found is not None
    return found


def refused(part: int = WHOLE // 2, *, accepted: int = 5) -> Told:
    return Told(accepted, 1, part, 500, 0 if accepted else 2_000)


TOLD = st.builds(
    Told,
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(1, WHOLE),
    *[st.integers(0, 10**5)] * 3,
    st.integers(0, 1),
)


def test_destination_begins_at_its_ceiling_and_a_policy_without_any_has_no_rates() -> None:
    assert after(None).in_force_micro_per_ms.tolist() == [CEILING]
    none = compile_policy(PolicyDocument(), "publish")
    assert rates_after(None, None, [], none, elapsed_ms=0, wall_ms=0) is None


@pytest.mark.slow
@given(st.lists(st.tuples(TOLD, st.integers(0, 10**5)), max_size=8))
def test_rate_stays_between_floor_and_ceiling_whatever_is_told(told: list[tuple[Told, int]]) -> None:
    rates = after(None)
    for each, elapsed_ms in told:
        rates = after(rates, each, elapsed_ms=elapsed_ms)
        if each.closed_until_ms:
            assert rates.in_force_micro_per_ms.tolist() == [0]
        elif rates.is_open[0]:
            assert rates.in_force_micro_per_ms.tolist() == [FLOOR]
        else:
            assert FLOOR <= rates.in_force_micro_per_ms[0] <= CEILING


def test_rate_follows_what_the_tasks_found_and_grows_while_nothing_is_refused() -> None:
    half = after(after(None), refused())
    assert (half.base_micro_per_ms[0], half.quiet_ms[0]) == (CEILING // 2, 500)
    later = after(half, QUIET, elapsed_ms=10**6)  # of which something was sent for three seconds
    assert CEILING // 2 < half.in_force_micro_per_ms[0] < later.in_force_micro_per_ms[0] < CEILING
    assert after(later, elapsed_ms=10**6).in_force_micro_per_ms == later.in_force_micro_per_ms  # nothing was sent


def test_breaker_opens_after_the_time_of_the_policy_and_the_rate_from_before_comes_back() -> None:
    lower = after(after(None), refused())
    first = after(lower, refused(WHOLE, accepted=0), elapsed_ms=2_000)
    assert first.is_open.tolist() == [0]
    second = after(first, refused(WHOLE, accepted=0), elapsed_ms=1_000)
    assert (second.is_open[0], second.in_force_micro_per_ms[0]) == (1, FLOOR)
    ends = after(first, refused(WHOLE, accepted=0), elapsed_ms=1_000, is_to_end=True)
    assert (ends.is_open[0], ends.in_force_micro_per_ms[0]) == (1, 0)
    assert after(second, elapsed_ms=1_000).is_open.tolist() == [1]  # nothing was sent, so nothing is known
    closed = after(second, Told(10, 0, WHOLE, 0, 0), elapsed_ms=0)
    assert closed.is_open.tolist() == [0]
    assert closed.in_force_micro_per_ms == lower.in_force_micro_per_ms


def test_destination_is_given_up_while_it_is_unavailable_if_the_policy_says_so() -> None:
    one = policy()
    assert one.destinations is not None
    gives_up = replace(one, destinations=replace(one.destinations, gives_up=np.array([1])))
    first = after(after(None), refused(WHOLE, accepted=0), elapsed_ms=2_000)
    second = after(first, refused(WHOLE, accepted=0), elapsed_ms=1_000)
    found = second.given_up(gives_up)
    assert found is not None
    assert found.tolist() == one.destinations.scope.tolist()
    assert first.given_up(gives_up) is None
    assert second.given_up(one) is None


def test_time_for_which_a_destination_asks_counts_as_refused_and_nothing_is_admitted_until_it_is_over() -> None:
    until_ms = 2**41
    asked = after(after(None), Told(0, 1, WHOLE, 0, 100, until_ms), elapsed_ms=1_000, wall_ms=until_ms - 5_000)
    assert (asked.closed_until_ms[0], asked.refused_for_ms[0], asked.is_open[0]) == (until_ms, 1_000, 0)
    assert asked.in_force_micro_per_ms.tolist() == [0]
    due_ms = asked.due_ms(policy(), paid_ms=70, wall_ms=until_ms - 5_000)
    assert due_ms == 70 + 2_000  # its breaker opens then
    still = after(asked, elapsed_ms=2_000, wall_ms=until_ms - 3_000)
    assert (still.refused_for_ms[0], still.is_open[0], still.in_force_micro_per_ms[0]) == (3_000, 1, 0)
    assert still.due_ms(policy(), paid_ms=70, wall_ms=until_ms - 3_000) == 70 + 3_000
    over = after(still, elapsed_ms=3_000, wall_ms=until_ms)
    assert (over.is_open[0], over.in_force_micro_per_ms[0]) == (1, FLOOR)
    back = after(over, Told(1, 0, WHOLE, 0, 0), wall_ms=until_ms + 1)
    assert (back.closed_until_ms[0], back.refused_for_ms[0], back.is_open[0]) == (0, 0, 0)


def test_destination_that_takes_all_or_nothing_gets_less_after_each_refusal() -> None:
    all_or_nothing = Told(0, 1, WHOLE * 3 // 4, 0, 0, slows=1)
    first = after(after(None), all_or_nothing)
    assert first.base_micro_per_ms.tolist() == [CEILING * 3 // 4]
    assert after(first, all_or_nothing).base_micro_per_ms.tolist() == [CEILING * 9 // 16]


def test_tasks_of_a_batch_are_told_the_latest_time() -> None:
    parts = [Told(3, 0, WHOLE, 0, 0), Told(0, 1, WHOLE, 0, 0, 7), Told(0, 1, WHOLE, 0, 0, 9)]
    assert Told.together(parts).closed_until_ms == 9


def test_rate_bounds_the_share_and_leaves_other_scopes_alone() -> None:
    rates = after(after(None), refused())
    share = np.array([[-1, -1, -1, -1], [30_000, 77, -1, -1]])
    assert rates.share(share, 2).tolist() == share.tolist()
    under = under_share(policy(), rates.share(None, 2)).shared
    assert under.rate_micro_per_ms.tolist() == [[-1, -1, -1, -1], [int(rates.in_force_micro_per_ms[0]), 10**9, -1, -1]]
    assert under.burst_micro[1, 1] == policy().shared.burst_micro[1, 1]


@pytest.mark.parametrize("ceiling", [20, 400])
def test_destination_keeps_what_it_learned_when_the_policy_changes(ceiling: int) -> None:
    rates = after(after(None), refused())
    other = policy(ceiling, aaa={"publish": {"messages_per_second": 1}})
    found = rates_after(rates, policy(), [], other, elapsed_ms=1_000, wall_ms=0)
    assert found is not None
    assert found.scope.tolist() == [2]
    assert found.base_micro_per_ms.tolist() == rates.base_micro_per_ms.tolist()
    assert found.in_force_micro_per_ms[0] == min(ceiling * 1_000, rates.in_force_micro_per_ms[0])


def test_batches_of_one_epoch_say_their_rates_as_parts_of_the_same_one() -> None:
    one = policy()
    told = [{"api": refused(WHOLE // 2)}, {"api": refused(WHOLE * 3 // 4)}]
    found = rates_after(after(None), one, told, one, elapsed_ms=2_000, wall_ms=0)
    assert found is not None
    assert found.base_micro_per_ms.tolist() == [CEILING * 3 // 4]


def test_rows_are_admitted_a_little_faster_than_they_are_sent() -> None:
    rates = after(after(None), refused())
    sent = rates.sending_micro_per_ms(0, floor=FLOOR, ceiling=CEILING)
    assert rates.in_force_micro_per_ms.tolist() == [sent + sent // 8]


def test_what_the_tasks_of_a_batch_were_told_is_weighed_by_their_calls() -> None:
    parts = [Told(30, 0, WHOLE, 5_000, 0), Told(9, 1, WHOLE // 2, 700, 100)]
    together = Told(39, 1, (30 * WHOLE + 10 * (WHOLE // 2)) // 40, 700, 0)
    assert Told.together(parts) == together
    assert Told.together([*parts, Told(0, 0, WHOLE, 0, 0)]) == together


def test_quiet_time_of_a_batch_without_a_refusal_is_that_of_the_task_that_sent_longest() -> None:
    parts = [Told(30, 0, WHOLE, 5_000, 0), Told(1, 0, WHOLE, 700, 0)]
    assert Told.together(parts).quiet_ms == 5_000
