"""What a tenant's administrator may write admits no more of the same rows, and makes none wait that was rejected."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from spark_throttle.errors import NotPermittedError
from spark_throttle.policy.codec import parse_document
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author
from spark_throttle.testing import SimulatedJob
from tests.admin.loosened_jobs import run_jobs, run_worlds

Values = dict[str, Any]

BOB = Author("bob", tenant="acme")
FREE: Values = {
    "resource_groups": {"free": {"publish": {"messages_per_second": 100, "burst_seconds": 2, "on_excess": "reject"}}},
    "tenants": {"acme": {"resource_group": "free"}, "zeta": {"resource_group": "free"}},
}
EMERGENCY: Values = {"tenants": {"acme": {"publish": {"messages_per_second": 0, "on_excess": "reject"}}, "zeta": {}}}
SHUT: Values = {"namespaces": {"acme/*": {"publish": {"messages_per_second": 0, "on_excess": "reject"}}}}
QUOTA: Values = {"publish": {"messages_per_second": 90, "burst_seconds": 1}}
STRING: Values = {"write_throttling": "50*delay*3000"}


def service_over(given: Values) -> PolicyService:
    service = PolicyService(MemoryStore(), clock_ms=lambda: 0, pause=lambda _: None)
    service.apply(parse_document(given), Author("ann"))
    return service


def fates(policy: Values) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Return how many rows were admitted, were rejected and wait, by namespace, if bursts meet a steady neighbour."""
    job = SimulatedJob(policy)
    for at in range(30):
        job.offer([("acme/x", 1)] * (900 if at % 10 == 0 else 0) + [("zeta/y", 1)] * 70)
        job.trigger(after_ms=1_000)
    admitted, waiting = (Counter(str(row.namespace) for row in rows) for rows in (job.admitted, job.waiting))
    return admitted, Counter(str(each.row.namespace) for each in job.rejected), waiting


@pytest.mark.parametrize(("given", "written", "path", "where"), [
    (FREE, QUOTA, "publish.on_excess", "resource_group, administrators gave reject (resource_groups.free)"),
    (FREE, STRING, "write_throttling", "resource_group, administrators gave reject (resource_groups.free)"),
    (EMERGENCY, QUOTA, "publish.on_excess", "tenant, administrators gave reject (tenants.acme)"),
    (EMERGENCY, STRING, "write_throttling", "tenant, administrators gave reject (tenants.acme)"),
    ({"tenants": {"acme": QUOTA}, "job": FREE["resource_groups"]["free"]}, QUOTA, "publish.on_excess",
     "job, administrators gave reject (job)"),
    ({**SHUT, "tenants": {"acme": QUOTA}}, {**SHUT["namespaces"]["acme/*"], **STRING}, "write_throttling",
     "namespace, administrators gave reject (namespaces.acme/*)"),
])  # fmt: skip
def test_tenant_makes_no_row_wait_that_a_scope_rejects(given: Values, written: Values, path: str, where: str) -> None:
    with pytest.raises(NotPermittedError) as refused:
        service_over(given).put("namespace", "acme/x", written, BOB)
    assert refused.value.path == path
    assert f"and rows that are rejected would wait; at the level {where}" in str(refused.value)


@pytest.mark.parametrize("written", [QUOTA, STRING])
def test_what_is_refused_would_admit_more_and_take_rows_from_a_neighbour(written: Values) -> None:
    admitted, rejected, waiting = fates(FREE)
    assert (rejected["zeta/y"], waiting["acme/x"]) == (0, 0)
    more, cut, _ = fates({**FREE, "namespaces": {"acme/x": written}})
    assert more["acme/x"] > 2 * admitted["acme/x"]
    assert cut["zeta/y"] > 100


def test_tighter_quota_that_rejects_is_allowed_where_a_scope_rejects() -> None:
    service = service_over(FREE)
    service.put("namespace", "acme/x", {"publish": {**QUOTA["publish"], "on_excess": "reject"}}, BOB)
    admitted, rejected, _ = fates(FREE)
    fewer, cut, waiting = fates(service.document().model_dump(exclude_defaults=True))
    assert fewer["acme/x"] < admitted["acme/x"]
    assert (cut["zeta/y"], waiting["acme/x"]) == (rejected["zeta/y"], 0)


def test_delay_that_was_given_below_a_scope_that_rejects_stays_as_it_is_or_becomes_a_rejection_for_good() -> None:
    """A quota of 0 empties the bucket: under the delay that was given, rows would wait then that the group rejects."""
    service, quota = service_over({**FREE, "defaults": QUOTA}), QUOTA["publish"]
    for key, value in (("messages_per_second", 50), ("burst_seconds", 0.5), ("max_message_bytes", 10)):
        with pytest.raises(NotPermittedError, match="rows that are rejected would wait"):
            service.put("namespace", "acme/x", {"publish": {**quota, key: value}}, BOB)
    service.put("namespace", "acme/x", {"publish": {**quota, "weight": 1}}, BOB)
    service.put("namespace", "acme/*", {"publish": {**quota, "on_excess": "reject"}}, BOB)
    service.put("namespace", "acme/x", {"publish": {"messages_per_second": 0, "on_excess": "reject"}}, BOB)
    for name in ("acme/x", "acme/y"):
        with pytest.raises(
            NotPermittedError, match=r"resource_group, administrators gave reject \(resource_groups.free"
        ):
            service.put("namespace", name, QUOTA, BOB)
    service.delete("namespace", "acme/x", BOB)
    with pytest.raises(NotPermittedError, match=r"would be delay, .* by defaults; "):
        service.delete("namespace", "acme/*", BOB)


def test_string_that_rejects_does_not_let_go_what_the_given_one_holds() -> None:
    """A row waits no longer than the present string says, so without a delay the rows that wait would leave at once."""
    given: Values = {
        "tenants": {"acme": QUOTA},
        "namespaces": {"acme/x": {"write_throttling": "2*delay*60000"}},
    }
    service = service_over(given)
    with pytest.raises(NotPermittedError, match=r"would be 1\*reject\*50; .* gave 2\*delay\*60000"):
        service.put("namespace", "acme/x", {"write_throttling": "1*reject*50"}, BOB)
    service.put("namespace", "acme/x", {"write_throttling": "1*delay*60000,1*reject*50"}, BOB)
    job = SimulatedJob(given)
    job.offer([("acme/x", 1)] * 20)
    job.trigger()
    job.set_policies({**given, "namespaces": {"acme/x": {"write_throttling": "1*reject*50"}}})
    job.trigger()
    assert (len(job.admitted), len(job.waiting)) == (20, 0)


@pytest.mark.slow
def test_job_that_follows_what_tenants_wrote_admits_no_more_than_one_that_keeps_what_was_given() -> None:
    counts = run_worlds("1/0", worlds=20)
    assert counts["made"] > 30
    assert counts["given"] > 6
    assert counts["checks: not rejected"] > 130


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(1, 21))
def test_jobs_admit_no_more_after_100_000_changes(seed: int) -> None:
    assert run_jobs(5_000, seed)["made"] >= 5_000
