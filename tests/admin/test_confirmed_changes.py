"""Changes over the API that cost protection: refused with what they cost, until the caller says yes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from spark_throttle.core.batch.decisions import Reason
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author, Change
from tests.admin.conftest import ServedApp
from tests.admin.made_up_job import MadeUpJob

V2 = "/admin/v2"
FIFTY = {"publish": {"messages_per_second": 50}}


@pytest.fixture
def furnished(in_memory: ServedApp) -> ServedApp:
    service, ann = in_memory.service, Author("ann")
    service.put("resource_group", "gold", {"publish": {"messages_per_second": 500, "bytes_per_second": 1000}}, ann)
    service.put("tenant", "acme", {"resource_group": "gold", **FIFTY}, ann)
    service.put("defaults", "", FIFTY, ann)
    return in_memory


@pytest.mark.parametrize(
    ("method", "path", "body", "costs"),
    [
        ("PUT", "resourcegroup/gold", {"publishRateInBytes": -1}, "publish.bytes_per_second is lifted (it was 1000)"),
        ("PUT", "resourcegroup/gold", {"publishRateInMsgs": 0, "publishRateInBytes": 1}, "becomes 0 (it was 500)"),
        ("PUT", "policies/resource_groups/gold", {}, "publish.messages_per_second is lifted (it was 500)"),
        ("PUT", "policies/tenants/acme", FIFTY, "publish.bytes_per_second of resource_groups.gold is lifted"),
        ("PUT", "policies/namespaces/acme%2F*", {}, "publish.messages_per_second of defaults is lifted (it was 50)"),
        ("PUT", "policies/exempt/acme%2Fx", {}, "publish.messages_per_second of tenants.acme is lifted (it was 50)"),
        ("PUT", "policy/defaults", {}, "defaults.publish.messages_per_second is lifted (it was 50)"),
        ("PUT", "policy/job", {"publish": {"bytes_per_second": 0}}, "job.publish.bytes_per_second becomes 0"),
        ("DELETE", "policies/tenants/acme", None, "tenants.acme.publish.messages_per_second is lifted (it was 50)"),
        ("DELETE", "tenants/acme/resourcegroup", None, "publish.messages_per_second of resource_groups.gold is lifted"),
        ("DELETE", "tenants/acme/resourcegroup/gold", None, "of resource_groups.gold is lifted (it was 1000)"),
        ("POST", "rollback/2", None, "defaults.publish.messages_per_second is lifted (it was 50)"),
        ("POST", "rollback/0", None, "no limit is left in the whole policy"),
    ],
)
def test_change_that_costs_protection_is_refused_until_it_is_confirmed(
    furnished: ServedApp, method: str, path: str, body: Any, costs: str
) -> None:
    admin = furnished.client()
    refused = admin.request(method, f"{V2}/{path}", json=body)
    assert (refused.status_code, refused.json()["path"]) == (428, "yes")
    assert any(costs in loss for loss in refused.json()["losses"]), refused.text
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert admin.request(method, f"{V2}/{path}", json=body, params={"yes": "false"}).status_code == 428
    assert furnished.store.revision() == 3
    assert admin.request(method, f"{V2}/{path}", json=body, params={"yes": "true"}).json()["revision"] == 4


def test_rollback_is_shown_first_and_made_only_on_the_revision_that_was_seen(furnished: ServedApp) -> None:
    admin = furnished.client()
    planned = admin.get(f"{V2}/rollback/2").json()
    assert planned["losses"] == ["defaults.publish.messages_per_second is lifted (it was 50)"]
    assert [(each["path"], each["before"], each["after"]) for each in planned["differences"]] == [
        ("defaults", FIFTY, None)
    ]
    assert (planned["revision"], furnished.store.revision()) == (3, 3)
    furnished.service.put("tenant", "blue", {}, Author("bob"))
    late = admin.post(f"{V2}/rollback/2?yes=true&expected=3")
    assert (late.status_code, furnished.store.revision()) == (412, 4)
    assert admin.post(f"{V2}/rollback/2?yes=true&expected=4").json()["revision"] == 5
    assert admin.get(f"{V2}/rollback/9").status_code == 404


def test_many_differences_come_in_pages_and_a_plan_counts_what_it_leaves_out(in_memory: ServedApp) -> None:
    names = [f"acme/n{at:02}" for at in range(30)]
    zero = '{"publish":{"messages_per_second":0}}'
    for revision, body in enumerate((zero, None)):
        changes = [Change("namespace", name, body) for name in names]
        in_memory.store.commit(changes, expected_revision=revision, author=Author("ann"), at_ms=0)
    client = in_memory.client("viewer")
    pages = [client.get(f"{V2}/diff?before=1&after=2&limit=20&offset={offset}").json() for offset in (0, 20, 40)]
    assert [[each["name"] for each in page] for page in pages] == [names[:20], names[20:], []]
    planned = client.get(f"{V2}/rollback/1?limit=7").json()
    assert [each["name"] for each in planned["differences"]] == names[:7]
    assert (planned["changes"], planned["all_losses"], len(planned["losses"])) == (30, 30, 7)


def test_check_is_made_on_the_revision_that_is_changed(serve: Callable[..., ServedApp]) -> None:
    """Another author attaches a tenant between the check and the commit: then the group is in use, and is asked for."""

    class Overtaken(MemoryStore):
        is_overtaken = False

        def commit(self, changes: Any, *, expected_revision: int, **rest: Any) -> int:
            if not self.is_overtaken and rest["author"].who != "bob":
                self.is_overtaken = True
                served.service.put("tenant", "acme", {"resource_group": "gold"}, Author("bob"))
            return super().commit(changes, expected_revision=expected_revision, **rest)

    store = Overtaken()
    served = serve(store)
    store.is_overtaken = True
    served.service.put("resource_group", "gold", FIFTY, Author("bob"))
    store.is_overtaken = False
    assert served.client().put(f"{V2}/policies/resource_groups/gold", json={}).status_code == 428
    assert store.revision() == 2


def test_server_for_clients_that_cannot_say_yes_asks_nobody(serve: Callable[..., ServedApp]) -> None:
    served = serve(MemoryStore(), is_confirmed=True)
    admin = served.client()
    assert admin.put(f"{V2}/policy/job", json=FIFTY).status_code == 200
    assert admin.put(f"{V2}/policy/job", json={}).status_code == 200


def test_tenants_administrator_is_asked_too(furnished: ServedApp) -> None:
    client: TestClient = furnished.client("tenant_admin")
    shut = {"publish": {"messages_per_second": 0}}
    path = f"{V2}/policies/namespaces/acme%2Fx"
    assert client.put(path, json=shut).status_code == 428
    assert client.put(path, json=shut, params={"yes": "true"}).status_code == 200
    # What it may not do is refused as before, confirmed or not.
    assert client.put(f"{V2}/policies/namespaces/acme%2F*", json={}, params={"yes": "true"}).status_code == 403


def test_description_names_the_parameter_of_every_change(in_memory: ServedApp, tmp_path: Path) -> None:
    for path, calls in in_memory.client().get("/openapi.json").json()["paths"].items():
        for method, call in calls.items():
            names = {parameter["name"] for parameter in call.get("parameters", ())}
            assert ("yes" in names) == (method in {"put", "post", "delete"}), (method, path)
            assert ("428" in call["responses"]) == ("yes" in names), (method, path)


@pytest.mark.parametrize(
    ("on_excess", "fate"),
    [
        (
            "delay",
            "never admitted: under delay, rows wait until a bound of the queue is reached, and are then rejected",
        ),
        ("reject", "is never admitted, but rejected"),
    ],
)
def test_quota_of_zero_says_what_becomes_of_the_rows(furnished: ServedApp, on_excess: str, fate: str) -> None:
    admin, path = furnished.client(), f"{V2}/policies/tenants/acme"
    body = {"resource_group": "gold", "publish": {"messages_per_second": 0, "on_excess": on_excess}}
    (loss,) = admin.put(path, json=body).json()["losses"]
    assert fate in loss
    notes = admin.put(f"{path}?yes=true", json=body).json()["notes"]
    assert any("on_excess: reject rejects them at once" in note for note in notes) == (on_excess == "delay")


def test_lifted_quota_of_zero_says_what_it_did(furnished: ServedApp) -> None:
    admin, path = furnished.client(), f"{V2}/policies/tenants/acme"
    assert admin.put(f"{path}?yes=true", json={"publish": {"messages_per_second": 0}}).status_code == 200
    (loss,) = admin.put(path, json={}).json()["losses"]
    assert loss == "tenants.acme.publish.messages_per_second is lifted (it was 0 under delay)"


def test_quota_of_zero_does_to_rows_what_is_said(tmp_path: Path) -> None:
    """Under `delay` rows wait until the queue is full, and are then rejected; under `reject` at once."""
    fates = {}
    for on_excess in ("delay", "reject"):
        store = MemoryStore()
        service = PolicyService(store, clock_ms=lambda: 0)
        service.put("queue", "", {"messages": 5}, Author("ann"))
        service.put("tenant", "acme", {"publish": {"messages_per_second": 0, "on_excess": on_excess}}, Author("ann"))
        job = MadeUpJob(tmp_path / on_excess, store)
        for _ in range(2):
            job.batch({"acme/x": 4})
        assert job.state is not None
        rejected = [Reason(reason).name for verdict, reason, _ in job.decided if verdict == "REJECT"]
        fates[on_excess] = rejected, {verdict for verdict, *_ in job.decided}
    assert fates["delay"] == (["QUEUE_FULL"] * 3, {"DELAY", "REJECT"})
    assert fates["reject"] == (["QUOTA"] * 8, {"REJECT"})
