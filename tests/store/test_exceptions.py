"""Exceptions in a store: when one may be written, what a tenant gains by it, and who sees both ends."""

from __future__ import annotations

from typing import Any

import pytest

from spark_throttle.errors import NotPermittedError, PolicyError, UnconfirmedError
from spark_throttle.policy.codec import parse_document
from spark_throttle.policy.values import time_text
from spark_throttle.store.given_exceptions import exception_changes
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author

NOW_MS = 1_795_266_764_000
ANN, BOB = Author("ann"), Author("bob", tenant="acme")
ASKING = Author("ann", is_confirmed=False)
FRIDAY_MS = NOW_MS + 1_000_000
SATURDAY_MS = FRIDAY_MS + 86_400_000
FRIDAY, SATURDAY = time_text(FRIDAY_MS), time_text(SATURDAY_MS)
Values = dict[str, Any]


def quota(messages_per_second: int, **more: Any) -> Values:
    return {"publish": {"messages_per_second": messages_per_second, **more}}


def until(end_ms: int, values: Values) -> Values:
    return {"exception": {"until": time_text(end_ms), "reason": "a move", **values}}


class Clocked:
    """A service over an empty store, and its clock."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self.service = PolicyService(MemoryStore(), clock_ms=lambda: self.now_ms, pause=lambda _: None)

    def put(self, name: str, values: Values, author: Author = ANN) -> None:
        self.service.put("namespace", name, values, author)


@pytest.fixture
def clocked() -> Clocked:
    clocked = Clocked()
    clocked.service.put("tenant", "acme", quota(1000), ANN)
    return clocked


# ------------------------------------------------------------------------------------------------- an end that is past


def test_exception_whose_end_is_past_is_refused_with_both_times(clocked: Clocked) -> None:
    for end_ms in (NOW_MS, NOW_MS - 1):
        with pytest.raises(PolicyError) as refused:
            clocked.put("acme/x", {**quota(5), **until(end_ms, quota(15))})
        assert refused.value.path == "namespaces.acme/x.exception.until"
        assert f"{time_text(end_ms)} is past: it is {time_text(NOW_MS)}" in refused.value.problem
    clocked.put("acme/x", {**quota(5), **until(NOW_MS + 1, quota(15))})


def test_entry_keeps_an_exception_that_has_ended_until_it_is_written_without_it(clocked: Clocked) -> None:
    service, ended = clocked.service, until(FRIDAY_MS, quota(15))
    clocked.put("acme/x", {**quota(5), **ended})
    clocked.now_ms = FRIDAY_MS
    assert [(each.path, each.state) for each in service.exceptions()] == [("namespaces.acme/x", "ended")]
    clocked.put("acme/x", {**quota(6), **ended})
    service.apply(service.document(), ANN)
    with pytest.raises(PolicyError, match="is past"):
        clocked.put("acme/y", {**quota(5), **ended})
    clocked.put("acme/x", quota(6))
    assert not service.exceptions()


def test_rollback_restores_an_exception_that_has_ended_meanwhile(clocked: Clocked) -> None:
    clocked.put("acme/x", {**quota(5), **until(FRIDAY_MS, quota(15))})
    at = clocked.service.store.revision()
    clocked.put("acme/x", quota(6))
    clocked.now_ms = FRIDAY_MS
    clocked.service.rollback(at, ANN)
    assert [each.state for each in clocked.service.exceptions()] == ["ended"]


def test_rollback_says_which_exception_it_brings_back_into_force(clocked: Clocked) -> None:
    clocked.put("acme/x", {**quota(5), **until(FRIDAY_MS, quota(15))})
    at = clocked.service.store.revision()
    clocked.put("acme/x", quota(6))
    (note,) = clocked.service.rollback(at, ANN).notes
    assert note == f"namespaces.acme/x has an exception until {FRIDAY} (a move): what it sets is in force again"


def test_author_who_writes_an_entry_is_told_that_its_exception_stays(clocked: Clocked) -> None:
    clocked.put("acme/x", {**quota(5), **until(FRIDAY_MS, quota(15))})
    made = clocked.service.edit("namespace", "acme/x", lambda values: {**values, **quota(6)}, ANN)
    (note,) = made.notes
    assert note == f"namespaces.acme/x has an exception until {FRIDAY} (a move): what it sets stays until then"


@pytest.mark.parametrize("until_text", ["9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+00:01"])
def test_end_that_has_no_year_of_four_digits_in_utc_is_refused(clocked: Clocked, until_text: str) -> None:
    exception = {"until": until_text, "reason": "a move", **quota(15)}
    with pytest.raises(PolicyError, match="is not a time with its zone"):
        clocked.put("acme/x", {**quota(5), "exception": exception})


# ------------------------------------------------------------------------------------------------- what it costs


def test_exception_that_sets_0_or_only_observes_costs_protection(clocked: Clocked) -> None:
    clocked.put("acme/x", quota(5))
    for values, said in ((quota(0), "becomes 0"), ({"publish": {"on_excess": "observe"}}, "is lifted")):
        with pytest.raises(UnconfirmedError, match=said):
            clocked.put("acme/x", {**quota(5), **until(FRIDAY_MS, values)}, ASKING)
    clocked.put("acme/x", {**quota(5), **until(FRIDAY_MS, quota(15))}, ASKING)


def test_what_comes_to_light_at_the_end_of_an_exception_is_judged_too(clocked: Clocked) -> None:
    clocked.put("acme/x", {**quota(5), **until(FRIDAY_MS, quota(15))})
    with pytest.raises(UnconfirmedError, match="becomes 0"):
        clocked.put("acme/x", {**quota(0), **until(FRIDAY_MS, quota(15))}, ASKING)
    clocked.now_ms = FRIDAY_MS
    clocked.put("acme/x", quota(7), ASKING)


# ------------------------------------------------------------------------------------- a tenant's administrator


@pytest.mark.parametrize(("base", "other", "most"), [(80, 240, 80), (80, 10, 10)])
def test_tenant_is_given_the_least_of_what_is_in_force_and_what_follows(
    clocked: Clocked, base: int, other: int, most: int
) -> None:
    clocked.put("acme/*", {**quota(base), **until(FRIDAY_MS, quota(other))})
    clocked.put("acme/x", quota(most), BOB)
    with pytest.raises(NotPermittedError, match=f"would be {most + 1}") as refused:
        clocked.put("acme/x", quota(most + 1), BOB)
    assert (f" from {FRIDAY} on" in str(refused.value)) == (most == base)
    clocked.now_ms = FRIDAY_MS
    clocked.put("acme/x", quota(base), BOB)


def test_tenant_gives_itself_as_much_as_it_was_given_and_no_more(clocked: Clocked) -> None:
    clocked.put("acme/*", {**quota(80), **until(FRIDAY_MS, quota(240))})
    clocked.put("acme/x", {**quota(80), **until(FRIDAY_MS, quota(240))}, BOB)
    clocked.put("acme/y", {**quota(50), **until(SATURDAY_MS, quota(80))}, BOB)
    with pytest.raises(NotPermittedError, match=f"would be 81 from {FRIDAY} on"):
        clocked.put("acme/y", {**quota(50), **until(SATURDAY_MS, quota(81))}, BOB)


def test_tenant_keeps_an_exception_that_an_administrator_gave_until_its_end(clocked: Clocked) -> None:
    given = {**quota(80), **until(FRIDAY_MS, quota(10))}
    clocked.put("acme/x", given)
    for values in (quota(80), quota(10), {**quota(80), **until(FRIDAY_MS - 1, quota(10))}):
        with pytest.raises(NotPermittedError, match=f"gave it an exception until {FRIDAY} \\(a move\\); repeat") as no:
            clocked.put("acme/x", values, BOB)
        assert no.value.path == "exception"
    clocked.put("acme/x", {**quota(70), **until(FRIDAY_MS, quota(10))}, BOB)
    with pytest.raises(NotPermittedError, match="administrator wrote it"):
        clocked.service.delete("namespace", "acme/x", BOB)
    clocked.now_ms = FRIDAY_MS
    clocked.put("acme/x", quota(80), BOB)


def test_tenant_makes_no_row_wait_that_a_group_rejects_once_an_exception_has_ended(clocked: Clocked) -> None:
    waits = until(FRIDAY_MS, {"publish": {"on_excess": "delay"}})
    clocked.service.put("tenant", "acme", {**quota(100, on_excess="reject"), **waits}, ANN)
    with pytest.raises(NotPermittedError, match=f"rows that are rejected would wait from {FRIDAY} on"):
        clocked.put("acme/x", quota(5), BOB)
    clocked.put("acme/x", quota(5, on_excess="reject"), BOB)


def test_exception_that_gives_less_undoes_what_the_tenant_wrote_and_one_that_gives_more_does_not(
    clocked: Clocked,
) -> None:
    clocked.put("acme/*", quota(80))
    clocked.put("acme/x", quota(60), BOB)
    clocked.put("acme/*", {**quota(80), **until(FRIDAY_MS, quota(240))})
    assert clocked.service.get("namespace", "acme/x").values == quota(60)
    made = clocked.service.put("namespace", "acme/*", {**quota(80), **until(FRIDAY_MS, quota(50))}, ANN)
    assert clocked.service.store.get("namespace", "acme/x") is None
    assert "looser than this allows: it was removed" in made.notes[0]


# ------------------------------------------------------------------------------------------------- both ends


def test_history_has_the_revision_that_gave_an_exception_and_the_one_that_took_it(clocked: Clocked) -> None:
    service = clocked.service
    clocked.put("acme/x", {**quota(5), **until(FRIDAY_MS, quota(15))})
    clocked.put("acme/x", {**quota(6), **until(FRIDAY_MS, quota(15))})
    clocked.put("acme/x", {**quota(6), **until(SATURDAY_MS, quota(15))})
    clocked.now_ms = SATURDAY_MS
    clocked.put("acme/x", quota(6))
    found = exception_changes(service.store, service.history())
    assert {number: [(each.done, each.until) for each in changes] for number, changes in found.items()} == {
        2: [("given", FRIDAY)],
        4: [("taken back", FRIDAY), ("given", SATURDAY)],
        5: [("removed after its end", SATURDAY)],
    }
    part = exception_changes(service.store, service.history(before=5, limit=1))
    assert part == {4: found[4]}


def test_document_of_a_store_has_its_exceptions_first_to_end_first(clocked: Clocked) -> None:
    document = {
        "resource_groups": {"gold": {**quota(9), **until(SATURDAY_MS, quota(10))}},
        "namespaces": {"acme/x": {**quota(5), **until(FRIDAY_MS, quota(6))}},
        "job": {**quota(90), **until(FRIDAY_MS + 1, quota(100))},
    }
    clocked.service.apply(parse_document(document), ANN)
    paths = ["namespaces.acme/x", "job", "resource_groups.gold"]
    assert [path for path, _ in clocked.service.document().exceptions] == paths
    assert [each.path for each in clocked.service.exceptions()] == paths


def test_dry_run_judges_as_the_change_does_and_writes_nothing(clocked: Clocked) -> None:
    clocked.put("acme/x", quota(5))
    revision = clocked.service.store.revision()
    tried = clocked.service.dry_run().put("namespace", "acme/x", {**quota(5), **until(FRIDAY_MS, quota(0))}, ASKING)
    assert (tried.is_changed, tried.revision, clocked.service.store.revision()) == (True, revision, revision)
    assert [loss.key for loss in tried.losses] == ["publish.messages_per_second"]
    with pytest.raises(NotPermittedError):
        clocked.service.dry_run().put("namespace", "acme/x", quota(6), BOB)


def test_dry_runs_know_what_the_service_has_read(clocked: Clocked, monkeypatch: pytest.MonkeyPatch) -> None:
    clocked.put("acme/*", quota(80))
    clocked.put("acme/x", quota(60), BOB)
    monkeypatch.setattr(clocked.service.store, "scan", None)  # who reads all entries again, fails
    assert clocked.service.dry_run().put("namespace", "acme/y", quota(60), BOB).is_changed


def test_reworded_exception_is_not_told_as_taken_back(clocked: Clocked) -> None:
    given = until(FRIDAY_MS, quota(15))
    clocked.put("acme/x", {**quota(5), **given})
    clocked.put("acme/x", {**quota(5), "exception": {**given["exception"], "reason": "ticket 7"}})
    found = exception_changes(clocked.service.store, clocked.service.history())
    assert [(each.done, each.reason) for each in found[3]] == [("reworded", "ticket 7")]


@pytest.mark.parametrize("reason", ["", " ", "\u200b", "\u3164 \u2800", "\u202e"])
def test_reason_that_nobody_sees_is_none(clocked: Clocked, reason: str) -> None:
    given = until(FRIDAY_MS, quota(15))
    with pytest.raises(PolicyError, match="nothing that can be seen"):
        clocked.put("acme/x", {**quota(5), "exception": {**given["exception"], "reason": reason}})
