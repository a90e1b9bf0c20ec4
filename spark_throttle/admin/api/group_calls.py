"""PIP-82's calls for resource groups: create or update, read, delete, list.

PIP-82 writes ``resourcegroup``, and Pulsar serves ``resourcegroups``: the calls are the same under both. A ``PUT``
changes what it names, as Pulsar's does; `policies/resource_groups` takes the whole group.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Request, Response
from starlette.exceptions import HTTPException

from spark_throttle.admin.api.addresses import ETAG, After, IfNoneMatch, Limit, Segment, encoded
from spark_throttle.admin.api.answers import documented
from spark_throttle.admin.api.calls import (
    READERS,
    Admin,
    AnyCaller,
    ApiContext,
    Change,
    ChangeResponse,
    is_known,
    not_modified,
    readable_tenant,
)
from spark_throttle.admin.api.json_bodies import StrictRoute
from spark_throttle.admin.api.resource_group_fields import (
    ResourceGroupChange,
    ResourceGroupFields,
    changed_values,
    error_of_field,
    fields_of_values,
    notes_on,
)
from spark_throttle.errors import NotFoundError, PolicyError
from spark_throttle.store.committer import CommitResult
from spark_throttle.store.service import PolicyService

router = APIRouter(prefix="/admin/v2", tags=["resource groups"], route_class=StrictRoute)
_GROUP: Final = "/{resourcegroup}"
_OURS: Final = "/resourcegroup"
_PULSARS: Final = "/resourcegroups"

Fields = Annotated[ResourceGroupChange, Body()]
_PAGE: Final = 1000
_READ: dict[int | str, dict[str, Any]] = {**documented(404), 200: ETAG, 304: {"description": "Not Modified"}}


@router.get(_OURS, dependencies=READERS, responses=documented(404))
@router.get(_PULSARS, dependencies=READERS, responses=documented(404))
def list_resource_groups(
    served: ApiContext, request: Request, response: Response, after: After = "", limit: Limit | None = None
) -> list[str]:
    """Return the names of all resource groups in order; with `limit` a page, and `Link` names the next if there is one.

    Pulsar's clients know no pages, and would take the first for the whole.
    """
    names: list[str] = []
    is_full = True
    while is_full and len(names) != limit:
        page = served.service.page("resource_group", after=names[-1] if names else after, limit=limit or _PAGE)
        names += [stored.name for stored in page]
        is_full = len(page) == (limit or _PAGE)
    if len(names) == limit:
        next_page = f"{request.url.path}?after={encoded(names[-1])}&limit={limit}"
        response.headers["Link"] = f'<{next_page}>; rel="next"'
    return names


@router.get(_OURS + _GROUP, response_model=ResourceGroupFields, responses=_READ)
@router.get(_PULSARS + _GROUP, response_model=ResourceGroupFields, responses=_READ)
def get_resource_group(
    served: ApiContext,
    caller: AnyCaller,
    resourcegroup: Segment,
    response: Response,
    if_none_match: IfNoneMatch = None,
) -> ResourceGroupFields | Response:
    """Return the quotas of a resource group; a tenant admin sees only the group of its tenant."""
    tenant = readable_tenant(caller)
    if tenant is not None and resourcegroup != _own_group(served.service, tenant):
        raise HTTPException(403, "a tenant admin sees only the group that its tenant is attached to")
    stored = served.service.get("resource_group", resourcegroup)
    if is_known(stored, if_none_match, response):
        return not_modified(stored)
    return fields_of_values(stored.values)


@router.post(_OURS + _GROUP, status_code=201, responses=documented(404, 409, 412, 415, 428))
@router.post(_PULSARS + _GROUP, status_code=201, responses=documented(404, 409, 412, 415, 428))
def create_resource_group(
    served: ApiContext, caller: Admin, resourcegroup: Segment, fields: Fields, asked: Change
) -> ChangeResponse:
    """Create a resource group; it is a conflict (409) if it exists already.

    Its condition is judged first (412).
    """
    expected = asked.expected
    try:
        values = changed_values({}, fields)
        made = served.service.create("resource_group", resourcegroup, values, asked.author(caller), expected=expected)
    except PolicyError as error:
        raise _of_field(error) from error
    return asked.answer(_noted(made, fields))


@router.put(_OURS + _GROUP, responses=documented(412, 415, 428))
@router.put(_PULSARS + _GROUP, responses=documented(412, 415, 428))
def put_resource_group(
    served: ApiContext, caller: Admin, resourcegroup: Segment, fields: Fields, asked: Change
) -> ChangeResponse:
    """Create a resource group, or change the fields that the body names; -1 lifts a limit.

    `PUT policies/resource_groups/{name}` says the whole group instead.
    """
    expected = asked.expected
    try:
        made = served.service.edit(
            "resource_group", resourcegroup, lambda values: changed_values(values, fields), asked.author(caller),
            expected=expected,
        )  # fmt: skip
    except PolicyError as error:
        raise _of_field(error) from error
    return asked.answer(_noted(made, fields))


@router.delete(_OURS + _GROUP, responses=documented(404, 412, 428))
@router.delete(_PULSARS + _GROUP, responses=documented(404, 412, 428))
def delete_resource_group(served: ApiContext, caller: Admin, resourcegroup: Segment, asked: Change) -> ChangeResponse:
    """Delete a resource group; while tenants, namespaces or the defaults are attached to it, the answer is 412."""
    expected = asked.expected
    made = served.service.delete("resource_group", resourcegroup, asked.author(caller), expected=expected)
    return asked.answer(made, is_entry=False)


def _noted(made: CommitResult, fields: ResourceGroupChange) -> CommitResult:
    return replace(made, notes=(*made.notes, *notes_on(fields)))


def _of_field(error: PolicyError) -> PolicyError:
    return error if not error.path.startswith("resource_groups") else error_of_field(error)


def _own_group(service: PolicyService, tenant: str) -> str | None:
    try:
        return service.get("tenant", tenant).resource_group
    except NotFoundError:
        return None
