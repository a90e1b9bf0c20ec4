"""The documented examples of others' calendar windows and interval refills, with our numbers beside theirs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import pytest

from spark_throttle.core.quota import Period
from spark_throttle.core.usage import unpack_usage
from spark_throttle.policy.calendar_windows import next_edge
from spark_throttle.testing import SimulatedJob

HOUR_MS: Final = 3_600_000


def document(**quota: int) -> dict[str, Any]:
    return {"version": 1, "tenants": {"acme": {"publish": {"on_excess": "reject", **quota}}}}


def job_of(**quota: int) -> SimulatedJob:
    """Return a job that begins at a full hour."""
    job = SimulatedJob(document(**quota))
    job.pass_time(-job.wall_ms % HOUR_MS)
    return job


def hit(job: SimulatedJob, count: int, *, size_bytes: int = 1, after_ms: int = 0) -> tuple[int, int]:
    """Offer rows at once, and return how many pass, and what is left."""
    before = len(job.admitted)
    job.offer([("acme/a", size_bytes)] * count)
    batch = job.trigger(after_ms)
    assert batch is not None
    budgets = unpack_usage(batch.usage, "a report").budgets
    assert budgets is not None
    assert budgets.shared_used is not None
    quota = job.policies.tenants["acme"].publish
    most = quota.messages_per_hour or quota.bytes_per_hour
    return len(job.admitted) - before, (most or 0) - int(budgets.shared_used[1, 0])


@pytest.mark.parametrize(
    ("period", "last_ms"),
    [(Period.HOUR, 1_573_433_999_999), (Period.DAY, 1_573_516_799_999), (Period.MONTH, 1_575_158_399_999)],
)
def test_gubernators_gregorian_windows_end_where_ours_do(period: Period, last_ms: int) -> None:
    """``DURATION_IS_GREGORIAN`` at 2019-11-11T00:00:30Z tells the last millisecond of the window; we tell the edge."""
    now_ms = int(datetime(2019, 11, 11, 0, 0, 30, tzinfo=UTC).timestamp() * 1000)
    assert next_edge(UTC, period, now_ms + 1) == last_ms + 1


GUBERNATOR: Final = [
    # hits, time before them; theirs: passed, left
    (1, 0, (1, 59)),
    (1, 0, (1, 58)),
    (58, 0, (58, 0)),
    (1, 0, (0, 0)),
    (1, HOUR_MS + 1_000, (1, 59)),
]
"""A Gregorian limit of 60, there of a minute (`functional_test.go`)."""


def test_gubernators_gregorian_limit_of_60_passes_what_ours_does() -> None:
    job = job_of(messages_per_hour=60)
    assert [hit(job, hits, after_ms=after_ms) for hits, after_ms, _ in GUBERNATOR] == [each[2] for each in GUBERNATOR]


CHANGED: Final = [(100, 99), (100, 98), (10, 7), (10, 6), (200, 195)]
"""Limits, and what is left after a hit each: a changed limit counts what was used."""


def test_gubernators_changed_limits_leave_what_ours_do() -> None:
    job, found = job_of(messages_per_hour=100), []
    for most, _ in CHANGED:
        job.set_policies(document(messages_per_hour=most))
        found.append((most, hit(job, 1)[1]))
    assert found == CHANGED


ALL_AT_ONCE: Final = [
    # asked of what is left; theirs: passed, left; ours: passed, left
    (1_000, 2_000, (1_000, 1_000), (1_000, 1_000)),
    (1_500, 1_000, (0, 1_000), (1_000, 0)),
]
"""A limit of 2,000: Gubernator takes hits together or not at all. Rows are taken one by one here, so nothing is left
beside those who want it."""


def test_more_than_is_left_takes_what_is_left() -> None:
    job = job_of(messages_per_hour=2_000)
    assert [hit(job, asked) for asked, *_ in ALL_AT_ONCE] == [ours for *_, ours in ALL_AT_ONCE]


BUCKET4J: Final = [
    # held of 100 an interval, asked; theirs: the part of the interval to wait, refilled greedily and intervally; ours
    (100, 49, 0.0, 0.0, 0.0),
    (70, 80, 0.1, 1.0, 0.0),
    (0, 10, 0.1, 1.0, 1.0),
]
"""`BucketStateSpecification`: a cost is paid whole before it passes there. Here it passes while anything is left, and
what it exceeds the budget by is taken off the next window: 80 of 70 leave 90 for it."""


@pytest.mark.parametrize(("held", "asked", "_greedily", "_intervally", "ours"), BUCKET4J)
def test_bucket4js_interval_refill_comes_at_its_end_as_ours_does(
    held: int, asked: int, _greedily: float, _intervally: float, ours: float
) -> None:
    job = job_of(bytes_per_hour=100)
    if held < 100:
        hit(job, 1, size_bytes=100 - held)
    passed, left = hit(job, 1, size_bytes=asked)
    assert passed == (ours == 0)
    if not passed:
        told_ms = job.rejected[-1].throttle_time_ms
        assert told_ms == pytest.approx(ours * HOUR_MS, abs=1_000)
        assert hit(job, 1, size_bytes=asked, after_ms=HOUR_MS // 2)[0] == 0
        assert hit(job, 1, size_bytes=asked, after_ms=HOUR_MS // 2) == (1, 90)
    elif left <= 0:
        assert hit(job, 0, after_ms=HOUR_MS)[1] == 100 + left
