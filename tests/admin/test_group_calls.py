"""PIP-82's calls: groups, attachments, their status codes and their ETags.

`test_pulsar_calls.py` says where they do as Pulsar's broker does, and `test_pulsar_client.py` asks Pulsar's own client.
"""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from tests.admin.conftest import ServedApp

GROUP = "/admin/v2/resourcegroup"


def test_written_group_reads_as_it_was_written(admin: TestClient) -> None:
    fields = {"publishRateInMsgs": 5000, "publishRateInBytes": 8_388_608, "publishWeight": 4, "dispatchRateInMsgs": 0.5}
    made = admin.put(f"{GROUP}/gold", json=fields)
    assert made.status_code == 200
    assert made.json() | {"notes": []} == {
        "revision": 1,
        "changed": True,
        "notes": [],
        "acting": [],
        "plan": None,
        "what_if": None,
    }
    found = admin.get(f"{GROUP}/gold")
    said = {key: value for key, value in found.json().items() if value is not None}
    assert said == {**fields, "dispatchRateInBytes": -1}
    assert found.headers["ETag"] == made.headers["ETag"]
    assert found.headers["ETag"].startswith('"1-')


def test_zero_is_a_quota_and_null_is_none(served: ServedApp, admin: TestClient) -> None:
    admin.put(f"{GROUP}/shut", json={"publishRateInMsgs": 0, "publishRateInBytes": None})
    assert served.service.get("resource_group", "shut").values == {"publish": {"messages_per_second": 0}}


def test_same_put_again_commits_nothing(admin: TestClient) -> None:
    admin.put(f"{GROUP}/gold", json={"publishRateInMsgs": 5})
    again = admin.put(f"{GROUP}/gold", json={"publishRateInMsgs": 5})
    assert (again.json()["changed"], again.json()["revision"]) == (False, 1)


def test_groups_are_listed_page_by_page(admin: TestClient) -> None:
    for name in ("c", "a", "b/1", "é"):
        assert admin.put(f"{GROUP}/{name.replace('/', '%2F')}", json={}).status_code == 200
    first = admin.get(GROUP, params={"limit": 3})
    assert first.json() == ["a", "b/1", "c"]
    assert first.headers["Link"] == '</admin/v2/resourcegroup?after=c&limit=3>; rel="next"'
    second = admin.get("/admin/v2/resourcegroup?after=c&limit=3")
    assert second.json() == ["é"]
    assert "Link" not in second.headers


def test_creating_a_group_that_is_there_is_a_conflict(admin: TestClient) -> None:
    assert admin.post(f"{GROUP}/gold", json={}).status_code == 201
    again = admin.post(f"{GROUP}/gold", json={"publishRateInMsgs": 5})
    assert again.status_code == 409
    assert again.headers["Content-Type"] == "application/problem+json"
    assert "'gold' is there already" in again.json()["detail"]


@pytest.mark.parametrize(
    ("fields", "path", "said"),
    [
        ({"publishRateInMsgs": -2}, "publishRateInMsgs", "-2 is negative; -1 sets no limit, and 0 admits nothing"),
        ({"publishRateInBytes": -0.5}, "publishRateInBytes", "-1 sets no limit"),
        ({"publishMaxMessageSize": -9}, "publishMaxMessageSize", "-9 is negative; -1 sets no limit"),
        ({"publishRateInMsgs": 0.0001}, "publishRateInMsgs", "0.001 a second is the finest step"),
        ({"publishRateInMsgs": "5"}, "publishRateInMsgs", "give a JSON number"),
        ({"publishRateInMsgs": True}, "publishRateInMsgs", "true"),
        ({"dispatchRateInBytes": 1e300}, "dispatchRateInBytes", "give less"),
        ({"publishWeight": 0}, "publishWeight", "0 is less than 1"),
        ({"publishOnExcess": "drop"}, "publishOnExcess", "delay"),
        ({"dispatchRateInMsgs": 2**40, "dispatchBurstInSeconds": 2}, "dispatchBurstInSeconds", "burst"),
        ({"publishRateInMsgs": [5]}, "publishRateInMsgs", "list"),
        ({"publishRateinMsgs": 5}, "publishRateinMsgs", "unknown field; did you mean publishRateInMsgs?"),
    ],
)
def test_wrong_field_is_named_and_nothing_is_written(
    served: ServedApp, admin: TestClient, fields: dict[str, object], path: str, said: str
) -> None:
    answer = admin.put(f"{GROUP}/gold", json=fields)
    assert (answer.status_code, answer.json()["path"]) == (422, path)
    assert said in answer.json()["detail"]
    assert served.store.revision() == 0


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff", b'{"publishRateInMsgs": NaN}', b"[" * 5000])
def test_body_that_is_no_object_of_fields_is_refused(admin: TestClient, body: bytes) -> None:
    answer = admin.put(f"{GROUP}/gold", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in {400, 422}
    assert answer.json()["detail"]


def test_unknown_group_is_not_found_and_the_nearest_is_named(admin: TestClient) -> None:
    admin.put(f"{GROUP}/gold", json={})
    for answer in (admin.get(f"{GROUP}/golt"), admin.delete(f"{GROUP}/golt")):
        assert answer.status_code == 404
        assert "did you mean gold" in answer.json()["detail"]


@pytest.mark.slow
def test_group_in_use_is_not_deleted(admin: TestClient) -> None:
    admin.put(f"{GROUP}/gold", json={})
    admin.put("/admin/v2/tenants/acme/resourcegroup/gold")
    admin.put("/admin/v2/namespaces/acme/orders/resourcegroup/gold")
    refused = admin.delete(f"{GROUP}/gold")
    assert refused.status_code == 412
    assert "in use by tenant acme, namespace acme/orders" in refused.json()["detail"]
    assert admin.delete("/admin/v2/namespaces/acme/orders/resourcegroup").status_code == 200
    assert admin.delete("/admin/v2/tenants/acme/resourcegroup").status_code == 200
    assert admin.delete(f"{GROUP}/gold").status_code == 200
    assert admin.get(f"{GROUP}/gold").status_code == 404


@pytest.mark.parametrize("destination", [{}, {"open_after_seconds": 3}])
def test_group_keeps_its_destination_which_none_of_its_fields_stands_for(
    admin: TestClient, destination: dict[str, int]
) -> None:
    policy = {"publish": {"messages_per_second": 5}, "destination": destination}
    assert admin.put("/admin/v2/policies/resource_groups/api", json=policy).status_code == 200
    assert admin.get(f"{GROUP}/api").json()["publishRateInMsgs"] == 5
    assert admin.put(f"{GROUP}/api", json={"publishRateInMsgs": 9}).status_code == 200
    kept = admin.get("/admin/v2/policies/resource_groups/api").json()["policy"]
    assert kept == {"publish": {"messages_per_second": 9}, "destination": destination}
    refused = admin.put(f"{GROUP}/api", json={"publishRateInMsgs": -1})
    assert refused.status_code == 422
    assert "a destination needs a ceiling" in refused.json()["detail"]


@pytest.mark.slow
@pytest.mark.parametrize("member", ["namespaces/acme/orders", "tenants/acme"])
def test_member_is_attached_to_one_group(admin: TestClient, member: str) -> None:
    for group in ("gold", "bronze"):
        admin.put(f"{GROUP}/{group}", json={})
    where = f"/admin/v2/{member}/resourcegroup"
    assert admin.get(where).status_code == 204
    assert admin.put(f"{where}/none").status_code == 404
    assert admin.put(f"{where}/gold").status_code == 200
    assert admin.get(where).text == "gold"
    assert admin.put(f"{where}/gold").json()["changed"] is False
    assert admin.put(f"{where}/bronze").status_code == 409
    assert admin.delete(f"{where}/bronze").status_code == 404
    assert admin.delete(f"{where}/gold").status_code == 200
    assert admin.delete(f"{where}/gold").status_code == 404


def test_attached_namespace_is_told_that_the_defaults_hold_it_no_longer(admin: TestClient) -> None:
    admin.put(f"{GROUP}/gold", json={})
    made = admin.put("/admin/v2/namespaces/acme/orders/resourcegroup/gold").json()
    assert any("entry of its own" in note for note in made["notes"])


# ------------------------------------------------------------------------------------------------------------- ETags


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"If-Match": "*"}, "resource group n1 does not exist, and the change requires that it does: nothing was"),
        (
            {"If-Match": '"3-00112233aabbccdd"'},
            "resource group n1 does not exist, and the change was made for revision 3: nothing was",
        ),
        ({"If-None-Match": "*"}, "resource group gold exists, at revision 1, and the change requires that it does not"),
    ],
)
def test_condition_on_an_entry_that_is_not_there_says_so(admin: TestClient, headers: dict[str, str], said: str) -> None:
    admin.put(f"{GROUP}/gold", json={})
    answer = admin.put(f"{GROUP}/{'gold' if 'gold' in said else 'n1'}", json={}, headers=headers)
    assert answer.status_code == 412
    assert answer.json()["detail"].startswith(said)


def test_edit_of_what_another_has_changed_is_refused(admin: TestClient) -> None:
    admin.put(f"{GROUP}/gold", json={"publishRateInMsgs": 1})
    seen = admin.get(f"{GROUP}/gold").headers["ETag"]
    assert admin.put(f"{GROUP}/gold", json={"publishRateInMsgs": 2}, headers={"If-Match": seen}).status_code == 200
    late = admin.put(f"{GROUP}/gold", json={"publishRateInMsgs": 3}, headers={"If-Match": seen})
    assert late.status_code == 412
    assert "is at revision 2 and the change was made for revision 1" in late.json()["detail"]
    assert admin.delete(f"{GROUP}/gold", headers={"If-Match": seen}).status_code == 412
    assert admin.get(f"{GROUP}/gold").json()["publishRateInMsgs"] == 2


def test_change_of_another_entry_does_not_matter_to_an_etag(admin: TestClient) -> None:
    seen = admin.put(f"{GROUP}/gold", json={}).headers["ETag"]
    admin.put(f"{GROUP}/bronze", json={})
    assert admin.put(f"{GROUP}/gold", json={"publishWeight": 2}, headers={"If-Match": seen}).status_code == 200


def test_star_asks_whether_an_entry_is_there(admin: TestClient) -> None:
    assert admin.put(f"{GROUP}/gold", json={}, headers={"If-Match": "*"}).status_code == 412
    assert admin.put(f"{GROUP}/gold", json={}, headers={"If-None-Match": "*"}).status_code == 200
    assert admin.put(f"{GROUP}/gold", json={}, headers={"If-None-Match": "*"}).status_code == 412
    assert admin.put(f"{GROUP}/gold", json={}, headers={"If-Match": "*"}).status_code == 200


@pytest.mark.parametrize(
    "tag",
    ["1", '"01"', '"-1"', '"1", "x"', '"1", *', '"x"', '"' + "9" * 30 + '"', '"1-"', '"1-0"', f'"1-{"A" * 16}"'],
)
def test_tag_that_is_none_of_ours_is_refused(admin: TestClient, tag: str) -> None:
    answer = admin.put(f"{GROUP}/gold", json={}, headers={"If-Match": tag})
    assert (answer.status_code, answer.json()["path"]) == (422, "If-Match")


def test_reader_who_has_the_entry_is_told_that_it_is_unchanged(admin: TestClient) -> None:
    seen = admin.put(f"{GROUP}/gold", json={}).headers["ETag"]
    answer = admin.get(f"{GROUP}/gold", headers={"If-None-Match": f'"7", {seen}'})
    assert (answer.status_code, answer.content) == (304, b"")


def test_of_two_edits_of_one_revision_one_is_made(served: ServedApp) -> None:
    import threading

    admin = served.client()
    seen = admin.put(f"{GROUP}/gold", json={}).headers["ETag"]
    statuses: list[int] = []

    def edit(weight: int) -> None:
        answer = served.client().put(f"{GROUP}/gold", json={"publishWeight": weight}, headers={"If-Match": seen})
        statuses.append(answer.status_code)

    threads = [threading.Thread(target=edit, args=(weight,)) for weight in (2, 3, 4, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [200, 412, 412, 412]
    assert served.store.revision() == 2
