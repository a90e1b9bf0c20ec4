"""What quotas on processing time promise of a cluster's cores, by a job's control directory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spark_throttle.admin.refusals import Exit
from spark_throttle.command_line.app import app
from spark_throttle.control.notes import read_sign_of_life, write_sign_of_life
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author
from tests.admin.made_up_job import MadeUpJob

RUNNER = CliRunner()


@pytest.fixture
def job(tmp_path: Path) -> MadeUpJob:
    """Return a job on two cores, of whose tenants one may use half a core and another 120 %."""
    job = MadeUpJob(tmp_path / "control", MemoryStore())
    put(job, "tenant", "acme", 50)
    put(job, "tenant", "blue", 120)
    for name in ("cyan", "dark", "east"):
        put(job, "tenant", name, None)
    return job


def put(job: MadeUpJob, kind: Any, name: str, percent: float | None) -> None:
    values = {} if percent is None else {"publish": {"request_percentage": percent}}
    PolicyService(job.store, clock_ms=lambda: 0).put(kind, name, values, Author("ann"))


def capacity(job: MadeUpJob) -> dict[str, Any]:
    job.batch({})
    job.pulse.beat()
    result = RUNNER.invoke(app, ["capacity", "--control", str(job.control_path), "--output", "json"])
    assert result.exit_code == Exit.DONE, result.output
    return dict(json.loads(result.stdout))


def test_capacity_of_a_job_is_its_cores_and_what_its_quotas_leave_is_rounded_down(job: MadeUpJob) -> None:
    put(job, "namespace", "acme/x", 25)
    put(job, "namespace", "acme/*", 10)  # how many namespaces it promises that to is not known
    found = capacity(job)
    assert (found["cores"], found["capacity_percent"]) == (2, 200)
    assert {each["level"]: (each["scopes"], each["promised_percent"]) for each in found["levels"]} == {
        "job": (0, 0), "tenant": (2, 170), "resource_group": (0, 0), "namespace": (1, 25),
    }  # fmt: skip
    assert (found["open_tenants"], found["open_tenant_percent"]) == (3, 10)
    assert found["warnings"] == []
    put(job, "tenant", "acme", 60)
    assert capacity(job)["open_tenant_percent"] == 6.6


def test_quotas_that_promise_more_than_there_is_are_warned_of(job: MadeUpJob) -> None:
    put(job, "tenant", "cyan", 250)
    put(job, "job", "", 190)
    found = capacity(job)
    has = "the cluster has 200 % (2 cores)"
    assert found["warnings"] == [
        f"the quotas of 3 tenants promise 420 %, and {has}: lower them, or add cores",
        f"the quota of the tenant cyan is 250 %, and {has}: it is never reached; lower it",
        "the quotas of 3 tenants promise 420 %, and the job's own quota is 190 %: lower them, or raise it",
    ]
    assert found["open_tenant_percent"] is None
    table = RUNNER.invoke(app, ["capacity", "--control", str(job.control_path)]).stdout
    assert f"warning: the quota of the tenant cyan is 250 %, and {has}" in " ".join(table.split())


def test_promises_up_to_the_last_percent_are_no_warning(job: MadeUpJob) -> None:
    put(job, "tenant", "acme", 80)
    put(job, "job", "", 200)
    assert capacity(job)["warnings"] == []


def test_job_that_does_not_tell_its_cores_is_named_with_the_remedy(job: MadeUpJob, tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["capacity", "--control", str(tmp_path / "nowhere")])
    assert (result.exit_code, "no job that has planned a batch in" in result.output) == (Exit.NOT_FOUND, True)
    capacity(job)
    sign = read_sign_of_life(job.directory)
    assert sign is not None
    write_sign_of_life(job.directory, replace(sign, cores=None))
    result = RUNNER.invoke(app, ["capacity", "--control", str(job.control_path)])
    assert (result.exit_code, "restart it with this release" in result.output) == (Exit.NOT_FOUND, True)
    write_sign_of_life(job.directory, sign)
    assert capacity(job)["cores"] == 2
