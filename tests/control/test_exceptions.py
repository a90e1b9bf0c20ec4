"""A job obeys an exception until its end, in batches that begin before it, and the entry's own quotas from then on."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from spark_throttle.control.notes import ExceptionInForce, read_next_policies
from spark_throttle.policy.compile import revision_of
from spark_throttle.policy.values import time_text
from spark_throttle.sharing.settings import ShareSettings
from spark_throttle.testing import SimulatedJob
from spark_throttle.testing.simulation.disk import MemoryDirectory
from spark_throttle.testing.simulation.exchange import START_MS, SimulatedExchange

ACME = {"publish": {"messages_per_second": 2, "burst_seconds": 1}}
THRICE = {"messages_per_second": 6}
END_MS = 5_000


def given(publish: dict[str, Any], *, end_ms: int = END_MS, base: dict[str, Any] = ACME) -> dict[str, Any]:
    exception = {"until": time_text(START_MS + end_ms), "reason": "a move", "publish": publish}
    return {"version": 1, "tenants": {"acme": {**base, "exception": exception}}}


def passed(job: SimulatedJob, seconds: int, rows: int = 20) -> list[int]:
    """Return how many rows leave in each of some batches, a second apart, with much waiting."""
    found = []
    for _ in range(seconds):
        job.offer([("acme/x", 1)] * rows)
        batch = job.trigger(1_000)
        found.append(0 if batch is None else len(batch.admitted))
    return found


def test_batch_that_begins_before_the_end_has_the_exception_and_one_that_begins_at_it_has_the_quota() -> None:
    job = SimulatedJob(given(THRICE))
    assert passed(job, 4) == [7, 6, 6, 6]
    job.offer([("acme/x", 1)] * 20)
    before = job.trigger(999)
    at_the_end = job.trigger(1)
    assert before is not None
    assert at_the_end is not None
    resolved = [job.documents[batch.revision].tenants["acme"] for batch in (before, at_the_end)]
    assert [policy.publish.messages_per_second for policy in resolved] == [6, 2]
    assert passed(job, 3) == [2, 2, 2]


def test_end_is_a_revision_that_a_document_without_the_exception_has_too() -> None:
    job = SimulatedJob(given(THRICE))
    job.pass_time(END_MS)
    batch = job.trigger(0)
    assert batch is not None
    assert batch.revision == revision_of(SimulatedJob({"version": 1, "tenants": {"acme": ACME}}).policies, "publish")


def test_keys_that_the_exception_does_not_set_stay_as_the_entry_has_them() -> None:
    base = {"publish": {**ACME["publish"], "bytes_per_second": 3, "on_excess": "reject"}}
    job = SimulatedJob(given(THRICE, base=base))
    assert passed(job, 3, rows=4) == [4, 3, 3]  # by the bytes
    assert len(job.rejected) == 2


@pytest.mark.parametrize("point", ["after offset", "after table", "after feedback"])
def test_batch_over_the_end_is_decided_the_same_when_it_runs_again(point: Any) -> None:
    jobs = [SimulatedJob(given(THRICE)) for _ in range(2)]
    for job in jobs:
        passed(job, 4)
        job.offer([("acme/x", 1)] * 20)
    jobs[1].crash(at=point)
    first, died = (job.trigger(999) for job in jobs)
    assert died is None
    jobs[1].set_policies({"version": 1})
    again = jobs[1].restart(after_ms=60_000)
    assert again is not None
    assert first is not None
    assert (again.revision, again.admitted, again.digest) == (first.revision, first.admitted, first.digest)


def test_job_that_starts_after_the_end_never_obeys_it() -> None:
    job = SimulatedJob(given({"messages_per_second": 1000}))
    job.stop()
    job.pass_time(END_MS)
    job.restart()
    assert passed(job, 3) == [3, 2, 2]


def test_job_that_was_down_over_the_end_goes_on_with_the_quota() -> None:
    job = SimulatedJob(given(THRICE))
    passed(job, 2)
    job.stop()
    job.restart(after_ms=END_MS)
    assert passed(job, 3) == [3, 2, 2]


def test_rows_that_a_quota_of_0_holds_leave_at_its_end_though_nothing_arrives() -> None:
    job = SimulatedJob(given({"messages_per_second": 0}))
    job.offer([("acme/x", 1)] * 3)
    batches = [job.trigger(1_000) for _ in range(3)]
    assert job.wait_ms() is None  # a run that ends when all is done waits for no end
    batches += [job.trigger(1_000) for _ in range(4)]
    assert [each is None for each in batches[:5]] == [False, True, True, True, False]
    assert not job.waiting


def test_idle_job_begins_an_epoch_at_the_end_and_none_afterwards() -> None:
    job = SimulatedJob(given(THRICE))
    batches = [job.trigger(1_000) for _ in range(9)]
    assert [batch.number for batch in batches if batch] == [0, 1]
    assert batches[4] is not None
    assert batches[4].now_ms == START_MS + END_MS


def test_exceptions_end_one_after_the_other() -> None:
    document = given(THRICE)
    document["namespaces"] = {
        "acme/*": {
            "publish": {"messages_per_second": 1, "burst_seconds": 1},
            "exception": {
                "until": time_text(START_MS + 8_000), "reason": "later", "publish": {"messages_per_second": 4},
            },
        }
    }  # fmt: skip
    assert passed(SimulatedJob(document), 11) == [5, 4, 4, 4, 3, 2, 2, 2, 1, 1, 1]


def test_clock_that_is_set_over_the_end_ends_it_and_one_that_is_set_back_brings_it_back() -> None:
    job = SimulatedJob(given(THRICE))
    assert passed(job, 2) == [7, 6]
    job.set_clock(END_MS)
    assert passed(job, 3) == [3, 2, 2]
    job.set_clock(-END_MS - 3_000)
    passed(job, 1)
    assert passed(job, 3) == [6, 3, 2]


@pytest.mark.slow
def test_two_jobs_that_share_their_quotas_pass_no_more_than_each_holds() -> None:
    exchange = SimulatedExchange(ShareSettings(interval_ms=1_000, lease_ms=10_000))
    base, more = ({"messages_per_second": rate, "burst_seconds": 1} for rate in (40, 120))
    document = given(more, end_ms=20_000, base={"publish": base})
    jobs = [SimulatedJob(document, exchange=exchange) for _ in range(2)]
    left = []
    for _ in range(50):
        before = sum(len(job.admitted) for job in jobs)
        for job in jobs:
            job.offer([("acme/x", 1)] * (150 - len(job.waiting)))
        jobs[0].trigger(1_000)
        jobs[1].trigger(0)
        left.append(sum(len(job.admitted) for job in jobs) - before)
    assert 110 <= sum(left[13:18]) / 5 <= 121
    assert 36 <= sum(left[38:]) / 12 <= 41
    assert sum(left[20:]) <= 30 * 41 + 80  # two bursts at most


def test_log_and_the_note_of_the_policies_that_are_followed_tell_of_the_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spark_throttle.control.plane")
    job = SimulatedJob(given(THRICE))
    directory = MemoryDirectory(job.checkpoint.control, lambda _: None, job.place)
    passed(job, 4)
    followed = read_next_policies(directory)
    assert followed is not None
    assert followed.exceptions == (ExceptionInForce("tenants.acme", START_MS + END_MS, "a move"),)
    assert not caplog.messages
    passed(job, 2)
    until = time_text(START_MS + END_MS)
    assert caplog.messages == [f"the exception of tenants.acme has ended: it was given until {until} (a move)"]
    followed = read_next_policies(directory)
    assert followed is not None
    assert followed.exceptions == ()


def test_log_of_an_end_is_one_line_whatever_the_reason_says(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spark_throttle.control.plane")
    document = given(THRICE)
    document["tenants"]["acme"]["exception"]["reason"] = "a move\nERROR all is lost\u202e"
    passed(SimulatedJob(document), 6)
    (said,) = caplog.messages
    assert said.endswith("(a move\\nERROR all is lost\\u202e)")
