"""Who may do what: every call, with every kind of token."""

from __future__ import annotations

import json
import logging
from typing import Any, Final

import pytest
from fastapi import FastAPI
from starlette.routing import compile_path
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from spark_throttle.admin.api.calls import Calls
from spark_throttle.admin.caller import Caller
from spark_throttle.errors import DamagedError
from spark_throttle.store.store import Author
from tests.admin.conftest import ROLES, START_MS, ServedApp

ANN = Author("ann")
BOB = Author("bob", tenant="acme")
NOBODY = None

# Method, path, body, and the statuses of nobody, an admin, acme's tenant admin, a viewer.
CALLS: list[tuple[str, str, Any, tuple[int, int, int, int]]] = [
    ("GET", "/admin/v2/resourcegroup", None, (401, 200, 403, 200)),
    ("GET", "/admin/v2/resourcegroup/gold", None, (401, 200, 200, 200)),
    ("GET", "/admin/v2/resourcegroup/bronze", None, (401, 200, 403, 200)),
    ("POST", "/admin/v2/resourcegroup/new", {}, (401, 201, 403, 403)),
    ("PUT", "/admin/v2/resourcegroup/gold", {"publishRateInMsgs": 9}, (401, 200, 403, 403)),
    ("DELETE", "/admin/v2/resourcegroup/spare", None, (401, 200, 403, 403)),
    ("GET", "/admin/v2/resourcegroups", None, (401, 200, 403, 200)),
    ("GET", "/admin/v2/resourcegroups/gold", None, (401, 200, 200, 200)),
    ("POST", "/admin/v2/resourcegroups/newer", {}, (401, 201, 403, 403)),
    ("PUT", "/admin/v2/resourcegroups/gold", {"publishRateInMsgs": 9}, (401, 200, 403, 403)),
    ("DELETE", "/admin/v2/resourcegroups/spare", None, (401, 200, 403, 403)),
    ("GET", "/admin/v2/namespaces/acme/in/resourcegroup", None, (401, 200, 200, 200)),
    ("GET", "/admin/v2/namespaces/other/in/resourcegroup", None, (401, 200, 403, 200)),
    ("PUT", "/admin/v2/namespaces/acme/orders/resourcegroup/gold", None, (401, 200, 200, 403)),
    ("PUT", "/admin/v2/namespaces/acme/orders/resourcegroup/bronze", None, (401, 200, 403, 403)),
    ("PUT", "/admin/v2/namespaces/other/orders/resourcegroup/gold", None, (401, 200, 403, 403)),
    ("POST", "/admin/v2/namespaces/acme/own/resourcegroup/gold", None, (401, 200, 200, 403)),
    ("POST", "/admin/v2/namespaces/acme/own/resourcegroup/bronze", None, (401, 200, 403, 403)),
    ("POST", "/admin/v2/namespaces/other/in/resourcegroup/bronze", None, (401, 200, 403, 403)),
    ("DELETE", "/admin/v2/namespaces/acme/in/resourcegroup", None, (401, 200, 403, 403)),
    ("DELETE", "/admin/v2/namespaces/acme/in/resourcegroup/gold", None, (401, 200, 403, 403)),
    ("DELETE", "/admin/v2/namespaces/acme/own/resourcegroup", None, (401, 200, 200, 403)),
    ("DELETE", "/admin/v2/namespaces/acme/own/resourcegroup/gold", None, (401, 200, 200, 403)),
    ("DELETE", "/admin/v2/namespaces/other/in/resourcegroup", None, (401, 200, 403, 403)),
    ("GET", "/admin/v2/tenants/acme/resourcegroup", None, (401, 200, 200, 200)),
    ("GET", "/admin/v2/tenants/other/resourcegroup", None, (401, 200, 403, 200)),
    ("PUT", "/admin/v2/tenants/third/resourcegroup/gold", None, (401, 200, 403, 403)),
    ("PUT", "/admin/v2/tenants/acme/resourcegroup/gold", None, (401, 200, 403, 403)),
    ("DELETE", "/admin/v2/tenants/acme/resourcegroup", None, (401, 200, 403, 403)),
    ("DELETE", "/admin/v2/tenants/acme/resourcegroup/gold", None, (401, 200, 403, 403)),
    ("GET", "/admin/v2/policies/resource_groups", None, (401, 200, 403, 200)),
    ("GET", "/admin/v2/policies/namespaces", None, (401, 200, 200, 200)),
    ("GET", "/admin/v2/policies/namespaces/acme%2Fin", None, (401, 200, 200, 200)),
    ("GET", "/admin/v2/policies/namespaces/other%2Fin", None, (401, 200, 403, 200)),
    ("GET", "/admin/v2/policies/tenants/acme", None, (401, 200, 200, 200)),
    ("GET", "/admin/v2/policies/exempt/other%2Faudit", None, (401, 200, 403, 200)),
    ("PUT", "/admin/v2/policies/namespaces/acme%2Fin", {"publish": {"messages_per_second": 1}}, (401, 200, 200, 403)),
    ("PUT", "/admin/v2/policies/namespaces/acme%2Fin", {"publish": {"weight": 9}}, (401, 200, 403, 403)),
    ("PUT", "/admin/v2/policies/namespaces/acme%2Fin", {"resource_group": "bronze"}, (401, 200, 403, 403)),
    ("PUT", "/admin/v2/policies/namespaces/other%2Fin", {}, (401, 200, 403, 403)),
    ("PUT", "/admin/v2/policies/namespaces/%2A%2Fin", {}, (401, 200, 403, 403)),
    ("PUT", "/admin/v2/policies/tenants/acme", {}, (401, 200, 403, 403)),
    ("PUT", "/admin/v2/policies/exempt/acme%2Fin", {}, (401, 200, 403, 403)),
    (
        "PUT",
        "/admin/v2/policies/namespaces/acme%2Fshut?yes=true",
        {"publish": {"messages_per_second": 0}},
        (401, 200, 403, 403),
    ),
    ("DELETE", "/admin/v2/policies/namespaces/acme%2Fin", None, (401, 200, 403, 403)),
    ("DELETE", "/admin/v2/policies/namespaces/acme%2Fown", None, (401, 200, 200, 403)),
    ("DELETE", "/admin/v2/policies/namespaces/acme%2Fshut", None, (401, 200, 403, 403)),
    ("DELETE", "/admin/v2/policies/namespaces/other%2Fin", None, (401, 200, 403, 403)),
    ("GET", "/admin/v2/exceptions", None, (401, 200, 200, 200)),
    ("GET", "/admin/v2/policy/defaults", None, (401, 200, 403, 200)),
    ("PUT", "/admin/v2/policy/defaults", {"publish": {"messages_per_second": 9}}, (401, 200, 403, 403)),
    ("PUT", "/admin/v2/policy/job", {"publish": {"messages_per_second": 9}}, (401, 200, 403, 403)),
    ("PUT", "/admin/v2/policy/queue", {"messages": 9}, (401, 200, 403, 403)),
    ("GET", "/admin/v2/history", None, (401, 200, 403, 200)),
    ("GET", "/admin/v2/diff?before=0&after=1", None, (401, 200, 403, 200)),
    ("GET", "/admin/v2/rollback/0", None, (401, 200, 403, 200)),
    ("POST", "/admin/v2/rollback/0?yes=true", None, (401, 200, 403, 403)),
    ("GET", "/admin/v2/caller", None, (401, 200, 200, 200)),
    ("GET", "/admin/v2/status", None, (401, 200, 200, 200)),
    ("GET", "/admin/v2/status/none/series", None, (401, 404, 404, 404)),
    ("GET", "/admin/v2/status/none/scopes", None, (401, 404, 404, 404)),
    ("GET", "/admin/v2/status/none/namespaces", None, (401, 404, 404, 404)),
    ("GET", "/admin/v2/explain/acme%2Fin", None, (401, 200, 200, 200)),
    ("GET", "/admin/v2/explain/other%2Fin", None, (401, 200, 403, 200)),
    ("GET", "/metrics", None, (401, 200, 403, 200)),
    ("GET", "/healthz", None, (200, 200, 200, 200)),
]
CASES = [
    (method, path, body, role, status)
    for method, path, body, statuses in CALLS
    for role, status in zip((NOBODY, *ROLES), statuses, strict=True)
]


@pytest.fixture
def furnished(in_memory: ServedApp) -> ServedApp:
    service = in_memory.service
    for group in ("gold", "bronze", "spare"):
        service.put("resource_group", group, {}, ANN)
    service.put("tenant", "acme", {"resource_group": "gold"}, ANN)
    service.put("tenant", "other", {"resource_group": "bronze"}, ANN)
    service.put("namespace", "acme/in", {"resource_group": "gold"}, ANN)
    service.put("namespace", "acme/own", {"resource_group": "gold"}, BOB)
    service.put("namespace", "acme/shut", {"locked": True}, ANN)
    service.put("namespace", "other/in", {"resource_group": "gold"}, ANN)
    service.put("exempt", "other/audit", {}, ANN)
    return in_memory


@pytest.mark.parametrize(("method", "path", "body", "role", "status"), CASES)
def test_call_is_answered_by_role(
    furnished: ServedApp, method: str, path: str, body: Any, role: str | None, status: int
) -> None:
    before = furnished.store.revision()
    answer = furnished.client(role).request(method, path, json=body)
    assert answer.status_code == status, answer.text
    if status >= 400 or method == "GET":
        assert furnished.store.revision() == before
    if status == 401:
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")


def test_matrix_has_every_call(furnished: ServedApp) -> None:
    described = furnished.app.openapi()["paths"]
    assert len(described) > 20
    for template, calls in described.items():
        for method in calls:
            paths = [path.partition("?")[0] for verb, path, _, _ in CALLS if verb == method.upper()]
            assert any(compile_path(template)[0].match(path) for path in paths), (method, template)


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer x", "Basic YTpi", "Bearer throttle_000000000000_" + "A" * 43,
                                    "Bearer " + "x" * 10_000, "bearer\tx", "Bearer é"])  # fmt: skip
def test_header_that_holds_no_good_token_is_refused(in_memory: ServedApp, header: str) -> None:
    answer = in_memory.client(None).get("/admin/v2/status", headers={"Authorization": header.encode("latin-1")})
    assert answer.status_code == 401


def test_token_is_refused_before_its_body_is_looked_at(in_memory: ServedApp) -> None:
    for role, status in ((None, 401), ("viewer", 403)):
        answer = in_memory.client(role).put(
            "/admin/v2/resourcegroup/gold", content=b"{", headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == status


def test_revoked_and_ended_tokens_are_refused(in_memory: ServedApp) -> None:
    client = in_memory.client("viewer")
    assert client.get("/admin/v2/status").status_code == 200
    viewer = next(token for token in in_memory.token_file.list() if token.role == "viewer")
    in_memory.token_file.revoke(viewer.id)
    assert client.get("/admin/v2/status").status_code == 401
    short = in_memory.token_file.create("bob", "viewer", days=1)
    headers = {"Authorization": f"Bearer {short}"}
    assert in_memory.client(None).get("/admin/v2/status", headers=headers).status_code == 200
    in_memory.clock[0] = START_MS + 86_400_000
    assert in_memory.client(None).get("/admin/v2/status", headers=headers).status_code == 401


def test_tenant_admin_of_a_tenant_that_was_given_nothing_gives_nothing(in_memory: ServedApp) -> None:
    answer = in_memory.client("tenant_admin").put("/admin/v2/policies/namespaces/acme%2Fin", json={})
    assert answer.status_code == 403
    assert "neither a quota nor a group" in answer.json()["detail"]


def test_tenant_admin_lists_its_own_entries_page_by_page(furnished: ServedApp) -> None:
    for name in ("acme", "acme!", "acme-b/x", "acme/a", "acme/b", "acmf/a"):
        furnished.service.put("namespace", name, {}, ANN)
    client, found, after = furnished.client("tenant_admin"), [], ""
    while True:
        page = client.get("/admin/v2/policies/namespaces", params={"after": after, "limit": 2}).json()
        found += [policy["name"] for policy in page["policies"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert found == ["acme", "acme/a", "acme/b", "acme/in", "acme/own", "acme/shut"]


def test_history_names_the_caller_and_why(in_memory: ServedApp) -> None:
    admin = in_memory.client()
    admin.put("/admin/v2/resourcegroup/gold?why=first+customers%E2%80%A6", json={})
    (entry,) = admin.get("/admin/v2/history").json()
    token = next(token for token in in_memory.token_file.list() if token.role == "admin")
    assert entry == {
        "revision": 1, "at_ms": START_MS, "who": f"admin-of-test (token {token.id})", "why": "first customers…",
        "changes": 1, "door": "api", "caller": f"token {token.id}", "exceptions": [],
    }  # fmt: skip


@pytest.mark.slow
def test_no_token_is_in_a_log_an_answer_or_the_file(in_memory: ServedApp, caplog: pytest.LogCaptureFixture) -> None:
    secrets = [text.split("_", 2)[2] for text in in_memory.tokens.values()]
    said = []
    with caplog.at_level(logging.DEBUG):
        for role in (*ROLES, None):
            for method, path, body, _ in CALLS:
                said.append(in_memory.client(role).request(method, path, json=body).text)
        wrong = {"Authorization": f"Bearer {in_memory.tokens['admin']}x"}
        said.append(in_memory.client(None).get("/admin/v2/status", headers=wrong).text)
    logged = "\n".join(record.getMessage() for record in caplog.records)
    kept = in_memory.token_file.path.read_text()
    for secret in secrets:
        assert secret not in logged
        assert secret not in kept
        assert not any(secret in text for text in said)
    assert in_memory.token_file.path.stat().st_mode & 0o077 == 0


def written_over(served: ServedApp, **fields: object) -> None:
    """Write other fields into the entry of acme's tenant admin."""
    kept = json.loads(served.token_file.path.read_text())
    (entry,) = (token for token in kept["tokens"] if token["role"] == "tenant_admin")
    entry.update(fields)
    served.token_file.path.write_text(json.dumps(kept))


@pytest.mark.slow
@pytest.mark.parametrize("tenant", [None, "acme"])
def test_unknown_role_may_do_nothing(furnished: ServedApp, tenant: str | None) -> None:
    client = furnished.client("tenant_admin")
    written_over(furnished, role="superadmin", tenant=tenant)
    revision = furnished.store.revision()
    for method, path, body, _ in CALLS:
        if path != "/healthz":
            answer = client.request(method, path, json=body)
            assert (answer.status_code, "'superadmin'" in answer.text) == (403, True), (method, path)
    assert furnished.store.revision() == revision


@pytest.mark.parametrize(("field", "value"), [
    ("id", "x"), ("id", 7), ("id", ["a"]), ("name", ""), ("name", None), ("role", None), ("role", ["admin"]),
    ("role", "Admin"), ("role", ""), ("tenant", None), ("tenant", ""),
    ("tenant", "*"), ("tenant", "a/b"), ("tenant", ["acme"]), ("created_ms", "1"), ("created_ms", None),
    ("created_ms", True), ("expires_ms", "never"), ("expires_ms", 1.5), ("expires_ms", -1), ("salt", ""),
    ("salt", "zz"), ("digest", ""), ("digest", None), ("extra", 1),
])  # fmt: skip
def test_token_file_with_a_wrong_field_lets_nobody_in_and_names_the_field(
    furnished: ServedApp, field: str, value: object
) -> None:
    text = furnished.tokens["tenant_admin"]
    assert furnished.token_file.judged(text)[0] is not None
    kept = furnished.token_file.path.read_text()
    written_over(furnished, **{field: value})
    secrets = [token[name] for token in json.loads(kept)["tokens"] for name in ("salt", "digest")]
    for each in furnished.tokens.values():
        with pytest.raises(DamagedError, match=field) as caught:
            furnished.token_file.judged(each)
        assert not any(secret in str(caught.value) for secret in secrets)


@pytest.mark.parametrize("role", ["admin", "viewer"])
def test_role_that_has_no_tenant_is_not_believed_with_one(furnished: ServedApp, role: str) -> None:
    written_over(furnished, role=role)
    with pytest.raises(DamagedError, match="tenant"):
        furnished.token_file.judged(furnished.tokens["tenant_admin"])


def test_token_file_with_one_id_twice_lets_nobody_in(furnished: ServedApp) -> None:
    kept = json.loads(furnished.token_file.path.read_text())
    kept["tokens"].append({**kept["tokens"][0], "role": "admin", "tenant": None})
    furnished.token_file.path.write_text(json.dumps(kept))
    with pytest.raises(DamagedError, match="id"):
        furnished.token_file.judged(furnished.tokens["viewer"])


@pytest.mark.parametrize(("method", "path", "body"), [
    ("GET", "policies/namespaces/acme%2Fplan", None),
    ("DELETE", "policies/namespaces/acme%2Fplan", None),
    ("GET", "policies/tenants/acme", None),
    ("PUT", "policies/namespaces/acme%2Fx", {"resource_group": "platinu"}),
    ("PUT", "namespaces/acme/x/resourcegroup/platinu", None),
    ("PUT", "namespaces/acme/x/resourcegroup/platinum", None),
    ("PUT", "namespaces/acme/x/resourcegroup/nowhere", None),
    ("DELETE", "namespaces/acme/plan/resourcegroup", None),
    ("DELETE", "namespaces/acme/plan/resourcegroup/platinu", None),
    ("GET", "resourcegroup/platinu", None),
    ("GET", "explain/acme%2Fplan", None),
])  # fmt: skip
def test_hint_names_nothing_that_the_caller_may_not_read(
    in_memory: ServedApp, method: str, path: str, body: Any
) -> None:
    service = in_memory.service
    service.put("resource_group", "gold", {}, ANN)
    service.put("resource_group", "platinum", {}, ANN)
    service.put("tenant", "acmf", {"resource_group": "platinum"}, ANN)
    service.put("namespace", "acmf/plan", {}, ANN)
    service.put("namespace", "acme/plans", {"resource_group": "gold"}, ANN)
    if not path.startswith("policies/tenants"):
        service.put("tenant", "acme", {"resource_group": "gold"}, ANN)
    answer = in_memory.client("tenant_admin").request(method, f"/admin/v2/{path}", json=body)
    said = answer.text.replace(path.rpartition("/")[2], "")
    assert "acmf" not in said
    assert "did you mean platinum" not in said
    if path.startswith("policies/namespaces/acme%2Fplan"):
        assert "did you mean acme/plans?" in said


def test_answer_to_a_group_of_others_is_that_to_a_group_that_is_not_there(furnished: ServedApp) -> None:
    client = furnished.client("tenant_admin")
    answers = [client.put(f"/admin/v2/namespaces/acme/x/resourcegroup/{name}") for name in ("bronze", "nowhere")]
    there, nowhere = (answer.json()["detail"].replace("bronze", "nowhere") for answer in answers)
    assert [answer.status_code for answer in answers] == [403, 403]
    assert there == nowhere


_CALLS: Final = Calls("things")


@_CALLS.at("GET /things")
@_CALLS.at("POST /things")
def _do_nothing() -> None:
    pass


@pytest.mark.parametrize(
    ("role", "tenant", "statuses"),
    [
        ("admin", None, (200, 200)),
        ("tenant_admin", "acme", (200, 200)),
        ("tenant_admin", None, (403, 403)),
        ("viewer", None, (200, 403)),
        ("auditor", None, (403, 403)),
    ],
)
def test_call_that_names_no_roles_is_read_by_all_and_made_by_those_who_may_write(
    role: str, tenant: str | None, statuses: tuple[int, int]
) -> None:
    app = FastAPI()
    app.include_router(_CALLS)

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "state": {"caller": Caller("0123456789ab", "ann", role, tenant)}}, receive, send)

    client = TestClient(called)
    assert tuple(client.request(method, "/admin/v2/things").status_code for method in ("GET", "POST")) == statuses
