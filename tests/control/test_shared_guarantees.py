"""What is guaranteed goes where the rows are, over jobs: within a lease, and in all jobs together no more."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest

from spark_throttle.control.shared_guarantees import guaranteed_demand
from spark_throttle.core.names.matching import match
from spark_throttle.core.quota import Level
from spark_throttle.core.shared_buckets import guaranteed_rates
from spark_throttle.policy.compile import compile_policy
from spark_throttle.policy.model import PolicyDocument
from spark_throttle.sharing.settings import ShareSettings
from spark_throttle.testing import SimulatedJob
from spark_throttle.testing.simulation.exchange import SimulatedExchange

SETTINGS: Final = ShareSettings(interval_ms=1_000, lease_ms=10_000)
GUARANTEED: Final = 40


def policies() -> dict[str, Any]:
    group = {"publish": {"messages_per_second": 100, "burst_seconds": 1}}
    acme = {"publish": {"guaranteed_messages_per_second": GUARANTEED}}
    return {
        "version": 1, "resource_groups": {"gold": group}, "defaults": {"resource_group": "gold"},
        "tenants": {"acme": acme},
    }  # fmt: skip


def admitted(job: SimulatedJob, tenant: str) -> int:
    return sum(str(row.namespace).startswith(tenant) for row in job.admitted)


def run(jobs: list[SimulatedJob], rows: list[list[str]], rounds: int) -> None:
    """Offer each job its rows, in rounds of half a second."""
    for _ in range(rounds):
        jobs[0].pass_time(500)
        for job, names in zip(jobs, rows, strict=True):
            job.offer([(name, 1) for name in names])
            job.trigger(0)


def in_force(job: SimulatedJob) -> int:
    """Return the rate that the newest epoch of a job guarantees to acme, in messages a second."""
    assert job._running is not None
    plane = job._running._reader.plane()
    epoch = plane._planned
    assert epoch is not None
    policy = plane.epochs.policy(epoch)
    return int(guaranteed_rates(policy, epoch.share_micro_per_ms, epoch.parts_micro_per_ms)[0, 0]) // 1000


def test_a_job_that_had_little_of_a_group_has_what_its_rows_are_guaranteed_within_a_lease() -> None:
    exchange = SimulatedExchange(SETTINGS)
    jobs = [SimulatedJob(policies(), exchange=exchange) for _ in range(2)]
    flood = [f"t{n}/a" for n in range(60)]
    run(jobs, [flood, []], 12)
    assert in_force(jobs[1]) <= GUARANTEED
    run(jobs, [flood, ["acme/a"] * 60], SETTINGS.lease_ms // 500)
    before = admitted(jobs[1], "acme")
    run(jobs, [flood, ["acme/a"] * 60], 8)
    assert admitted(jobs[1], "acme") - before >= 4 * GUARANTEED - 2
    assert in_force(jobs[1]) >= GUARANTEED - 2
    assert in_force(jobs[0]) + in_force(jobs[1]) <= GUARANTEED
    assert admitted(jobs[0], "t") > 0


def test_what_a_job_guarantees_below_a_group_is_no_more_than_its_share_of_it() -> None:
    document = policies()
    document["tenants"]["blue"] = document["tenants"]["acme"]
    own = {"publish": {"guaranteed_messages_per_second": 30}}
    document["namespaces"] = {"acme/a": {"resource_group": "gold", **own}}
    policy = compile_policy(PolicyDocument.model_validate(document), "publish")
    share = policy.shared.rate_micro_per_ms.copy()
    assert policy.guarantees is not None
    parts = policy.guarantees.rate_micro_per_ms
    assert np.array_equal(guaranteed_rates(policy, share, parts), parts)
    share[-1, 0] //= 2
    found = guaranteed_rates(policy, share, parts)[:, 0]
    of_tenants = policy.guarantees.level == Level.TENANT
    assert int(share[-1, 0]) - 2 <= int(found[of_tenants].sum()) <= share[-1, 0]
    assert found[~of_tenants].tolist() == [30_000 * 50 // 80]  # a part of what its tenant has, and not beside it


def test_what_a_namespace_wants_below_a_group_is_guaranteed_by_its_own_guarantee_where_its_tenant_has_none() -> None:
    own = {"resource_group": "gold", "publish": {"guaranteed_messages_per_second": 30}}
    document = policies() | {"tenants": {}, "namespaces": {"acme/a": own}}
    policy = compile_policy(PolicyDocument.model_validate(document), "publish")
    assert policy.guarantees is not None
    names, parts = pa.array(["acme/a", "acme/b"]), policy.guarantees.rate_micro_per_ms
    demand = np.array([[60_000, 0, 0, 0], [60_000, 0, 0, 0]])
    found = guaranteed_demand(policy, match(names, policy), demand, parts, Level.RESOURCE_GROUP)
    assert found[:, 0].tolist() == pytest.approx([30_000, 0], abs=1)
