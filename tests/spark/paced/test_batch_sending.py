"""How fast a batch's rows go to their destinations: by the epoch, by what was said since, and by a task's part."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.lending.destinations import WHOLE, Told
from spark_throttle.core.limits.aimd import Aimd
from spark_throttle.spark.paced.batch_sending import BatchDestination

RATES = st.integers(1, 10**9)


def destination(rows: int, sent: int, ceiling: int, base: int) -> BatchDestination:
    return BatchDestination(rows, sent, 1, ceiling, Aimd(base, 0), is_unavailable=False, gives_up=False)


def test_task_with_a_third_of_the_rows_sends_at_a_third_of_the_rate_and_may_rise_to_the_quota() -> None:
    terms = destination(300, 60_000, 240_000, 54_000).terms(100, 2.0, is_timed=True)
    assert terms.row_ns == 50_000_000  # 20 of 60 a second
    assert terms.began == Aimd(WHOLE * 9 // 10, 0)
    assert terms.ceiling_part == WHOLE * 4 * 108 // 100  # as hasty as any batch, for what its planning takes
    assert terms.asks_once is False


@given(sent=RATES, base=RATES, part=st.integers(1, 4 * WHOLE), quiet_ms=st.integers(0, 10**5))
def test_what_was_said_before_a_batch_is_told_as_if_it_had_been_said_in_it(
    sent: int, base: int, part: int, quiet_ms: int
) -> None:
    told = Told(5, 1, part, quiet_ms, 0, 7)
    found = destination(10, sent, 10**9, base).after(told)
    assert found == Aimd(max(1, sent * part // WHOLE), quiet_ms)
    later = destination(0, base, 10**9, base)
    again = later.told(told, found)
    assert (again.accepted, again.refused, again.unsent_messages) == (5, 1, 0)
    after = later.after(again)
    assert after.quiet_ms == quiet_ms
    assert abs(after.base - found.base) <= 1 + base // WHOLE
