"""A namespace uses the quotas of its own group, before its tenant's, before the default's."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_throttle.core.names.matching import match
from tests.oracle.worlds import Namespace, Tenant, limit, make_policy

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


GLOBBED = make_policy(
    tenants={"acme": Tenant(limit(), group="gold"), "blue": Tenant(group="gold")},
    groups={"gold": limit(), "iron": limit(), "wood": limit()},
    namespaces={
        "acme/own": Namespace(group="iron"),
        "blue/same": Namespace(group="gold"),
        "acme/lo*": Namespace(group="iron"),
        "acme/*": Namespace(),
        "*/logs": Namespace(),
    },
    exempt=["acme/audit", "infra/*"],
    default=Namespace(group="wood"),
)


@pytest.mark.parametrize(
    ("name", "rule", "tenant", "group"),
    [
        ("acme/own", 0, "acme", "iron"),  # a name goes before a glob
        ("acme/logs", 2, "acme", "iron"),  # the most specific glob
        ("acme/x", 3, "acme", "gold"),  # a glob without a group: its tenant's
        ("acme", 6, "acme", "gold"),  # under no glob: the default rule, and its tenant's group before the default's
        ("cora/logs", 4, None, None),  # a glob means it: the default's group is not its own
        ("blue/same", 1, "blue", "gold"),  # attached by itself and through its tenant: once
        ("cora/x", 6, None, "wood"),
    ],
)
def test_name_goes_before_glob_and_glob_before_tenant_and_tenant_before_default(
    name: str, rule: int, tenant: str | None, group: str | None
) -> None:
    found = match(pa.array([name]), GLOBBED)
    tenants, groups = GLOBBED.tenant_names.to_pylist(), GLOBBED.group_names.to_pylist()
    at = tenants.index(tenant) if tenant else -1
    at_group = groups.index(group) if group else -1
    assert (found.rule[0], found.tenant[0], found.group[0]) == (rule, at, at_group)
    assert found.shared_scope[0].tolist() == [1 + at if tenant else -1, 3 + at_group if group else -1, 0]
    assert not found.is_exempt[0]


@pytest.mark.parametrize("name", ["acme/audit", "infra/x", "infra/x/y"])
def test_exempt_namespace_passes_no_scope(name: str) -> None:
    found = match(pa.array([name, "acme/x"]), GLOBBED)
    assert found.is_exempt.tolist() == [True, False]
    assert found.shared_scope[0].tolist() == [-1, -1, -1]
    assert (found.rule[0], found.tenant[0], found.group[0]) == (5, -1, -1)


def test_no_names_match_nothing() -> None:
    found = match(pa.array([], pa.string()), POLICY)
    assert found.shared_scope.shape == (0, 3)
