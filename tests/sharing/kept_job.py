"""A job whose keeper visits the exchange when it is told to."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pytest

from spark_throttle.sharing.lease_keeper import Clocks, LeaseKeeper
from spark_throttle.sharing.settings import ShareSettings
from spark_throttle.sharing.sharing import Sharing
from spark_throttle.sharing.status import Observation
from tests.sharing.share_world import GOLD, measured
from tests.sharing.test_register import MemoryExchange

SETTINGS = ShareSettings(interval_ms=1_000, lease_ms=10_000)
QUOTA = 1_000_000


@dataclass
class Time:
    now_ms: int = 5_000_000

    def __call__(self) -> int:
        return self.now_ms


@dataclass
class Job:
    """A keeper whose visits are made by hand."""

    exchange: MemoryExchange
    time: Time
    member: str = "job"
    run: int = 0
    settings: ShareSettings = SETTINGS
    told: list[Observation] = field(default_factory=list)
    keeper: LeaseKeeper = field(init=False)

    def __post_init__(self) -> None:
        sharing = Sharing(self.member, f"{self.member}'s name", 1, self.settings, self.run)
        self.keeper = LeaseKeeper(sharing, self.exchange, Clocks(self.time, self.time), on_visit=self.told.append)
        self.keeper.measure(measured({GOLD: 5 * QUOTA}))

    def rate(self) -> int:
        share = self.keeper.share()
        return int(share.rate_micro_per_ms[0, 0])

    def plan(self) -> int:
        self.keeper.share()
        share, _ = self.keeper.begin_pin()
        self.keeper.end_pin(share)
        return int(share.rate_micro_per_ms[0, 0])

    def visit(self) -> None:
        self.time.now_ms += 500
        self.keeper.visit()
        self.plan()
        self.keeper.tell()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
