"""Groups and tenants of a job over the API: all of them, the worst first, and one of them over time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from spark_throttle.admin.watch import job_watch, scope_history
from spark_throttle.admin.watch.job_watch import JobWatch
from spark_throttle.control.reports import read_reports
from spark_throttle.status.usage_table import batch_usage
from tests.admin.conftest import ServedApp
from tests.admin.job_world import ANN, OFFERED, World

V2 = "/admin/v2"
QUOTED = 'o\'brien "x" \\'


class RecordedWorld(World):
    """A job whose batches are in a usage table."""

    def __init__(self, serve: Callable[..., ServedApp], folder: Path) -> None:
        super().__init__(serve, folder)
        self.serve = serve
        self.table = str(folder / "usage")

    def run(self, batches: int = 1) -> None:
        """Run batches, and write the usage of all of them at once: a commit costs as much as ten batches."""
        usage = []
        for _ in range(batches):
            super().run()
            usage.append(self.usage())
        write_deltalake(self.table, pa.concat_tables(usage), mode="append")

    def usage(self) -> pa.Table:
        report = read_reports(self.job.directory, after_batch=self.job.number - 1)[self.job.number]
        return batch_usage(self.job.directory, report, self.job.number)

    def restart(self) -> None:
        """Start another server, which has seen two batches alone."""
        watch = JobWatch(
            {"ingest": str(self.job.control_path)}, clock=self.job.clock, usage_tables={"ingest": self.table}
        )
        watch.look()
        self.served = self.serve(self.store, watch=watch)
        self.client = self.served.client()

    def series(self, **asked: Any) -> dict[str, Any]:
        answer = self.client.get(f"{V2}/status/ingest/series", params=asked)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


@pytest.fixture
def world(serve: Callable[..., ServedApp], tmp_path: Path) -> World:
    world = World(serve, tmp_path)
    world.service.put("resource_group", "idle", {"publish": {"messages_per_second": 7}}, ANN)
    world.run(4)
    return world


@pytest.fixture
def recorded(serve: Callable[..., ServedApp], tmp_path: Path) -> RecordedWorld:
    world = RecordedWorld(serve, tmp_path)
    world.run(6)
    return world


def names(world: World, **asked: Any) -> list[str]:
    page = world.client.get(f"{V2}/status/ingest/scopes", params=asked).json()
    return [scope["scope"] for scope in page["scopes"]]


def test_all_groups_are_listed_the_worst_first_and_those_without_traffic_last(world: World) -> None:
    page = world.client.get(f"{V2}/status/ingest/scopes").json()
    assert (page["found"], page["throttled"]) == (2, 1)
    gold, idle = page["scopes"]
    assert (gold["scope"], gold["waiting_messages"], gold["messages_per_second"]) == ("gold", 240 - 81, 20)
    assert gold["oldest_waiting_ms"] > 0
    assert (idle["scope"], idle["offered_messages"], idle["messages_per_second"]) == ("idle", 0, 7)


def test_groups_are_found_by_a_part_of_their_names_by_what_is_throttled_and_by_page(world: World) -> None:
    assert names(world, search="OL") == ["gold"]
    assert names(world, throttled=True) == ["gold"]
    assert names(world, skip=1) == ["idle"]
    assert names(world, limit=1) == ["gold"]
    assert names(world, level="tenant") == ["acme"]


def test_status_brings_as_many_scopes_as_are_asked_for(world: World) -> None:
    (job,) = world.client.get(f"{V2}/status", params={"scopes": 0}).json()["jobs"]
    assert [scope["scope"] for scope in job["scopes"]] == ["job"]


@pytest.mark.parametrize(("level", "scope"), [("resource_group", "gold"), ("tenant", "acme"), ("job", "job")])
def test_a_scope_over_time_has_a_point_a_batch(world: World, level: str, scope: str) -> None:
    series = world.client.get(f"{V2}/status/ingest/series", params={"level": level, "scope": scope}).json()
    offered = 65 if level == "job" else 60
    assert series["offered"] == [None, offered, offered, offered]
    assert series["waiting"][-1] == 159
    assert series["quota"] == [20 if level == "resource_group" else None] * 4


@pytest.mark.slow
def test_a_restarted_server_shows_from_the_usage_table_what_the_one_before_saw(recorded: RecordedWorld) -> None:
    recorded.service.put("resource_group", "gold", {"publish": {"messages_per_second": 30, "burst_seconds": 1}}, ANN)
    recorded.run(5)
    seen = recorded.series(level="resource_group", scope="gold")
    recorded.restart()
    # 300 seconds in 300 steps: a batch a second is a point; the first batches have none before them.
    told = recorded.series(level="resource_group", scope="gold", seconds=300)
    assert told["time_ms"] == seen["time_ms"][1:]
    for name in ("offered", "admitted", "rejected", "waiting", "quota"):
        assert told[name] == pytest.approx(seen[name][1:]), name
    assert (told["changes_ms"], len(seen["changes_ms"])) == (seen["changes_ms"], 1)
    assert told["quota"] == pytest.approx([20] * 5 + [30] * 5)


@pytest.mark.slow
def test_batches_of_a_longer_range_are_summed_and_a_job_that_stood_still_is_seen(recorded: RecordedWorld) -> None:
    recorded.run(6)
    before_ms = recorded.job.now_ms
    recorded.job.now_ms += 40_000
    recorded.run(6)
    recorded.restart()
    told = recorded.series(level="resource_group", scope="gold", seconds=900)
    gaps = [at for at, each in enumerate(told["offered"]) if each is None]
    assert len(gaps) == 1
    assert told["time_ms"][gaps[0]] == before_ms + 1
    assert told["offered"][: gaps[0]] == pytest.approx([60] * 11)


@pytest.mark.slow
def test_a_namespace_over_time_comes_from_the_usage_table_whatever_its_name(recorded: RecordedWorld) -> None:
    for _ in range(3):
        recorded.job.batch(OFFERED | {f"acme/{QUOTED}": 4})
        write_deltalake(recorded.table, recorded.usage(), mode="append")
    recorded.restart()
    assert recorded.series(level="namespace", scope=f"acme/{QUOTED}")["offered"][-3:] == [4, 4, 4]
    assert recorded.series(level="namespace", scope="' OR '1'='1")["offered"][-1] == 0


@pytest.mark.parametrize("batches", [1, 2])
def test_a_usage_table_that_has_just_begun_has_no_point_before_its_second_batch(
    serve: Callable[..., ServedApp], tmp_path: Path, batches: int
) -> None:
    world = RecordedWorld(serve, tmp_path)
    world.run(batches)
    world.restart()
    assert len(world.series(seconds=30 * 24 * 3600)["offered"]) == batches - 1
    assert len(world.series(level="namespace", scope="acme/a")["offered"]) == batches - 1


def test_a_tenants_administrator_sees_its_own_scopes_over_time_alone(world: World) -> None:
    tenant = world.served.client("tenant_admin")

    def status(level: str, scope: str) -> int:
        return tenant.get(f"{V2}/status/ingest/series", params={"level": level, "scope": scope}).status_code

    assert [status("tenant", "acme"), status("namespace", "acme/a")] == [200, 200]
    others = [("job", "job"), ("resource_group", "gold"), ("tenant", "other"), ("namespace", "other/c")]
    assert [status(*each) for each in others] == [403] * 4


def test_a_range_with_too_many_rows_is_refused_with_their_number(
    recorded: RecordedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded.restart()
    monkeypatch.setattr(scope_history, "MOST_ROWS", 5)
    answer = recorded.client.get(f"{V2}/status/ingest/series", params={"seconds": 3600})
    assert answer.status_code == 422
    assert answer.json()["detail"].endswith("rows of that time, more than 5; ask for less time")


def test_a_usage_table_that_is_not_there_is_said_and_the_newest_batches_are_shown(
    recorded: RecordedWorld, tmp_path: Path
) -> None:
    recorded.table = str(tmp_path / "nothing")
    recorded.restart()
    assert recorded.client.get(f"{V2}/status/ingest/series", params={"seconds": 3600}).status_code == 503
    assert len(recorded.series(seconds=1)["offered"]) == 1


def test_batches_of_many_scopes_are_kept_up_to_a_number_of_scopes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_watch, "SCOPES_KEPT", 7)  # the job, a group and a tenant of each batch
    world.run(3)
    assert len(world.client.get(f"{V2}/status/ingest/series").json()["offered"]) == 2


@pytest.mark.slow
def test_quota_over_time_is_right_in_steps_with_a_batch_that_brought_other_policies(recorded: RecordedWorld) -> None:
    recorded.run(40)
    for name in ("x", "y"):
        recorded.service.put("namespace", f"else/{name}", {"publish": {"weight": 2}}, ANN)
        recorded.run(40)
    recorded.restart()
    told = recorded.series(level="resource_group", scope="gold", seconds=3600)
    assert len(told["changes_ms"]) == 2
    assert told["quota"] == pytest.approx([20] * len(told["quota"]), rel=0.02)


@pytest.mark.slow
def test_a_job_that_becomes_faster_has_no_gap_where_it_was_slow(recorded: RecordedWorld) -> None:
    for _ in range(5):
        recorded.job.now_ms += 59_000
        recorded.run()
    recorded.run(30)
    recorded.restart()
    told = recorded.series(level="resource_group", scope="gold", seconds=900)
    assert None not in told["offered"]


def test_rejected_namespace_says_by_which_quota_and_is_listed_while_its_group_rejects(
    serve: Callable[..., ServedApp], tmp_path: Path
) -> None:
    """Both are told by the newest batch, so the list and the row of the group agree."""
    world = World(serve, tmp_path)
    rejecting = {"publish": {"messages_per_second": 20, "burst_seconds": 1, "on_excess": "reject"}}
    world.service.put("resource_group", "gold", rejecting, ANN)
    world.run(3)

    def throttled() -> list[dict[str, Any]]:
        found = world.client.get(f"{V2}/status/ingest/namespaces", params={"throttled": True}).json()
        return list(found["namespaces"])

    told = {each["namespace"]: each["held_by"] for each in throttled()}
    assert set(told) == {"acme/a", "acme/b"}
    assert {(each["level"], each["scope"], each["dimension"]) for each in told.values()} == {
        ("resource_group", "gold", "messages")
    }
    world.job.batch({"acme/a": 1, "acme/b": 1}, seconds=10)
    world.watch.look()
    assert throttled() == []
    assert names(world, throttled=True) == []


def test_chart_begins_anew_where_a_clock_was_put_back(world: World) -> None:
    """The points of a chart ascend in time."""
    for step_ms in (-30_000, 5_000, -3_600_000):
        world.job.now_ms += step_ms
        world.run(3)
    told = world.client.get(f"{V2}/status/ingest/series").json()
    assert told["time_ms"] == [world.job.now_ms - 2_000, world.job.now_ms - 1_000, world.job.now_ms]
