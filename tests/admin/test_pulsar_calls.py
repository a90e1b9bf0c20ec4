"""The calls of resource groups do as Pulsar's broker does; the docs' table says what differs, and each row is here."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author, Change
from tests.admin.conftest import ServedApp, served_over

ADMIN = "/admin/v2"
PATHS = (f"{ADMIN}/resourcegroup", f"{ADMIN}/resourcegroups")
ORDERS = f"{ADMIN}/namespaces/acme/orders/resourcegroup"
ALL = {"publishRateInMsgs": 5, "publishRateInBytes": 500, "dispatchRateInMsgs": 6, "dispatchRateInBytes": 600}


def rates(client: TestClient, name: str = "gold", path: str = PATHS[1]) -> dict[str, Any]:
    said = client.get(f"{path}/{name}").json()
    return {field: said[field] for field in ALL}


@pytest.fixture
def client(in_memory: ServedApp) -> TestClient:
    return in_memory.client()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("field", ALL)
def test_put_changes_only_what_it_names(client: TestClient, path: str, field: str) -> None:
    """A `PUT` of the message rate lifted the byte limit, without a word."""
    client.put(f"{path}/gold", json={**ALL, "publishWeight": 3, "publishMaxMessageSize": 99})
    assert client.put(f"{path}/gold", json={field: 7}).status_code == 200
    assert rates(client) == {**ALL, field: 7}
    said = client.get(f"{path}/gold").json()
    assert (said["publishWeight"], said["publishMaxMessageSize"]) == (3, 99)


@pytest.mark.parametrize("field", ALL)
def test_null_changes_nothing(client: TestClient, field: str) -> None:
    client.put(f"{PATHS[1]}/gold", json=ALL)
    assert client.put(f"{PATHS[1]}/gold", json={field: None}).json()["changed"] is False


@pytest.mark.parametrize("field", [*ALL, "publishMaxMessageSize", "dispatchMaxMessageSize"])
def test_minus_one_lifts_a_limit_and_no_other(client: TestClient, field: str) -> None:
    before = {**ALL, "publishMaxMessageSize": 99, "dispatchMaxMessageSize": 99}
    client.put(f"{PATHS[1]}/gold", json=before)
    assert client.put(f"{PATHS[1]}/gold", json={field: -1}).status_code == 200
    said = client.get(f"{PATHS[1]}/gold").json()
    assert {key: said[key] for key in before if key != field} == {key: before[key] for key in before if key != field}
    assert said[field] == (-1 if field in ALL else None)


def test_group_without_limits_reads_minus_one_and_null_creates_it_without(client: TestClient) -> None:
    assert client.put(f"{PATHS[1]}/gold", json=dict.fromkeys(ALL)).json()["changed"] is True
    assert rates(client) == dict.fromkeys(ALL, -1)


def test_group_that_is_read_and_written_back_is_the_same(client: TestClient) -> None:
    client.put(f"{PATHS[1]}/gold", json={"publishRateInMsgs": 5, "publishOnExcess": "reject"})
    said = client.get(f"{PATHS[1]}/gold").json()
    assert client.put(f"{PATHS[1]}/gold", json=said).json()["changed"] is False


def test_policies_say_the_whole_group(client: TestClient) -> None:
    client.put(f"{PATHS[1]}/gold", json=ALL)
    client.put(f"{ADMIN}/policies/resource_groups/gold", json={"publish": {"messages_per_second": 5}})
    assert rates(client) == {**dict.fromkeys(ALL, -1), "publishRateInMsgs": 5}


def test_zero_admits_nothing_and_a_note_says_that_pulsar_reads_it_otherwise(client: TestClient) -> None:
    made = client.put(f"{PATHS[1]}/gold", json={"publishRateInMsgs": 0}).json()
    assert rates(client)["publishRateInMsgs"] == 0
    assert "publishRateInMsgs = 0 admits nothing; Pulsar reads 0 as no limit, which is -1 here" in made["notes"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("replicationDispatchRateInMsgs", 7), ("replicationDispatchRateInBytes", 7),
        ("replicatorDispatchRate", {"cluster-b": {"dispatchThrottlingRateInMsg": 7}}),
    ],
)  # fmt: skip
def test_limit_of_replication_is_accepted_and_named_as_not_enforced(
    in_memory: ServedApp, client: TestClient, field: str, value: Any
) -> None:
    for method, path in (("PUT", "gold"), ("PUT", "gold"), ("POST", "iron")):
        made = client.request(method, f"{PATHS[0]}/{path}", json={"publishRateInMsgs": 5, field: value}).json()
        assert [note for note in made["notes"] if note.startswith(f"{field} = {value} is neither kept nor enforced")]
    assert in_memory.service.get("resource_group", "gold").values == {"publish": {"messages_per_second": 5}}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("replicatorDispatchRate", -1.5), ("replicatorDispatchRate", "7"), ("replicatorDispatchRate", []),
        ("replicationDispatchRateInMsgs", {}), ("replicationDispatchRateInMsgs", "7"),
        ("replicationDispatchRateInBytes", True),
    ],
)  # fmt: skip
def test_limit_of_replication_of_another_form_is_refused_by_its_name(
    in_memory: ServedApp, client: TestClient, field: str, value: Any
) -> None:
    for method, path in (("PUT", "gold"), ("POST", "iron")):
        answer = client.request(method, f"{PATHS[0]}/{path}", json={"publishRateInMsgs": 5, field: value})
        assert answer.status_code == 422
        assert field in answer.text
    assert in_memory.store.revision() == 0


@pytest.mark.parametrize("value", [None, -1])
def test_limit_of_replication_that_limits_nothing_is_not_named(client: TestClient, value: int | None) -> None:
    made = client.put(f"{PATHS[1]}/gold", json={"replicationDispatchRateInMsgs": value}).json()
    assert not [note for note in made["notes"] if "replication" in note]


def test_two_changes_of_different_fields_at_once_are_both_kept(in_memory: ServedApp) -> None:
    """The change that comes second is merged into what the first has made of the group, not into what it had read."""
    store = _Overtaken()
    service = PolicyService(store, clock_ms=lambda: 0, pause=lambda _: None)
    service.put("resource_group", "gold", {}, Author("ann"))
    service.edit("resource_group", "gold", lambda values: {**values, "publish": {"weight": 2}}, Author("bob"))
    assert service.get("resource_group", "gold").values == {"dispatch": {"weight": 3}, "publish": {"weight": 2}}


class _Overtaken(MemoryStore):
    """A store to which another change comes first, once."""

    def commit(self, changes: Any, *, expected_revision: int, author: Author, at_ms: int) -> int:
        if author.who == "bob" and expected_revision == 1:
            rival = [Change("resource_group", "gold", '{"dispatch":{"weight":3}}')]
            super().commit(rival, expected_revision=1, author=Author("eve"), at_ms=at_ms)
        return super().commit(changes, expected_revision=expected_revision, author=author, at_ms=at_ms)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "resourcegroup/", 200), ("GET", "resourcegroups/", 200), ("GET", "resourcegroups/gold/", 200),
        ("PUT", "resourcegroups/gold/", 200), ("POST", "namespaces/acme/in/resourcegroup/gold/", 200),
        ("GET", "namespaces/acme/orders/resourcegroup/", 200), ("GET", "tenants/acme/resourcegroup/", 204),
        ("DELETE", "namespaces/acme/orders/resourcegroup/", 200), ("DELETE", "resourcegroup/iron/", 200),
        ("GET", "policies/resource_groups/", 200), ("GET", "resourcegroup//", 404), ("DELETE", "resourcegroup/", 405),
        ("GET", "resourcegroup/%2F/", 404),
    ],
)  # fmt: skip
def test_slash_at_the_end_of_a_call_changes_nothing(client: TestClient, method: str, path: str, status: int) -> None:
    for group in ("gold", "iron"):
        client.put(f"{PATHS[0]}/{group}", json={})
    client.post(f"{ORDERS}/gold")
    answer = client.put(f"{ADMIN}/{path}", json={}) if method == "PUT" else client.request(method, f"{ADMIN}/{path}")
    assert answer.status_code == status


def test_list_without_a_limit_is_whole(served_many: TestClient) -> None:
    """Pulsar's client asks for no page: of 1,500 groups it saw 100."""
    names = [f"rg-{at:04}" for at in range(1500)]
    for path in PATHS:
        answer = served_many.get(path)
        assert answer.json() == names
        assert "Link" not in answer.headers
    assert served_many.get(f"{PATHS[1]}?limit=2&after=rg-0009").json() == ["rg-0010", "rg-0011"]
    assert served_many.get(f"{PATHS[1]}?limit=0").status_code == 422


@pytest.fixture
def served_many(tmp_path: Any) -> TestClient:
    store = MemoryStore()
    changes = [Change("resource_group", f"rg-{at:04}", "{}") for at in range(1500)]
    store.commit(changes, expected_revision=0, author=Author("ann"), at_ms=0)
    return served_over(store, tmp_path).client()


def test_post_moves_a_namespace_and_put_does_not(client: TestClient) -> None:
    for group in ("gold", "iron"):
        client.put(f"{PATHS[0]}/{group}", json={})
    assert client.post(f"{ORDERS}/gold").status_code == 200
    assert client.put(f"{ORDERS}/iron").status_code == 409
    assert client.post(f"{ORDERS}/iron").status_code == 200
    assert client.get(ORDERS).text == "iron"
    assert client.post(f"{ORDERS}/none").status_code == 404


@pytest.mark.parametrize("member", ["namespaces/acme/orders", "tenants/acme"])
def test_name_of_a_group_is_bare_text_and_no_group_is_no_content(client: TestClient, member: str) -> None:
    """Pulsar's client takes the answer as it is: a JSON string would be a name in quotes."""
    client.put(f"{PATHS[0]}/gold", json={})
    where = f"{ADMIN}/{member}/resourcegroup"
    none = client.get(where)
    assert (none.status_code, none.content) == (204, b"")
    client.put(f"{where}/gold")
    found = client.get(where)
    assert (found.content, found.headers["Content-Type"]) == (b"gold", "text/plain; charset=utf-8")
    assert found.headers["ETag"].startswith('"2-')


@pytest.mark.parametrize("member", ["namespaces/acme/orders", "tenants/acme"])
def test_to_detach_what_is_not_attached_changes_nothing(in_memory: ServedApp, client: TestClient, member: str) -> None:
    made = client.delete(f"{ADMIN}/{member}/resourcegroup")
    assert (made.status_code, made.json()["changed"]) == (200, False)
    assert "is attached to by itself" in made.json()["notes"][0]
    assert in_memory.store.revision() == 0


def test_error_has_its_text_under_the_name_that_pulsars_clients_show(client: TestClient) -> None:
    problem = client.get(f"{PATHS[1]}/gone").json()
    assert problem["reason"] == problem["detail"] == "there is no resource group 'gone'"
