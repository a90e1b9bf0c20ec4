"""Why a namespace is held as it is: by the policies alone, and by what a job did in its last batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_throttle.checkpoint.manifest import bind
from spark_throttle.control.epochs import NO_EPOCH, Epochs, newest_epoch, policy_of_epoch
from spark_throttle.control.plane import ControlPlane
from spark_throttle.control.reports import newest_batch, report_of, write_report
from spark_throttle.control.run_fence import RunFence
from spark_throttle.core.batch.admission import plan_admission
from spark_throttle.core.names import matching
from spark_throttle.core.policy_change import under_epoch
from spark_throttle.core.quota import UNLIMITED, Dimension
from spark_throttle.core.state import DeciderState
from spark_throttle.core.usage import pack_usage
from spark_throttle.errors import ConfigurationError, NotFoundError
from spark_throttle.files.storage import Directory
from spark_throttle.policy.codec import parse_document
from spark_throttle.policy.compile import revision_of
from spark_throttle.policy.source import PolicySnapshot
from spark_throttle.status.explain import explain_job, explain_policy
from spark_throttle.status.explanation import Explanation
from spark_throttle.status.status import read_status
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author
from tests.oracle.reference_rules import hash_of
from tests.oracle.worlds import make_arrivals

DOCUMENT = {
    "resource_groups": {"gold": {"publish": {"messages_per_second": 2, "burst_seconds": 1}}, "iron": {}},
    "tenants": {"acme": {"resource_group": "gold"}, "blue": {}},
    "namespaces": {
        "acme/own": {"resource_group": "iron", "publish": {"bytes_per_second": "1KiB", "weight": 3}},
        "acme/same": {"resource_group": "gold"},
        "acme/lo*": {"resource_group": "iron"},
        "acme/*": {},
        "shut/x": {"publish": {"messages_per_second": 0}},
        "shut/y": {"publish": {"bytes_per_second": 200, "burst_seconds": 1, "on_excess": "reject"}},
    },
    "exempt": ["infra/*", "acme/audit"],
    "defaults": {"resource_group": "iron", "dispatch": {"messages_per_second": 7}},
}


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    PolicyService(store, clock_ms=lambda: 0).apply(parse_document(DOCUMENT), Author("ann"))
    return store


@pytest.mark.parametrize(
    ("namespace", "rule", "matched", "group", "group_reason"),
    [
        ("acme/own", "namespace", "acme/own", "iron", "named by the rule itself"),
        ("acme/same", "namespace", "acme/same", "gold", "through its tenant acme; it counts once"),
        ("acme/logs", "glob", "acme/lo*", "iron", "named by the rule itself"),
        ("acme/x", "glob", "acme/*", "gold", "through its tenant acme"),
        ("blue/x", "defaults", "", "iron", "named by the defaults"),
        ("acme", "tenant", "acme", "gold", "named by its entry"),
        ("blue", "tenant", "blue", None, "it names none"),
        ("else", "defaults", "", "iron", "named by the defaults"),
        ("shut/x", "namespace", "shut/x", None, "neither the rule nor its tenant shut"),
        ("infra/x", "exempt", "infra/*", None, "not consulted, it is exempt"),
        ("acme/audit", "exempt", "acme/audit", None, "not consulted, it is exempt"),
    ],
)
def test_explain_names_the_rule_that_won_and_why(
    store: MemoryStore, namespace: str, rule: str, matched: str, group: str | None, group_reason: str
) -> None:
    found = explain_policy(store, namespace, "publish")
    assert (found.rule, found.matched, found.resource_group) == (rule, matched, group)
    assert group_reason in found.reasons[-1]
    assert found.revision == "1"


def test_less_specific_globs_are_named_too(store: MemoryStore) -> None:
    reasons = explain_policy(store, "acme/logs", "publish").reasons
    assert "glob: acme/lo* is the most specific that matches it" in reasons
    assert "glob: acme/* matches it too, but is less specific" in reasons


def test_explain_has_every_level_with_its_quota(store: MemoryStore) -> None:
    found = explain_policy(store, "acme/own", "publish")
    assert [(level.level, level.scope) for level in found.levels] == [
        ("namespace", "acme/own"), ("tenant", "acme"), ("resource_group", "iron"), ("job", "job"),
    ]  # fmt: skip
    own = found.levels[0]
    assert (own.per_second, own.burst, own.weight, own.on_excess) == (
        (None, 1024.0, None),
        (None, 10240.0, None),
        3,
        "delay",
    )
    assert explain_policy(store, "blue/x", "dispatch").levels[0].per_second == (7.0, None, None)
    assert explain_policy(store, "infra/x", "publish").levels == ()


@pytest.mark.parametrize("namespace", ["", "x" * 10_240, "\ud800"])
def test_name_that_no_row_can_have_is_refused(store: MemoryStore, namespace: str) -> None:
    with pytest.raises(ConfigurationError, match="the namespace"):
        explain_policy(store, namespace, "publish")


class StandingPolicies:
    """Policies that stay, of a store's revision."""

    def __init__(self, problem: str | None, values: Mapping[str, Any]) -> None:
        document = parse_document(values)
        self.snapshot = PolicySnapshot(document, revision_of(document), problem, 12)

    def current(self) -> PolicySnapshot:
        return self.snapshot


def run_batch(
    path: Path, names: list[str], *, problem: str | None = None, values: Mapping[str, Any] = DOCUMENT
) -> Explanation:
    """Run one batch of a job, and explain the first name."""
    directory = Directory(str(path))
    bind(directory, direction="publish")
    policies = StandingPolicies(problem, values)
    plane = ControlPlane(directory, policies, "publish", lambda: 1_000_000, fence=RunFence(directory))
    name = plane.next_epoch(NO_EPOCH)
    epoch, policy = plane.epochs.load(name), plane.epochs.policy_for(NO_EPOCH, name)
    assert policy is not None
    row = epoch.control_row(None, policy)
    state = under_epoch(DeciderState.initial(policy, now_ms=1_000_000), row, policy, policy, now_ms=1_000_000)
    arrivals = make_arrivals([(name, 100) for name in names])
    plan = plan_admission(state, arrivals, policy, now_ms=1_000_000)
    write_report(directory, 0, pack_usage(plan.usage))
    return explain_job(str(path), names[0])


def test_explain_shows_balance_backlog_and_predicted_release(tmp_path: Path) -> None:
    found = run_batch(tmp_path, ["acme/x"] * 7 + ["acme/same"] * 3)
    assert found.last_batch is not None
    assert (found.last_batch.batch_id, found.last_batch.offered) == (0, (7, 700, 0))
    group = next(level for level in found.levels if level.level == "resource_group")
    assert group.balance == (-1.0, None, None)  # 2 held, 3 admitted: 1 is owed
    assert group.waiting is not None
    assert group.waiting[0] == 7
    assert group.release_ms == (7 + 1) * 500  # 7 wait and 1 is owed, at 2 a second
    assert found.predicted_release_ms == 4000
    assert next(level for level in found.levels if level.level == "namespace").balance == (None, None, None)


def test_explain_and_status_show_what_is_guaranteed_and_what_of_it_is_in_force(tmp_path: Path) -> None:
    claims = {"guaranteed_messages_per_second": 4, "guaranteed_request_percentage": 5}
    values = {
        "job": {"publish": {"messages_per_second": 10, "request_percentage": 50}},
        "tenants": {"acme": {"publish": claims, "resource_group": "gold"}},
        "resource_groups": {"gold": {}, "iron": {}},
        "namespaces": {"acme/there": {"resource_group": "iron"}},
    }
    found = run_batch(tmp_path, ["acme/x"] * 3, values=values)
    tenant = next(level for level in found.levels if level.level == "tenant")
    assert (tenant.guaranteed, tenant.guaranteed_percentage) == ((4.0, None, None), 5.0)
    assert tenant.guaranteed_in_force == (None, None, None)
    assert read_status(str(tmp_path)).of_level("tenant")["acme"].guaranteed == (4.0, None, None)
    elsewhere = next(level for level in explain_job(str(tmp_path), "acme/there").levels if level.level == "tenant")
    assert elsewhere.guaranteed == (None, None, None)  # it is guaranteed in the tenant's own group
    directory = Directory(str(tmp_path))
    epoch = newest_epoch(directory)
    assert epoch is not None
    policy = policy_of_epoch(directory, epoch.number, epoch.revision)
    half = policy.shared.rate_micro_per_ms // 2
    share = np.where(policy.shared.is_limited, half, UNLIMITED)
    Epochs(directory, fence=RunFence(directory)).write(
        replace(epoch, number=epoch.number + 1, share_micro_per_ms=share), policy
    )
    tenant = next(level for level in explain_job(str(tmp_path), "acme/x").levels if level.level == "tenant")
    assert (tenant.guaranteed, tenant.guaranteed_in_force) == ((4.0, None, None), (2.0, None, None))
    assert read_status(str(tmp_path)).of_level("tenant")["acme"].guaranteed == (2.0, None, None)


def test_explain_shows_what_a_namespaces_own_bucket_holds_and_when_its_debt_is_paid(tmp_path: Path) -> None:
    found = run_batch(tmp_path, ["acme/own"] * 120)
    own = found.levels[0]
    assert own.waiting is not None
    held = 10_240 - 100 * (120 - own.waiting[0])
    assert own.balance == (None, held, None)
    assert held < 0
    owed = own.waiting[1] - held
    assert own.release_ms == pytest.approx(1000 * owed / 1024, abs=1)


def test_a_policy_that_no_batch_has_met_changes_nothing_of_what_a_scope_owes(tmp_path: Path) -> None:
    run_batch(tmp_path, ["acme/x"] * 7 + ["acme/same"] * 3)
    directory = Directory(str(tmp_path))
    epoch = newest_epoch(directory)
    assert epoch is not None
    policy = policy_of_epoch(directory, epoch.number, epoch.revision)
    is_rate = policy.shared.rate_micro_per_ms > 0
    shared = replace(policy.shared, rate_micro_per_ms=policy.shared.rate_micro_per_ms * np.where(is_rate, 4, 1))
    faster = replace(policy, shared=shared, revision="faster")
    Epochs(directory, fence=RunFence(directory)).write(
        replace(epoch, number=epoch.number + 1, revision=faster.revision), faster
    )
    found = explain_job(str(tmp_path), "acme/x")
    group = next(level for level in found.levels if level.level == "resource_group")
    assert (group.per_second[0], group.balance[0]) == (8.0, -1.0)
    assert found.predicted_release_ms == (7 + 1) * 125


@pytest.mark.parametrize(("share_micro_per_ms", "share", "release_ms"), [(500, 0.5, 16_000), (0, 0.0, 4_000)])
def test_a_backlog_leaves_at_the_jobs_share_of_a_quota_and_at_the_quota_while_it_has_none(
    tmp_path: Path, share_micro_per_ms: int, share: float, release_ms: int
) -> None:
    run_batch(tmp_path, ["acme/x"] * 7 + ["acme/same"] * 3)
    directory = Directory(str(tmp_path))
    epoch = newest_epoch(directory)
    assert epoch is not None
    policy = policy_of_epoch(directory, epoch.number, epoch.revision)
    shares = policy.shared.rate_micro_per_ms.copy()
    gold = len(policy.tenant_names) + 1 + policy.group_names.to_pylist().index("gold")
    shares[gold, Dimension.MESSAGES] = share_micro_per_ms
    Epochs(directory, fence=RunFence(directory)).write(
        replace(epoch, number=epoch.number + 1, share_micro_per_ms=shares), policy
    )
    found = explain_job(str(tmp_path), "acme/x")
    assert found.predicted_release_ms == release_ms  # 7 wait and 1 is owed
    shares_shown = {level.level: level.share for level in found.levels}
    assert shares_shown == {**dict.fromkeys(shares_shown, (None, None, None)), "resource_group": (share, None, None)}
    narrow = explain_job(str(tmp_path), "acme/x", is_wide=False)
    assert all(level.share == (None, None, None) for level in narrow.levels)


def test_explain_of_an_idle_namespace_has_no_release(tmp_path: Path) -> None:
    run_batch(tmp_path, ["acme/x"] * 9)
    found = explain_job(str(tmp_path), "blue/x")
    assert found.last_batch is not None
    assert found.last_batch.offered == (0, 0, 0)
    assert found.predicted_release_ms is None


def test_tenant_is_explained_with_its_levels_and_its_namespaces_that_wait(tmp_path: Path) -> None:
    run_batch(tmp_path, ["acme/x"] * 9 + ["acme/same"] * 3 + ["acme/own"] * 40 + ["acmes/a", "blue/x"])
    found = explain_job(str(tmp_path), "acme")
    assert (found.rule, found.matched, found.resource_group) == ("tenant", "acme", "gold")
    levels = [(level.level, level.scope, level.waiting) for level in found.levels]
    held = (9, 900, 0)  # 3 of 12 were admitted: 2 that the group had, and 1 on credit
    assert levels == [("tenant", "acme", held), ("resource_group", "gold", held), ("job", "job", held)]
    assert found.last_batch is not None
    assert (found.last_batch.offered, found.last_batch.waiting) == ((52, 5200, 0), held)
    assert found.predicted_release_ms == (9 + 1) * 500
    assert [each.held_by for each in found.namespaces] == [("resource_group", "gold")] * 2
    assert [each.namespace for each in found.namespaces] == ["acme/x", "acme/same"]
    assert sum(each.waiting[0] for each in found.namespaces) == 9
    assert {each.release_ms for each in found.namespaces} == {5_000}
    assert found.waiting_namespaces == 2
    narrow = explain_job(str(tmp_path), "acme", is_wide=False)
    assert [each.release_ms for each in narrow.namespaces] == [None, None]
    assert narrow.levels[1].waiting is None


def test_waiting_namespace_of_a_tenant_is_told_what_holds_it(tmp_path: Path) -> None:
    found = run_batch(tmp_path, ["shut/x", "shut/y", "shut/x"])
    assert found.predicted_release_ms is None
    tenant = explain_job(str(tmp_path), "shut")
    assert (tenant.rule, tenant.matched) == ("tenant", "")
    (held,) = tenant.namespaces
    assert (held.namespace, held.resource_group, held.waiting) == ("shut/x", None, (2, 200, 0))
    assert (held.held_by, held.release_ms) == (("namespace", "shut/x"), None)
    assert tenant.predicted_release_ms is None


def test_only_the_worst_of_many_waiting_namespaces_are_told(tmp_path: Path) -> None:
    run_batch(tmp_path, [f"acme/{number:02}" for number in range(15) for _ in range(number + 1)])
    tenant = explain_job(str(tmp_path), "acme")
    assert len(tenant.namespaces) == 10
    assert tenant.waiting_namespaces > 10
    waiting = [each.waiting[0] for each in tenant.namespaces]
    assert waiting == sorted(waiting, reverse=True)


def test_names_of_a_batch_are_matched_once_when_a_tenant_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_batch(tmp_path, ["acme/x"] * 9 + ["acme/same"] * 3)
    matched: list[list[str]] = []
    tenants_of = matching.tenants_of

    def counted(names: pa.StringArray) -> pa.StringArray:
        matched.append(names.to_pylist())
        return tenants_of(names)

    monkeypatch.setattr(matching, "tenants_of", counted)
    assert explain_job(str(tmp_path), "acme").waiting_namespaces == 2
    assert matched == [["acme/x", "acme/same"]]


def test_name_that_rows_have_as_their_namespace_is_explained_as_one(tmp_path: Path) -> None:
    run_batch(tmp_path, ["acme/x"] * 7 + ["acme"] * 3 + ["acmes/a"])
    found = explain_job(str(tmp_path), "acme")
    assert found.rule == "defaults"
    assert found.notes == ("explained as a namespace; the tenant of that name has acme/x, for example",)
    assert explain_job(str(tmp_path), "acm").notes == explain_job(str(tmp_path), "acme/y").notes == ()


def test_what_a_quota_of_0_holds_never_leaves(tmp_path: Path) -> None:
    found = run_batch(tmp_path, ["shut/x"])
    assert found.predicted_release_ms is None
    assert found.notes == ("a quota of 0 holds it: what waits never leaves by itself",)


def test_problem_of_the_policies_is_a_note(tmp_path: Path) -> None:
    assert run_batch(tmp_path, ["acme/x"], problem="revision 13 cannot be applied").notes == (
        "the newest policies are not in force: revision 13 cannot be applied",
    )


def test_directory_without_a_job_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"there is no control directory .*; give <checkpoint>/throttle"):
        explain_job(str(tmp_path), "acme/x")


@pytest.mark.parametrize("name", ["gold", "acme"])
def test_name_that_a_group_has_too_says_so_to_whom_groups_are_shown(name: str) -> None:
    store, group = MemoryStore(), {"publish": {"messages_per_second": 2}}
    document = {"resource_groups": {"gold": group, "acme": group}, "tenants": {"acme": {"resource_group": "gold"}}}
    PolicyService(store, clock_ms=lambda: 0).apply(parse_document(document), Author("ann"))
    (note,) = explain_policy(store, name, "publish").notes
    assert note.startswith("a resource group has this name, too")
    assert explain_policy(store, name, "publish", is_wide=False).notes == ()
    assert explain_policy(store, f"{name}/x", "publish").notes == ()


def test_name_that_is_only_observed_says_so() -> None:
    store = MemoryStore()
    rule = {"publish": {"messages_per_second": 2, "observe_percent": 50}}
    PolicyService(store, clock_ms=lambda: 0).apply(parse_document({"namespaces": {"acme/*": rule}}), Author("ann"))
    for n in range(20):
        found = explain_policy(store, f"acme/{n}", "publish")
        is_observed = hash_of(f"acme/{n}") % 100 < 50
        assert found.levels[0].on_excess == ("observe" if is_observed else "delay")
        assert (
            any(each.startswith("observed: the rule's quota only observes 50 %") for each in found.reasons)
            == is_observed
        )


def test_rejected_namespace_says_by_which_quota(tmp_path: Path) -> None:
    found = run_batch(tmp_path, ["shut/y"] * 7 + ["acme/x"] * 7)
    assert "rejected by the quota of namespace shut/y in bytes" in found.notes
    assert not [note for note in explain_job(str(tmp_path), "acme/x").notes if "rejected" in note]


def test_backlog_that_does_not_shrink_is_told(tmp_path: Path) -> None:
    run_batch(tmp_path, ["acme/x"] * 7)
    assert not any("does not shrink" in note for note in explain_job(str(tmp_path), "acme/x").notes)
    directory = Directory(str(tmp_path))
    batch = newest_batch(directory)
    last = report_of(directory, batch)
    assert last is not None
    later = replace(last, offered=last.admitted)  # as much came as left
    write_report(directory, batch + 1, pack_usage(later))
    (said,) = (note for note in explain_job(str(tmp_path), "acme/x").notes if "does not shrink" in note)
    left, waits = (int(each[:, 0].sum()) for each in (last.admitted, last.waiting))
    assert f"brought resource group gold {left} messages, and {left} left" in said
    assert f"backlog of {waits} " in said
