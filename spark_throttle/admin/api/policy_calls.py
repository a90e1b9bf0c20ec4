"""Calls for every kind of policy, in the form of a policy document, which says more than PIP-82's fields.

The kinds are a document's sections. A name is one segment, with its slashes encoded:
``/policies/namespaces/acme%2Forders``.
"""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from itertools import islice
from typing import Annotated, Any, Final, Literal, TypeAlias

from fastapi import APIRouter, Body, Query, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from spark_throttle.admin.api.answers import documented
from spark_throttle.admin.api.calls import (
    READERS,
    Admin,
    AnyCaller,
    ApiContext,
    Change,
    ChangeResponse,
    check_tenant,
    is_known,
    not_modified,
    readable_tenant,
    view_of,
)
from spark_throttle.admin.api.requests import After, IfNoneMatch, Limit, Segment, StrictRoute
from spark_throttle.admin.caller import Caller
from spark_throttle.errors import PolicyError
from spark_throttle.policy.model import MAX_NAME_BYTES
from spark_throttle.store.entries import SECTIONS, StoredEntry
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Key, Kind

router = APIRouter(prefix="/admin/v2", tags=["policies"], route_class=StrictRoute)

NamedSection: TypeAlias = Literal["resource_groups", "tenants", "namespaces", "exempt"]
SingleSection: TypeAlias = Literal["defaults", "job", "queue"]
Values: TypeAlias = Annotated[
    dict[str, Any], Body(description="One entry, as its section of a policy document has it; see conf/policies.")
]

_KINDS: Final[dict[str, Kind]] = {section: kind for kind, section in SECTIONS.items()}


class Policy(BaseModel):
    """One entry of the store."""

    kind: Kind
    name: str
    revision: int
    """Revision of the commit that wrote the entry; its ETag names it too."""

    etag: str
    """The entry's ETag, which a change of it may give as If-Match."""

    author: Literal["administrator", "tenant"]
    """Whether an administrator wrote the entry, or the tenant's own."""

    policy: dict[str, Any]
    """The policy without default values; rates are per second, durations in seconds, sizes in bytes."""


class PolicyPage(BaseModel):
    """A page of entries, by name."""

    policies: list[Policy]
    next: str | None
    """`after` of the next page; null on the last page."""


@router.get("/policies/{section}", responses=documented(404))
def list_policies(
    served: ApiContext,
    caller: AnyCaller,
    section: NamedSection,
    after: After = "",
    limit: Limit = 100,
    resource_group: Annotated[str | None, Query(max_length=MAX_NAME_BYTES)] = None,
    locked: Annotated[bool, Query(description="Whether only locked entries are returned.")] = False,  # noqa: FBT002
) -> PolicyPage:
    """Return a page of a section's entries; if `resource_group` is given, only entries that name this group."""
    kind = _KINDS[section]
    tenant = readable_tenant(caller)
    if locked and kind == "namespace":
        entries = map(StoredEntry.of, served.locked.locked_after(after, tenant=tenant))
        page = list(islice((each for each in entries if resource_group in (None, each.resource_group)), limit))
    elif locked:
        raise PolicyError("locked", f"only entries of namespaces can be locked, not those of {section}")
    elif tenant is None:
        page = served.service.page(kind, after=after, limit=limit, resource_group=resource_group)
    else:
        page = _page_of_tenant(served.service, tenant, kind, after, limit)
        page = [stored for stored in page if resource_group in (None, stored.resource_group)]
    is_full = len(page) == limit
    return PolicyPage(policies=[_policy(stored) for stored in page], next=page[-1].name if is_full else None)


@router.get("/status/{job}/groups", dependencies=READERS, responses=documented(404))
def list_worst_groups(served: ApiContext, job: Segment, limit: Limit = 100) -> PolicyPage:
    """Return the groups that are worst off in a job, the worst first."""
    named = view_of(served.watch, job).totals.named
    keys: list[Key] = [("resource_group", scope) for level, scope in named if level == "resource_group"][:limit]
    found = served.service.store.find(keys)
    return PolicyPage(policies=[_policy(StoredEntry.of(found[key])) for key in keys if key in found], next=None)


@router.get("/policies/{section}/{name}", response_model=Policy,
            responses={**documented(404), 304: {"description": "Not Modified"}})  # fmt: skip
def get_policy(
    served: ApiContext,
    caller: AnyCaller,
    section: NamedSection,
    name: Segment,
    response: Response,
    if_none_match: IfNoneMatch = None,
) -> Policy | Response:
    """Return an entry."""
    _check_readable(caller, _KINDS[section], name)
    stored = served.service.get(_KINDS[section], name, reader_tenant=readable_tenant(caller))
    return _answered(stored, if_none_match, response)


@router.put("/policies/{section}/{name}", responses=documented(404, 412, 415, 428))
def put_policy(
    served: ApiContext, caller: AnyCaller, section: NamedSection, name: Segment, values: Values, asked: Change
) -> ChangeResponse:
    """Create or replace an entry."""
    kind = _KINDS[section]
    _check_writable(caller, kind, name)
    expected = asked.expected
    made = served.service.put(kind, name, values, asked.author(caller), expected=expected)
    return asked.answer(made)


@router.delete("/policies/{section}/{name}", responses=documented(404, 412, 428))
def delete_policy(
    served: ApiContext, caller: AnyCaller, section: NamedSection, name: Segment, asked: Change
) -> ChangeResponse:
    """Delete an entry; a resource group that is in use is not deleted (412)."""
    kind = _KINDS[section]
    _check_writable(caller, kind, name)
    expected = asked.expected
    made = served.service.delete(kind, name, asked.author(caller), expected=expected)
    return asked.answer(made, is_entry=False)


@router.get("/policy/{section}", response_model=Policy,
            dependencies=READERS, responses={**documented(404), 304: {"description": "Not Modified"}})  # fmt: skip
def get_single_policy(
    served: ApiContext, section: SingleSection, response: Response, if_none_match: IfNoneMatch = None
) -> Policy | Response:
    """Return the quotas of every namespace without an entry (`defaults`), those of the job, or the queue's bounds."""
    return _answered(served.service.get(_KINDS[section]), if_none_match, response)


@router.put("/policy/{section}", responses=documented(404, 412, 415, 428))
def put_single_policy(
    served: ApiContext, caller: Admin, section: SingleSection, values: Values, asked: Change
) -> ChangeResponse:
    """Replace the defaults, the job's quotas or the queue's bounds."""
    kind = _KINDS[section]
    expected = asked.expected
    made = served.service.put(kind, "", values, asked.author(caller), expected=expected)
    return asked.answer(made)


def _policy(stored: StoredEntry) -> Policy:
    author: Literal["administrator", "tenant"] = "administrator" if stored.given is None else "tenant"
    return Policy(
        kind=stored.kind, name=stored.name, revision=stored.revision, etag=stored.version.etag, author=author,
        policy=stored.values,
    )  # fmt: skip


def _answered(stored: StoredEntry, if_none_match: str | None, response: Response) -> Policy | Response:
    return not_modified(stored) if is_known(stored, if_none_match, response) else _policy(stored)


def _check_readable(caller: Caller, kind: Kind, name: str) -> None:
    if readable_tenant(caller) is not None and kind not in ("tenant", "namespace"):
        raise HTTPException(HTTPStatus.FORBIDDEN, "a tenant admin sees only its tenant and its namespaces")
    check_tenant(caller, name)


def _check_writable(caller: Caller, kind: Kind, name: str) -> None:
    """Refuse what a role may never write; the service judges what a tenant admin writes."""
    if caller.role == "admin":
        return
    if caller.role != "tenant_admin" or kind != "namespace":
        raise HTTPException(HTTPStatus.FORBIDDEN, f"the token's role is {caller.role}; only an admin changes this")
    check_tenant(caller, name)


def _page_of_tenant(service: PolicyService, tenant: str, kind: Kind, after: str, limit: int) -> list[StoredEntry]:
    """Return a page of a tenant's own entries: the entry of its very name, then those of its namespaces."""
    if kind not in ("tenant", "namespace"):
        raise HTTPException(HTTPStatus.FORBIDDEN, "a tenant admin sees only its tenant and its namespaces")
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
