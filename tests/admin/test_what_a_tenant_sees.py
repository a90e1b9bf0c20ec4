"""What the administrator of a tenant is told: its own affairs, and of others' only that there is something."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from spark_throttle.control.notes import NextPolicies, write_next_policies
from spark_throttle.errors import ConflictError, OutcomeUnknownError, StoreError
from spark_throttle.store.file.file_store import FileStore
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.service import PolicyService
from tests.admin.conftest import ServedApp
from tests.admin.job_world import ANN, World

OTHERS = "namespaces.rival/secret.publish: revision 9 cannot be applied (in /srv/policies/all.yaml)"
GENERAL = "a problem that the platform's owners see"
TENANT_NAMESPACE = "/admin/v2/policies/namespaces/acme%2Fnew"


@pytest.fixture
def world(serve: Callable[..., ServedApp], tmp_path: Path) -> World:
    world = World(serve, tmp_path)
    world.run(4)
    return world


def _told(world: World) -> tuple[TestClient, TestClient]:
    return world.client, world.served.client("tenant_admin")


def _changed(client: TestClient, rate: int) -> dict[str, Any]:
    made = client.put(TENANT_NAMESPACE, json={"resource_group": "gold", "publish": {"messages_per_second": rate}})
    assert made.status_code == 200, made.text
    return dict(made.json()["acting"][0])


@pytest.mark.slow
def test_problem_of_the_policies_names_nothing_of_others_to_a_tenant(world: World) -> None:
    admin, tenant = _told(world)
    write_next_policies(world.job.directory, NextPolicies("0123456789abcdef", 2, OTHERS))
    world.watch.look()
    assert admin.get("/admin/v2/status").json()["jobs"][0]["problem"] == OTHERS
    assert tenant.get("/admin/v2/status").json()["jobs"][0]["problem"] == GENERAL
    acting = _changed(tenant, 5)
    assert (acting["state"], acting["detail"]) == ("refused", GENERAL)
    assert _changed(admin, 6)["detail"] == OTHERS
    path, prefix = "/admin/v2/explain/acme%2Fa?job=ingest", "the newest policies are not in force"
    assert f"{prefix}: {OTHERS}" in admin.get(path).json()["notes"]
    explained = tenant.get(path)
    assert f"{prefix}: {GENERAL}" in explained.json()["notes"]
    assert "rival" not in explained.text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alive.json", "followed.json", "manifest.json"])
def test_damage_of_a_control_directory_names_no_path_to_a_tenant(world: World, tmp_path: Path, name: str) -> None:
    admin, tenant = _told(world)
    (tmp_path / "control" / name).write_text("nonsense")
    world.wait(2)
    assert str(tmp_path) in admin.get("/admin/v2/status").text
    said = [tenant.get("/admin/v2/status"), tenant.get("/admin/v2/explain/acme%2Fa?job=ingest")]
    said.append(tenant.put(TENANT_NAMESPACE, json={"resource_group": "gold"}))
    for answer in said:
        assert str(tmp_path) not in answer.text
        assert name not in answer.text
    assert said[2].status_code == 200


def test_store_that_a_job_does_not_follow_is_not_named_to_a_tenant(world: World) -> None:
    admin, tenant = _told(world)
    write_next_policies(world.job.directory, NextPolicies("0123456789abcdef", None, None))
    world.watch.look()
    assert world.store.location in _changed(admin, 5)["detail"]
    acting = _changed(tenant, 4)
    assert acting["state"] == "not_followed"
    assert world.store.location not in acting["detail"]


@pytest.mark.slow
def test_explanation_gives_a_tenant_no_balance_of_the_job_or_its_group(world: World) -> None:
    admin, tenant = _told(world)
    for section, values in (("job", {"publish": {"messages_per_second": 1000}}),):
        assert admin.put(f"/admin/v2/policy/{section}", json=values).status_code == 200
    world.run(2)
    path = "/admin/v2/explain/acme%2Fa?job=ingest"
    wide = {level["level"]: level for level in admin.get(path).json()["levels"]}
    assert wide["job"]["balance"][0] is not None
    answer = tenant.get(path).json()
    narrow = {level["level"]: level for level in answer["levels"]}
    for level in ("job", "resource_group"):
        assert narrow[level]["balance"] == [None, None, None]
        assert narrow[level]["waiting"] is narrow[level]["release_ms"] is None
        assert narrow[level]["per_second"] == wide[level]["per_second"]
    for level in ("namespace", "tenant"):
        assert narrow[level] == wide[level]
    assert answer["last_batch"] == admin.get(path).json()["last_batch"]


@pytest.mark.parametrize("rival_messages", [5, 500, 5000])
def test_prediction_gives_a_tenant_no_backlog_of_its_group(
    serve: Callable[..., ServedApp], tmp_path: Path, rival_messages: int
) -> None:
    """The time until the group lets the rows go, times its rate, is what the group's other tenants have waiting."""
    world = World(serve, tmp_path)
    world.service.put("tenant", "rival", {"resource_group": "gold"}, ANN)
    for _ in range(4):
        world.job.batch({"acme/a": 30, "rival/x": rival_messages})
        world.job.pulse.beat()
        world.watch.look()
    admin, tenant = _told(world)
    path = "/admin/v2/explain/acme%2Fa?job=ingest"
    assert admin.get(path).json()["predicted_release_ms"] > 0
    answer = tenant.get(path).json()
    assert answer["last_batch"]["waiting"][0] > 0
    assert answer["predicted_release_ms"] is None
    note = answer["notes"][-1]
    assert note == "the group's or the job's quota holds it back: when it lets it go is not told"


@pytest.mark.slow
def test_prediction_of_its_own_quota_is_told_to_a_tenant(serve: Callable[..., ServedApp], tmp_path: Path) -> None:
    world = World(serve, tmp_path)
    own = {"resource_group": "gold", "publish": {"messages_per_second": 1, "burst_seconds": 1}}
    world.service.put("tenant", "acme", own, ANN)
    world.run(4)
    admin, tenant = _told(world)
    path = "/admin/v2/explain/acme%2Fa?job=ingest"
    wide, narrow = (client.get(path).json() for client in (admin, tenant))
    assert narrow["predicted_release_ms"] == wide["predicted_release_ms"] > 0
    assert narrow["notes"] == wide["notes"]


def test_scope_that_holds_a_namespace_is_named_to_its_tenant_without_how_full_it_is(world: World) -> None:
    admin, tenant = _told(world)
    path = "/admin/v2/status/ingest/namespaces?throttled=true"
    assert admin.get(path).json()["namespaces"][0]["held_by"]["used_ratio"] is not None
    held = tenant.get(path).json()["namespaces"][0]["held_by"]
    assert (held["level"], held["scope"], held["used_ratio"]) == ("resource_group", "gold", None)


@pytest.mark.slow
def test_job_without_a_batch_is_named_to_a_tenant_without_its_path(world: World, tmp_path: Path) -> None:
    import shutil

    admin, tenant = _told(world)
    shutil.rmtree(tmp_path / "control" / "epochs")
    path = "/admin/v2/explain/acme%2Fa?job=ingest"
    assert admin.get(path).status_code == tenant.get(path).status_code == 404
    assert str(tmp_path) not in tenant.get(path).text
    assert "'ingest'" in tenant.get(path).json()["detail"]


@pytest.mark.slow
def test_store_that_cannot_be_read_is_described_to_a_tenant_in_general_words(
    serve: Callable[..., ServedApp], tmp_path: Path
) -> None:
    """The document of the store was edited by hand, and the mistake is in the entry of another tenant."""
    store = FileStore.create(tmp_path / "all.yaml")
    PolicyService(store, clock_ms=lambda: 0).put("tenant", "acme", {"publish": {"messages_per_second": 9}}, ANN)
    served = serve(store)
    admin, tenant = served.client(), served.client("tenant_admin")
    for harm in ("namespaces: {rival/secret: {publish: {messages_per_second: -1}}}\n", None):
        (tmp_path / "all.yaml").unlink() if harm is None else (tmp_path / "all.yaml").write_text(harm)
        calls: list[Callable[[TestClient], Any]] = [
            lambda client: client.get("/admin/v2/policies/namespaces/acme%2Fx"),
            lambda client: client.put(TENANT_NAMESPACE, json={"publish": {"messages_per_second": 1}}),
        ]
        assert tenant.get("/admin/v2/status").json()["store_problem"] == GENERAL
        assert "all.yaml" in admin.get("/admin/v2/status").json()["store_problem"]
        for answered in calls:
            said = answered(tenant)
            assert said.status_code == answered(admin).status_code == 503
            assert GENERAL in said.json()["detail"]
            assert "path" not in said.json()
            assert "rival" not in said.text
            assert str(tmp_path) not in said.text
            assert "all.yaml" in answered(admin).json()["detail"]
    # Whoever cares for the server finds the reason in the log.
    (line,) = [line for line in served.audited if line["role"] == "tenant_admin"][:1]
    assert "rival/secret" in line["detail"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConflictError("the policy store delta:/srv/all", 3, 4), 503),
        (OutcomeUnknownError("delta:/srv/all", 4, "x"), 504),
    ],
)
def test_outcome_of_a_change_is_told_to_a_tenant_without_the_stores_place(
    serve: Callable[..., ServedApp], monkeypatch: pytest.MonkeyPatch, error: StoreError, status: int
) -> None:
    store = MemoryStore()
    PolicyService(store, clock_ms=lambda: 0).put("tenant", "acme", {"publish": {"messages_per_second": 9}}, ANN)

    def fail(*_: Any, **__: Any) -> int:
        raise error

    monkeypatch.setattr(store, "commit", fail)
    monkeypatch.setattr("spark_throttle.store.committer.MOST_ATTEMPTS", 1)
    served = serve(store)
    said = served.client("tenant_admin").put(TENANT_NAMESPACE, json={"publish": {"messages_per_second": 1}})
    assert (said.status_code, "/srv" in said.text) == (status, False)
    assert "/srv" in served.audited[-1]["detail"]
