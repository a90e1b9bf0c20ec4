"""Names that would break something, bodies that are too large, callers that ask too often, a store that is gone."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from spark_throttle.errors import PolicyError
from spark_throttle.policy.codec import parse_document
from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.store import Author, Change
from tests.admin.conftest import ServedApp

NAMES = [
    "acme/orders", "a/b/c", "/a", "a//b", "a b", "a.b", "...", "..a", "a../b", "..\\..\\x", "é",
    "日本語", "e\u0301", "a\u200bb", "a\nb", "a\x00b", "\x1b[2J", "%2F", "%", "a%00", "a?b", "a#b", "a;b",
    "a&b=c", "'; DROP TABLE x;--", '"', "{}", "<script>alert(1)</script>", "x" * 1024, "ü" * 512,
    "null", "*x", "\U0001f600", "\ufeff", "resourcegroup",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:40])
def test_name_of_any_text_is_kept_exactly(in_memory: ServedApp, name: str) -> None:
    admin, segment = in_memory.client(), quote(name, safe="")
    group = f"/admin/v2/resourcegroup/{segment}"
    assert admin.put(group, json={"publishRateInMsgs": 5}).status_code == 200
    assert admin.get(group).json()["publishRateInMsgs"] == 5
    assert name in admin.get("/admin/v2/resourcegroup").json()
    assert in_memory.service.get("resource_group", name).values == {"publish": {"messages_per_second": 5}}
    attached = f"/admin/v2/namespaces/t/{segment}/resourcegroup"
    assert admin.put(f"{attached}/{segment}").status_code == (200 if fits(name) else 422)
    if fits(name):
        assert admin.get(attached).text == name
        assert admin.get("/admin/v2/explain/" + quote(f"t/{name}", safe="")).json()["resource_group"] == name
        assert admin.delete(group).status_code == 412
        assert admin.delete(attached).status_code == 428
        assert admin.delete(attached, params={"yes": "true"}).status_code == 200
    assert admin.delete(group).status_code == 200


def fits(name: str) -> bool:
    return len(f"t/{name}".encode()) <= 1024


@pytest.mark.slow
def test_names_of_any_text_are_kept_exactly_in_delta(tmp_path: Path, serve: Callable[..., ServedApp]) -> None:
    """One commit and one call write them, and a store that is opened anew reads them."""
    served = serve(DeltaStore.create(str(tmp_path / "policies")))
    groups = [Change("resource_group", name, '{"publish":{"messages_per_second":5}}') for name in NAMES]
    body = {name: json.dumps({"resource_group": name}) for name in NAMES if fits(name)}
    namespaces = [Change("namespace", f"t/{name}", text) for name, text in body.items()]
    served.store.commit([*groups, *namespaces], expected_revision=0, author=Author("ann"), at_ms=0)
    put = served.client().put(
        "/admin/v2/resourcegroup/" + quote("\u00e9/one more", safe=""), json={"publishRateInMsgs": 6}
    )
    assert put.status_code == 200
    store = DeltaStore(str(tmp_path / "policies"))
    admin = serve(store).client()
    assert admin.get("/admin/v2/resourcegroup").json() == sorted([*NAMES, "\u00e9/one more"])
    for name in NAMES:
        segment = quote(name, safe="")
        assert admin.get(f"/admin/v2/resourcegroup/{segment}").json()["publishRateInMsgs"] == 5
        if fits(name):
            assert admin.get(f"/admin/v2/namespaces/t/{segment}/resourcegroup").text == name
            explained = admin.get("/admin/v2/explain/" + quote(f"t/{name}", safe="")).json()
            assert explained["resource_group"] == name
    gone = [Change(change.kind, change.name, None) for change in (*namespaces, *groups)]
    store.commit(gone, expected_revision=store.revision(), author=Author("ann"), at_ms=0)
    assert admin.get("/admin/v2/resourcegroup").json() == ["\u00e9/one more"]


@pytest.mark.parametrize(
    ("segment", "said"),
    [
        ("x" * 1025, "the name has 1025 bytes of UTF-8; it may have at most 1024"),
        ("x" * 10_240, "the name has 10240 bytes"),
        ("%C3%A9" * 1700, "the name has 3400 bytes"),
        ("%FF", "not percent-encoded UTF-8"),
        ("%ED%A0%80", "not percent-encoded UTF-8"),
        ("%2E%2E", "steps of a path"),
        ("%2e", "steps of a path"),
    ],
)
def test_name_that_cannot_be_is_refused_and_said_why(in_memory: ServedApp, segment: str, said: str) -> None:
    for path in (f"/admin/v2/resourcegroup/{segment}", f"/admin/v2/policies/namespaces/{segment}"):
        answer = in_memory.client().put(path, json={})
        assert answer.status_code == 422
        assert said in answer.json()["detail"]
        assert answer.json()["path"] in {"resourcegroup", "name"}
    assert in_memory.store.revision() == 0


MISLEADING = [
    ("acme/../other/x", "steps of a path"), ("../../etc/passwd", "steps of a path"), ("acme/./x", "steps of a path"),
    ("acme/..", "steps of a path"), ("*/..", "steps of a path"), ("acme/", "a name that ends with '/'"),
    ("acme/x/", "a name that ends with '/'"), ("//", "a name that ends with '/'"), ("*/", "a name that ends with '/'"),
    *((f"acme/{chr(code)}x", f"the bidirectional control U+{code:04X}")
      for code in (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "said"), MISLEADING, ids=lambda part: ascii(part)[:40])
def test_name_that_looks_like_another_is_refused_at_every_door(in_memory: ServedApp, name: str, said: str) -> None:
    admin, segment = in_memory.client(), quote(name, safe="")
    doors = [
        admin.put(f"/admin/v2/{path}/{segment}", json={})
        for path in ("resourcegroup", "policies/resource_groups", "policies/namespaces", "policies/exempt")
    ]
    doors.append(admin.post(f"/admin/v2/resourcegroup/{segment}", json={}))
    if "/" not in name.strip("/"):
        doors.append(admin.put(f"/admin/v2/policies/tenants/{segment}", json={}))
    for answer in doors:
        assert answer.status_code == 422, answer.text
        assert said in answer.json()["detail"]
        assert answer.text.isprintable()
    documents: list[dict[str, object]] = [
        {"namespaces": {name: {}}}, {"resource_groups": {name: {}}}, {"exempt": [name]},
    ]  # fmt: skip
    for document in documents:
        with pytest.raises(PolicyError, match=re.escape(said)) as caught:
            parse_document(document)
        assert str(caught.value).isprintable()
    assert in_memory.store.revision() == 0
    # What traffic calls itself is another matter: it is explained, and shown with everything visible.
    explained = admin.get(f"/admin/v2/explain/{segment}")
    assert (explained.status_code, explained.json()["namespace"]) == (200, name)
    assert explained.text.isprintable()


def test_tenant_with_a_slash_is_refused(in_memory: ServedApp) -> None:
    answer = in_memory.client().put("/admin/v2/tenants/a%2Fb/resourcegroup/gold")
    assert (answer.status_code, answer.json()["path"]) == (422, "tenant")


@pytest.mark.parametrize(
    "path",
    [
        "/page/../api.py", "/page/..%2Fapi.py", "/page/%2e%2e/api.py", "/page//etc/passwd", "/page/app.py", "/page/",
        "/page", "/etc/passwd", "/admin", "/admin/v2/", "//",
    ],
)  # fmt: skip
def test_path_leads_to_no_file(in_memory: ServedApp, path: str) -> None:
    import asyncio

    from starlette.types import Message

    # As raw as a socket brings it: clients take ".." out themselves.
    sent: list[Message] = []
    received: list[Message] = [{"type": "http.request", "body": b""}]

    async def receive() -> Message:
        if not received:
            await asyncio.Event().wait()  # the client stays
        return received.pop()

    async def send(message: Message) -> None:
        sent.append(message)

    token = in_memory.tokens["admin"]
    scope = {
        "type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": path,
        "raw_path": path.encode(), "query_string": b"", "headers": [(b"authorization", f"Bearer {token}".encode())],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "root_path": "",
    }  # fmt: skip
    asyncio.run(in_memory.app(scope, receive, send))
    assert sent[0]["status"] == 404


def test_body_that_is_too_large_is_refused_whatever_its_length_says(in_memory: ServedApp) -> None:
    admin, path = in_memory.client(), "/admin/v2/policies/namespaces/x"
    large = b'{"publish": {"weight": 1}, "x": "' + b"a" * 70_000 + b'"}'
    json_type = {"Content-Type": "application/json"}
    assert admin.put(path, content=large, headers=json_type).status_code == 413
    assert admin.put(path, content=iter([large]), headers=json_type).status_code == 413
    assert admin.put(path, content=b"{}", headers=json_type | {"Content-Length": "9" * 30}).status_code == 413


@pytest.mark.slow
def test_caller_who_asks_too_often_is_told_when_to_come_again(serve: Callable[..., ServedApp]) -> None:
    served = serve(MemoryStore(), requests_per_second=10)
    statuses = [served.client().get("/admin/v2/caller").status_code for _ in range(60)]
    assert statuses == [200] * 51 + [429] * 9
    refused = served.client().get("/admin/v2/caller")
    assert (refused.headers["Retry-After"], refused.json()["status"]) == ("1", 429)
    assert served.client("viewer").get("/admin/v2/caller").status_code == 200
    served.monotonic[0] += 1000
    assert served.client().get("/admin/v2/caller").status_code == 200


def test_tenant_makes_a_bounded_number_of_revisions_and_reads_as_before(
    serve: Callable[..., ServedApp],
) -> None:
    served = serve(MemoryStore(), requests_per_second=100)
    served.service.put("tenant", "acme", {"publish": {"messages_per_second": 5}}, Author("ann"))
    client, answers = served.client("tenant_admin"), []
    for at in range(70):
        served.monotonic[0] = at * 100
        entry = {"publish": {"messages_per_second": round(5 - at / 100, 2)}}
        answers.append(client.put("/admin/v2/policies/namespaces/acme%2Fx", json=entry).status_code)
        assert client.get("/admin/v2/policies/namespaces/acme%2Fx").status_code == 200
    assert (answers.count(429), answers.count(200)) == (3, 67)
    assert served.store.revision() == 68
    assert served.client("admin").put("/admin/v2/policy/job", json={}).status_code == 200


@pytest.mark.slow
def test_guesses_of_tokens_are_limited_together_and_harm_no_owner(serve: Callable[..., ServedApp]) -> None:
    served = serve(MemoryStore(), requests_per_second=10)
    statuses = [
        served.client(None).get("/admin/v2/caller", headers={"Authorization": f"Bearer guess{i}"}).status_code
        for i in range(20)
    ]
    assert statuses == [401] * 11 + [429] * 9
    assert served.client().get("/admin/v2/caller").status_code == 200


def test_answers_forbid_what_the_page_does_not_need(in_memory: ServedApp) -> None:
    for path, role in (("/", None), ("/admin/v2/caller", "admin"), ("/admin/v2/caller", None)):
        headers = in_memory.client(role).get(path).headers
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'")
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"


@pytest.mark.slow
def test_store_that_is_deleted_under_the_server_is_a_clear_error_and_comes_back(
    serve: Callable[..., ServedApp], tmp_path: Path
) -> None:
    path = tmp_path / "policies"
    served = serve(DeltaStore.create(str(path)))
    admin = served.client()
    assert admin.put("/admin/v2/resourcegroup/gold", json={"publishRateInMsgs": 5}).status_code == 200
    away = path.rename(tmp_path / "away")
    for answer in (
        admin.get("/admin/v2/resourcegroup/gold"),
        admin.get("/admin/v2/resourcegroup"),
        admin.put("/admin/v2/resourcegroup/gold", json={}),
        admin.delete("/admin/v2/resourcegroup/gold"),
        admin.get("/admin/v2/history"),
    ):
        assert answer.status_code == 503
        assert answer.json()["detail"].endswith("there is no policy store; ask who runs the server to restore it")
        assert answer.headers["Retry-After"] == "1"
    status = admin.get("/admin/v2/status").json()
    assert (status["store_revision"], "there is no policy store" in status["store_problem"]) == (None, True)
    assert "spark_throttle_store_up 0.0" in admin.get("/metrics").text
    away.rename(path)
    assert admin.get("/admin/v2/resourcegroup/gold").json()["publishRateInMsgs"] == 5
    shutil.rmtree(path)
    DeltaStore.create(str(path))
    answer = admin.put("/admin/v2/resourcegroup/gold", json={})
    assert answer.status_code == 503
    assert "another table has taken its place" in answer.json()["detail"]


@pytest.mark.slow
def test_namespaces_are_listed_page_by_page_each_once(serve: Callable[..., ServedApp]) -> None:
    # `make list-a-million` does so with a million in Delta.
    store = MemoryStore()
    names = [f"tenant-{i % 7}/ns-{i:05d}" for i in range(10_000)]
    changes = [Change("namespace", name, '{"publish":{"messages_per_second":5}}') for name in names]
    store.commit(changes, expected_revision=0, author=Author("ann"), at_ms=0)
    admin, found, after = serve(store).client(), [], ""
    while True:
        page = admin.get("/admin/v2/policies/namespaces", params={"after": after, "limit": 1000}).json()
        found += [policy["name"] for policy in page["policies"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert found == sorted(names)
