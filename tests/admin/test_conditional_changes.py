"""Conditions of a change, and of a read: judged on the revision that the change is committed on, as RFC 9110 says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.store import Author, Change
from tests.admin.conftest import ServedApp, served_over

V2 = "/admin/v2"
ANN = Author("ann")
X = f"{V2}/policies/namespaces/acme%2Fx"
ATTACHED = f"{V2}/namespaces/acme/x/resourcegroup"
FIVE = {"publish": {"messages_per_second": 5}}
TEN = {"publish": {"messages_per_second": 10}}
STAR = {"If-Match": "*"}


class OvertakenStore(MemoryStore):
    """A store in which somebody else commits first, between the reads of a change and its commit."""

    def __init__(self) -> None:
        super().__init__()
        self.first: list[Change] = []

    def commit(self, changes: Sequence[Change], *, expected_revision: int, author: Author, at_ms: int) -> int:
        if self.first:
            first, self.first = self.first, []
            super().commit(first, expected_revision=self.revision(), author=Author("bob"), at_ms=at_ms)
        return super().commit(changes, expected_revision=expected_revision, author=author, at_ms=at_ms)


@pytest.fixture
def overtaken(tmp_path: Path) -> ServedApp:
    served = served_over(OvertakenStore(), tmp_path)
    for group in ("gold", "silver"):
        served.service.put("resource_group", group, {}, ANN)
    served.service.put("namespace", "acme/x", {**FIVE, "resource_group": "gold"}, ANN)
    return served


GONE = Change("namespace", "acme/x", None)
MOVED = Change("namespace", "acme/x", '{"resource_group":"silver"}')


@pytest.mark.parametrize(
    ("method", "path", "body", "first", "status"),
    [
        ("PUT", X, TEN, GONE, 412),
        ("DELETE", X, None, GONE, 404),
        ("PUT", f"{V2}/resourcegroup/silver", {"publishRateInMsgs": 5}, Change("resource_group", "silver", None), 412),
        ("POST", f"{ATTACHED}/silver", None, GONE, 412),
        ("DELETE", ATTACHED, None, GONE, 412),
        ("DELETE", f"{ATTACHED}/gold", None, GONE, 412),
        ("DELETE", f"{ATTACHED}/gold", None, MOVED, 404),
    ],
)
def test_star_fits_no_entry_that_another_removes_before_the_change_is_committed(
    overtaken: ServedApp, method: str, path: str, body: Any, first: Change, status: int
) -> None:
    assert isinstance(overtaken.store, OvertakenStore)
    overtaken.store.first = [first]
    before = overtaken.store.revision()
    answer = overtaken.client().request(method, f"{path}?yes=true", json=body, headers=STAR)
    assert answer.status_code == status, answer.text
    assert overtaken.store.revision() == before + 1
    assert overtaken.store.history()[0].who == "bob"
    entry = overtaken.store.get(first.kind, first.name)
    assert (None if entry is None else entry.body) == first.body


@pytest.mark.slow
def test_entry_that_another_changes_first_is_still_there_for_a_star(overtaken: ServedApp) -> None:
    assert isinstance(overtaken.store, OvertakenStore)
    overtaken.store.first = [MOVED]
    before = overtaken.store.revision()
    assert overtaken.client().put(X, json=TEN, headers=STAR, params={"yes": "true"}).status_code == 200
    assert overtaken.store.revision() == before + 2


@pytest.mark.parametrize("section", ["resource_groups", "tenants", "namespaces"])
def test_entry_of_a_page_can_be_changed_by_the_tag_that_the_page_has(in_memory: ServedApp, section: str) -> None:
    client, path = in_memory.client(), f"{V2}/policies/{section}"
    client.put(f"{path}/acme", json=FIVE)
    (listed,) = client.get(path).json()["policies"]
    single = client.get(f"{path}/acme")
    assert listed["etag"] == single.json()["etag"] == single.headers["ETag"]
    assert client.put(f"{path}/acme", json=TEN, headers={"If-Match": listed["etag"]}).status_code == 200
    assert client.put(f"{path}/acme", json=FIVE, headers={"If-Match": listed["etag"]}).status_code == 412


# ------------------------------------------------------------------------------------- defaults, job, queue


@pytest.mark.parametrize("section", ["defaults", "job", "queue"])
def test_tag_of_an_emptied_section_is_the_one_that_is_read(served: ServedApp, section: str) -> None:
    client, path = served.client(), f"{V2}/policy/{section}"
    values = {"age_seconds": 60} if section == "queue" else FIVE
    unwritten = client.get(path).headers["ETag"]
    written = client.put(path, json=values, headers={"If-Match": unwritten})
    assert written.status_code == 200, written.text
    emptied = client.put(path, json={}, headers={"If-Match": written.headers["ETag"]}, params={"yes": "true"})
    assert (emptied.status_code, emptied.json()["changed"]) == (200, True)
    assert emptied.headers["ETag"] == client.get(path).headers["ETag"] == unwritten
    again = client.put(path, json=values, headers={"If-Match": emptied.headers["ETag"]})
    assert again.status_code == 200, again.text


@pytest.mark.parametrize("section", ["defaults", "job", "queue"])
def test_section_that_nobody_has_written_is_there_for_a_star(in_memory: ServedApp, section: str) -> None:
    client, path = in_memory.client(), f"{V2}/policy/{section}"
    assert client.get(path).status_code == 200
    values = {"age_seconds": 60} if section == "queue" else FIVE
    assert client.put(path, json=values, headers=STAR).status_code == 200


# ------------------------------------------------------------------------------------------ lists, weak tags

FORMS: dict[str, Callable[[str], str]] = {
    "*": lambda _: "*", "weak": lambda tag: f"W/{tag}", "list": lambda tag: f'"x", W/"a",{tag}',
    "weak in a list": lambda tag: f'"7",\t W/{tag} , ', "strong": lambda tag: tag,
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_reader_who_names_what_is_there_in_any_form_is_told_that_it_is_unchanged(
    in_memory: ServedApp, form: Callable[[str], str]
) -> None:
    client = in_memory.client()
    seen = client.put(f"{V2}/resourcegroup/gold", json={}).headers["ETag"]
    for path in (f"{V2}/resourcegroup/gold", f"{V2}/policies/resource_groups/gold"):
        answer = client.get(path, headers={"If-None-Match": form(seen)})
        assert (answer.status_code, answer.content, answer.headers["ETag"]) == (304, b"", seen)


@pytest.mark.parametrize("condition", ['"7"', 'W/"7-00112233aabbccdd"', "", '"*"', "7"])
def test_reader_who_names_something_else_is_answered(in_memory: ServedApp, condition: str) -> None:
    client = in_memory.client()
    client.put(f"{V2}/resourcegroup/gold", json={})
    assert client.get(f"{V2}/resourcegroup/gold", headers={"If-None-Match": condition}).status_code == 200


@pytest.mark.parametrize("at", range(3))
def test_lines_of_a_repeated_condition_are_one_list(in_memory: ServedApp, at: int) -> None:
    client, path = in_memory.client(), f"{V2}/policies/resource_groups/gold"
    seen = client.put(path, json=FIVE).headers["ETag"]
    tags = ['"7-00112233aabbccdd"', '"8-00112233aabbccdd"']
    tags.insert(at, seen)
    assert client.get(path, headers=[("If-None-Match", tag) for tag in tags]).status_code == 304
    lines = [("If-Match", tag) for tag in tags]
    assert client.put(path, json=TEN, headers=lines).status_code == 200
    assert client.put(path, json=FIVE, headers=lines).status_code == 412
    attached = [*lines, ("if-match", client.get(path).headers["ETag"])]
    assert client.delete(path, headers=attached).status_code == 200


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["*", '"7-00112233aabbccdd"'], 422),
        (['"7-00112233aabbccdd"', "*"], 422),
        (['"7-00112233aabbccdd"', "7"], 422),
        (["", "*"], 422),
        (['"7-00112233aabbccdd"', ""], 412),
        (['W/"7-00112233aabbccdd"', '"7"'], 412),
    ],
)
def test_no_line_of_a_repeated_condition_is_left_out(in_memory: ServedApp, lines: list[str], status: int) -> None:
    client, path = in_memory.client(), f"{V2}/policies/resource_groups/gold"
    client.put(path, json=FIVE)
    answer = client.put(path, json=TEN, headers=[("If-Match", line) for line in lines])
    assert answer.status_code == status, answer.text
    assert client.get(path).json()["policy"] == FIVE


def test_lines_of_a_condition_that_an_entry_is_not_there_are_one_list(in_memory: ServedApp) -> None:
    client, path = in_memory.client(), f"{V2}/policies/resource_groups/gold"
    for lines in (["*", '"7"'], ['"7"', "*"]):
        assert client.put(path, json=FIVE, headers=[("If-None-Match", line) for line in lines]).status_code == 422
    assert client.put(path, json=FIVE, headers=[("If-None-Match", "*")]).status_code == 200


def test_change_for_one_of_several_versions_is_made_if_one_fits(in_memory: ServedApp) -> None:
    client, path = in_memory.client(), f"{V2}/policies/resource_groups/gold"
    tags = [client.put(path, json={"publish": {"messages_per_second": rate}}).headers["ETag"] for rate in (1, 2)]
    late = client.put(path, json=TEN, headers={"If-Match": f'{tags[0]}, "7-00112233aabbccdd"'})
    assert late.status_code == 412
    assert late.json()["detail"].startswith(
        "resource group gold is at none of the 2 versions that the change was made for: nothing was changed"
    )
    made = client.put(path, json=TEN, headers={"If-Match": f'{tags[0]},W/"1",{tags[1]}'})
    assert (made.status_code, made.json()["revision"]) == (200, 3)


def test_weak_tag_fits_no_change(in_memory: ServedApp) -> None:
    client, path = in_memory.client(), f"{V2}/policies/resource_groups/gold"
    seen = client.put(path, json={}).headers["ETag"]
    for method, body in (("PUT", TEN), ("DELETE", None)):
        answer = client.request(method, path, json=body, headers={"If-Match": f"W/{seen}"})
        assert answer.status_code == 412, answer.text
        assert answer.json()["detail"].startswith(
            "resource group gold: a change needs an ETag as this API gives it, and one that begins with W/ fits nothing"
        )
    assert in_memory.store.revision() == 1
