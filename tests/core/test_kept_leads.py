"""A change of the policy keeps leads whose scopes are the same and limit the same resources."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_throttle.core.arithmetic.fixed_point import WHOLE
from spark_throttle.core.batch.admission import plan_admission
from spark_throttle.core.names.matching import match
from spark_throttle.core.policy_change import Ways, carried, carried_nodes
from spark_throttle.core.quota import CompiledPolicy, Int64s
from spark_throttle.core.state import DeciderState, NodeLeads
from tests.oracle.worlds import Limit, Namespace, Tenant, limit, make_arrivals, make_policy

NAMES = pa.array(["a/x", "b/y"])


def policy(of_g: Limit, **groups: str | None) -> CompiledPolicy:
    """Return a policy of two groups, in which namespaces are by their tenant; those of the others in g."""
    named = {str(name): Namespace(group=groups.get(str(name).split("/")[0], "g")) for name in NAMES.to_pylist()}
    return make_policy(groups={"f": limit(), "g": of_g}, tenants={"a": Tenant(), "b": Tenant()}, namespaces=named)


def kept(before: CompiledPolicy, after: CompiledPolicy) -> Int64s:
    """Return the factors by which a change keeps the leads of `NAMES`, whose ways are those of namespaces."""
    return Ways.of(before, after).kept(*(match(NAMES, each).shared_scope for each in (before, after)))


USUAL = limit(messages_per_second=100, bytes_per_second=2_000, request_percentage=50)


@pytest.mark.parametrize(
    ("messages", "size_bytes", "percentage", "part"),
    [
        (100, 2_000, 50, 1),
        (300, 6_000, 150, 1),  # the same proportion
        (100, 4_000, 50, 1 / 2),  # a byte counts half
        (100, 500, 50, 1),  # a byte counts four times as much
        (100, 2_000, 200, 1 / 4),
        (100, 2_000, 10, 1),
        (100, 4_000, 10, 1 / 2),
        (20, 4_000, 10, 1 / 10),
        (100, 2_000, None, 0),
        (None, 2_000, 50, 0),
        (None, None, None, 0),
    ],
)
def test_a_scope_keeps_of_leads_what_they_are_at_most_in_any_resource_as_it_counts_work_now(
    messages: float | None, size_bytes: float | None, percentage: float | None, part: float
) -> None:
    of_g = limit(messages_per_second=messages, bytes_per_second=size_bytes, request_percentage=percentage)
    before, after = policy(USUAL), policy(of_g)
    assert (kept(before, after) / WHOLE).tolist() == [pytest.approx(part, rel=1e-6)] * 2


def test_weights_and_bursts_change_no_lead() -> None:
    before = policy(USUAL)
    after = policy(
        limit(messages_per_second=100, bytes_per_second=2_000, request_percentage=50, weight=7, burst_seconds=9)
    )
    assert kept(before, after).tolist() == [WHOLE] * 2


def test_messages_that_are_limited_beside_nothing_count_otherwise_than_nothing() -> None:
    before, after = policy(limit(messages_per_second=5)), policy(limit())
    assert kept(before, after).tolist() == [0, 0]


def test_a_group_that_namespaces_divide_and_no_other_counts_otherwise_than_one_that_tenants_do() -> None:
    named = {"a/x": Namespace(group="f"), "b/y": Namespace(group="g")}
    before, after = (
        make_policy(groups={"f": limit(), "g": limit()}, namespaces=named, between_namespaces=each)
        for each in ((), ("g",))
    )
    assert kept(before, after).tolist() == [WHOLE, 0]


@pytest.mark.parametrize(("group", "is_kept"), [("g", True), ("f", False), (None, False)])
def test_a_flow_that_leaves_its_group_has_no_lead(group: str | None, *, is_kept: bool) -> None:
    before, after = policy(limit()), policy(limit(), a=group)
    assert kept(before, after).tolist() == [WHOLE if is_kept else 0, WHOLE]


def test_a_flow_without_a_group_that_comes_into_a_new_one_has_no_lead() -> None:
    before, after = make_policy(), make_policy(groups={"g": limit()}, default=Namespace(group="g"))
    assert not kept(before, after).any()


@pytest.mark.parametrize(
    ("moved", "left"),
    [
        ([], [("g", None), ("g", "a"), ("g", "b")]),
        (["a"], [("g", None), ("g", "b")]),
        (["a", "b"], []),
    ],
)
def test_a_node_that_all_of_its_flows_have_left_has_no_lead(moved: list[str], left: list[tuple[str, str]]) -> None:
    """Nodes of a tenant and of a group; the group itself stays in the policy, with nobody in it."""
    before, after = policy(limit()), policy(limit(), **dict.fromkeys(moved, "f"))
    nodes = NodeLeads(pa.array(["g"] * 3), pa.array([None, "a", "b"]), np.array([[1, 0], [2, 0], [3, 0]]))
    found = carried_nodes(nodes, Ways.of(before, after), NAMES, (match(NAMES, before), match(NAMES, after)))
    assert list(zip(found.group.to_pylist(), found.tenant.to_pylist(), strict=True)) == left


def test_namespace_that_is_its_groups_child_keeps_its_lead_beside_others_when_its_tenant_gets_a_limit() -> None:
    policies = [
        make_policy(
            tenants={"a": Tenant(own, "g")}, groups={"g": limit(messages_per_second=1)},
            default=Namespace(group="g"), between_namespaces=["g"],
        ) for own in (limit(), limit(bytes_per_second=10**9))
    ]  # fmt: skip
    rows = make_arrivals([("a/x", 1), ("b/x", 1), ("c/x", 1)] * 2)
    state = plan_admission(DeciderState.initial(policies[0]), rows, policies[0], now_ms=1_000).state
    assert (state.flows.lead_work[:, 0] != 0).all()
    after = carried(state, *policies, now_ms=1_000)
    assert after.flows.lead_work[:, 0].tolist() == state.flows.lead_work[:, 0].tolist()


def test_no_level_is_reweighed_where_weights_stay() -> None:
    same = make_policy(
        tenants={"a": Tenant(limit(weight=3), "g")}, groups={"g": limit(weight=5)}, default=Namespace(group="g")
    )
    found = match(NAMES, same)
    assert Ways.of(same, same).reweighed(np.zeros(2, dtype=np.bool_), found, found) == 0
