"""The world of metered functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_throttle.spark.metering import meter as meters
from spark_throttle.spark.metering.charging import RunningTask
from tests.spark.metering.metered_world import World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(str(tmp_path))
    monkeypatch.setitem(meters.CLOCKS, "cpu", lambda: world.now_ns)
    monkeypatch.setattr(RunningTask, "current", classmethod(lambda _: world.task))
    return world
