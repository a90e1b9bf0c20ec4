"""What a batch offers of the rows for a destination, and what its rate becomes by the answers."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.limits.aimd import Aimd
from spark_throttle.core.shares.destinations import WHOLE, aimd_after
from spark_throttle.spark.batch_functions.offers import GIVEN_UP, after_refusals, cut, offered_messages, told_of_offer
from spark_throttle.spark.paced.batch_sending import BatchDestination
from spark_throttle.spark.paced.idempotency import IdempotencyKey
from spark_throttle.spark.paced.kept_sender import Heard
from spark_throttle.spark.paced.sending import Parcel

SECOND_MS = 1_000
PER_SECOND = 1_000
"""A rate of one message a second, in micro-tokens a millisecond."""


def destination(
    rows: int, aimd: Aimd, *, floor: int = PER_SECOND, ceiling: int = 100 * PER_SECOND, is_unavailable: bool = False
) -> BatchDestination:
    sent = aimd.rate(floor=floor, ceiling=ceiling)
    return BatchDestination(rows, sent, floor, ceiling, Heard(aimd), is_unavailable=is_unavailable, gives_up=False)


def parcel(name: str, numbers: range) -> Parcel:
    return Parcel(pa.table({"id": list(numbers)}), IdempotencyKey("q", 7, "i", name, numbers.start), 0)


def ids(parcels: list[Parcel]) -> list[int]:
    return [number for each in parcels for number in each.rows.column("id").to_pylist()]


@pytest.mark.slow
@given(sizes=st.lists(st.integers(0, 5), max_size=6), offered=st.integers(GIVEN_UP, 40))
def test_every_row_is_offered_or_left_in_the_order_in_which_it_was_admitted(sizes: list[int], offered: int) -> None:
    parcels = [parcel(f"t/{at}", range(10 * at, 10 * at + size)) for at, size in enumerate(sizes)]
    found = cut(parcels, offered)
    assert ids(found.offered) + ids(found.left) == ids(parcels)
    assert len(ids(found.offered)) == min(max(0, offered), sum(sizes))
    for each in (*found.offered, *found.left):
        assert each.rows.column("id")[0].as_py() == each.key.place  # a key says where its rows begin


def test_a_rate_at_the_quota_offers_all_however_much_that_is() -> None:
    assert offered_messages(destination(10**6, Aimd(100 * PER_SECOND)), 0, SECOND_MS) == 10**6


def test_a_destination_that_asks_to_wait_is_offered_nothing() -> None:
    found = destination(900, Aimd(100 * PER_SECOND))
    assert offered_messages(replace(found, heard=Heard(found.heard.aimd, 1_700_000_000_000)), 0, SECOND_MS) == 0


def test_an_unavailable_destination_is_asked_with_what_the_floor_gives() -> None:
    rates = Aimd(100 * PER_SECOND)
    assert offered_messages(destination(900, rates, floor=3 * PER_SECOND, is_unavailable=True), 0, 2_000) == 6


@pytest.mark.slow
@given(
    rows=st.integers(1, 10**6), base=st.integers(1, 10**6), quiet_ms=st.integers(0, 20_000),
    floor=st.integers(1, 10**6), refusals=st.integers(0, 400), elapsed_ms=st.integers(0, 10**6),
)  # fmt: skip
def test_more_refusals_offer_no_more_rows_and_never_none(
    rows: int, base: int, quiet_ms: int, floor: int, refusals: int, elapsed_ms: int
) -> None:
    found = destination(rows, Aimd(base, quiet_ms), floor=floor, ceiling=10**6)
    more, fewer = (offered_messages(found, count, elapsed_ms) for count in (refusals, refusals + 1))
    assert 1 <= fewer <= more <= rows


@pytest.mark.slow
@given(
    base=st.integers(1, 10**9),
    quiet_ms=st.integers(0, 20_000),
    floor=st.integers(1, 10**6),
    refusals=st.integers(1, 60),
)
def test_after_an_offer_was_accepted_the_rate_is_the_one_at_which_it_was_made(
    base: int, quiet_ms: int, floor: int, refusals: int
) -> None:
    found = destination(900, Aimd(base, quiet_ms), floor=floor, ceiling=10**9)
    told = told_of_offer(found, is_accepted=True, refusals=refusals, elapsed_ms=SECOND_MS, left_messages=5)
    after = aimd_after(found.heard.aimd, told, sent=found.sent_micro_per_ms, floor=floor)
    offered = after_refusals(found, refusals).base
    assert after.quiet_ms == 0
    assert offered - 1 - found.sent_micro_per_ms // WHOLE <= after.base <= max(floor, offered)


def test_batches_that_are_refused_change_no_rate_and_rows_that_are_left_are_told() -> None:
    found = destination(900, Aimd(50 * PER_SECOND))
    told = told_of_offer(found, is_accepted=False, refusals=3, elapsed_ms=SECOND_MS, left_messages=900)
    assert (told.accepted, told.refused, told.unsent_messages) == (0, 1, 900)
    assert aimd_after(found.heard.aimd, told, sent=found.sent_micro_per_ms, floor=1) == found.heard.aimd


def test_a_destination_that_takes_a_fifth_of_its_quota_in_each_batch_gets_most_of_what_it_takes() -> None:
    """100 messages a second are admitted at most, the destination takes 100 in a batch of five seconds, or none."""
    allowed, elapsed_ms, aimd, refusals, waiting, taken = 100, 5 * SECOND_MS, Aimd(100 * PER_SECOND), 0, 0, []
    for _ in range(200):
        rate = min(100 * PER_SECOND, aimd.rate(floor=PER_SECOND, ceiling=100 * PER_SECOND) * 9 // 8)
        waiting += max(0, min(rate * elapsed_ms // 1_000_000, 1_000 - waiting))
        found = destination(waiting, aimd)
        offered = offered_messages(found, refusals, elapsed_ms)
        is_accepted = offered <= allowed
        waiting -= offered * is_accepted
        taken.append(offered * is_accepted)
        told = told_of_offer(
            found, is_accepted=is_accepted, refusals=refusals, elapsed_ms=elapsed_ms, left_messages=waiting
        )
        aimd = aimd_after(aimd, told, sent=found.sent_micro_per_ms, floor=PER_SECOND)
        refusals = 0 if is_accepted else refusals + 1
    assert sum(taken[20:]) >= 0.6 * allowed * len(taken[20:])
