"""Whose quota a namespace uses: the precedence of its own group, its tenant's and the default's."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_throttle.core.matching import match
from spark_throttle.testing.worlds import Namespace, Tenant, limit, make_policy

POLICY = make_policy(
    tenants={"acme": Tenant(group="gold"), "blue": Tenant()},
    groups={"gold": limit(), "iron": limit(), "wood": limit()},
    namespaces={
        "acme/own": Namespace(group="iron"),
        "acme/none": Namespace(),
        "blue/none": Namespace(),
        "dora/own": Namespace(group="iron"),
        "acme": Namespace(),
    },
    default=Namespace(group="wood"),
)


@pytest.mark.parametrize(
    ("name", "tenant", "group"),
    [
        ("acme/own", "acme", "iron"),
        ("acme/none", "acme", "gold"),  # named without a group: its tenant's
        ("acme/other", "acme", "gold"),
        ("acme", "acme", "gold"),  # without a slash a namespace is its own tenant
        ("acme//x", "acme", "gold"),
        ("acme/", "acme", "gold"),
        ("blue/none", "blue", None),  # named: the default's group is not its own
        ("blue/other", "blue", "wood"),
        ("dora/own", None, "iron"),
        ("dora/other", None, "wood"),
        ("/x", None, "wood"),
        ("Acme/own", None, "wood"),
        ("acme\n/x", None, "wood"),
    ],
)
def test_scopes_of_a_namespace(name: str, tenant: str | None, group: str | None) -> None:
    found = match(pa.array([name]), POLICY)
    tenants, groups = POLICY.tenant_names.to_pylist(), POLICY.group_names.to_pylist()
    at = tenants.index(tenant) if tenant else -1
    at_group = groups.index(group) if group else -1
    assert (found.tenant[0], found.group[0]) == (at, at_group)
    expected = [1 + at if tenant else -1, 1 + len(tenants) + at_group if group else -1, 0]
    assert found.shared_scope[0].tolist() == expected


def test_name_that_no_policy_knows_has_the_last_rule() -> None:
    assert match(pa.array(["x", "acme", "acme/own"]), POLICY).rule.tolist() == [5, 4, 0]


def test_no_names_match_nothing() -> None:
    found = match(pa.array([], pa.string()), POLICY)
    assert found.shared_scope.shape == (0, 3)
