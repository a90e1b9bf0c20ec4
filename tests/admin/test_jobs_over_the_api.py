"""What the API says of a job that follows the store: numbers, reasons, and when a change acts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spark_throttle.admin.watch.job_watch import JobWatch
from spark_throttle.sharing.status import PeerStatus
from tests.admin.conftest import ServedApp
from tests.admin.job_world import ANN, OFFERED, World
from tests.admin.made_up_job import MadeUpJob


@pytest.fixture
def world(serve: Callable[..., ServedApp], tmp_path: Path) -> World:
    world = World(serve, tmp_path)
    world.run(4)
    return world


def test_status_tells_what_the_newest_batch_did(world: World) -> None:
    (job,) = world.client.get("/admin/v2/status").json()["jobs"]
    assert (job["job"], job["batch"], job["elapsed_ms"], job["store_revision"]) == ("ingest", 3, 1000, 2)
    scopes = {scope["scope"]: scope for scope in job["scopes"]}
    assert scopes["job"]["offered_messages"] == 65
    assert scopes["gold"]["offered_messages"] == 60
    assert scopes["gold"]["admitted_messages"] == 20
    assert scopes["gold"]["messages_per_second"] == 20
    # Four batches of 60 arrived; of the first 21 left, the burst and one message into debt, then 20 of each.
    assert scopes["gold"]["waiting_messages"] == 240 - 81


def test_status_tells_the_shares_of_a_job_and_how_its_exchange_does(world: World) -> None:
    assert world.status()["exchange"] is None
    world.job.share_with(PeerStatus("beta", "b", 900, "live"), PeerStatus("gamma", "c", 70_000, "dead"), problem="lost")
    world.wait(2)
    status = world.status()
    exchange, scopes = status["exchange"], {scope["scope"]: scope for scope in status["scopes"]}
    assert exchange["detail"] == "shares quotas with 1 live job; gamma is dead"
    assert (exchange["problem"], [peer["name"] for peer in exchange["peers"]]) == ("lost", ["beta", "gamma"])
    gold = scopes["gold"]
    assert (gold["messages_per_second"], gold["share_messages_per_second"], gold["utilisation"]) == (20, 6.666, 0.5)
    assert gold["share_bytes_per_second"] is None  # there is no such quota
    assert scopes["job"]["share_messages_per_second"] is None
    told = world.served.client("tenant_admin").get("/admin/v2/status")
    assert told.json()["jobs"][0]["exchange"] is None
    assert "gamma" not in told.text


def test_throttled_namespaces_come_with_what_holds_them(world: World) -> None:
    page = world.client.get("/admin/v2/status/ingest/namespaces?throttled=true").json()
    assert {row["namespace"] for row in page["namespaces"]} == {"acme/a", "acme/b"}
    assert {row["held_by"]["scope"] for row in page["namespaces"]} == {"gold"}
    assert {row["held_by"]["level"] for row in page["namespaces"]} == {"resource_group"}
    assert (page["active"], page["backlogged"]) == (3, 2)


def test_quota_that_holds_a_namespace_is_as_full_as_the_row_of_its_scope_says(world: World) -> None:
    """Both count the newest batch: before, nothing had come for ten seconds, and the quota was hardly used."""
    world.job.batch({}, seconds=10)
    world.run()
    gold = next(scope for scope in world.status()["scopes"] if scope["scope"] == "gold")
    page = world.client.get("/admin/v2/status/ingest/namespaces?throttled=true").json()
    used = gold["admitted_messages"] / (world.status()["elapsed_ms"] / 1000) / gold["messages_per_second"]
    assert {row["held_by"]["used_ratio"] for row in page["namespaces"]} == {used}


def test_budget_that_holds_a_namespace_is_told_by_its_key(world: World) -> None:
    budget = {"resource_group": "gold", "publish": {"messages_per_day": 30, "on_excess": "reject"}}
    world.service.put("tenant", "acme", budget, ANN)
    world.run(3)
    page = world.client.get("/admin/v2/status/ingest/namespaces?throttled=true").json()
    held = {"level": "tenant", "scope": "acme", "dimension": "messages_per_day", "used_ratio": 1.0}
    assert {row["namespace"]: row["held_by"] for row in page["namespaces"]} == {"acme/a": held, "acme/b": held}
    notes = world.client.get("/admin/v2/explain/acme%2Fa?job=ingest").json()["notes"]
    assert "rejected by the quota of tenant acme in messages_per_day" in notes
    assert "spark_throttle_namespace_waiting_messages" in world.client.get("/metrics").text


def limit_time(world: World) -> None:
    """Limit acme to half a core, of which it uses more, and let another tenant have a quota too."""
    for name in ("acme", "rival"):
        quota = {"request_percentage": 50, "burst_seconds": 1}
        world.service.put("tenant", name, {"publish": quota}, ANN)
    for seconds in (1, 1, 1, 0.5):
        world.job.batch(OFFERED | {"rival/x": 1}, seconds=seconds, used_ms={"acme/a": 900, "rival/x": 10})
        world.watch.look()


@pytest.mark.slow
def test_processing_time_is_shown_by_scope_and_names_what_holds_a_namespace(world: World) -> None:
    assert world.client.get("/admin/v2/status").json()["jobs"][0]["time"] is None
    limit_time(world)
    time = world.client.get("/admin/v2/status").json()["jobs"][0]["time"]
    assert (time["interval_ms"], time["exempt_ns"]) == (500, 0)
    assert [(row["level"], row["scope"]) for row in time["scopes"]] == [
        ("tenant", "acme"), ("job", "job"), ("tenant", "rival"),
    ]  # fmt: skip
    acme = time["scopes"][0]
    assert (acme["request_percentage"], acme["used_percentage"], acme["throttle_ms"]) == (50, 180, 1_900)
    page = world.client.get("/admin/v2/status/ingest/namespaces?throttled=true").json()
    (held,) = {tuple(row["held_by"].values()) for row in page["namespaces"] if row["namespace"] == "acme/a"}
    assert held == ("tenant", "acme", "processing time", 3.6)


@pytest.mark.slow
def test_tenant_admin_sees_the_processing_time_of_its_own_scopes_alone(world: World) -> None:
    limit_time(world)
    time = world.served.client("tenant_admin").get("/admin/v2/status").json()["jobs"][0]["time"]
    assert [(row["level"], row["scope"]) for row in time["scopes"]] == [("tenant", "acme")]
    assert (time["exempt_ns"], time["unattributed_ns"]) == (None, None)


@pytest.mark.slow
def test_fairness_is_even_between_those_who_compete(world: World) -> None:
    world.run(12)
    page = world.client.get("/admin/v2/status/ingest/namespaces?resource_group=gold").json()
    assert page["fairness_ratio"] == pytest.approx(1, abs=0.06)
    assert {row["namespace"] for row in page["namespaces"]} == {"acme/a", "acme/b"}


def test_tenant_admin_sees_its_own_namespaces(world: World) -> None:
    client = world.served.client("tenant_admin")
    rows = client.get("/admin/v2/status/ingest/namespaces").json()["namespaces"]
    assert {row["namespace"] for row in rows} == {"acme/a", "acme/b"}
    status = client.get("/admin/v2/status").json()
    assert status["jobs"][0]["scopes"] == []
    assert status["store"] == ""


def test_explanation_of_a_job_names_its_levels(world: World) -> None:
    answer = world.client.get("/admin/v2/explain/acme%2Fa?job=ingest").json()
    assert answer["resource_group"] == "gold"
    assert [level["level"] for level in answer["levels"]] == ["namespace", "tenant", "resource_group", "job"]
    assert answer["last_batch"]["batch_id"] == 3
    assert answer["predicted_release_ms"] > 0


def test_change_says_that_the_next_batch_has_it_and_the_next_batch_has_it(world: World) -> None:
    answer = world.client.put("/admin/v2/resourcegroup/gold", json={"publishRateInMsgs": 30}).json()
    (acting,) = answer["acting"]
    assert (acting["job"], acting["state"], acting["store_revision"]) == ("ingest", "next_batch", 2)
    world.run()
    (job,) = world.client.get("/admin/v2/status").json()["jobs"]
    assert job["store_revision"] == answer["revision"] == 3
    newest = job["recent"][-1]
    assert (newest["revision"], newest["epoch"]) == (job["revision"], acting["planned_epoch"] + 1)
    assert next(scope for scope in job["scopes"] if scope["scope"] == "gold")["messages_per_second"] == 30


def test_change_is_told_when_no_job_can_have_it(world: World, serve: Callable[..., ServedApp]) -> None:
    from spark_throttle.control.notes import NextPolicies, write_next_policies

    write_next_policies(world.job.directory, NextPolicies("0123456789abcdef", None, None))
    world.watch.look()
    answer = world.client.put("/admin/v2/resourcegroup/gold", json={"publishRateInMsgs": 30}).json()
    assert answer["acting"][0]["state"] == "not_followed"
    write_next_policies(world.job.directory, NextPolicies("0123456789abcdef", 2, "the store is not available"))
    world.watch.look()
    answer = world.client.put("/admin/v2/resourcegroup/gold", json={"publishRateInMsgs": 31}).json()
    assert (answer["acting"][0]["state"], answer["acting"][0]["detail"]) == ("refused", "the store is not available")


def test_job_that_has_not_run_is_a_problem_of_its_entry_alone(
    serve: Callable[..., ServedApp], tmp_path: Path, world: World
) -> None:
    watch = JobWatch({"none": str(tmp_path / "none"), "ingest": str(tmp_path / "control")})
    watch.look()
    jobs = {job["job"]: job for job in serve(world.store, watch=watch).client().get("/admin/v2/status").json()["jobs"]}
    assert "no job has written" in jobs["none"]["problem"]
    assert jobs["ingest"]["problem"] is None


def test_query_that_begins_anew_in_the_same_place_is_watched_anew(world: World, tmp_path: Path) -> None:
    import shutil

    shutil.rmtree(tmp_path / "control")
    world.job = MadeUpJob(tmp_path / "control", world.store)
    world.run(1)
    (job,) = world.client.get("/admin/v2/status").json()["jobs"]
    assert job["batch"] == 0
    assert [batch["batch"] for batch in job["recent"]] == [0]


def test_damaged_file_is_a_problem_of_the_job_and_no_failure_of_the_server(world: World, tmp_path: Path) -> None:
    world.job.batch(OFFERED)
    newest = max((tmp_path / "control" / "batches").glob("*.report.*"))
    newest.write_bytes(b"nonsense")
    world.watch.look()
    (job,) = world.client.get("/admin/v2/status").json()["jobs"]
    assert "damaged" in job["problem"]
