"""What is shown of a destination that pushes back: in the status, on the command line, over the API, in the metrics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spark_throttle.admin.cli.watch import status_lines, status_values, worst
from spark_throttle.checkpoint.delivery import Delivery, write_delivery
from spark_throttle.core.shares.destinations import WHOLE, Told
from spark_throttle.status.explain import explain_job
from spark_throttle.status.status import DestinationStatus, StatusReader
from tests.admin.conftest import ServedApp
from tests.admin.job_world import ANN, World

LABELS = 'level="resource_group",scope="gold",spark_job="ingest"'


@pytest.fixture
def world(serve: Callable[..., ServedApp], tmp_path: Path) -> World:
    world = World(serve, tmp_path)
    gold = {"publish": {"messages_per_second": 20, "burst_seconds": 1}, "destination": {"open_after_seconds": 3}}
    world.service.put("resource_group", "gold", gold, ANN)
    world.run()
    return world


def say(world: World, told: Told, batches: int) -> None:
    for _ in range(batches):
        write_delivery(world.job.directory, world.job.number, world.job.now_ms, Delivery({"gold": told}))
        world.run()


def test_rate_of_a_destination_that_refuses_some_calls_is_shown(world: World) -> None:
    say(world, Told(5, 1, WHOLE // 2, 0, 0), 1)
    (found,) = StatusReader(str(world.job.control_path), clock=world.job.clock).read().destinations
    assert found == DestinationStatus("gold", 11.25, 0.2, 20.0, is_unavailable=False, refused_for_ms=0)
    text = world.client.get("/metrics").text
    assert f"spark_throttle_share_messages_per_second{{{LABELS}}} 11.25" in text
    assert f"spark_throttle_destination_unavailable{{{LABELS}}} 0.0" in text


@pytest.mark.slow
def test_destination_that_is_unavailable_is_shown(world: World) -> None:
    say(world, Told(0, 1, WHOLE, 0, 900), 3)
    status = StatusReader(str(world.job.control_path), clock=world.job.clock).read()
    lines = list(status_lines(status, worst(status, ("job",), 1), at_ms=0))
    assert "1970-01-01 00:00:00 destination gold: unavailable for 3.0 s" in lines
    shown = {
        "resource_group": "gold", "messages_per_second": 0.2, "floor_messages_per_second": 0.2,
        "ceiling_messages_per_second": 20.0, "is_unavailable": True, "refused_for_ms": 3_000,
    }  # fmt: skip
    assert status_values(status, [])["destinations"] == [shown]
    assert world.status()["destinations"] == [shown]
    assert f"spark_throttle_destination_unavailable{{{LABELS}}} 1.0" in world.client.get("/metrics").text


@pytest.mark.slow
def test_explain_says_what_a_destination_takes(world: World) -> None:
    path = str(world.job.control_path)
    say(world, Told(5, 1, WHOLE // 2, 0, 0), 1)
    said = "11.25 messages/s are admitted now for the destination gold"
    assert said in explain_job(path, "acme/a").notes
    say(world, Told(0, 1, WHOLE, 0, 900), 3)
    said = "the destination gold has refused every call for 3 s"
    assert said in explain_job(path, "acme/a").notes
    for notes in (explain_job(path, "acme/a", is_wide=False).notes, explain_job(path, "other/a").notes):
        assert "destination" not in " ".join(notes)  # it is others' too
