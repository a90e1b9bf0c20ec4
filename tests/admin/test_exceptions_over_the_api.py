"""The API lists exceptions, tells of them where names are explained, and tries every change without making it."""

from __future__ import annotations

from typing import Any

import pytest

from spark_throttle.policy.values import time_text
from spark_throttle.store.store import Author
from tests.admin.conftest import START_MS, ServedApp
from tests.admin.test_roles import ANN, CALLS, furnished

FRIDAY_MS = START_MS + 1_000_000
FRIDAY = time_text(FRIDAY_MS)
CHANGES = [
    (method, path, body)
    for method, path, body, (_, status, _, _) in CALLS
    if method != "GET" and status < 400
]  # fmt: skip

__all__ = ["furnished"]


def excepted(base: int, other: int, *, end_ms: int = FRIDAY_MS) -> dict[str, Any]:
    exception = {"until": time_text(end_ms), "reason": "a move", "publish": {"messages_per_second": other}}
    return {"publish": {"messages_per_second": base}, "exception": exception}


def tried(path: str) -> str:
    return f"{path}{'&' if '?' in path else '?'}dry_run=true"


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
def test_dry_run_of_a_change_writes_nothing_and_says_what_the_change_then_does(
    furnished: ServedApp, method: str, path: str, body: Any
) -> None:
    client, before = furnished.client(), furnished.store.revision()
    answer = client.request(method, tried(path), json=body)
    assert furnished.store.revision() == before
    made = client.request(method, path, json=body)
    assert (answer.status_code, answer.json()["changed"]) == (made.status_code, made.json()["changed"])
    after = made.json()["revision"]
    assert after - before == int(made.json()["changed"])
    differences = client.get(f"/admin/v2/diff?before={before}&after={after}").json()
    plan = answer.json()["plan"]
    assert sorted(plan["differences"], key=lambda each: each["path"]) == sorted(
        differences, key=lambda each: each["path"]
    )  # fmt: skip
    written = client.get("/admin/v2/history?limit=1").json()[0]["changes"] if made.json()["changed"] else 0
    assert (answer.json()["revision"], plan["revision"], plan["changes"]) == (before, before, written)
    assert made.json()["plan"] is None
    assert [(line["outcome"], line["detail"]) for line in furnished.audited[:1]] == [("unchanged", "dry run")]


def test_dry_run_says_what_a_change_costs_without_asking_and_is_refused_as_the_change_is(furnished: ServedApp) -> None:
    path = "/admin/v2/policies/namespaces/acme%2Fown"
    shut = {"publish": {"messages_per_second": 0}, "resource_group": "gold"}
    assert furnished.client().put(path, json=shut).status_code == 428
    plan = furnished.client().put(tried(path), json=shut).json()["plan"]
    assert plan["all_losses"] == 1
    assert "becomes 0" in plan["losses"][0]
    refused = furnished.client("tenant_admin").put(tried(path), json={"publish": {"weight": 9}})
    assert refused.status_code == 403
    stale = furnished.client().put(tried(path), json=shut, headers={"If-Match": '"1-0000000000000000"'})
    assert stale.status_code == 412


def test_exceptions_are_listed_in_force_first_and_a_tenant_sees_its_own(furnished: ServedApp) -> None:
    service = furnished.service
    service.put("namespace", "acme/own", excepted(5, 15, end_ms=FRIDAY_MS - 1), ANN)
    service.put("tenant", "other", excepted(5, 15), ANN)
    service.put("tenant", "acme", {**excepted(5, 15, end_ms=START_MS + 5), "resource_group": "gold"}, ANN)
    furnished.clock[0] = START_MS + 5
    all_of_them, of_acme = (
        furnished.client(role).get("/admin/v2/exceptions").json() for role in ("viewer", "tenant_admin")
    )
    found, own = all_of_them["exceptions"], of_acme["exceptions"]
    assert (all_of_them["in_force"], all_of_them["ended"]) == (2, 1)
    first = furnished.client().get("/admin/v2/exceptions?limit=1").json()
    assert first == {"exceptions": found[:1], "in_force": 2, "ended": 1}
    assert [(each["path"], each["state"]) for each in found] == [
        ("namespaces.acme/own", "in_force"), ("tenants.other", "in_force"), ("tenants.acme", "ended"),
    ]  # fmt: skip
    assert [each["path"] for each in own] == ["namespaces.acme/own", "tenants.acme"]
    assert (found[0]["reason"], found[0]["sets"]) == ("a move", {"publish": {"messages_per_second": 15}})
    shown = furnished.client().get("/admin/v2/policies/tenants").json()["policies"]
    assert [(each["name"], each["exception"]) for each in shown] == [("acme", "ended"), ("other", "in_force")]


def test_explanation_has_the_quota_in_force_until_when_and_why(furnished: ServedApp) -> None:
    service = furnished.service
    service.put("namespace", "acme/in", excepted(5, 15), ANN)
    service.put("resource_group", "gold", excepted(50, 150), ANN)
    found = furnished.client().get("/admin/v2/explain/acme%2Fin").json()
    assert found["levels"][0]["per_second"][0] == 15
    assert sorted((each["path"], each["until_ms"], each["reason"]) for each in found["exceptions"]) == [
        ("namespaces.acme/in", FRIDAY_MS, "a move"), ("resource_groups.gold", FRIDAY_MS, "a move"),
    ]  # fmt: skip
    own = furnished.client("tenant_admin").get("/admin/v2/explain/acme%2Fin").json()
    assert [each["path"] for each in own["exceptions"]] == ["namespaces.acme/in"]
    furnished.clock[0] = FRIDAY_MS
    found = furnished.client().get("/admin/v2/explain/acme%2Fin").json()
    assert (found["levels"][0]["per_second"][0], found["exceptions"]) == (5, [])


def test_audit_and_history_have_the_exception_that_was_given_and_the_one_that_was_taken(furnished: ServedApp) -> None:
    client, path = furnished.client(), "/admin/v2/policies/tenants/other"
    client.put(path, json=excepted(5, 15))
    client.put(path, json={"publish": {"messages_per_second": 5}})
    given, taken = furnished.audited
    exception = {**excepted(5, 15)["exception"], "until": FRIDAY}
    assert given["changes"][0]["after"]["exception"] == exception
    assert taken["changes"][0]["before"]["exception"] == exception
    second, first = client.get("/admin/v2/history?limit=2").json()
    said = {"path": "tenants.other", "until": FRIDAY, "reason": "a move"}
    assert first["exceptions"] == [{**said, "done": "given"}]
    assert second["exceptions"] == [{**said, "done": "taken back"}]


def test_end_that_is_past_is_422_and_names_both_times(furnished: ServedApp) -> None:
    answer = furnished.client().put("/admin/v2/policies/tenants/acme", json=excepted(5, 15, end_ms=START_MS))
    assert (answer.status_code, answer.json()["path"]) == (422, "tenants.acme.exception.until")
    assert answer.json()["detail"].count(time_text(START_MS)) == 2


def test_field_of_a_group_is_changed_and_its_exception_stays(furnished: ServedApp) -> None:
    furnished.service.put("resource_group", "gold", excepted(50, 150), Author("ann"))
    answer = furnished.client().put("/admin/v2/resourcegroup/gold", json={"publishRateInMsgs": 60})
    assert f"until {FRIDAY} (a move): what it sets stays until then" in answer.json()["notes"][0]
    expected = {**excepted(60, 150)}
    expected["exception"]["until"] = FRIDAY
    assert furnished.service.get("resource_group", "gold").values == expected
