"""What the API says of a job that follows the store: numbers, reasons, and when a change acts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_throttle.admin.watch.balances import Pair, balances_of, rates_of
from spark_throttle.admin.watch.job_watch import JobWatch
from spark_throttle.admin.watch.namespace_numbers import used_ratios
from spark_throttle.admin.watch.scope_metrics import TOP_NAMESPACES, throttle_time_seconds
from spark_throttle.admin.watch.totals import MOST_NAMED
from spark_throttle.control.clock import Clock
from spark_throttle.core.arithmetic.packing import pack
from spark_throttle.core.batch.reasons import REASONS
from spark_throttle.files.storage import Directory
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author
from tests.admin.conftest import ServedApp
from tests.admin.made_up_job import MadeUpJob

ANN = Author("ann")
OFFERED = {"acme/a": 30, "acme/b": 30, "other/c": 5}


class World:
    """A job, the watch of it, and the API."""

    def __init__(self, serve: Callable[..., ServedApp], folder: Path) -> None:
        self.store = MemoryStore()
        self.service = PolicyService(self.store, clock_ms=lambda: 0)
        gold = {"publish": {"messages_per_second": 20, "burst_seconds": 1}}
        self.service.put("resource_group", "gold", gold, ANN)
        self.service.put("tenant", "acme", {"resource_group": "gold"}, ANN)
        self.job = MadeUpJob(folder / "control", self.store)
        self.watch = JobWatch({"ingest": str(folder / "control")}, clock=self.job.clock)
        self.served = serve(self.store, watch=self.watch)
        self.client = self.served.client()

    def run(self, batches: int = 1) -> None:
        for _ in range(batches):
            self.job.batch(OFFERED)
            self.job.pulse.beat()
            self.watch.look()

    def wait(self, seconds: float) -> None:
        """Let time pass in which the job gives no sign of life."""
        self.job.now_ms += int(1000 * seconds)
        self.watch.look()

    def status(self) -> dict[str, Any]:
        (job,) = self.client.get("/admin/v2/status").json()["jobs"]
        return dict(job)

    def change(self, rate: int) -> dict[str, Any]:
        made = self.client.put("/admin/v2/resourcegroup/gold", json={"publishRateInMsgs": rate}).json()
        return dict(made["acting"][0])


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


def test_batch_that_moved_nothing_is_no_problem_of_the_watch(world: World) -> None:
    world.job.directory.write(f"feedback/{world.job.number + 1:012d}.all", pack("fdbk", 1, {"reports": []}))
    world.watch.look()
    (view,) = world.watch.views()
    assert (view.problem, view.batches[-1].batch) == (None, world.job.number)


def test_series_have_a_number_a_batch(world: World) -> None:
    page = world.client.get("/admin/v2/status/ingest/series").json()
    gold = next(series for series in page["scopes"] if series["scope"] == "gold")
    assert page["batch"] == [0, 1, 2, 3]
    assert gold["offered"] == [None, 60, 60, 60]
    assert gold["quota"] == [20, 20, 20, 20]
    assert gold["waiting"][-1] == 159
    later = world.client.get("/admin/v2/status/ingest/series?after_batch=1").json()
    assert later["batch"] == [2, 3]


def test_throttled_namespaces_come_with_what_holds_them(world: World) -> None:
    page = world.client.get("/admin/v2/status/ingest/namespaces?throttled=true").json()
    assert {row["namespace"] for row in page["namespaces"]} == {"acme/a", "acme/b"}
    assert {row["held_by"]["scope"] for row in page["namespaces"]} == {"gold"}
    assert {row["held_by"]["level"] for row in page["namespaces"]} == {"resource_group"}
    assert (page["active"], page["backlogged"]) == (3, 2)


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
    from spark_throttle.control.next_policies import NextPolicies, write_next_policies

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
    newest = max((tmp_path / "control" / "feedback").iterdir())
    newest.write_bytes(b"nonsense")
    world.watch.look()
    (job,) = world.client.get("/admin/v2/status").json()["jobs"]
    assert "damaged" in job["problem"]


def test_metrics_count_what_the_jobs_did(world: World) -> None:
    text = world.client.get("/metrics").text
    assert 'spark_throttle_offered_messages_total{job="ingest",level="resource_group",scope="gold"} 240.0' in text
    assert 'spark_throttle_admitted_messages_total{job="ingest",level="resource_group",scope="gold"} 81.0' in text
    assert 'spark_throttle_backlog_messages{job="ingest",level="resource_group",scope="gold"} 159.0' in text
    assert 'spark_throttle_share_messages_per_second{job="ingest",level="resource_group",scope="gold"} 20.0' in text
    assert 'spark_throttle_balance_messages{job="ingest",level="resource_group",scope="gold"}' in text
    assert 'spark_throttle_namespace_waiting_messages{job="ingest",namespace="acme/a",resource_group="gold"}' in text
    assert 'spark_throttle_job_store_revision{job="ingest"} 2.0' in text


def test_share_is_the_jobs_part_where_jobs_share_a_quota(world: World) -> None:
    (view,) = world.watch.views()
    assert view.epoch is not None
    whole = balances_of(view)["resource_group", "gold"][1]
    part = np.full_like(view.epoch.buckets.balance_micro, 7_000)
    shared = replace(view, epoch=replace(view.epoch, share_micro_per_ms=part))
    assert (whole, balances_of(shared)["resource_group", "gold"][1]) == ((20.0, None), (7.0, None))


def test_labels_of_metrics_are_bounded_however_many_namespaces_there_are(world: World) -> None:
    world.job.batch({f"tenant-{i}/ns": 1 for i in range(3 * TOP_NAMESPACES)} | {"acme/a": 100})
    world.watch.look()
    lines = world.client.get("/metrics").text.splitlines()
    named = [line for line in lines if line.startswith("spark_throttle_namespace_waiting_messages{")]
    assert len(named) == TOP_NAMESPACES
    assert any('namespace="acme/a"' in line for line in named)


def test_label_that_would_break_a_line_is_escaped(world: World) -> None:
    world.job.batch({'acme/"\n\\x': 100})
    world.watch.look()
    assert 'namespace="acme/\\"\\n\\\\x"' in world.client.get("/metrics").text


# -------------------------------------------------------------------------------------------------------- alive or not


def test_dead_job_is_shown_as_silent(world: World) -> None:
    job = world.status()
    assert (job["state"], job["listening"], job["sign_age_ms"], job["batch_age_ms"]) == ("reporting", True, 0, 0)
    world.wait(60)
    job = world.status()
    assert (job["state"], job["listening"]) == ("silent", False)
    assert (job["sign_age_ms"], job["batch_age_ms"]) == (60_000, 60_000)
    assert job["life"] == "no sign of life for 60 s (the bound is 30 s)"
    assert job["problem"] is None


def test_change_of_a_dead_job_is_answered_with_no_job_is_listening(world: World) -> None:
    world.wait(300)
    acting = world.change(30)
    assert (acting["state"], acting["store_revision"]) == ("not_listening", 2)
    assert acting["detail"] == (
        "no job is listening: no sign of life for 300 s (the bound is 30 s); the change acts when the job goes on"
    )
    world.run()
    assert world.status()["store_revision"] == 3
    assert world.change(31)["state"] == "next_batch"


def test_idle_job_that_runs_no_batch_is_listening(world: World) -> None:
    for _ in range(60):
        world.job.now_ms += 10_000
        world.job.pulse.note_call()
        world.job.pulse.beat()
        world.watch.look()
    job = world.status()
    assert (job["state"], job["sign_age_ms"], job["batch_age_ms"]) == ("reporting", 0, 600_000)
    assert world.change(30)["state"] == "next_batch"


def test_job_that_hangs_is_not_listening_though_it_gives_signs(world: World) -> None:
    for _ in range(61):
        world.job.now_ms += 10_000
        world.job.pulse.beat()
        world.watch.look()
    job = world.status()
    assert (job["state"], job["listening"], job["asked_age_ms"]) == ("hanging", False, 610_000)
    assert world.change(30)["state"] == "not_listening"


def test_job_that_ended_is_not_listening(world: World) -> None:
    world.job.pulse.beat(has_ended=True)
    world.wait(1)
    assert world.status()["state"] == "ended"
    assert "the query ended 1.0 s ago" in world.change(30)["detail"]


def test_job_of_an_older_release_is_shown_with_the_age_of_its_last_batch(
    serve: Callable[..., ServedApp], tmp_path: Path, world: World
) -> None:
    """It gives no signs of life; a change is answered as before."""
    (tmp_path / "control" / "alive.json").unlink()
    world.job.now_ms += 60_000
    world.watch = JobWatch({"ingest": str(tmp_path / "control")}, clock=world.job.clock)
    world.watch.look()
    world.client = serve(world.store, watch=world.watch).client()
    job = world.status()
    assert (job["state"], job["listening"], job["sign_age_ms"], job["batch_age_ms"]) == ("unknown", True, None, 60_000)
    assert world.change(30)["state"] == "next_batch"
    text = world.client.get("/metrics").text
    assert 'spark_throttle_job_up{job="ingest"} 1.0' in text
    assert "spark_throttle_job_reporting{" not in text


def test_damaged_sign_of_life_hides_no_number_of_the_job(world: World, tmp_path: Path) -> None:
    (tmp_path / "control" / "alive.json").write_bytes(b"nonsense")
    world.job.batch(OFFERED)
    world.watch.look()
    job = world.status()
    assert (job["state"], job["batch"], job["problem"]) == ("unknown", 4, None)
    assert "damaged" in job["life"]


def test_wall_clock_that_is_set_makes_no_live_job_silent_and_no_dead_one_alive(world: World) -> None:
    wall_ms = [world.job.now_ms]
    world.watch = JobWatch(
        {"ingest": str(world.job.control_path)},
        clock=Clock(lambda: wall_ms[0], lambda: world.job.now_ms, world.job.clock.boot),
    )
    for step_ms in (-3_600_000, 7_200_000):
        wall_ms[0] += step_ms
        world.run()
        (view,) = world.watch.views()
        assert (view.liveness().state, view.batch_age_ms()) == ("reporting", 0)
    world.wait(31)
    wall_ms[0] -= 7_200_000
    (view,) = world.watch.views()
    assert (view.liveness().state, view.batch_age_ms()) == ("silent", 31_000)


def test_directory_that_hangs_makes_no_other_job_silent(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    MadeUpJob(tmp_path / "hung", world.store)
    looked, may_go_on = threading.Event(), threading.Event()

    def names(directory: Directory, folder: str, of: Callable[..., list[str]] = Directory.names) -> list[str]:
        if "hung" in directory.location:
            may_go_on.wait()
        elif folder == "feedback":
            looked.set()
        return of(directory, folder)

    monkeypatch.setattr(Directory, "names", names)
    monkeypatch.setattr("spark_throttle.admin.watch.job_watch._STOP_SECONDS", 0.01)
    watch = JobWatch({"hung": str(tmp_path / "hung"), "ingest": str(tmp_path / "control")}, clock=world.job.clock)
    watch.start()
    assert looked.wait(60)
    watch.stop()
    may_go_on.set()


def metric_names(text: str) -> set[str]:
    """Return the names of the metrics that have a value of the job."""
    return {line.partition("{")[0].removeprefix("spark_throttle_") for line in text.splitlines() if 'job="' in line}


def test_gauges_of_a_dead_job_are_no_longer_exported(world: World) -> None:
    text = world.client.get("/metrics").text
    assert 'spark_throttle_job_up{job="ingest"} 1.0' in text
    assert 'spark_throttle_job_reporting{job="ingest"} 1.0' in text
    live = metric_names(text)
    world.wait(60)
    text = world.client.get("/metrics").text
    assert 'spark_throttle_job_up{job="ingest"} 0.0' in text
    assert 'spark_throttle_job_reporting{job="ingest"} 0.0' in text
    assert 'spark_throttle_job_sign_of_life_age_seconds{job="ingest"} 60.0' in text
    assert 'spark_throttle_job_batch_age_seconds{job="ingest"} 60.0' in text
    left = {name for name in metric_names(text) if not name.endswith("_total")}
    assert left == {"job_up", "job_reporting", "job_sign_of_life_age_seconds", "job_batch_age_seconds"}
    assert live - metric_names(text) >= {"backlog_messages", "balance_messages", "namespace_waiting_messages"}
    assert {name for name in live if name.endswith("_total")} <= metric_names(text)


# ------------------------------------------------------------------------------------------------------------- metrics


def value_of(text: str, name: str, **labels: str) -> float | None:
    """Return the value of a metric, `None` where there is none."""
    wanted = ",".join(f'{label}="{value}"' for label, value in labels.items())
    found = [line for line in text.splitlines() if line.startswith(f"spark_throttle_{name}{{{wanted}}} ")]
    return float(found[0].rpartition(" ")[2]) if found else None


def test_tenants_are_a_level_of_the_metrics(world: World) -> None:
    text = world.client.get("/metrics").text
    acme = {"job": "ingest", "level": "tenant", "scope": "acme"}
    assert value_of(text, "offered_messages_total", **acme) == 240
    assert value_of(text, "admitted_messages_total", **acme) == 81
    assert value_of(text, "backlog_messages", **acme) == 159
    assert value_of(text, "balance_messages", **acme) is None  # it has no quota


def test_totals_of_a_level_are_bounded_and_never_shrink(world: World) -> None:
    """A tenant that comes late is counted among the others, however busy it is: nobody's past moves."""
    many: dict[str, dict[str, object]] = {f"tenant-{number:03}": {} for number in range(MOST_NAMED + 50)}
    for name in many:
        world.service.put("tenant", name, {}, ANN)
    before: dict[str, float] = {}
    for round_number in range(4):
        names = list(many)[round_number * 70 :]
        world.job.batch({f"{name}/x": 1 + at % 3 for at, name in enumerate(names)})
        world.watch.look()
        lines = [
            line.rpartition(" ")
            for line in world.client.get("/metrics").text.splitlines()
            if line.startswith("spark_throttle_offered_messages_total{") and 'level="tenant"' in line
        ]
        totals = {key: float(value) for key, _, value in lines}
        assert len(totals) <= MOST_NAMED + 1
        assert all(totals[key] >= value for key, value in before.items())
        before = totals
    assert any('scope="_other"' in key for key in before)
    offered = [
        value for key, value in before.items() if 'level="tenant"' in key
    ]  # with the 60 a batch of acme in the four batches before
    assert sum(offered) == 240 + sum(
        1 + at % 3 for round_number in range(4) for at in range(MOST_NAMED + 50 - 70 * round_number)
    )


def test_rejected_messages_are_counted_by_reason(world: World) -> None:
    world.service.put("namespace", "solo/r", {"publish": {"messages_per_second": 1, "on_excess": "reject"}}, ANN)
    world.job.batch({"solo/r": 100, "": 3})
    world.watch.look()
    text = world.client.get("/metrics").text
    by_reason = {
        reason: value_of(text, "rejected_by_reason_total", job="ingest", reason=reason) for reason in REASONS[1:]
    }
    assert by_reason["namespace_missing"] == 3
    assert by_reason["queue_full"] == 0
    rejected = value_of(text, "rejected_messages_total", job="ingest", level="job", scope="job")
    assert by_reason["quota"] == (rejected or 0) - 3 > 0


def test_age_of_the_oldest_waiting_row_goes_on_while_no_batch_runs(world: World) -> None:
    text = world.client.get("/metrics").text
    # The first rows that waited came with the first batch: 60 arrived, of which 21 left, and then 20 of each.
    assert value_of(text, "job_oldest_waiting_seconds", job="ingest") == 2
    world.job.now_ms += 7_000
    world.job.pulse.beat()
    world.watch.look()
    text = world.client.get("/metrics").text
    assert value_of(text, "job_oldest_waiting_seconds", job="ingest") == 9


def test_throttle_time_is_how_long_the_debt_takes(world: World) -> None:
    text = world.client.get("/metrics").text
    gold = {"job": "ingest", "level": "resource_group", "scope": "gold"}
    balance = value_of(text, "balance_messages", **gold)
    assert balance is not None
    assert value_of(text, "throttle_time_seconds", **gold) == max(0.0, -balance) / 20
    assert value_of(text, "throttle_time_seconds", job="ingest", level="job", scope="job") is None
    delayed = value_of(text, "delayed_seconds_total", **gold)
    assert delayed is not None
    assert delayed > 0


@pytest.mark.parametrize(
    ("held", "rate", "seconds"),
    [
        ((-10.0, None), (20.0, None), 0.5), ((5.0, -300.0), (20.0, 100.0), 3.0), ((5.0, 5.0), (1.0, 1.0), 0.0),
        ((None, None), (None, None), None), ((-1.0, None), (0.0, None), float("inf")), ((0.0, None), (0.0, None), 0.0),
    ],
)  # fmt: skip
def test_throttle_time_is_of_the_dimension_that_takes_longest(held: Pair, rate: Pair, seconds: float | None) -> None:
    assert throttle_time_seconds(held, rate) == seconds


@pytest.mark.parametrize(("offered", "is_near"), [(15, 0), (16, 1), (30, 1)])
def test_scope_is_near_its_limit_from_four_fifths_of_a_quota_on(world: World, offered: int, is_near: int) -> None:
    world.service.put("namespace", "solo/x", {"publish": {"messages_per_second": 20, "burst_seconds": 60}}, ANN)
    world.service.put("resource_group", "iron", {"publish": {"messages_per_second": 20, "burst_seconds": 60}}, ANN)
    world.service.put("tenant", "solo", {"resource_group": "iron"}, ANN)
    for _ in range(12):
        world.job.batch({"solo/x": offered})
        world.watch.look()
    text = world.client.get("/metrics").text
    assert value_of(text, "near_limit", job="ingest", level="resource_group", scope="iron") == is_near
    assert value_of(text, "near_limit", job="ingest", level="tenant", scope="solo") is None  # it has no quota
    assert value_of(text, "near_limit_namespaces", job="ingest") == is_near


def test_job_that_shares_a_quota_is_near_its_limit_by_its_share(world: World) -> None:
    (view,) = world.watch.views()
    assert view.epoch is not None
    assert view.window is not None
    half = np.full_like(view.epoch.buckets.balance_micro, 10_000)
    shared = replace(view, epoch=replace(view.epoch, share_micro_per_ms=half))
    gold = len(view.window.policy.shared) - 1
    of_quota, of_share = (used_ratios(view.window, rates=rates_of(each)).shared[gold, 0] for each in (view, shared))
    assert of_share == pytest.approx(2 * of_quota)


def test_first_batch_has_no_rates_because_nobody_knows_how_long_it_took(
    serve: Callable[..., ServedApp], tmp_path: Path
) -> None:
    world = World(serve, tmp_path)
    world.job.batch(OFFERED, seconds=10)
    world.watch.look()
    rows = world.client.get("/admin/v2/status/ingest/namespaces").json()["namespaces"]
    assert {row["offered_per_second"] for row in rows} == {None}
    text = world.client.get("/metrics").text
    assert "spark_throttle_namespace_offered_per_second{" not in text
    assert value_of(text, "namespace_waiting_messages", job="ingest", namespace="other/c", resource_group="") == 0
    assert "spark_throttle_near_limit{" not in text


def test_watch_reads_a_sign_of_life_once_a_second(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(directory: Directory, name: str, of: Callable[..., bytes | None] = Directory.read) -> bytes | None:
        read.append(name)
        return of(directory, name)

    monkeypatch.setattr(Directory, "read", counted)
    for _ in range(40):
        world.job.now_ms += 250
        world.watch.look()
    assert (read.count("alive.json"), read.count("run")) == (10, 10)
