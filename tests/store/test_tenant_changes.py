"""What the administrator of a tenant may change, and what administrators gave stays with it."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from spark_throttle.core.names.globs import covers, overlaps
from spark_throttle.errors import NotFoundError, NotPermittedError, PolicyError
from spark_throttle.policy.model import PolicyDocument
from spark_throttle.policy.quotas import RATES
from spark_throttle.store.checks.entry_index import EntryIndex
from spark_throttle.store.checks.policy_view import Moments, PolicyView
from spark_throttle.store.checks.tenant_changes import MOST_TENANT_GLOBS
from spark_throttle.store.entries import body_of, parse_policy
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.policy_location import open_store
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import NOTHING, Author, Change, Kind

ANN = Author("ann")
FIVE = {"publish": {"messages_per_second": 5}}
ONE = {"publish": {"messages_per_second": 1}}
IN_GOLD = {"resource_group": "gold"}
NONE = {"publish": {"messages_per_second": 0}}
BOB = Author("bob", tenant="acme")


@pytest.fixture
def service() -> PolicyService:
    service = PolicyService(MemoryStore(), clock_ms=lambda: 0, pause=lambda _: None)
    service.put("tenant", "acme", {"publish": {"messages_per_second": 100}}, ANN)
    return service


def test_tenant_divides_what_it_has_and_takes_back_what_it_divided(service: PolicyService) -> None:
    service.put("namespace", "acme/*", FIVE, ANN)
    service.put("namespace", "acme/x", ONE, BOB)
    service.put("namespace", "acme/x", FIVE, BOB)
    service.put("namespace", "acme/a*", NONE, BOB)
    service.delete("namespace", "acme/x", BOB)
    service.delete("namespace", "acme/a*", BOB)
    assert [stored.name for stored in service.page("namespace")] == ["acme/*"]


def test_tenant_tightens_an_entry_of_administrators_and_goes_back_to_what_they_gave(service: PolicyService) -> None:
    service.put("namespace", "acme/x", FIVE, ANN)
    service.put("namespace", "acme/x", NONE, BOB)
    service.put("namespace", "acme/x", ONE, BOB)
    assert service.get("namespace", "acme/x").given == body_of(service.get("namespace", "acme/x", at=2).policy)
    with pytest.raises(NotPermittedError, match="an administrator wrote it"):
        service.delete("namespace", "acme/x", BOB)
    with pytest.raises(NotPermittedError, match=r"messages_per_second: it would be 6; at the level namespace.* gave 5"):
        service.put("namespace", "acme/x", {"publish": {"messages_per_second": 6}}, BOB)
    service.put("namespace", "acme/x", FIVE, BOB)
    assert service.get("namespace", "acme/x").given is None


def test_what_administrators_gave_counts_also_where_the_tenant_has_tightened_it(service: PolicyService) -> None:
    service.put("namespace", "acme/*", FIVE, ANN)
    service.put("namespace", "acme/*", NONE, BOB)
    service.put("namespace", "acme/x", FIVE, BOB)
    with pytest.raises(NotPermittedError, match="gave 5"):
        service.put("namespace", "acme/y", {}, BOB)


def by_hand(service: PolicyService, kind: Kind, values: Mapping[str, object]) -> None:
    """Write an entry past the service, as a person does in a file."""
    change = Change(kind, "", body_of(parse_policy(kind, "", values)))
    service.store.commit([change], expected_revision=service.store.revision(), author=ANN, at_ms=0)


@pytest.mark.parametrize("rate", RATES)
def test_longer_burst_is_looser_whatever_is_counted(service: PolicyService, rate: str) -> None:
    service.put("namespace", "acme/x", {"publish": {rate: 5}}, ANN)
    with pytest.raises(NotPermittedError, match=r"would be 11 \(a burst of 55 [a-z' ]+\)"):
        service.put("namespace", "acme/x", {"publish": {rate: 5, "burst_seconds": 11}}, BOB)
    service.put("namespace", "acme/x", {"publish": {rate: 4, "burst_seconds": 11}}, ANN)


def test_removed_entry_leaves_its_names_to_no_looser_rule_of_the_tenant(service: PolicyService) -> None:
    service.put("namespace", "acme/*", FIVE, BOB)
    service.put("namespace", "acme/x", ONE, BOB)
    by_hand(service, "defaults", ONE)
    with pytest.raises(NotPermittedError, match=r"would be 5 by namespaces.acme/\*; .* gave 1 \(defaults\)"):
        service.delete("namespace", "acme/x", BOB)
    service.put("namespace", "acme/*", ONE, BOB)
    service.delete("namespace", "acme/x", BOB)


def test_parts_of_what_was_and_of_what_is_given_do_not_add_up(service: PolicyService) -> None:
    service.put("resource_group", "bronze", ONE, ANN)
    service.put("namespace", "acme/x", {"publish": {"messages_per_second": 2}}, BOB)
    by_hand(service, "defaults", {"resource_group": "bronze", "publish": {"messages_per_second": 50}})
    with pytest.raises(NotPermittedError, match="bronze"):
        service.put("namespace", "acme/x", {"publish": {"messages_per_second": 50}}, BOB)
    service.put("namespace", "acme/x", ONE, BOB)


def test_locked_entry_is_only_an_administrators_to_change(service: PolicyService) -> None:
    service.put("namespace", "acme/x", {**FIVE, "locked": True}, ANN)
    attempts: list[Callable[[], object]] = [
        lambda: service.put("namespace", "acme/x", ONE, BOB),
        lambda: service.put("namespace", "acme/x", {**ONE, "locked": True}, BOB),
        lambda: service.update("namespace", "acme/x", NONE, BOB),
        lambda: service.delete("namespace", "acme/x", BOB),
        lambda: service.detach("namespace", "acme/y", BOB),
        lambda: service.put("namespace", "acme/y", {**ONE, "locked": True}, BOB),
    ]
    for attempt in attempts:
        with pytest.raises((NotPermittedError, NotFoundError), match=r"locked|locks|attached"):
            attempt()
    service.put("namespace", "acme/x", FIVE, ANN)
    service.put("namespace", "acme/x", ONE, BOB)


@pytest.mark.parametrize("kind", ["tenant", "resource_group", "exempt", "defaults", "job", "queue"])
def test_tenant_writes_entries_of_its_namespaces_only(service: PolicyService, kind: Kind) -> None:
    for name in ("", "acme", "acme/x"):
        with pytest.raises((NotPermittedError, PolicyError)):
            service.put(kind, name, {}, BOB)
    for name in ("other/x", "acme-b/x", "*", "ac*", "*/x", "acme*", "acme*/x", "a"):
        with pytest.raises(NotPermittedError, match="only for namespaces of the tenant 'acme'"):
            service.put("namespace", name, NONE, BOB)


def test_administrator_who_writes_what_the_tenant_wrote_makes_it_its_own(service: PolicyService) -> None:
    service.put("namespace", "acme/x", ONE, BOB)
    assert service.put("namespace", "acme/x", ONE, ANN).is_changed
    with pytest.raises(NotPermittedError, match="an administrator wrote it"):
        service.delete("namespace", "acme/x", BOB)


def test_applied_document_keeps_who_wrote_what_it_does_not_change(service: PolicyService) -> None:
    service.put("namespace", "acme/x", ONE, BOB)
    service.put("namespace", "acme/y", ONE, BOB)
    document = service.document()
    changed = {**document.namespaces, "acme/y": parse_policy("namespace", "acme/y", NONE)}
    service.apply(document.model_copy(update={"namespaces": changed}), ANN)
    assert [stored.given for stored in service.page("namespace")] == [NOTHING, None]


def test_rollback_brings_back_what_administrators_gave(service: PolicyService) -> None:
    service.put("namespace", "acme/x", FIVE, ANN)
    service.put("namespace", "acme/x", ONE, BOB)
    service.put("namespace", "acme/y", ONE, BOB)
    before = [(stored.name, stored.values, stored.given) for stored in service.page("namespace")]
    service.put("namespace", "acme/x", ONE, ANN)
    service.delete("namespace", "acme/y", ANN)
    service.rollback(4, ANN)
    assert [(stored.name, stored.values, stored.given) for stored in service.page("namespace")] == before


def test_change_is_judged_on_the_revision_that_it_is_committed_on() -> None:
    class RacedStore(MemoryStore):
        """A store in which an administrator is faster than the tenant's."""

        def commit(self, changes: Sequence[Change], *, expected_revision: int, author: Author, at_ms: int) -> int:
            if author.tenant is not None and expected_revision == 1:
                quota = [Change("defaults", "", '{"publish":{"messages_per_second":0}}')]
                super().commit(quota, expected_revision=1, author=ANN, at_ms=0)
            return super().commit(changes, expected_revision=expected_revision, author=author, at_ms=at_ms)

    service = PolicyService(RacedStore(), clock_ms=lambda: 0, pause=lambda _: None)
    service.put("tenant", "acme", FIVE, ANN)
    with pytest.raises(NotPermittedError, match=r"would be 5; .* gave 0"):
        service.put("namespace", "acme/x", FIVE, BOB)


def test_tenant_lets_no_more_of_its_names_be_observed_than_was_given(service: PolicyService) -> None:
    def observing(percent: int) -> dict[str, Any]:
        return {"publish": {"messages_per_second": 5, "observe_percent": percent}}

    service.put("namespace", "acme/*", observing(50), ANN)
    for written in (observing(51), {"publish": {"messages_per_second": 5, "on_excess": "observe"}}):
        with pytest.raises(NotPermittedError):
            service.put("namespace", "acme/a*", written, BOB)
    assert service.put("namespace", "acme/a*", observing(50), BOB).is_changed
    assert service.put("namespace", "acme/a*", observing(20), BOB).is_changed
    assert service.put("namespace", "acme/x", {"publish": {"messages_per_second": 5}}, BOB).is_changed


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"tenant": ("acme", IN_GOLD)}, "tenants.acme"),
        ({"tenant": ("acme", IN_GOLD), "defaults": ("", {"resource_group": "iron"})}, "tenants.acme"),
        ({"tenant": ("acme", IN_GOLD), "namespace": ("acme/*", FIVE)}, "tenants.acme"),
        ({"defaults": ("", IN_GOLD)}, "defaults"),
        ({"defaults": ("", {"resource_group": "iron"}), "namespace": ("acme/*", IN_GOLD)},
         r"namespaces.acme/\*"),
        ({"tenant": ("acme", {"resource_group": "iron"}), "namespace": ("acme/x", IN_GOLD)},
         "namespaces.acme/x"),
    ],
)  # fmt: skip
def test_refusal_names_the_entry_that_gave_the_group(
    service: PolicyService, given: dict[Kind, tuple[str, dict[str, Any]]], where: str
) -> None:
    for group, messages_per_second in (("gold", 7), ("iron", 3), ("else", 9)):
        service.put("resource_group", group, {"publish": {"messages_per_second": messages_per_second}}, ANN)
    for kind, (name, values) in given.items():
        service.put(kind, name, values, ANN)
    said = (
        rf"resource_group: it would be else; at the level resource_group, administrators gave gold "
        rf"\(publish.messages_per_second: 7\) \({where}\); give"
    )
    with pytest.raises(NotPermittedError, match=said):
        service.put("namespace", "acme/x", {"resource_group": "else"}, BOB)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "delta"])
def test_tenant_is_judged_by_the_rules_of_a_store_that_was_restored(tmp_path: Path, kind: str) -> None:
    place, backup = tmp_path / "store", tmp_path / "backup"
    place.mkdir()
    location = f"{kind}:{place / 'policies.yaml' if kind == 'file' else place / 'table'}"

    times_ms = count(1_000)

    def opened() -> PolicyService:
        return PolicyService(open_store(location, is_created=True), clock_ms=lambda: next(times_ms))

    service = opened()
    service.put("tenant", "acme", {"publish": {"messages_per_second": 100}}, ANN)
    shutil.copytree(place, backup)
    service.put("namespace", "acme/*", {"publish": {"messages_per_second": 80}}, ANN)
    service.put("namespace", "acme/e1", {"publish": {"messages_per_second": 80}}, BOB)
    shutil.rmtree(place)
    shutil.copytree(backup, place)
    other = opened()
    for name, rate in (("acme/e*", 1), ("acme/x", 2)):
        other.put("namespace", name, {"publish": {"messages_per_second": rate}}, ANN)
    with pytest.raises(NotPermittedError, match="administrators gave 1 "):
        service.put("namespace", "acme/e1", {"publish": {"messages_per_second": 80}}, BOB)


def test_globs_of_a_tenant_leave_room_for_those_of_others(service: PolicyService) -> None:
    for i in range(MOST_TENANT_GLOBS):
        service.put("namespace", f"acme/{i}*", {}, BOB)
    service.put("namespace", "acme/*", {}, BOB)
    with pytest.raises(NotPermittedError, match=f"has written {MOST_TENANT_GLOBS} globs of {MOST_TENANT_GLOBS}"):
        service.put("namespace", "acme/more*", {}, BOB)
    service.put("namespace", "acme/0*", ONE, BOB)
    service.delete("namespace", "acme/0*", BOB)
    service.put("namespace", "acme/more*", {}, BOB)


def test_entries_that_a_tenant_makes_are_bounded_and_those_of_administrators_and_others_do_not_count() -> None:
    service = PolicyService(MemoryStore(), clock_ms=lambda: 0, pause=lambda _: None, most_tenant_entries=3)
    for tenant in ("acme", "blue"):
        service.put("tenant", tenant, {"publish": {"messages_per_second": 100}}, ANN)
    for i in range(5):
        service.put("namespace", f"acme/given-{i}", FIVE, ANN)
    for i in range(3):
        service.put("namespace", f"acme/own-{i}", ONE, BOB)
    refused = r"has made entries for 3 namespaces of 3; remove one, write a glob such as 'acme/\*'"
    attempts: list[Callable[[], object]] = [
        lambda: service.put("namespace", "acme/more", ONE, BOB),
        lambda: service.create("namespace", "acme", ONE, BOB),
    ]
    for attempt in attempts:
        with pytest.raises(NotPermittedError, match=refused):
            attempt()
    service.put("namespace", "acme/own-0", FIVE, BOB)
    service.put("namespace", "acme/given-0", ONE, BOB)
    service.put("namespace", "acme/*", FIVE, BOB)
    service.put("namespace", "blue/x", ONE, Author("eve", tenant="blue"))
    service.put("namespace", "acme/more", ONE, ANN)
    service.delete("namespace", "acme/own-1", BOB)
    service.put("namespace", "acme/again", ONE, BOB)
    # An entry that an administrator writes is the administrator's, and makes room.
    service.put("namespace", "acme/own-2", ONE, ANN)
    service.put("namespace", "acme/last", ONE, BOB)
    for attempt in attempts[1:]:
        with pytest.raises(NotPermittedError, match=refused):
            attempt()


def test_bound_on_entries_holds_for_a_group_that_is_attached_and_over_two_services(service: PolicyService) -> None:
    twin = PolicyService(service.store, clock_ms=lambda: 0, most_tenant_entries=1)
    service.put("resource_group", "gold", FIVE, ANN)
    service.put("tenant", "acme", {"resource_group": "gold"}, ANN)
    service.put("namespace", "acme/x", ONE, BOB)
    with pytest.raises(NotPermittedError, match="1 namespaces of 1"):
        twin.attach("namespace", "acme/y", "gold", BOB)
    service.delete("namespace", "acme/x", BOB)
    twin.attach("namespace", "acme/y", "gold", BOB)
    none = PolicyService(service.store, clock_ms=lambda: 0, most_tenant_entries=0)
    with pytest.raises(NotPermittedError, match="1 namespaces of 0"):
        none.put("namespace", "acme/z", ONE, BOB)


@pytest.mark.parametrize(("wide", "narrow", "is_covered", "is_met"), [
    ("acme/*", "acme/x", True, True), ("acme/*", "acme", False, False), ("*", "", True, True),
    ("acme/*", "acme/*-eu", True, True), ("acme/*-eu", "acme/*", False, True), ("a*b", "ab", True, True),
    ("ab*ba", "aba", False, False), ("a*b*c", "abc", True, True), ("a*a", "a", False, False),
    ("a**b", "a*b", True, True), ("*x*", "a*b", False, True), ("*x*", "ax*b", True, True),
    ("a*", "b*", False, False), ("*a", "*b", False, False), ("ab*", "a*c", False, True),
    ("*é", "acme/é", True, True), ("a.c*", "abc", False, False), ("x", "x", True, True), ("x", "y", False, False),
])  # fmt: skip
def test_glob_covers_and_meets_others(wide: str, narrow: str, is_covered: bool, is_met: bool) -> None:
    assert covers(wide, narrow) is is_covered
    assert overlaps(wide, narrow) is overlaps(narrow, wide) is is_met


def test_tenant_replaces_no_document_and_rolls_nothing_back(service: PolicyService) -> None:
    for name in ("acme/x", "acme/y"):
        service.put("namespace", name, ONE, BOB)
    revision = service.store.revision()
    with pytest.raises(NotPermittedError, match="one at a time"):
        service.apply(PolicyDocument(), BOB)
    with pytest.raises(NotPermittedError, match="one at a time"):
        service.rollback(1, BOB)
    assert service.store.revision() == revision


def test_refusal_survives_a_process_boundary(service: PolicyService) -> None:
    with pytest.raises(NotPermittedError) as caught:
        service.put("namespace", "acme/x", {"locked": True}, BOB)
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - its own bytes
    assert (str(again), again.path) == (str(caught.value), "locked")


# ------------------------------------------------------------------- what administrators give after the tenant wrote

OVERTAKING: dict[str, tuple[Kind, str, Mapping[str, object]]] = {
    "a glob": ("namespace", "acme/export-*", ONE),
    "a wider glob": ("namespace", "*", ONE),
    "the defaults": ("defaults", "", ONE),
    "the defaults' other direction": ("defaults", "", {"dispatch": {"bytes_per_second": 1}}),
    "the tenant's group": ("tenant", "acme", {"resource_group": "bronze"}),
    "a placement": ("namespace", "acme/export-*", {"resource_group": "bronze"}),
}


@pytest.mark.parametrize("by", OVERTAKING)
def test_entry_that_was_written_ahead_does_not_outlast_what_administrators_give_later(
    service: PolicyService, by: str
) -> None:
    service.put("resource_group", "gold", {}, ANN)
    service.put("resource_group", "bronze", ONE, ANN)
    service.put("tenant", "acme", {"resource_group": "gold"}, ANN)
    ahead = {**FIVE, "resource_group": "gold"}
    service.put("namespace", "acme/export-7", ahead, BOB)
    kind, name, values = OVERTAKING[by]
    made = service.put(kind, name, values, ANN)
    assert [stored.name for stored in service.page("namespace")] == ([name] if kind == "namespace" else [])
    assert made.notes == (
        "namespaces.acme/export-7, which the tenant wrote, is looser than this allows: it was removed",
    )
    assert service.history(limit=1)[0].changes == 2
    with pytest.raises(NotPermittedError):
        service.put("namespace", "acme/export-7", ahead, BOB)


def test_entry_of_administrators_comes_back_when_what_the_tenant_made_of_it_is_overtaken(
    service: PolicyService,
) -> None:
    service.put("resource_group", "gold", {}, ANN)
    service.put("namespace", "acme/x", FIVE, ANN)
    service.put("namespace", "acme/x", ONE, BOB)
    service.put("namespace", "acme/y", ONE, BOB)
    service.put("tenant", "acme", {"resource_group": "gold"}, ANN)
    assert [stored.values for stored in service.page("namespace")] == [ONE, ONE]
    service.put("namespace", "acme/x", FIVE, ANN)
    assert service.get("namespace", "acme/x").given is None


REJECTING = {"publish": {"messages_per_second": 0, "on_excess": "reject"}}


@pytest.mark.parametrize(("kind", "name", "values"), [
    ("tenant", "acme", {**REJECTING, **IN_GOLD}), ("resource_group", "gold", REJECTING), ("job", "", REJECTING),
    ("defaults", "", {"publish": {"messages_per_second": 9, "on_excess": "reject"}}),
])  # fmt: skip
def test_delay_that_a_tenant_wrote_does_not_outlast_a_rejection_that_administrators_give_later(
    service: PolicyService, kind: Kind, name: str, values: Mapping[str, object]
) -> None:
    service.put("resource_group", "gold", {}, ANN)
    service.put("tenant", "acme", {**FIVE, **IN_GOLD}, ANN)
    service.put("namespace", "acme/waits", ONE, BOB)
    service.put("namespace", "acme/rejects", {"publish": {"messages_per_second": 1, "on_excess": "reject"}}, BOB)
    service.put("namespace", "other/x", ONE, ANN)
    made = service.put(kind, name, values, ANN)
    assert made.notes[:1] == (
        "namespaces.acme/waits, which the tenant wrote, is looser than this allows: it was removed",
    )
    assert [stored.name for stored in service.page("namespace")] == ["acme/rejects", "other/x"]


def test_tighter_entry_of_a_tenant_outlasts_what_administrators_give_later(service: PolicyService) -> None:
    service.put("namespace", "acme/x", ONE, BOB)
    service.put("namespace", "other/x", ONE, ANN)
    made = service.put("defaults", "", FIVE, ANN)
    assert made.notes == ()
    assert service.get("namespace", "acme/x").given == NOTHING


def test_document_that_overtakes_an_entry_and_says_it_makes_it_the_administrators(service: PolicyService) -> None:
    service.put("namespace", "acme/x", FIVE, BOB)
    document = service.document().model_copy(update={"defaults": parse_policy("defaults", "", ONE)})
    made = service.apply(document, ANN)
    assert made.notes == (
        "namespaces.acme/x, which the tenant wrote, is looser than this allows: it is the administrators' from here on",
    )
    assert service.document() == document
    assert service.get("namespace", "acme/x").given is None


def test_change_of_one_namespace_reads_no_entries_of_tenants(
    service: PolicyService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.store, "delegated", lambda **_: pytest.fail("read the entries of tenants"))
    service.put("namespace", "acme/x", FIVE, ANN)
    service.put("resource_group", "gold", FIVE, ANN)
    service.delete("namespace", "acme/x", ANN)


def test_glob_that_a_change_writes_takes_its_names_from_less_specific_ones() -> None:
    store = MemoryStore()
    store.commit([Change("namespace", "acme/*", "{}")], expected_revision=0, author=ANN, at_ms=0)
    view = PolicyView(store, EntryIndex(store), 1, [Change("namespace", "acme/a*", "{}")], moments=Moments(0))
    assert [rule.name for rule in view.rules_beside("acme/ab")] == ["acme/a*"]
