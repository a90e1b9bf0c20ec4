"""Which leads a change of the policy leaves: those whose scopes are the same, and count work the same."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_throttle.core.fair.change import carried_nodes, counts_the_same, is_same_work
from spark_throttle.core.names.matching import match
from spark_throttle.core.policy_change import former_scopes
from spark_throttle.core.quota import CompiledPolicy
from spark_throttle.core.state import NodeLeads
from tests.oracle.worlds import Limit, Namespace, Tenant, limit, make_policy

NAMES = pa.array(["a/x", "b/y"])


def policy(of_g: Limit, **groups: str | None) -> CompiledPolicy:
    """Return a policy of two groups, in which namespaces are by their tenant; those of the others in g."""
    named = {str(name): Namespace(group=groups.get(str(name).split("/")[0], "g")) for name in NAMES.to_pylist()}
    return make_policy(groups={"f": limit(), "g": of_g}, tenants={"a": Tenant(), "b": Tenant()}, namespaces=named)


USUAL = limit(messages_per_second=100, bytes_per_second=2_000, request_percentage=50)


@pytest.mark.parametrize(
    ("of_g", "is_same"),
    [
        (
            limit(messages_per_second=100, bytes_per_second=2_000, request_percentage=50, weight=7, burst_seconds=9),
            True,
        ),
        (limit(messages_per_second=300, bytes_per_second=6_000, request_percentage=150), True),
        (limit(messages_per_second=100, bytes_per_second=4_000, request_percentage=50), False),
        (limit(messages_per_second=100, bytes_per_second=2_000, request_percentage=60), False),
        (limit(messages_per_second=100, bytes_per_second=2_000), False),
        (limit(bytes_per_second=2_000, request_percentage=50), False),
        (limit(), False),
    ],
)
def test_a_scope_counts_the_same_if_its_rates_are_in_the_same_proportion(of_g: Limit, *, is_same: bool) -> None:
    before, after = policy(USUAL), policy(of_g)
    found = is_same_work(before, after, former_scopes(before, after))
    assert found.tolist() == [True, True, True, True, is_same]  # the job, two tenants and two groups


def test_messages_that_are_limited_beside_nothing_count_otherwise_than_nothing() -> None:
    before, after = policy(limit(messages_per_second=5)), policy(limit())
    assert is_same_work(before, after, former_scopes(before, after)).tolist()[-1] is False


def test_a_group_that_namespaces_divide_and_no_other_counts_otherwise_than_one_that_tenants_do() -> None:
    before, after = (
        make_policy(groups={"f": limit(), "g": limit()}, tenants={"a": Tenant()}, between_namespaces=each)
        for each in ((), ("g",))
    )
    assert is_same_work(before, after, former_scopes(before, after)).tolist() == [True, True, True, False]


@pytest.mark.parametrize(("group", "is_kept"), [("g", True), ("f", False), (None, False)])
def test_a_flow_that_leaves_its_group_has_no_lead(group: str | None, *, is_kept: bool) -> None:
    before, after = policy(limit()), policy(limit(), a=group)
    former = former_scopes(before, after)
    was, becomes = (match(NAMES, each).shared_scope for each in (before, after))
    same = counts_the_same(was, becomes, former, is_same_work(before, after, former))
    assert same.tolist() == [is_kept, True]


def test_a_flow_without_a_group_that_comes_into_a_new_one_has_no_lead() -> None:
    before, after = make_policy(), make_policy(groups={"g": limit()}, default=Namespace(group="g"))
    former = former_scopes(before, after)
    was, becomes = (match(NAMES, each).shared_scope for each in (before, after))
    assert not counts_the_same(was, becomes, former, is_same_work(before, after, former)).any()


@pytest.mark.parametrize(
    ("moved", "kept"),
    [
        ([], [("g", None), ("g", "a"), ("g", "b")]),
        (["a"], [("g", None), ("g", "b")]),
        (["a", "b"], []),
    ],
)
def test_a_node_that_all_of_its_flows_have_left_has_no_lead(moved: list[str], kept: list[tuple[str, str]]) -> None:
    """Nodes of a tenant and of a group; the group itself stays in the policy, with nobody in it."""
    before, after = policy(limit()), policy(limit(), **dict.fromkeys(moved, "f"))
    nodes = NodeLeads(pa.array(["g"] * 3), pa.array([None, "a", "b"]), np.array([[1, 0], [2, 0], [3, 0]]))
    former = former_scopes(before, after)
    found = carried_nodes(
        nodes, former, before, after, is_same_work(before, after, former), NAMES,
        (match(NAMES, before), match(NAMES, after)),
    )  # fmt: skip
    assert list(zip(found.group.to_pylist(), found.tenant.to_pylist(), strict=True)) == kept
