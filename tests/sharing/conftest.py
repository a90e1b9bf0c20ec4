"""A job that has kept its lease for a while, alone."""

from __future__ import annotations

import pytest

from tests.sharing.kept_job import QUOTA, Job, Time
from tests.sharing.test_register import MemoryExchange


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def exchange() -> MemoryExchange:
    return MemoryExchange()


@pytest.fixture
def job(exchange: MemoryExchange, time: Time) -> Job:
    job = Job(exchange, time)
    for _ in range(6):
        job.visit()
    assert job.rate() == pytest.approx(QUOTA, rel=1e-6)
    return job
