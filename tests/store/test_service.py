"""What can be done with policies, over a store."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from spark_throttle.errors import (
    ConfigurationError,
    ConflictError,
    DuplicateError,
    InUseError,
    NotFoundError,
    PolicyError,
    StoreError,
)
from spark_throttle.policy.model import PolicyDocument
from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.policy_location import load_policies
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import KINDS, Author

ANN = Author("ann", "first customers")
FIVE = {"publish": {"messages_per_second": 5}}
TEN = {"publish": {"messages_per_second": 10}}
NOW_MS = 1_795_266_764_070


@pytest.fixture
def service() -> PolicyService:
    return PolicyService(MemoryStore(), clock_ms=lambda: NOW_MS, pause=lambda _: None)


def test_created_group_reads_as_it_was_written(service: PolicyService) -> None:
    made = service.create("resource_group", "gold", FIVE, ANN)
    assert (made.revision, made.is_changed) == (1, True)
    assert service.get("resource_group", "gold").values == FIVE
    assert service.get("resource_group", "gold").revision == 1
    assert [stored.name for stored in service.page("resource_group")] == ["gold"]


def test_revision_says_who_changed_it_when_and_why(service: PolicyService) -> None:
    service.create("resource_group", "gold", FIVE, ANN)
    (revision,) = service.history()
    assert (revision.who, revision.why, revision.at_ms) == ("ann", "first customers", NOW_MS)


def test_change_without_an_author_is_refused(service: PolicyService) -> None:
    with pytest.raises(ConfigurationError, match="needs its author"):
        service.create("resource_group", "gold", FIVE, Author(""))


def test_creating_what_is_there_is_a_duplicate(service: PolicyService) -> None:
    service.create("resource_group", "gold", FIVE, ANN)
    with pytest.raises(DuplicateError, match="'gold' is there already"):
        service.create("resource_group", "gold", TEN, ANN)
    assert service.get("resource_group", "gold").values == FIVE


def test_updating_deleting_and_getting_what_is_not_there_names_the_nearest(service: PolicyService) -> None:
    service.create("resource_group", "gold", FIVE, ANN)
    for call in (
        lambda: service.update("resource_group", "golt", TEN, ANN),
        lambda: service.delete("resource_group", "golt", ANN),
        lambda: service.get("resource_group", "golt"),
        lambda: service.attach("tenant", "acme", "golt", ANN),
    ):
        with pytest.raises(NotFoundError, match="there is no resource group 'golt'; did you mean gold"):
            call()
    assert service.store.revision() == 1


def test_update_replaces_what_was_said(service: PolicyService) -> None:
    service.create("tenant", "acme", FIVE, ANN)
    service.update("tenant", "acme", {"dispatch": {"weight": 2}}, ANN)
    assert service.get("tenant", "acme").values == {"dispatch": {"weight": 2}}


def test_put_creates_and_replaces(service: PolicyService) -> None:
    service.put("tenant", "acme", FIVE, ANN)
    service.put("tenant", "acme", TEN, ANN)
    assert service.get("tenant", "acme").values == TEN


def test_change_that_says_what_is_there_commits_nothing(service: PolicyService) -> None:
    service.put("tenant", "acme", FIVE, ANN)
    made = service.put("tenant", "acme", {"publish": {"messages_per_second": "5"}}, ANN)
    assert (made.revision, made.is_changed) == (1, False)


def test_conditional_change_is_made_on_the_revision_it_was_meant_for_only(service: PolicyService) -> None:
    service.put("tenant", "acme", FIVE, ANN, expected=0)
    service.put("tenant", "other", FIVE, ANN)
    service.update("tenant", "acme", TEN, ANN, expected=1)
    with pytest.raises(ConflictError) as caught:
        service.update("tenant", "acme", FIVE, ANN, expected=1)
    assert (caught.value.expected_revision, caught.value.found_revision) == (1, 3)
    with pytest.raises(ConflictError):
        service.put("tenant", "acme", FIVE, ANN, expected=0)
    with pytest.raises(ConflictError):
        service.delete("tenant", "acme", ANN, expected=1)
    assert service.get("tenant", "acme").values == TEN


@pytest.mark.parametrize("kind", ["tenant", "namespace", "defaults"])
def test_group_in_use_is_not_deleted_and_the_error_names_its_users(service: PolicyService, kind: str) -> None:
    service.create("resource_group", "gold", FIVE, ANN)
    service.attach(kind, "" if kind == "defaults" else "acme", "gold", ANN)  # type: ignore[arg-type]
    with pytest.raises(InUseError) as caught:
        service.delete("resource_group", "gold", ANN)
    assert caught.value.users == ("defaults" if kind == "defaults" else f"{kind} acme",)
    service.detach(kind, "" if kind == "defaults" else "acme", ANN)  # type: ignore[arg-type]
    service.delete("resource_group", "gold", ANN)
    assert service.page("resource_group") == []


def test_of_many_users_of_a_group_some_are_named(service: PolicyService) -> None:
    service.create("resource_group", "gold", FIVE, ANN)
    for i in range(12):
        service.attach("namespace", f"acme/{i:02d}", "gold", ANN)
    with pytest.raises(InUseError, match="acme/09 and more: detach these first") as caught:
        service.delete("resource_group", "gold", ANN)
    assert len(caught.value.users) == 10


def test_attached_namespace_keeps_its_own_quota_when_detached(service: PolicyService) -> None:
    service.create("resource_group", "gold", {}, ANN)
    service.create("namespace", "acme/x", FIVE, ANN)
    service.attach("namespace", "acme/x", "gold", ANN)
    assert service.attached("namespace", "acme/x").resource_group == "gold"
    assert service.get("namespace", "acme/x").values == {**FIVE, "resource_group": "gold"}
    service.detach("namespace", "acme/x", ANN)
    assert service.get("namespace", "acme/x").values == FIVE


def test_entry_that_only_attached_is_gone_when_detached(service: PolicyService) -> None:
    service.create("resource_group", "gold", {}, ANN)
    service.attach("tenant", "acme", "gold", ANN)
    service.detach("tenant", "acme", ANN)
    assert service.page("tenant") == []
    with pytest.raises(NotFoundError, match="attached"):
        service.attached("tenant", "acme")
    with pytest.raises(NotFoundError):
        service.detach("tenant", "acme", ANN)


def test_namespace_is_attached_to_one_group_only_unless_it_is_moved(service: PolicyService) -> None:
    service.create("resource_group", "gold", {}, ANN)
    service.create("resource_group", "bronze", {}, ANN)
    service.attach("namespace", "acme/x", "gold", ANN)
    assert not service.attach("namespace", "acme/x", "gold", ANN).is_changed
    with pytest.raises(DuplicateError, match="is attached to 'gold'; to move it in one step"):
        service.attach("namespace", "acme/x", "bronze", ANN)
    service.attach("namespace", "acme/x", "bronze", ANN, is_moved=True)
    assert service.attached("namespace", "acme/x").resource_group == "bronze"


def test_attaching_an_unnamed_namespace_says_that_the_defaults_hold_it_no_longer(service: PolicyService) -> None:
    service.create("resource_group", "gold", {}, ANN)
    (note,) = service.attach("namespace", "acme/x", "gold", ANN).notes
    assert "the defaults and wider globs no longer apply to it" in note
    assert service.attach("tenant", "acme", "gold", ANN).notes == ()


@pytest.mark.parametrize("kind", ["defaults", "job", "queue"])
def test_singles_are_always_there_and_delete_makes_them_default(service: PolicyService, kind: str) -> None:
    values = {"messages": 5} if kind == "queue" else FIVE
    assert service.get(kind).values == {}  # type: ignore[arg-type]
    service.put(kind, "", values, ANN, expected=0)  # type: ignore[arg-type]
    assert service.get(kind).values == values  # type: ignore[arg-type]
    assert service.get(kind).revision == 1  # type: ignore[arg-type]
    service.delete(kind, "", ANN, expected=1)  # type: ignore[arg-type]
    assert service.get(kind).values == {}  # type: ignore[arg-type]


def test_exempt_namespaces_are_entries_of_their_own(service: PolicyService) -> None:
    service.create("exempt", "acme/audit", {}, ANN)
    assert service.document().exempt == ("acme/audit",)
    service.delete("exempt", "acme/audit", ANN)
    assert service.document().exempt == ()
    with pytest.raises(PolicyError, match="says nothing else"):
        service.create("exempt", "acme/audit", FIVE, ANN)


@pytest.mark.parametrize(
    ("kind", "name", "values", "problem"),
    [
        ("tenant", "acme", {"publish": {"weight": 0}}, r"^tenants\.acme\.publish\.weight: 0 is less than 1"),
        ("tenant", "acme", {"publis": {}}, r"^tenants\.acme\.publis: unknown key; did you mean publish"),
        ("tenant", "a/b", {}, r"would match none; write 'a'"),
        ("namespace", "x" * 10_240, {}, "10240 bytes of UTF-8; it may have at most 1024"),
        ("namespace", "", {}, "a name is empty"),
        ("namespace", "a\ud800", {}, "surrogate"),
        ("resource_group", "", {}, "a name is empty"),
        ("exempt", "x" * 10_240, {}, "may have at most 1024"),
        ("job", "", {"publish": {"messages_per_second": -1}}, r"^job\.publish\.messages_per_second: "),
        ("namespace", "a", {"resource_group": "golt"}, r"^namespaces\.a\.resource_group: 'golt' is not a resource gr"),
        ("namespace", "a", {"resource_group": 5}, r"^namespaces\.a\.resource_group: "),
    ],
)
def test_what_cannot_be_applied_is_refused_and_not_stored(
    service: PolicyService, kind: str, name: str, values: dict[str, object], problem: str
) -> None:
    with pytest.raises(PolicyError, match=problem):
        service.put(kind, name, values, ANN)  # type: ignore[arg-type]
    assert service.store.revision() == 0


def test_document_that_is_applied_is_the_document_that_is_read(service: PolicyService) -> None:
    document = load_policies(Path("conf/policies/example.yaml"))
    made = service.apply(document, ANN)
    assert service.document() == document
    assert made.revision == 1
    assert not service.apply(document, ANN).is_changed


def test_apply_makes_the_store_say_what_the_document_says_and_nothing_else(service: PolicyService) -> None:
    service.create("tenant", "old", FIVE, ANN)
    service.create("tenant", "kept", FIVE, ANN)
    document = PolicyDocument.model_validate({"tenants": {"kept": FIVE, "new": TEN}})
    assert [(each.path, each.before, each.after) for each in service.planned(document).differences] == [
        ("tenants.old", FIVE, None),
        ("tenants.new", None, TEN),
    ]
    service.apply(document, ANN)
    assert service.document() == document
    assert service.get("tenant", "kept").revision == 2


def test_apply_can_ask_for_the_revision_it_was_made_from(service: PolicyService) -> None:
    service.create("tenant", "acme", FIVE, ANN)
    with pytest.raises(ConflictError):
        service.apply(PolicyDocument(), ANN, expected=0)
    service.apply(PolicyDocument(), ANN, expected=1)
    assert service.document() == PolicyDocument()


def test_diff_has_what_differs_between_two_revisions(service: PolicyService) -> None:
    service.create("tenant", "acme", FIVE, ANN)
    service.create("tenant", "brief", FIVE, ANN)
    service.delete("tenant", "brief", ANN)
    service.update("tenant", "acme", TEN, ANN)
    assert [(each.path, each.before, each.after) for each in service.diff(1, 4)] == [("tenants.acme", FIVE, TEN)]
    assert [(each.path, each.before, each.after) for each in service.diff(4, 1)] == [("tenants.acme", TEN, FIVE)]
    assert [each.path for each in service.diff(0, 2)] == ["tenants.acme", "tenants.brief"]
    assert service.diff(4, 4) == []


def test_rollback_is_a_new_revision_that_says_what_an_old_one_said(service: PolicyService) -> None:
    service.create("tenant", "acme", FIVE, ANN)
    before = service.document()
    service.update("tenant", "acme", TEN, ANN)
    service.put("job", "", TEN, ANN)
    made = service.rollback(1, ANN)
    assert made.revision == 4
    assert service.document() == before
    assert service.document(at=3) != before
    assert not service.rollback(1, ANN).is_changed


@pytest.mark.parametrize("revision", [-1, 2])
def test_revision_that_is_not_there_cannot_be_diffed_or_rolled_back_to(service: PolicyService, revision: int) -> None:
    service.create("tenant", "acme", FIVE, ANN)
    with pytest.raises(NotFoundError, match="the newest is 1"):
        service.diff(revision, 1)
    with pytest.raises(NotFoundError, match="the newest is 1"):
        service.rollback(revision, ANN)


@pytest.mark.slow
def test_concurrent_changes_of_one_store_are_all_made(tmp_path: Path) -> None:
    DeltaStore.create(str(tmp_path / "store"))
    failures: list[BaseException] = []

    def write(writer: int) -> None:
        service = PolicyService(DeltaStore(str(tmp_path / "store")), clock_ms=lambda: NOW_MS)
        try:
            for change in range(5):
                service.create("namespace", f"w{writer}/n{change}", FIVE, Author(f"writer {writer}"))
        except StoreError as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    service = PolicyService(DeltaStore(str(tmp_path / "store")), clock_ms=lambda: NOW_MS)
    assert failures == []
    assert service.store.revision() == 30
    assert len(service.page("namespace")) == 30
    assert sorted(each.revision for each in service.page("namespace")) == list(range(1, 31))


def test_group_cannot_be_deleted_while_another_author_attaches_to_it() -> None:
    """The check and the change are one: what was checked at a revision is committed on that revision."""
    store = MemoryStore()
    service = PolicyService(store, clock_ms=lambda: NOW_MS, pause=lambda _: None)
    service.create("resource_group", "gold", {}, ANN)
    commit = store.commit

    def attach_first(*args: object, **kwargs: object) -> int:
        store.commit = commit  # type: ignore[method-assign]
        service.attach("tenant", "acme", "gold", ANN)
        return commit(*args, **kwargs)  # type: ignore[arg-type]

    store.commit = attach_first  # type: ignore[method-assign]
    with pytest.raises(InUseError, match="tenant acme"):
        service.delete("resource_group", "gold", ANN)
    assert service.get("resource_group", "gold").revision == 1


def test_every_kind_has_its_page(service: PolicyService) -> None:
    assert all(service.page(kind) == [] for kind in KINDS)
