"""What a policy guarantees can be kept at once: nobody is guaranteed more than the scopes above have.

Scopes stand in the fair tree: a namespace below the node of its tenant in its group, this node below the group, and a
group, or a node without one, below the job. A tenant is guaranteed something for its node in the group that it names,
or else in that of the defaults. What a node takes from those above is what it is guaranteed itself; if it says nothing,
what its children are guaranteed together.

1. Only scopes with a name of their own are guaranteed anything: a glob and the defaults stand for any number of names,
   and above the job is nobody.
2. Nobody is guaranteed more than its own limit allows.
3. Children together are guaranteed no more than what their parent is guaranteed or, if it says nothing, its limit. A
   parent that has neither passes the sum on.
4. Who is guaranteed anything says so for all that the scopes above limit. Else rows that take little of the one could
   take all of the other before anybody else.

These hold in each direction, and at all times: an exception must leave them so, and its end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Final, TypeAlias

from spark_throttle.core.names.globs import is_glob

if TYPE_CHECKING:
    from spark_throttle.policy.model import NamespacePolicy, PolicyDocument, ScopePolicy
    from spark_throttle.policy.quotas import Quota

_RATES: Final = ("messages_per_second", "bytes_per_second", "units_per_second", "request_percentage")
_DIRECTIONS: Final = ("publish", "dispatch")
_MOST_NAMED: Final = 3

Node: TypeAlias = tuple[str | None, str]
"""A tenant's node: its group, if it has one, and the tenant."""

Problem: TypeAlias = tuple[tuple[str, ...], str]
"""The path of what cannot be kept, and why."""


def has_guarantees(document: PolicyDocument) -> bool:
    """Return whether a document guarantees anything to anybody, also by an exception or a schedule."""
    distinct = {id(entry): entry for _, entry in _entries(document)}.values()
    return any(
        getattr(part, f"guaranteed_{rate}") is not None
        for entry in distinct
        for said in (entry, *(part for _, part, _ in entry.parts))
        for part in (said.publish, said.dispatch)
        for rate in _RATES
    )


def home_of(tenant: str, document: PolicyDocument) -> str | None:
    """Return the group in which a tenant is guaranteed what its entry says."""
    return document.tenants[tenant].resource_group or document.defaults.resource_group


def node_of(name: str, document: PolicyDocument) -> Node:
    """Return the tenant's node above a namespace that the document names."""
    tenant = name.partition("/")[0]
    of_tenant = document.tenants[tenant].resource_group if tenant in document.tenants else None
    return document.namespaces[name].resource_group or of_tenant, tenant


def scopes_above(path: str, document: PolicyDocument) -> list[str]:
    """Return the paths of the scopes above one that may be guaranteed something; an entry of some may be absent."""
    kind, _, name = path.partition(".")
    if kind == "resource_groups":
        return ["job"]
    group, tenant = node_of(name, document) if kind == "namespaces" else (home_of(name, document), "")
    above = [f"tenants.{tenant}"] if tenant else []
    return [*above, *([f"resource_groups.{group}"] if group is not None else []), "job"]


def broken_guarantees(document: PolicyDocument) -> Iterator[Problem]:
    """Yield the path of each entry whose guarantee cannot be kept, and why; exceptions count for nothing.

    Examples
    --------
    >>> from spark_throttle.policy.model import PolicyDocument
    >>> half = {"publish": {"guaranteed_messages_per_second": 50}}
    >>> document = PolicyDocument.model_validate({"tenants": {"acme": half, "blue": half}})
    >>> list(broken_guarantees(document))
    []
    """
    for path, entry in _unnamed(document):
        for direction in _DIRECTIONS:
            for rate in _RATES:
                if getattr(getattr(entry, direction), f"guaranteed_{rate}") is not None:
                    yield _at(path, direction, f"guaranteed_{rate}"), _WHY_UNNAMED[path if path == "job" else ""]
    for direction in _DIRECTIONS:
        yield from _Claims(document, direction).broken()


_WHY_UNNAMED: Final = {
    "": "it stands for any number of names, so nothing can be guaranteed to each; name the namespaces, or their tenant",
    "job": "the job shares with nobody, so nothing can be guaranteed to it; give it to groups, tenants or namespaces",
}


class _Claims:
    """What is guaranteed in one direction."""

    def __init__(self, document: PolicyDocument, direction: str) -> None:
        self.document = document
        self.quotas: dict[str, Quota] = {path: getattr(entry, direction) for path, entry in _named(document)}
        self.quotas["job"] = getattr(document.job, direction)
        self.direction = direction
        self.claims = {path: quota for path, quota in self.quotas.items() if any(_said(quota))}
        """The quotas of those who are guaranteed anything, by the paths of their entries."""

    def broken(self) -> Iterator[Problem]:
        """Yield what cannot be kept."""
        document = self.document
        for path in self.claims:
            kind, _, name = path.partition(".")
            if kind == "tenants":
                group = home_of(name, document)
                if group is not None and document.resource_groups[group].fair_between == "namespaces":
                    problem = f"resource_groups.{group} divides between namespaces, not between tenants"
                    yield _at(path, self.direction), f"{problem}; guarantee it to the tenant's namespaces instead"
            for rate in _RATES:
                yield from self._beyond_itself(path, rate)
            yield from self._uncovered(path)
        for rate in _RATES if self.claims else ():
            yield from self._beyond_parents(rate)

    def _beyond_itself(self, path: str, rate: str) -> Iterator[Problem]:
        guaranteed, limit = self._guaranteed(path, rate), getattr(self.claims[path], rate)
        if guaranteed is not None and limit is not None and guaranteed > limit:
            where = _at(path, self.direction, f"guaranteed_{rate}")
            yield where, f"{guaranteed:f} is more than its own {rate} of {limit:f} allows; guarantee no more than that"

    def _uncovered(self, path: str) -> Iterator[Problem]:
        """Yield what a scope is not guaranteed, though one above it limits it."""
        for above in scopes_above(path, self.document):
            for rate in _RATES:
                limit = getattr(self.quotas[above], rate) if above in self.quotas else None
                if limit is not None and self._guaranteed(path, rate) is None:
                    problem = f"{above} limits {rate} to {limit:f}, and nothing is said of it"
                    remedy = f"what is guaranteed could take all of that; add guaranteed_{rate}"
                    yield _at(path, self.direction), f"{problem}: {remedy}"

    def _beyond_parents(self, rate: str) -> Iterator[Problem]:
        """Yield the parents whose children are guaranteed more than they have."""
        of_nodes: dict[Node, dict[str, Decimal]] = defaultdict(dict)
        for path in self.claims:
            kind, _, name = path.partition(".")
            guaranteed = self._guaranteed(path, rate)
            if kind == "namespaces" and guaranteed is not None:
                of_nodes[node_of(name, self.document)][path] = guaranteed
        homes = {(home_of(name, self.document), name) for name in self.document.tenants}
        of_groups: dict[str | None, dict[str, Decimal]] = defaultdict(dict)
        of_tenants: dict[str, dict[str, Decimal]] = defaultdict(dict)
        for node in sorted({*of_nodes, *homes}, key=str):
            group, tenant = node
            path, children = f"tenants.{tenant}", of_nodes.get(node, {})
            own = self._guaranteed(path, rate) if node in homes else None
            if own is not None:
                yield from self._sum(children, path, rate, own, "guaranteed_")
                children = {path: own}
            of_tenants[path] |= children
            of_groups[group] |= children
        for path, children in of_tenants.items():
            if self._guaranteed(path, rate) is None or len(children) > 1:
                yield from self._sum(children, path, rate, self._limit(path, rate))
        of_job = of_groups.pop(None, {})
        for name in self.document.resource_groups:
            path, children = f"resource_groups.{name}", of_groups.get(name, {})
            own = self._guaranteed(path, rate)
            if own is None:
                yield from self._sum(children, path, rate, self._limit(path, rate))
            else:
                yield from self._sum(children, path, rate, own, "guaranteed_")
                children = {path: own}
            of_job |= children
        yield from self._sum(of_job, "job", rate, self._limit("job", rate))

    def _sum(
        self, children: Mapping[str, Decimal], path: str, rate: str, most: Decimal | None, kind: str = ""
    ) -> Iterator[Problem]:
        together = sum(children.values(), Decimal(0))
        if most is not None and together > most:
            largest = sorted(children, key=lambda each: (-children[each], each))
            named = ", ".join(f"{each} {children[each]:f}" for each in largest[:_MOST_NAMED])
            more = f" and {len(largest) - _MOST_NAMED} more" if len(largest) > _MOST_NAMED else ""
            problem = f"{together:f} are guaranteed of its {most:f} ({named}{more})"
            remedy = f"guarantee {together - most:f} less, or give it more"
            yield _at(path, self.direction, f"{kind}{rate}"), f"{problem}; {remedy}"

    def _guaranteed(self, path: str, rate: str) -> Decimal | None:
        return getattr(self.claims[path], f"guaranteed_{rate}") if path in self.claims else None

    def _limit(self, path: str, rate: str) -> Decimal | None:
        return getattr(self.quotas[path], rate) if path in self.quotas else None


def _at(path: str, *keys: str) -> tuple[str, ...]:
    """Return the parts of an entry's path, and of what is in it."""
    section, _, name = path.partition(".")
    return (section, *([name] if name else []), *keys)


def _said(quota: Quota) -> Iterable[bool]:
    return (getattr(quota, f"guaranteed_{rate}") is not None for rate in _RATES)


def _named(document: PolicyDocument) -> Iterator[tuple[str, ScopePolicy]]:
    """Yield the entries that can be guaranteed something, behind their paths."""
    yield from ((f"resource_groups.{name}", group) for name, group in document.resource_groups.items())
    yield from ((f"tenants.{name}", tenant) for name, tenant in document.tenants.items())
    yield from ((f"namespaces.{name}", each) for name, each in document.namespaces.items() if not is_glob(name))


def _unnamed(document: PolicyDocument) -> Iterator[tuple[str, NamespacePolicy | ScopePolicy]]:
    """Yield the others."""
    yield from ((f"namespaces.{name}", each) for name, each in document.namespaces.items() if is_glob(name))
    yield from (("defaults", document.defaults), ("job", document.job))


def _entries(document: PolicyDocument) -> Iterator[tuple[str, ScopePolicy]]:
    yield from _named(document)
    yield from _unnamed(document)
