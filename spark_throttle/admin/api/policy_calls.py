"""Every kind of policy has calls in the form of a policy document, which says more than PIP-82's fields.

The kinds are a document's sections. A name is one segment, with its slashes encoded:
``/policies/namespaces/acme%2Forders``. Other calls are about the store's revisions: who changed what, when and why; the
difference of two revisions; and the way back to one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from itertools import islice
from typing import Annotated, Any, Final, Literal, TypeAlias

from fastapi import Body, Depends, Query, Response
from starlette.exceptions import HTTPException

from spark_throttle.admin.api.calls import (
    AnyCaller,
    ApiContext,
    Calls,
    Change,
    ChangeOfStore,
    ChangeResponse,
    Context,
    SeenTenant,
    answered,
    check_tenant,
)
from spark_throttle.admin.api.requests import After, IfNoneMatch, Limit, RevisionNumber, Segment
from spark_throttle.admin.caller import READS_ALL
from spark_throttle.admin.shown_policies import Plan, Policy, ShownRevision, namespace_names, shown_history
from spark_throttle.errors import PolicyError
from spark_throttle.policy.values import MAX_NAME_BYTES
from spark_throttle.store.entries import SECTIONS, Difference, StoredEntry
from spark_throttle.store.given_exceptions import GivenException
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Key, Kind

calls = Calls("policies")

NamedSection: TypeAlias = Literal["resource_groups", "tenants", "namespaces", "exempt"]
SingleSection: TypeAlias = Literal["defaults", "job", "queue"]
Values: TypeAlias = Annotated[
    dict[str, Any],
    Body(
        description="One entry, as its section of a policy document has it; its quotas as `Quota`, those of namespaces "
        "and defaults as `NamespaceQuota`."
    ),
]

_KINDS: Final[dict[str, Kind]] = {section: kind for kind, section in SECTIONS.items()}
_UNMODIFIED: Final[dict[int | str, dict[str, Any]]] = {304: {"description": "Not Modified"}}


@dataclass(frozen=True, slots=True)
class PolicyPage:
    """A page of entries, by name."""

    policies: list[Policy]
    next: str | None
    """`after` of the next page; null on the last page."""


@dataclass(frozen=True, slots=True)
class ExceptionPage:
    """The exceptions that an operator looks at first, and how many there are."""

    exceptions: list[GivenException]
    in_force: int
    ended: int


def _check_seen(tenant: str | None, kind: Kind) -> None:
    if tenant is not None and kind not in ("tenant", "namespace"):
        raise HTTPException(HTTPStatus.FORBIDDEN, "a tenant admin sees only its tenant and its namespaces")


def _read_key(tenant: SeenTenant, section: NamedSection, name: Segment) -> Key:
    _check_seen(tenant, _KINDS[section])
    check_tenant(tenant, name)
    return _KINDS[section], name


def _written_key(caller: AnyCaller, tenant: SeenTenant, section: NamedSection, name: Segment) -> Key:
    """Refuse what a role may never write; the service judges what a tenant admin writes."""
    if tenant is not None and section != "namespaces":
        raise HTTPException(HTTPStatus.FORBIDDEN, f"the token's role is {caller.role}; only an admin changes this")
    check_tenant(tenant, name)
    return _KINDS[section], name


ReadKey: TypeAlias = Annotated[Key, Depends(_read_key)]
WrittenKey: TypeAlias = Annotated[Key, Depends(_written_key)]


def _shown(served: Context) -> Callable[[StoredEntry], Policy]:
    return lambda stored: Policy.of(stored, served.service.clock_ms())


@calls.at("GET /policies/{section}", errors=[404])
def list_policies(
    served: ApiContext,
    tenant: SeenTenant,
    section: NamedSection,
    after: After = "",
    limit: Limit = 100,
    resource_group: Annotated[str | None, Query(max_length=MAX_NAME_BYTES)] = None,
    locked: Annotated[bool, Query(description="Whether only locked entries are returned.")] = False,  # noqa: FBT002
) -> PolicyPage:
    """Return a page of a section's entries; if `resource_group` is given, only entries that name this group."""
    kind = _KINDS[section]
    if locked and kind == "namespace":
        entries = map(StoredEntry.of, served.service.index.locked_after(after, tenant=tenant))
        page = list(islice((each for each in entries if resource_group in (None, each.resource_group)), limit))
    elif locked:
        raise PolicyError("locked", f"only entries of namespaces can be locked, not those of {section}")
    elif tenant is None:
        page = served.service.page(kind, after=after, limit=limit, resource_group=resource_group)
    else:
        page = _page_of_tenant(served.service, tenant, kind, after, limit)
        page = [stored for stored in page if resource_group in (None, stored.resource_group)]
    is_full, now_ms = len(page) == limit, served.service.clock_ms()
    policies = [Policy.of(stored, now_ms) for stored in page]
    return PolicyPage(policies, page[-1].name if is_full else None)


@calls.at("GET /exceptions")
def list_exceptions(served: ApiContext, tenant: SeenTenant, limit: Limit = 100) -> ExceptionPage:
    """Return the first exceptions: those in force, the first to end in front; then those that have ended.

    A tenant admin gets those of its tenant and its namespaces.
    """
    found = served.service.exceptions(tenant=tenant)
    in_force = sum(1 for each in found if each.state == "in_force")
    return ExceptionPage(found[:limit], in_force, len(found) - in_force)


@calls.at("GET /policies/{section}/{name}", errors=[404], response_model=Policy, responses=_UNMODIFIED)
def get_policy(
    served: ApiContext, tenant: SeenTenant, key: ReadKey, response: Response, if_none_match: IfNoneMatch = None
) -> Policy | Response:
    """Return an entry."""
    return answered(served.service.get(*key, reader_tenant=tenant), if_none_match, response, _shown(served))


@calls.at("PUT /policies/{section}/{name}", errors=[404, 415])
def put_policy(key: WrittenKey, values: Values, change: Change) -> ChangeResponse:
    """Create or replace an entry."""
    return change.made(PolicyService.put, *key, values)


@calls.at("DELETE /policies/{section}/{name}")
def delete_policy(key: WrittenKey, change: Change) -> ChangeResponse:
    """Delete an entry; a resource group that is in use is not deleted (412)."""
    return change.made(PolicyService.delete, *key, is_entry=False)


@calls.at("GET /policy/{section}", who=READS_ALL, errors=[404], response_model=Policy, responses=_UNMODIFIED)
def get_single_policy(
    served: ApiContext, section: SingleSection, response: Response, if_none_match: IfNoneMatch = None
) -> Policy | Response:
    """Return the quotas of every namespace without an entry (`defaults`), those of the job, or the queue's bounds."""
    return answered(served.service.get(_KINDS[section]), if_none_match, response, _shown(served))


@calls.at("PUT /policy/{section}", who=["admin"], errors=[404, 415])
def put_single_policy(section: SingleSection, values: Values, change: Change) -> ChangeResponse:
    """Replace the defaults, the job's quotas or the queue's bounds."""
    return change.made(PolicyService.put, _KINDS[section], "", values)


def _page_of_tenant(service: PolicyService, tenant: str, kind: Kind, after: str, limit: int) -> list[StoredEntry]:
    """Return a page of a tenant's own entries: the entry of its very name, then those of its namespaces."""
    _check_seen(tenant, kind)
    return list(islice(_entries_of_tenant(service, tenant, kind, after, limit), limit))


def _entries_of_tenant(
    service: PolicyService, tenant: str, kind: Kind, after: str, limit: int
) -> Iterator[StoredEntry]:
    folder = f"{tenant}/"
    for name in (tenant, folder) if kind == "namespace" else (tenant,):
        if name > after and service.store.get(kind, name) is not None:
            yield service.get(kind, name)
    if kind == "namespace":
        for stored in service.page(kind, after=max(after, folder), limit=limit):
            if not stored.name.startswith(folder):
                return
            yield stored


revision_calls = Calls("revisions")


@revision_calls.at("GET /history", who=READS_ALL, errors=[404])
def get_history(
    served: ApiContext,
    before: Annotated[int | None, Query(ge=1, le=2**62, description="Only revisions before this one.")] = None,
    limit: Limit = 20,
) -> list[ShownRevision]:
    """Return the newest commits, newest first, with who made them and why, and the exceptions that they gave or took.

    The end of an exception is no commit: the one that gave it says when it ends.
    """
    return shown_history(served.service, before=before, limit=limit)


@revision_calls.at("GET /diff", who=READS_ALL, errors=[404])
def get_diff(
    served: ApiContext,
    before: RevisionNumber,
    after: RevisionNumber,
    offset: Annotated[RevisionNumber, Query(description="How many entries were on the pages before.")] = 0,
    limit: Limit = 100,
) -> list[Difference]:
    """Return a page of the entries that differ between two revisions, by kind and name."""
    return served.service.diff(before, after, offset=offset, limit=limit)


@revision_calls.at("GET /rollback/{revision}", who=READS_ALL, errors=[404])
def plan_rollback(served: ApiContext, revision: RevisionNumber, limit: Limit = 100) -> Plan:
    """Return what a rollback to a revision would change, and what that would cost; nothing is changed."""
    planned = served.service.planned_rollback(revision, limit=limit)
    return Plan.of(planned, lambda: namespace_names(served.service.store, revision), most_losses=limit)


@revision_calls.at("POST /rollback/{revision}", who=["admin"])
def roll_back(revision: RevisionNumber, change: ChangeOfStore) -> ChangeResponse:
    """Restore the policies of a revision, in one commit; the changes since then stay in the history."""
    return change.made(PolicyService.rollback, revision, is_entry=False)
