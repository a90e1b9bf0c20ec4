"""The metrics of watched jobs: what they count, how many series they have, and what a dead job keeps of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_throttle.admin.cli.watch import worst
from spark_throttle.admin.watch.batch_numbers import MOST_NAMED, OTHER, TimeTotals
from spark_throttle.admin.watch.job_numbers import balances_of, rates_of, used_ratios
from spark_throttle.admin.watch.metrics import TOP_NAMESPACES, throttle_time_seconds
from spark_throttle.core.batch.decisions import REASONS
from spark_throttle.status.explanation import Numbers
from spark_throttle.status.status import read_status
from spark_throttle.status.time_status import JobTime, TimeStatus
from spark_throttle.store.file.file_store import FileStore
from tests.admin.conftest import ServedApp
from tests.admin.job_world import ANN, OFFERED, World


@pytest.fixture
def world(serve: Callable[..., ServedApp], tmp_path: Path) -> World:
    world = World(serve, tmp_path)
    world.run(4)
    return world


def test_metrics_count_what_the_jobs_did(world: World) -> None:
    text = world.client.get("/metrics").text
    assert 'spark_throttle_offered_messages_total{level="resource_group",scope="gold",spark_job="ingest"} 240.0' in text
    assert 'spark_throttle_admitted_messages_total{level="resource_group",scope="gold",spark_job="ingest"} 81.0' in text
    assert 'spark_throttle_backlog_messages{level="resource_group",scope="gold",spark_job="ingest"} 159.0' in text
    assert (
        'spark_throttle_share_messages_per_second{level="resource_group",scope="gold",spark_job="ingest"} 20.0' in text
    )
    assert 'spark_throttle_balance_messages{level="resource_group",scope="gold",spark_job="ingest"}' in text
    assert (
        'spark_throttle_namespace_waiting_messages{namespace="acme/a",resource_group="gold",spark_job="ingest"}' in text
    )
    assert 'spark_throttle_job_store_revision{spark_job="ingest"} 2.0' in text


@pytest.mark.parametrize(
    ("file", "damage"),
    [("p.yaml", b"job: {publish: ["), ("p.yaml", b"resource_group: {}\n"), ("p.yaml.history", b"no history")],
)
def test_jobs_are_watched_while_their_store_is_damaged(
    serve: Callable[..., ServedApp], tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str, damage: bytes
) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("version: 1\n")
    store = FileStore.create(path)
    world = World(serve, tmp_path, store=store)
    world.run(2)
    whole = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(whole + damage if file == "p.yaml" else damage * 1_000)
    text = world.client.get("/metrics").text
    assert "spark_throttle_store_up 0.0" in text
    assert 'spark_throttle_job_up{spark_job="ingest"} 1.0' in text
    assert "the policy store cannot be read: " in caplog.text
    status = world.client.get("/admin/v2/status").json()
    assert (status["store_revision"], [job["listening"] for job in status["jobs"]]) == (None, [True])
    assert str(path) in status["store_problem"]


def test_share_is_the_jobs_part_where_jobs_share_a_quota(world: World) -> None:
    (view,) = world.watch.views()
    assert view.epoch is not None
    assert view.epoch_policy is not None
    whole = balances_of(view)["resource_group", "gold"][1]
    part = np.full_like(view.epoch_policy.shared.rate_micro_per_ms, 7_000)
    shared = replace(view, epoch=replace(view.epoch, share_micro_per_ms=part))
    assert (whole, balances_of(shared)["resource_group", "gold"][1]) == ((20.0, None, None), (7.0, None, None))


@pytest.mark.slow
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


def metric_names(text: str) -> set[str]:
    """Return the names of the metrics that have a value of the job."""
    return {line.partition("{")[0].removeprefix("spark_throttle_") for line in text.splitlines() if 'job="' in line}


def test_gauges_of_a_dead_job_are_no_longer_exported(world: World) -> None:
    text = world.client.get("/metrics").text
    assert 'spark_throttle_job_up{spark_job="ingest"} 1.0' in text
    assert 'spark_throttle_job_reporting{spark_job="ingest"} 1.0' in text
    live = metric_names(text)
    world.wait(60)
    text = world.client.get("/metrics").text
    assert 'spark_throttle_job_up{spark_job="ingest"} 0.0' in text
    assert 'spark_throttle_job_reporting{spark_job="ingest"} 0.0' in text
    assert 'spark_throttle_job_sign_of_life_age_seconds{spark_job="ingest"} 60.0' in text
    assert 'spark_throttle_job_batch_age_seconds{spark_job="ingest"} 60.0' in text
    left = {name for name in metric_names(text) if not name.endswith(("_total", "_bucket", "_count", "_sum"))}
    assert left == {"job_up", "job_reporting", "job_sign_of_life_age_seconds", "job_batch_age_seconds"}
    assert live - metric_names(text) >= {"backlog_messages", "balance_messages", "namespace_waiting_messages"}
    assert {name for name in live if name.endswith("_total")} <= metric_names(text)


def value_of(text: str, name: str, **labels: str) -> float | None:
    """Return the value of a metric, `None` where there is none."""
    wanted = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    found = [line for line in text.splitlines() if line.startswith(f"spark_throttle_{name}{{{wanted}}} ")]
    return float(found[0].rpartition(" ")[2]) if found else None


def test_tenants_are_a_level_of_the_metrics(world: World) -> None:
    text = world.client.get("/metrics").text
    acme = {"spark_job": "ingest", "level": "tenant", "scope": "acme"}
    assert value_of(text, "offered_messages_total", **acme) == 240
    assert value_of(text, "admitted_messages_total", **acme) == 81
    assert value_of(text, "backlog_messages", **acme) == 159
    assert value_of(text, "balance_messages", **acme) is None  # it has no quota


@pytest.mark.slow
def test_totals_of_a_level_are_bounded_and_never_shrink(world: World) -> None:
    """No message moves from one total to another, whichever scopes have a total of their own."""
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


@pytest.mark.slow
def test_group_that_is_worst_off_has_a_place_everywhere_however_late_it_comes(serve: Any, tmp_path: Path) -> None:
    world = World(serve, tmp_path)
    quiet = [f"quiet-{number:03}" for number in range(MOST_NAMED + 20)]
    for name in (*quiet, "zealous"):
        world.service.put("resource_group", name, {"publish": {"messages_per_second": 10, "burst_seconds": 1}}, ANN)
        world.service.put("tenant", name, {"resource_group": name}, ANN)
    for offered in (1, 1, 500):
        world.job.batch({f"{name}/x": 1 for name in quiet} | {"zealous/x": offered})
        world.job.pulse.beat()
        world.watch.look()
    text = world.client.get("/metrics").text
    for level in ("resource_group", "tenant"):
        assert value_of(text, "backlog_messages", spark_job="ingest", level=level, scope="zealous") == 489
    scopes = [(each["level"], each["scope"]) for each in world.status()["scopes"]]
    assert scopes[:2] == [("job", "job"), ("resource_group", "zealous")]
    assert scopes[1 + MOST_NAMED] == ("tenant", "zealous")
    assert len(scopes) == 1 + 2 * MOST_NAMED
    groups = world.client.get("/admin/v2/status/ingest/scopes?limit=2").json()["scopes"]
    assert groups[0]["scope"] == "zealous"
    found = read_status(str(tmp_path / "control"))
    shown = [(each.level, each.scope) for each in worst(found, ("resource_group", "tenant", "namespace"), 1)]
    assert shown == [("resource_group", "zealous"), ("tenant", "zealous"), ("namespace", "zealous/x")]
    named = world.watch.views()[0].totals.named
    world.job.batch({f"{name}/x": 1 for name in quiet})
    world.watch.look()
    assert world.watch.views()[0].totals.named == named  # nobody takes a place from one that is as well off


def test_rejected_messages_are_counted_by_reason(world: World) -> None:
    world.service.put("namespace", "solo/r", {"publish": {"messages_per_second": 1, "on_excess": "reject"}}, ANN)
    world.job.batch({"solo/r": 100, "": 3})
    world.watch.look()
    text = world.client.get("/metrics").text
    by_reason = {
        reason: value_of(text, "rejected_by_reason_total", spark_job="ingest", reason=reason) for reason in REASONS[1:]
    }
    assert by_reason["namespace_missing"] == 3
    assert by_reason["queue_full"] == 0
    rejected = value_of(text, "rejected_messages_total", spark_job="ingest", level="job", scope="job")
    assert by_reason["quota"] == (rejected or 0) - 3 > 0


def test_age_of_the_oldest_waiting_row_goes_on_while_no_batch_runs(world: World) -> None:
    text = world.client.get("/metrics").text
    # The first rows that waited came with the first batch: 60 arrived, of which 21 left, and then 20 of each.
    assert value_of(text, "job_oldest_waiting_seconds", spark_job="ingest") == 2
    world.job.now_ms += 7_000
    world.job.pulse.beat()
    world.watch.look()
    text = world.client.get("/metrics").text
    assert value_of(text, "job_oldest_waiting_seconds", spark_job="ingest") == 9


def test_age_of_the_oldest_reservation_goes_on_while_no_batch_runs(world: World) -> None:
    assert value_of(world.client.get("/metrics").text, "job_oldest_reserved_seconds", spark_job="ingest") is None
    world.job.batch({"solo/r": 3}, units=5, identity=7)
    world.job.batch({"solo/r": 1})
    world.watch.look()
    world.job.now_ms += 7_000
    world.job.pulse.beat()
    world.watch.look()
    text = world.client.get("/metrics").text
    assert value_of(text, "job_oldest_reserved_seconds", spark_job="ingest") == 1 + 7
    assert value_of(text, "reserved_units", spark_job="ingest", level="job", scope="job") == 15


def test_scopes_that_wait_are_counted_by_level(world: World) -> None:
    text = world.client.get("/metrics").text
    told = {level: value_of(text, "waiting_scopes", spark_job="ingest", level=level) for level in
            ("tenant", "resource_group", "namespace")}  # fmt: skip
    waiting = [line for line in text.splitlines() if line.startswith("spark_throttle_namespace_waiting_messages{")]
    assert told == {"tenant": 1, "resource_group": 1, "namespace": sum(1 for line in waiting if line[-4:] != " 0.0")}


def test_queue_is_told_as_part_of_its_narrowest_bound_and_a_lease_where_there_is_one(world: World) -> None:
    """By default a million messages and 256 MiB may wait; messages of the world have a thousand bytes."""
    text = world.client.get("/metrics").text
    in_bytes = value_of(text, "backlog_bytes", spark_job="ingest", level="job", scope="job")
    assert in_bytes
    assert value_of(text, "job_queue_used_ratio", spark_job="ingest") == in_bytes / 2**28
    assert value_of(text, "job_leased", spark_job="ingest") is None


def test_throttle_time_is_how_long_the_debt_takes(world: World) -> None:
    text = world.client.get("/metrics").text
    gold = {"spark_job": "ingest", "level": "resource_group", "scope": "gold"}
    balance = value_of(text, "balance_messages", **gold)
    assert balance is not None
    assert value_of(text, "throttle_time_seconds", **gold) == max(0.0, -balance) / 20
    assert value_of(text, "throttle_time_seconds", spark_job="ingest", level="job", scope="job") is None


def test_histogram_of_waiting_times_counts_every_admitted_message(world: World) -> None:
    """Of 60 messages 21 left at once, and 20 of each later batch; batches begin a second after each other."""
    text = world.client.get("/metrics").text
    gold = {"spark_job": "ingest", "level": "resource_group", "scope": "gold"}
    admitted = value_of(text, "admitted_messages_total", **gold)
    within = [
        value_of(text, "waited_seconds_bucket", **gold, le=bound) or 0 for bound in ("0.0", "1.0", "10.0", "+Inf")
    ]
    assert within == sorted(within)
    assert within[-1] == value_of(text, "waited_seconds_count", **gold) == admitted
    assert within[0] == 21
    assert value_of(text, "waited_seconds_sum", **gold) == (within[1] - within[0]) + 2 * (within[2] - within[1])


@pytest.mark.parametrize(
    ("held", "rate", "seconds"),
    [
        ((-10.0, None, None), (20.0, None, None), 0.5),
        ((5.0, -300.0, None), (20.0, 100.0, None), 3.0),
        ((5.0, None, -8.0), (20.0, None, 2.0), 4.0),
        ((5.0, 5.0, None), (1.0, 1.0, None), 0.0),
        ((None, None, None), (None, None, None), None),
        ((-1.0, None, None), (0.0, None, None), float("inf")),
        ((0.0, None, None), (0.0, None, None), 0.0),
    ],
)
def test_throttle_time_is_of_the_dimension_that_takes_longest(
    held: Numbers, rate: Numbers, seconds: float | None
) -> None:
    assert throttle_time_seconds(held, rate) == seconds


@pytest.mark.slow
@pytest.mark.parametrize(("offered", "is_near"), [(15, 0), (16, 1), (30, 1)])
def test_scope_is_near_its_limit_from_four_fifths_of_a_quota_on(world: World, offered: int, is_near: int) -> None:
    world.service.put("namespace", "solo/x", {"publish": {"messages_per_second": 20, "burst_seconds": 60}}, ANN)
    world.service.put("resource_group", "iron", {"publish": {"messages_per_second": 20, "burst_seconds": 60}}, ANN)
    world.service.put("tenant", "solo", {"resource_group": "iron"}, ANN)
    for _ in range(12):
        world.job.batch({"solo/x": offered})
        world.watch.look()
    text = world.client.get("/metrics").text
    assert value_of(text, "near_limit", spark_job="ingest", level="resource_group", scope="iron") == is_near
    assert value_of(text, "near_limit", spark_job="ingest", level="tenant", scope="solo") is None  # it has no quota
    assert value_of(text, "near_limit_namespaces", spark_job="ingest") == is_near


def test_job_that_shares_a_quota_is_near_its_limit_by_its_share(world: World) -> None:
    (view,) = world.watch.views()
    assert view.epoch is not None
    assert view.epoch_policy is not None
    assert view.window is not None
    half = np.full_like(view.epoch_policy.shared.rate_micro_per_ms, 10_000)
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
    assert value_of(text, "namespace_waiting_messages", spark_job="ingest", namespace="other/c", resource_group="") == 0
    assert "spark_throttle_near_limit{" not in text


@pytest.mark.slow
def test_metrics_have_used_exempt_and_throttle_time_where_a_policy_limits_processing_time(world: World) -> None:
    acme, of_job = {"spark_job": "ingest", "level": "tenant", "scope": "acme"}, {"spark_job": "ingest"}
    assert "_time_seconds_total{" not in world.client.get("/metrics").text
    quota = {"request_percentage": 50, "burst_seconds": 1}
    world.service.put("tenant", "acme", {"resource_group": "gold", "publish": quota}, ANN)
    world.service.put("exempt", "free/x", {}, ANN)
    for _ in range(3):
        world.job.batch(OFFERED, used_ms={"acme/a": 700, "free/x": 30}, unattributed_ms=4)
    world.watch.look()  # one look at several epochs
    world.job.batch(OFFERED, seconds=0.25)
    world.watch.look()
    text = world.client.get("/metrics").text
    assert value_of(text, "used_time_seconds_total", **acme) == 2.1
    assert value_of(text, "used_time_seconds_total", spark_job="ingest", level="job", scope="job") == 2.1
    assert value_of(text, "used_time_seconds_total", spark_job="ingest", level="resource_group", scope="gold") == 2.1
    assert value_of(text, "exempt_time_seconds_total", **of_job) == 0.09
    assert value_of(text, "unattributed_time_seconds_total", **of_job) == 0.012
    assert value_of(text, "request_percentage", **acme) == 50
    # 500 ms less 700 ms, paid 500, less 700, paid 500, less 700, paid 125.
    assert value_of(text, "balance_time_seconds", **acme) == -0.475
    assert value_of(text, "throttle_time_seconds", **acme) == 0.95
    assert value_of(text, "near_limit", **acme) == 1
    assert value_of(text, "request_percentage", spark_job="ingest", level="resource_group", scope="gold") is None


def test_time_of_scopes_beyond_those_that_are_named_is_summed() -> None:
    names = [f"tenant-{number}" for number in range(4)]
    columns = {"level": ["job", *["tenant"] * 4], "scope": ["job", *names], "used_ns": [15, 1, 2, 4, 8]}
    time = TimeStatus("r1", JobTime(1_000, 1_000, 3, 5), pa.table(columns))
    totals = TimeTotals().with_epoch(time, [("job", "job"), ("tenant", names[0]), ("tenant", OTHER)])
    totals = totals.with_epoch(time, [("job", "job"), *(("tenant", name) for name in names[:3])])
    assert totals.used_ns == {
        ("job", "job"): 30, ("tenant", names[0]): 2, ("tenant", OTHER): 14 + 8, ("tenant", names[1]): 2,
        ("tenant", names[2]): 4,
    }  # fmt: skip
    assert (totals.exempt_ns, totals.unattributed_ns) == (6, 10)
