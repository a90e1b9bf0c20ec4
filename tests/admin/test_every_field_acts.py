"""A quota that is accepted is applied: every field of every document, written over the API, changes what a job decides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import pytest

from spark_throttle.admin.resource_group_fields import FIELDS
from spark_throttle.control.memory_store import MemoryStore
from spark_throttle.control.model import (
    NamespacePolicy,
    PolicyDocument,
    QueuePolicy,
    Quota,
    ScopePolicy,
    TenantPolicy,
)
from tests.admin.conftest import Served
from tests.admin.made_up_job import Decided, MadeUpJob

Direction = Literal["publish", "dispatch"]
NAME = "acme/in"
# What a quota's field is tried with: what stands beside it, and a value that decides otherwise.
QUOTA: dict[str, tuple[dict[str, Any], Any]] = {
    "messages_per_second": ({}, 3),
    "bytes_per_second": ({}, 3000),
    "burst_seconds": ({"messages_per_second": 3}, 1),
    "on_excess": ({"messages_per_second": 3}, "reject"),
}
WIDE = {"resource_groups": "gold", "tenants": "acme", "namespaces": NAME, "defaults": "", "job": ""}
THROTTLING = {"write_throttling": "publish", "write_throttling_by_size": "publish", "read_throttling": "dispatch"}


def decided(job: MadeUpJob) -> list[Decided]:
    """Return what three batches of rows become: twenty of one namespace, twenty of another of its tenant."""
    for _ in range(3):
        job.batch({NAME: 20, "acme/other": 20})
    return job.decided


class Trial:
    """Two jobs that follow two stores, which differ in one field that was written over the API."""

    def __init__(self, serve: Callable[..., Served], folder: Path, direction: Direction) -> None:
        self.sides = []
        for side in ("without", "with"):
            store = MemoryStore()
            client = serve(store).client()
            assert client.put("/admin/v2/policies/resource_groups/gold", json={}).status_code == 200
            self.sides.append((client, MadeUpJob(folder / side, store, direction=direction)))

    def put(self, section: str, name: str, without: dict[str, Any], values: dict[str, Any]) -> None:
        path = f"policies/{section}/{name.replace('/', '%2F')}" if name else f"policy/{section}"
        for (client, _), body in zip(self.sides, (without, values), strict=True):
            answer = client.put(f"/admin/v2/{path}", json=body)
            assert answer.status_code == 200, answer.text

    def differs(self) -> bool:
        without, with_it = (decided(job) for _, job in self.sides)
        return without != with_it


@pytest.fixture
def trial(serve: Callable[..., Served], tmp_path: Path) -> Callable[[Direction], Trial]:
    return lambda direction: Trial(serve, tmp_path, direction)


@pytest.mark.parametrize("direction", get_args(Direction))
@pytest.mark.parametrize("section", WIDE)
@pytest.mark.parametrize("field", QUOTA)
def test_field_of_a_quota_acts(
    trial: Callable[[Direction], Trial], section: str, field: str, direction: Direction
) -> None:
    made = trial(direction)
    if section == "resource_groups":
        made.put("tenants", "acme", {"resource_group": "gold"}, {"resource_group": "gold"})
    beside, value = QUOTA[field]
    made.put(section, WIDE[section], {direction: beside}, {direction: beside | {field: value}})
    assert made.differs()


@pytest.mark.parametrize("direction", get_args(Direction))
@pytest.mark.parametrize("section", ["namespaces", "resource_groups"])
def test_weight_acts(trial: Callable[[Direction], Trial], section: str, direction: Direction) -> None:
    made = trial(direction)
    gold = {direction: {"messages_per_second": 6, "burst_seconds": 1}}
    if section == "namespaces":
        made.put("tenants", "acme", {"resource_group": "gold"}, {"resource_group": "gold"})
        made.put("resource_groups", "gold", gold, gold)
        made.put("namespaces", NAME, {}, {direction: {"weight": 5}})
    else:
        job = {direction: {"messages_per_second": 6, "burst_seconds": 1}}
        made.put("job", "", job, job)
        made.put("namespaces", NAME, {"resource_group": "gold"}, {"resource_group": "gold"})
        made.put("resource_groups", "gold", {}, {direction: {"weight": 5}})
    assert made.differs()


@pytest.mark.parametrize(("section", "name"), [("tenants", "acme"), ("namespaces", NAME), ("defaults", "")])
def test_resource_group_acts(trial: Callable[[Direction], Trial], section: str, name: str) -> None:
    made = trial("publish")
    gold = {"publish": {"messages_per_second": 3}}
    made.put("resource_groups", "gold", gold, gold)
    made.put(section, name, {}, {"resource_group": "gold"})
    assert made.differs()


@pytest.mark.parametrize(("field", "direction"), THROTTLING.items())
@pytest.mark.parametrize("section", ["namespaces", "defaults"])
def test_throttling_string_acts(
    trial: Callable[[Direction], Trial], section: str, field: str, direction: Direction
) -> None:
    made = trial(direction)
    made.put(section, WIDE[section], {}, {field: "2*delay*100,9*reject*200"})
    assert made.differs()


@pytest.mark.parametrize(
    ("field", "value"), [("messages", 5), ("bytes", 5000), ("age_seconds", 1), ("on_overflow", "fail")]
)
def test_bound_of_the_queue_acts(trial: Callable[[Direction], Trial], field: str, value: object) -> None:
    made = trial("publish")
    slow = {"publish": {"messages_per_second": 1, "burst_seconds": 1}}
    made.put("defaults", "", slow, slow)
    beside = {"messages": 5} if field == "on_overflow" else {}
    made.put("queue", "", beside, beside | {field: value})
    assert made.differs()


@pytest.mark.parametrize("name", [NAME, "acme/*"])
def test_exemption_acts(trial: Callable[[Direction], Trial], name: str) -> None:
    made = trial("publish")
    slow = {"publish": {"messages_per_second": 3}}
    made.put("job", "", slow, slow)
    client = made.sides[1][0]
    assert client.put(f"/admin/v2/policies/exempt/{name.replace('/', '%2F').replace('*', '%2A')}", json={}).status_code == 200
    assert made.differs()


def test_trials_are_of_every_field() -> None:
    """A field that is added without a trial fails here."""
    assert set(Quota.model_fields) == set(QUOTA) | {"weight"}
    assert set(ScopePolicy.model_fields) == set(get_args(Direction))
    assert set(TenantPolicy.model_fields) == {*get_args(Direction), "resource_group"}
    assert set(NamespacePolicy.model_fields) == {*get_args(Direction), "resource_group", *THROTTLING}
    assert set(QueuePolicy.model_fields) == {"messages", "bytes", "age_seconds", "on_overflow"}
    assert set(PolicyDocument.model_fields) == {"version", *WIDE, "exempt", "queue"}
    assert {key for _, key in FIELDS.values()} == set(Quota.model_fields)


@pytest.mark.parametrize("field", FIELDS)
def test_field_of_pip_82_is_the_field_of_the_document(serve: Callable[..., Served], field: str) -> None:
    served = serve(MemoryStore())
    direction, key = FIELDS[field]
    value = {"on_excess": "reject"}.get(key, 3)
    assert served.client().put("/admin/v2/resourcegroup/gold", json={field: value}).status_code == 200
    assert served.service.get("resource_group", "gold").values == {direction: {key: value}}
