"""A quota that is accepted is applied: every field of every document changes a verdict, or a note says why not."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from spark_throttle.core.batch.admission import plan_admission
from spark_throttle.core.limits.token_bucket import PayingTime
from spark_throttle.core.policy_change import under_epoch
from spark_throttle.core.quota import BUDGETS, CompiledPolicy
from spark_throttle.core.state import ControlRow, DeciderState
from spark_throttle.errors import NotPermittedError, PolicyError, QueueOverflowError
from spark_throttle.policy.codec import parse_document
from spark_throttle.policy.compile import compile_policy
from spark_throttle.policy.model import (
    Direction,
    GroupPolicy,
    JobPolicy,
    NamespacePolicy,
    PolicyDocument,
    QueuePolicy,
    TenantPolicy,
)
from spark_throttle.policy.quotas import BOUNDS, GUARANTEES, ExceptionPolicy, OtherQuota, Quota
from spark_throttle.record import pack, unpack
from spark_throttle.store.effects import notes_on_document
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author
from tests.oracle.worlds import make_arrivals

SECTIONS: dict[str, tuple[str, type[BaseModel]]] = {
    "resource_groups": ("resource_groups.gold", GroupPolicy),
    "tenants": ("tenants.acme", TenantPolicy),
    "namespaces": ("namespaces.acme/x", NamespacePolicy),
    "namespaces, by a glob": ("namespaces.acme/*", NamespacePolicy),
    "defaults": ("defaults", NamespacePolicy),
    "job": ("job", JobPolicy),
    "queue": ("queue", QueuePolicy),
}
BATCHES = ("acme/x", "acme/x", "acme/y"), ("acme/x", "acme/y", "acme/y"), ("acme/x",)
TIMES_MS = 1_000_000, 1_001_000, 1_004_000
SIZE_BYTES = UNITS = 100

HELD = {"messages_per_second": 0}
"""Holds rows, so that what bounds them can act."""

UNTIL_LATER = {"until": "2026-12-04T18:00:00Z", "reason": "tried"}

CLOSED = {"namespaces": {"acme/x": {"publish": HELD}}}

QUOTA: dict[str, tuple[dict[str, Any], Any]] = {
    "messages_per_second": ({}, 0),
    "bytes_per_second": ({}, 0),
    "units_per_second": ({}, 0),
    "burst_seconds": ({"messages_per_second": 0.1}, 1),
    "weight": ({"messages_per_second": 100}, 9),
    "on_excess": (HELD, "reject"),
    "request_percentage": ({}, 0),
    **dict.fromkeys(BOUNDS, (HELD, 1)),
    **dict.fromkeys((key for key, _, _ in BUDGETS), ({}, 1)),
    "guaranteed_messages_per_second": ({}, 1),
    "guaranteed_bytes_per_second": ({}, 100),
    "guaranteed_units_per_second": ({}, 100),
    "guaranteed_request_percentage": ({"guaranteed_messages_per_second": 1, "guaranteed_request_percentage": 0}, 1),
}
"""What each key of a quota is tried with: what stands beside it, and a value that decides otherwise."""

PART: dict[str, tuple[dict[str, Any], Any]] = {"observe_percent": (HELD, 100)}
"""The same for those of namespaces alone."""

ENTRY: dict[str, tuple[dict[str, Any], dict[str, Any], Any]] = {
    "fair_between": (
        {"defaults": {"resource_group": "gold"}}, {"publish": {"messages_per_second": 1, "burst_seconds": 10}},
        "namespaces",
    ),
    **dict.fromkeys(("write_throttling", "write_throttling_by_size", "read_throttling"), ({}, {}, "1*reject*50")),
    "messages": (CLOSED, {}, 1),
    "bytes": (CLOSED, {}, 100),
    "age_seconds": (CLOSED, {}, 2),
    "on_overflow": (CLOSED, {"messages": 1}, "fail"),
}  # fmt: skip
"""What each other key is tried with: the document around its part, what stands beside it, and its value."""


def decided(
    values: dict[str, Any], direction: Direction, batches: tuple[tuple[str, ...], ...] = BATCHES
) -> list[object]:
    """Return what becomes of every row of some batches, or how the job ends."""
    # Packed, as the decider receives it: a field that is not stored decides nothing.
    document = parse_document(values).at(TIMES_MS[0])
    policy = unpack(CompiledPolicy, pack(compile_policy(document, direction)), "the policy")
    state = DeciderState.initial(policy, now_ms=TIMES_MS[0])
    found: list[object] = []
    for turn, (names, now_ms) in enumerate(zip(batches, TIMES_MS, strict=False), start=1):
        row = ControlRow(turn, None, PayingTime(now_ms, now_ms))
        state = under_epoch(state, row, policy, policy, now_ms=now_ms)
        arrivals = make_arrivals([(name, SIZE_BYTES, UNITS) for name in names])
        try:
            plan = plan_admission(state, arrivals, policy, now_ms=now_ms)
        except QueueOverflowError:
            return [*found, "failed"]
        decisions = plan.decisions
        found += zip(
            decisions.verdict.tolist(), decisions.reason.tolist(), decisions.level.tolist(),
            (np.asarray(decisions.throttle_time_ms) > 0).tolist(), strict=True,
        )  # fmt: skip
        state = plan.state
    return found


def member(path: str) -> dict[str, Any]:
    """Return what must stand beside a scope for rows to pass it."""
    if path == "resource_groups.gold":
        return {"tenants": {"acme": {"resource_group": "gold"}}}
    return {}


def at(path: str, *values: dict[str, Any]) -> dict[str, Any]:
    """Return a document that says `values` at a path, beside what it needs."""
    document: dict[str, Any] = member(path)
    section, _, name = path.partition(".")
    merged: dict[str, Any] = {}
    for each in values:
        for key, value in each.items():
            merged[key] = {**merged[key], **value} if isinstance(merged.get(key), dict) else value
    document[section] = {name: merged} if name else merged
    return document


def leaves(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if name in ("publish", "dispatch"):
            yield from (f"{name}.{inner}" for inner in type(field.default).model_fields)
        elif name == "exception":  # its end: tests/control/test_exceptions.py
            yield from (f"{name}.{inner}" for inner in leaves(ExceptionPolicy) if inner not in ("until", "reason"))
        # Their trials need a sink that answers, a calendar, and costs that are told late: test_destinations,
        # test_budgets, test_schedules of tests/control, test_reserved_rows. A schedule sets what an exception does.
        # A unit is a word: tests/status.
        elif name not in ("destination", "time_zone", "schedule", "unit", "reservation_seconds"):
            yield name


CASES = [
    (section, leaf)
    for section, (_, model) in SECTIONS.items()
    for leaf in leaves(model)
    if (section, leaf.rpartition(".")[2]) != ("namespaces", "observe_percent")  # one name has no part
]


def pair_of_documents(path: str, leaf: str) -> tuple[dict[str, Any], dict[str, Any], Direction]:
    """Return a document without a field, one with it, and the direction that tells them apart."""
    direction, _, key = leaf.rpartition(".")
    if direction.startswith("exception."):
        before, _, enforced = pair_of_documents(path, leaf.removeprefix("exception."))
        section, _, name = path.partition(".")
        after = deepcopy(before)
        entry = after.setdefault(section, {})
        entry = entry[name] if name else entry
        entry["exception"] = {**UNTIL_LATER, enforced: {key: QUOTA[key][1]}}
        return before, after, enforced
    if key == "weight":
        return *weighted(path, direction), direction  # type: ignore[return-value]
    if key in GUARANTEES:
        return *guaranteed(path, direction, key), direction  # type: ignore[return-value]
    if key in QUOTA or key in PART:
        beside, value = QUOTA.get(key) or PART[key]
        return at(path, {direction: beside}), at(path, {direction: beside | {key: value}}), direction  # type: ignore[return-value]
    if key == "resource_group":
        shut = {"resource_groups": {"gold": {"publish": HELD}}}
        return {**at(path), **shut}, {**at(path, {"resource_group": "gold"}), **shut}, "publish"
    around, beside, value = ENTRY[key]
    enforced = "dispatch" if key.startswith("read") else "publish"
    return {**around, **at(path, beside)}, {**around, **at(path, beside, {key: value})}, enforced


def weighted(path: str, direction: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return documents in which acme/x competes for what the job has, without and with a weight.

    Tenants and groups compete with others, and namespaces with those of their tenant.
    """
    loose = {direction: {"messages_per_second": 100}}
    heavy = {direction: {"weight": QUOTA["weight"][1]}}
    beside: dict[str, Any] = {"job": {direction: {"messages_per_second": 1, "burst_seconds": 10}}}
    if path == "resource_groups.gold":
        beside["tenants"] = {"acme": {"resource_group": "gold"}, "other": {"resource_group": "iron"}}
        groups = [{"gold": at(path, loose, *each)["resource_groups"]["gold"], "iron": loose} for each in ((), (heavy,))]
        return {**beside, "resource_groups": groups[0]}, {**beside, "resource_groups": groups[1]}
    if path == "tenants.acme":
        tenants = [{"acme": at(path, loose, *each)["tenants"]["acme"], "other": loose} for each in ((), (heavy,))]
        return {**beside, "tenants": tenants[0]}, {**beside, "tenants": tenants[1]}
    documents = {**beside, **at(path)}, {**beside, **at(path, heavy)}
    for document in documents:
        document["namespaces"] = {**document.get("namespaces", {}), "acme/y": {}}
    return documents


def guaranteed(path: str, direction: str, key: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return documents in which acme/x competes for what the job has, without and with a guarantee.

    Rows take no time here. So a guarantee of some time is tried beside one of none, with which no row goes first.
    """
    beside, value = QUOTA[key]
    amount = next((each for each in ("bytes", "units") if each in key), None)
    limit = {f"{amount}_per_second": 100} if amount else {"messages_per_second": 1}
    limit |= {"request_percentage": 1} if "percentage" in key else {}
    around = {"job": {direction: {**limit, "burst_seconds": 10}}}
    return {**around, **at(path, {direction: beside})}, {**around, **at(path, {direction: beside | {key: value}})}


def acts_as_a_lock(section: str, path: str) -> bool:
    """Return whether a locked entry is kept from the tenant's administrator, or a note says that no entry was."""
    if section == "defaults":
        (note,) = notes_on_document(parse_document(at(path, {"locked": True})))
        return note == "defaults.locked does nothing: only an administrator changes the defaults"
    service = PolicyService(MemoryStore(), clock_ms=lambda: 0)
    name, bob = path.partition(".")[2], Author("bob", tenant="acme")
    service.put("tenant", "acme", {"publish": {"messages_per_second": 9}}, Author("ann"))
    service.put("namespace", name, {}, Author("ann"))
    service.put("namespace", name, {"publish": {"messages_per_second": 2}}, bob)
    service.put("namespace", name, {"locked": True}, Author("ann"))
    with pytest.raises(NotPermittedError, match="locked"):
        service.put("namespace", name, {"publish": {"messages_per_second": 1}}, bob)
    return True


RUSH = (("acme/x", "acme/y", "other/y") * 10,)
WEIGHT_OF_THE_JOB = "weight does nothing: the job shares with nobody"


@pytest.mark.slow
@pytest.mark.parametrize(("section", "leaf"), CASES, ids=lambda part: part)
def test_every_field_changes_a_verdict_or_a_note_says_why_not(section: str, leaf: str) -> None:
    path, _ = SECTIONS[section]
    direction, _, key = leaf.rpartition(".")
    if (section, key) == ("job", "weight"):
        inner = direction.removeprefix("exception.")
        values: dict[str, Any] = {inner: {"weight": 9}}
        values = values if inner == direction else {"exception": {**UNTIL_LATER, **values}}
        (note,) = notes_on_document(parse_document(at(path, values)))
        assert note == f"job.{direction}.{WEIGHT_OF_THE_JOB}"
        return
    if key == "locked":
        assert acts_as_a_lock(section, path)
        return
    if key in GUARANTEES and section not in ("resource_groups", "tenants", "namespaces"):
        quota = {direction.rpartition(".")[2]: {key: 1}}
        values = {"exception": {**UNTIL_LATER, **quota}} if direction.startswith("exception") else quota
        with pytest.raises(PolicyError, match="so nothing can be guaranteed to"):
            parse_document(at(path, values))
        return
    before, after, enforced = pair_of_documents(path, leaf)
    batches = RUSH if key in ("weight", "fair_between", *GUARANTEES) else BATCHES
    assert decided(before, enforced, batches) != decided(after, enforced, batches)
    assert not [note for note in notes_on_document(parse_document(after)) if "does nothing" in note]


@pytest.mark.parametrize("key", ["burst_seconds", "on_excess"])
def test_field_that_needs_a_quota_says_so_without_one(key: str) -> None:
    values = {"burst_seconds": 5} if key == "burst_seconds" else {"on_excess": "reject"}
    (note,) = notes_on_document(parse_document({"tenants": {"acme": {"publish": values}}}))
    said = f"tenants.acme.publish.{key} does nothing without"
    assert note == f"{said} messages_per_second, bytes_per_second, units_per_second or request_percentage"


@pytest.mark.parametrize(("above", "acts"), [
    ({}, False),
    ({"job": {"publish": {"bytes_per_second": 9}}}, False),
    ({"job": {"publish": {"messages_per_second": 9, "on_excess": "observe"}}}, False),
    ({"job": {"dispatch": {"messages_per_second": 9}}}, False),
    ({"job": {"publish": {"messages_per_day": 9}}}, True),
    ({"resource_groups": {"gold": {"exception": {**UNTIL_LATER, "publish": {"messages_per_second": 9}}}}}, True),
    ({"resource_groups": {"gold": {"schedule": {"sun": {"publish": {"messages_per_second": 9}}}}}}, True),
])  # fmt: skip
def test_guarantee_of_what_no_scope_above_limits_says_so(above: dict[str, Any], acts: bool) -> None:
    guaranteed = {"guaranteed_messages_per_second": 1, "guaranteed_bytes_per_second": 1}
    tenants = {"acme": {"resource_group": "gold", "publish": guaranteed}}
    notes = [*notes_on_document(parse_document({"resource_groups": {"gold": {}}, "tenants": tenants, **above}))]
    at = "tenants.acme.publish.guaranteed_messages_per_second"
    said = f"{at} does nothing: no scope above holds rows back by messages_per_second"
    assert (said in notes) != acts


@pytest.mark.parametrize(("document", "said"), [
    ({"tenants": {"acme": {"publish": {"observe_percent": 5}}}}, "observe_percent is for namespaces, by a glob or"),
    ({"job": {"publish": {"observe_percent": 5}}}, "observe_percent is for namespaces, by a glob or the defaults"),
    ({"namespaces": {"acme/x": {"publish": {"observe_percent": 5}}}}, "'acme/x' is one name, of which observe_percent"),
    ({"defaults": {"exception": {**UNTIL_LATER, "publish": {"observe_percent": 5}}}}, "exceptions have none"),
    ({"defaults": {"publish": {"observe_percent": 101}}}, "101 is more than 100"),
])  # fmt: skip
def test_part_is_of_many_names_of_one_rule(document: dict[str, Any], said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        parse_document(document)


@pytest.mark.parametrize("beside", [{}, {"messages_per_second": 1, "on_excess": "observe"}])
def test_part_without_a_quota_that_holds_says_so(beside: dict[str, Any]) -> None:
    (note,) = notes_on_document(parse_document({"defaults": {"publish": {**beside, "observe_percent": 5}}}))
    assert note == "defaults.publish.observe_percent does nothing without a limit that delays or rejects"


def test_exception_sets_every_key_of_a_quota() -> None:
    assert OtherQuota.model_fields.keys() == Quota.model_fields.keys()


def test_exemption_changes_a_verdict() -> None:
    shut = {"job": {"publish": HELD}}
    assert decided(shut, "publish") != decided({**shut, "exempt": ["acme/x"]}, "publish")
    assert decided(shut, "publish") != decided({**shut, "exempt": ["acme/*"]}, "publish")


def test_every_section_of_a_document_is_looked_at() -> None:
    looked_at = {path.partition(".")[0] for path, _ in SECTIONS.values()} | {"exempt", "version"}
    assert looked_at == set(PolicyDocument.model_fields)
