"""A run says once that a batch rejected more than a tenth, with the reason and the scope."""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa
import pytest

from spark_throttle.checkpoint.batch_records import REPORT, record_name
from spark_throttle.control.reports import KeptReport, RejectionNotice
from spark_throttle.core.batch.decisions import REASONS, Reason
from spark_throttle.core.quota import NEVER_MS
from spark_throttle.core.usage import UsageReport, pack_usage
from spark_throttle.files.storage import Directory


def report(admitted: list[int], rejected: list[int], *, reason: Reason = Reason.QUOTA, invalid: int = 0) -> UsageReport:
    n = len(admitted)
    zeros, nothing = np.zeros(n, dtype=np.int64), np.zeros((n, 4), dtype=np.int64)
    by_reason = [0] * len(REASONS)
    by_reason[reason] = sum(rejected)
    by_reason[Reason.SIZE_MISSING] += invalid
    return UsageReport(
        epoch=1, revision="r", now_ms=1_000, names=pa.array([f"acme/{at}" for at in range(n)]), tenant=zeros,
        group=zeros, weight=zeros, offered=nothing, admitted=np.array([[each, 0, 0, 0] for each in admitted]),
        rejected=np.array([[each, 0, 0, 0] for each in rejected]), waiting=nothing, demand=nothing,
        observed_messages=zeros, delayed_ms=zeros, shared_micro=nothing[:1], due_ms=NEVER_MS,
        due_with_quotas_ms=NEVER_MS, filled_ms=NEVER_MS, invalid_messages=invalid, rejected_by_reason=tuple(by_reason),
    )  # fmt: skip


def told(caplog: pytest.LogCaptureFixture, *reports: UsageReport) -> list[str]:
    notice = RejectionNotice()
    with caplog.at_level(logging.WARNING):
        for each in reports:
            notice.look(KeptReport(Directory("/nowhere"), record_name(0, REPORT, each.now_ms), pack_usage(each)))
    return [record.getMessage() for record in caplog.records]


def test_first_batch_that_rejects_more_than_a_tenth_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    batch = report([80, 9, 0], [5, 5, 1])
    (line,) = told(caplog, report([90], [10]), batch, batch)
    assert line == (
        "a batch rejected 11 of the 100 messages that it decided (11 for quota; most in the namespace acme/0 (5)); "
        "they are in the dead letters, and later batches are not told here: docs/sending.md"
    )


def test_every_reason_of_the_batch_is_told(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = told(caplog, report([10], [20], invalid=30))
    assert line.startswith("a batch rejected 50 of the 60 messages that it decided (30 for size_missing, 20 for quota;")


def test_rows_without_a_size_belong_to_no_namespace(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = told(caplog, report([10], [0], invalid=30))
    assert line.startswith("a batch rejected 30 of the 40 messages that it decided (30 for size_missing); ")


@pytest.mark.parametrize("batch", [report([9], [1]), report([0], [0])], ids=["a tenth", "nothing"])
def test_batch_that_rejects_a_tenth_or_less_is_not_told(caplog: pytest.LogCaptureFixture, batch: UsageReport) -> None:
    assert told(caplog, batch) == []
