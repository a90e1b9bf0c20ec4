"""A change that is tried is replayed on the job's traffic: its answer is what a job did that really had the policy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_throttle.admin.watch.job_watch import JobWatch
from spark_throttle.control.reports import read_reports
from spark_throttle.status.usage_table import batch_usage
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.service import PolicyService
from tests.admin.conftest import ServedApp, served_over
from tests.admin.job_world import ANN
from tests.admin.made_up_job import MadeUpJob

V2 = "/admin/v2"
QUOTA = {"publish": {"messages_per_second": 20, "burst_seconds": 1}}
WANTED = {"publish": {"messages_per_second": 45, "burst_seconds": 1}}
OFFERED = ({"acme/a": 30, "acme/b": 20, "other/c": 5}, {"acme/a": 60}, {"acme/b": 10, "other/c": 7}, {"acme/a": 45})


def played(folder: Path, quota: dict[str, Any], batches: int) -> tuple[MemoryStore, MadeUpJob]:
    """Return a job whose group has had a quota from the start, and its store."""
    store = MemoryStore()
    service = PolicyService(store, clock_ms=lambda: 0)
    service.put("resource_group", "gold", quota, ANN)
    service.put("tenant", "acme", {"resource_group": "gold"}, ANN)
    job = MadeUpJob(folder / "control", store)
    for at in range(batches):
        job.batch(OFFERED[at % len(OFFERED)])
    return store, job


def admitted(job: MadeUpJob) -> int:
    reports = read_reports(job.directory, after_batch=-1).values()
    return sum(int(each.number("admitted_messages").sum()) for each in reports)


@pytest.fixture
def served(tmp_path: Path) -> ServedApp:
    (tmp_path / "was").mkdir()
    store, job = played(tmp_path / "was", QUOTA, 12)
    for batch, report in read_reports(job.directory, after_batch=-1).items():
        write_deltalake(str(tmp_path / "usage"), batch_usage(job.directory, report, batch), mode="append")
    watch = JobWatch(
        {"ingest": str(job.control_path)}, clock=job.clock, usage_tables={"ingest": str(tmp_path / "usage")}
    )
    watch.look()
    return served_over(store, tmp_path, watch=watch)


def asked(served: ServedApp, body: dict[str, Any], *, role: str = "admin", **query: Any) -> Any:
    query = {"dry_run": True, "replay": "ingest", "seconds": 60} | query
    return served.client(role).put(f"{V2}/policies/resource_groups/gold", params=query, json=body)


@pytest.mark.slow
def test_replay_of_a_change_admits_what_a_job_admits_that_has_it_from_the_start(
    served: ServedApp, tmp_path: Path
) -> None:
    answer = asked(served, WANTED)
    assert answer.status_code == 200, answer.text
    found = answer.json()["what_if"]
    scopes = {(each["level"], each["scope"]): each for each in found["scopes"]}
    (tmp_path / "new").mkdir()
    _, new = played(tmp_path / "new", WANTED, 12)
    assert scopes["job", "job"]["policy"]["admitted_messages"] == admitted(new)
    (tmp_path / "old").mkdir()
    _, old = played(tmp_path / "old", QUOTA, 12)
    assert scopes["job", "job"]["against"]["admitted_messages"] == admitted(old)
    gold = scopes["resource_group", "gold"]
    assert gold["policy"]["waiting_messages"] < gold["against"]["waiting_messages"]
    assert ("tenant", "other") not in scopes, "the change is nothing to it"
    assert answer.json()["plan"]["differences"]
    assert served.store.revision() == 2


@pytest.mark.parametrize(
    ("body", "query", "status", "said"),
    [
        (WANTED, {"dry_run": False}, 422, "give ?dry_run=true too"),
        (WANTED, {"replay": "export"}, 404, "export"),
        (WANTED, {"seconds": 24 * 3600 + 1}, 422, "86400"),
        ({"publish": {"weight": 0}}, {}, 422, "weight"),
    ],
)
def test_a_replay_that_cannot_be_made_is_refused_and_changes_nothing(
    served: ServedApp, body: dict[str, Any], query: dict[str, Any], status: int, said: str
) -> None:
    answer = asked(served, body, **query)
    assert (answer.status_code, said in answer.text) == (status, True), answer.text
    assert served.store.revision() == 2


def test_only_an_administrator_replays_what_others_sent(served: ServedApp) -> None:
    query = {"dry_run": True, "replay": "ingest"}
    tenant = served.client("tenant_admin")
    answer = tenant.put(f"{V2}/policies/namespaces/acme%2Fa", params=query, json={"publish": {"weight": 2}})
    assert answer.status_code == 403
    assert asked(served, WANTED, role="viewer").status_code == 403


def test_a_job_without_a_usage_table_says_how_it_gets_one(serve: Callable[..., ServedApp], tmp_path: Path) -> None:
    store, job = played(tmp_path, QUOTA, 1)
    watch = JobWatch({"ingest": str(job.control_path)}, clock=job.clock)
    watch.look()
    answer = asked(serve(store, watch=watch), WANTED)
    assert answer.status_code == 422
    assert "start it with --usage ingest=<the table's path>" in answer.json()["detail"]


def test_a_removed_entry_is_replayed_without_it(served: ServedApp) -> None:
    query = {"dry_run": True, "replay": "ingest", "seconds": 60}
    answer = served.client().delete(f"{V2}/policies/tenants/acme", params=query)
    (job,) = [each for each in answer.json()["what_if"]["scopes"] if each["level"] == "job"]
    assert job["policy"]["waiting_messages"] == 0
    assert job["against"]["waiting_messages"] > 0


def test_replay_of_units_whose_costs_came_late_says_that_they_are_as_estimated(
    served: ServedApp, tmp_path: Path
) -> None:
    job = DeltaTable(tmp_path / "usage").to_pyarrow_table(filters=[("level", "=", "job")]).slice(0, 1)
    at = job.schema.get_field_index("given_back_units")
    write_deltalake(str(tmp_path / "usage"), job.set_column(at, "given_back_units", pa.array([1_500])), mode="append")
    assert asked(served, WANTED).json()["what_if"]["not_replayed"] == [
        "costs that came late (units are as estimated; 1,500 less and 0 more were told)"
    ]
