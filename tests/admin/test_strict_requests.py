"""A request says everything once: repeated keys of its body and repeated parameters are refused, not chosen from."""

from __future__ import annotations

import pytest

from tests.admin.conftest import ServedApp

JSON_TYPE = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("resourcegroup/gold", '{"publishRateInMsgs": 5, "publishRateInMsgs": 5000}', "publishRateInMsgs"),
        ("resourcegroup/gold", '{"publishRateInMsgs": 5, "publish\\u0052ateInMsgs": 5}', "publishRateInMsgs"),
        ("policies/tenants/acme", '{"publish": {"weight": 1}, "publish": {"weight": 2}}', "publish"),
        ("policies/namespaces/acme%2Fx", '{"publish": {"weight": 1, "weight": 2}}', "weight"),
        ("policy/defaults", '{"publish": {}, "dispatch": {"weight": 1, "weight": 1}}', "weight"),
    ],
)
def test_repeated_key_of_a_body_is_refused(in_memory: ServedApp, path: str, body: str, key: str) -> None:
    answer = in_memory.client().put(f"/admin/v2/{path}", content=body, headers=JSON_TYPE)
    assert (answer.status_code, answer.json()["path"]) == (422, key)
    assert answer.json()["detail"] == f"the key {key!r} is repeated; keep one of them"
    assert in_memory.store.revision() == 0


def test_repeated_key_is_refused_when_a_group_is_created(in_memory: ServedApp) -> None:
    body = '{"publishWeight": 5, "publishWeight": 50}'
    answer = in_memory.client().post("/admin/v2/resourcegroup/gold", content=body, headers=JSON_TYPE)
    assert (answer.status_code, answer.json()["path"]) == (422, "publishWeight")


def test_same_key_of_two_objects_is_not_repeated(in_memory: ServedApp) -> None:
    body = '{"publish": {"weight": 2}, "dispatch": {"weight": 3}}'
    answer = in_memory.client().put("/admin/v2/policies/tenants/acme", content=body, headers=JSON_TYPE)
    assert answer.status_code == 200


@pytest.mark.parametrize("body", ["", "{", "[" * 20_000, '{"a": 1', "\xff"])
def test_body_that_is_no_json_is_still_the_callers_error(in_memory: ServedApp, body: str) -> None:
    content = body.encode("latin-1")
    answer = in_memory.client().put("/admin/v2/policies/tenants/acme", content=content, headers=JSON_TYPE)
    assert answer.status_code in {400, 422}


def test_repeated_query_parameter_is_refused(in_memory: ServedApp) -> None:
    answer = in_memory.client().put("/admin/v2/policies/tenants/acme?why=a&why=b", json={})
    assert (answer.status_code, answer.json()["path"]) == (422, "why")
    assert in_memory.client().get("/admin/v2/history?limit=5&limit=500").status_code == 422


@pytest.mark.parametrize(
    ("path", "detail"),
    [
        ("diff?from=1&to=2", "the call has no such query parameter; it has before, after, offset, limit"),
        ("diff?beforee=1", "the call has no such query parameter; did you mean before?"),
        ("caller?job=ingest", "the call has no such query parameter; it has none"),
    ],
)
def test_refusal_of_a_query_parameter_names_those_that_there_are(in_memory: ServedApp, path: str, detail: str) -> None:
    answer = in_memory.client().get(f"/admin/v2/{path}")
    assert (answer.status_code, answer.json()["detail"]) == (422, detail)
