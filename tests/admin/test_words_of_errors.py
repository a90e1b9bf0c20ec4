"""Every error of the API is a problem in words of this project, with the remedy as a client of the API says it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from spark_throttle.admin.api.answers import PROBLEM_TYPE
from spark_throttle.admin.api.answers import REMEDIES as OVER_HTTP
from spark_throttle.admin.cli.output import REMEDIES as ON_THE_COMMAND_LINE
from spark_throttle.errors import ThrottleError
from spark_throttle.remedies import IN_PYTHON, Remedy
from spark_throttle.store.entries import EntryVersion
from spark_throttle.store.store import Author
from tests.admin.conftest import ServedApp

V2 = "/admin/v2"
JSON_TYPE = {"Content-Type": "application/json"}
FRAMEWORKS_WORDS = re.compile(
    r"Input should|Field required|Extra inputs|valid dictionary|String should|JSON decode|parsing the body|^Not Found$|"
    r"^Method Not Allowed$|unable to|^Unprocessable"
)
ENTRY = f"{V2}/policies/tenants/acme"
GROUP = f"{V2}/resourcegroup/gold"
_GOLD = EntryVersion.of(1, "{}", given=None)
TAG_1, TAG_7 = _GOLD.etag, replace(_GOLD, revision=7).etag


@pytest.mark.parametrize(
    ("method", "path", "sent", "status", "where", "said"),
    [
        ("PUT", ENTRY, {"content": "{}"}, 415, None, "the body has no content type; send JSON, with Content-Type"),
        ("PUT", ENTRY, {"content": "{}", "headers": {"Content-Type": "text/plain; x=y"}}, 415, None, "is 'text/plain'"),
        ("PUT", GROUP, {"content": "{}", "headers": {"Content-Type": "application/jsonp"}}, 415, None, "send JSON"),
        ("POST", GROUP, {"data": {"publishWeight": "5"}}, 415, None, "'application/x-www-form-urlencoded'"),
        ("PUT", ENTRY, {}, 422, "body", "the call needs a body; send a JSON object, such as {}"),
        ("PUT", GROUP, {"headers": JSON_TYPE}, 422, "body", "the call needs a body"),
        ("PUT", GROUP, {"content": "null", "headers": JSON_TYPE}, 422, "body", "such as {}"),
        ("PUT", ENTRY, {"content": "null", "headers": JSON_TYPE}, 422, "body", "such as {}"),
        ("PUT", ENTRY, {"json": [1]}, 422, "body", "the body is a list; send a JSON object"),
        ("PUT", GROUP, {"json": 5}, 422, "body", "the body is 5; send a JSON object"),
        ("PUT", ENTRY, {"content": '{"a": 1', "headers": JSON_TYPE}, 422, "body", "not JSON from its character 8 on"),
        ("PUT", ENTRY, {"content": b"{\xff", "headers": JSON_TYPE}, 422, "body", "not UTF-8 from its byte 2 on"),
        ("PUT", ENTRY, {"content": "[" * 20_000, "headers": JSON_TYPE}, 422, "body", "nested too deeply"),
        ("PUT", ENTRY, {"content": f'{{"a": {"9" * 5000}}}', "headers": JSON_TYPE}, 422, "body", "too many digits"),
        (
            "PUT",
            GROUP,
            {"json": {"publishWeigth": 5}},
            422,
            "publishWeigth",
            "unknown field; did you mean publishWeight?",
        ),
        ("PUT", GROUP, {"json": {"zzz": 5}}, 422, "zzz", "unknown field; the fields here are publishRateInMsgs, "),
        ("PUT", ENTRY, {"json": {"publis": {}}}, 422, "tenants.acme.publis", "did you mean publish?"),
        (
            "GET",
            f"{V2}/policies/tenant",
            {},
            422,
            "section",
            "'tenant' is none of resource_groups, tenants, namespaces",
        ),
        ("GET", f"{V2}/history?limit=0", {}, 422, "limit", "'0' is less than 1, the least allowed"),
        ("GET", f"{V2}/history?limit=1001", {}, 422, "limit", "'1001' is more than 1000, the most allowed"),
        ("GET", f"{V2}/history?limit=x", {}, 422, "limit", "'x' is not a whole number; give one such as 3"),
        ("GET", f"{V2}/history?limit={'9' * 5000}", {}, 422, "limit", "give one such as 3"),
        ("GET", f"{V2}/diff", {}, 422, "before", "the call needs this parameter"),
        ("GET", f"{V2}/rollback/x", {}, 422, "revision", "'x' is not a whole number"),
        ("PUT", f"{ENTRY}?yes=perhaps", {"json": {}}, 422, "yes", "'perhaps' is neither true nor false"),
        ("PUT", f"{ENTRY}?why={'x' * 501}", {"json": {}}, 422, "why", "has 501 characters; it may have at most 500"),
        ("PUT", f"{ENTRY}?whi=x", {"json": {}}, 422, "whi", "did you mean why?"),
        ("PATCH", ENTRY, {"json": {}}, 405, None, "the path takes DELETE, GET, PUT, not 'PATCH'"),
        ("POST", ENTRY, {"json": {}}, 405, None, "the path takes DELETE, GET, PUT, not 'POST'"),
        ("TRACE", GROUP, {}, 405, None, "the path takes DELETE, GET, POST, PUT, not 'TRACE'"),
        ("POST", "/", {}, 405, None, "the path takes GET, not 'POST'"),
        ("POST", "/healthz", {}, 405, None, "the path takes GET, not 'POST'"),
        ("GET", f"{V2}/nothing", {}, 404, None, "no call has this path; GET /openapi.json lists all calls"),
        ("PUT", "/nothing", {}, 404, None, "no call has this path"),
    ],
)
def test_error_of_a_request_has_the_value_and_the_remedy_in_our_words(
    in_memory: ServedApp, method: str, path: str, sent: dict[str, Any], status: int, where: str | None, said: str
) -> None:
    answer = in_memory.client().request(method, path, **sent)
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"] == PROBLEM_TYPE
    problem = answer.json()
    assert said in problem["detail"]
    assert (problem["reason"], problem["status"], problem.get("path")) == (problem["detail"], status, where)
    assert not FRAMEWORKS_WORDS.search(problem["detail"])
    assert in_memory.store.revision() == 0
    if status == 405:
        assert answer.headers["Allow"] in problem["detail"]


def test_body_that_a_call_does_not_read_need_not_be_json(in_memory: ServedApp) -> None:
    in_memory.service.put("resource_group", "gold", {}, Author("ann"))
    attached = in_memory.client().post(f"{V2}/namespaces/acme/x/resourcegroup/gold", content="\x00{")
    assert attached.status_code == 200


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/vnd.x+json"])
def test_body_may_name_json_in_every_way(in_memory: ServedApp, kind: str) -> None:
    assert in_memory.client().put(ENTRY, content="{}", headers={"Content-Type": kind}).status_code == 200


# --------------------------------------------------------------------------------------------------- remedies


def test_every_door_has_words_for_every_remedy_and_none_of_another_door() -> None:
    for words in (IN_PYTHON, ON_THE_COMMAND_LINE, OVER_HTTP):
        assert set(words) == set(Remedy)
    served = set(Remedy) - {Remedy.NAME_TABLE, Remedy.NAME_GROUP}  # nothing is imported over HTTP
    for remedy in served:
        assert not re.search(r"--\w|=True|spark-throttle ", OVER_HTTP[remedy])
    for remedy in Remedy:
        assert not re.search(r"=True|\?\w+=|PUT|POST", ON_THE_COMMAND_LINE[remedy])
        assert ThrottleError("it is so", remedy).told(ON_THE_COMMAND_LINE).startswith("it is so; ")


def test_remedies_over_http_are_those_of_a_client(in_memory: ServedApp) -> None:
    service, ann = in_memory.service, Author("ann")
    for group in ("gold", "iron"):
        service.put("resource_group", group, {"publish": {"messages_per_second": 5}}, ann)
    service.put("tenant", "acme", {"resource_group": "gold"}, ann)
    service.put("namespace", "acme/x", {"resource_group": "gold"}, ann)
    admin = in_memory.client()
    unconfirmed = admin.delete(ENTRY).json()["detail"]
    assert unconfirmed.endswith("; confirm it with ?yes=true if it is meant")
    namespace = admin.put(f"{V2}/namespaces/acme/x/resourcegroup/iron")
    assert "send POST to the same address" in namespace.json()["detail"]
    tenant = admin.put(f"{V2}/tenants/acme/resourcegroup/iron")
    assert "change resource_group in its entry (PUT policies/tenants/…" in tenant.json()["detail"]
    told = [unconfirmed, namespace.json()["detail"], tenant.json()["detail"], admin.get(f"{V2}/status/x/series").text,
            *admin.put(ENTRY, json={"resource_group": "iron"}).json()["notes"]]  # fmt: skip
    assert [text for text in told if re.search(r"--\w|\(yes\)", text)] == []


# ------------------------------------------------------------------------------------------------- conditions


@pytest.mark.parametrize(
    ("is_there", "headers", "status"),
    [
        (False, {"If-Match": TAG_7}, 412), (False, {"If-Match": "*"}, 412), (False, {"If-None-Match": "*"}, 201),
        (False, {}, 201), (True, {}, 409), (True, {"If-Match": TAG_7}, 412), (True, {"If-Match": TAG_1}, 409),
        (True, {"If-Match": "*"}, 409), (True, {"If-None-Match": "*"}, 412), (False, {"If-Match": "7"}, 422),
        (False, {"If-Match": TAG_7, "If-None-Match": "*"}, 422),
    ],
)  # fmt: skip
def test_condition_of_a_creation_is_judged(
    in_memory: ServedApp, is_there: bool, headers: dict[str, str], status: int
) -> None:
    if is_there:
        in_memory.service.put("resource_group", "gold", {}, Author("ann"))
    for path in (GROUP, f"{V2}/resourcegroups/gold"):
        before = in_memory.store.revision()
        answer = in_memory.client().post(path, json={"publishRateInMsgs": 5}, headers=headers)
        assert answer.status_code == status, answer.text
        assert in_memory.store.revision() == before + (status == 201)
        if status == 201:
            return


@pytest.mark.parametrize("header", ["If-Match", "If-None-Match"])
def test_condition_on_an_entry_is_refused_where_no_entry_is_changed(in_memory: ServedApp, header: str) -> None:
    in_memory.service.put("resource_group", "gold", {}, Author("ann"))
    answer = in_memory.client().post(f"{V2}/rollback/0?yes=true", headers={header: "*"})
    assert (answer.status_code, answer.json()["path"]) == (422, header)
    assert "?expected=REVISION" in answer.json()["detail"]
    assert in_memory.store.revision() == 1
