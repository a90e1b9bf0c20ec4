"""PIP-82's calls for resource groups: create or update, read, delete, list."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Request, Response
from starlette.exceptions import HTTPException

from spark_throttle.admin.api.addresses import After, IfNoneMatch, Limit, Segment, encoded
from spark_throttle.admin.api.answers import documented
from spark_throttle.admin.api.calls import (
    READERS,
    Admin,
    AnyCaller,
    ApiContext,
    Change,
    ChangeResponse,
    UnconditionalChange,
    is_known,
    not_modified,
    readable_tenant,
)
from spark_throttle.admin.api.json_bodies import StrictRoute
from spark_throttle.admin.api.resource_group_fields import (
    ResourceGroupFields,
    error_of_field,
    fields_of_values,
    values_of_fields,
)
from spark_throttle.errors import NotFoundError, PolicyError
from spark_throttle.store.service import PolicyService

router = APIRouter(prefix="/admin/v2/resourcegroup", tags=["resource groups"], route_class=StrictRoute)

Fields = Annotated[ResourceGroupFields, Body()]
_ETAG: dict[str, Any] = {"headers": {"ETag": {"schema": {"type": "string"}, "description": "The entry's revision."}}}


@router.get("", dependencies=READERS, responses=documented(404))
def list_resource_groups(
    served: ApiContext, request: Request, response: Response, after: After = "", limit: Limit = 100
) -> list[str]:
    """Return the names of resource groups in order; the header `Link` names the next page if there is one."""
    names = [stored.name for stored in served.service.page("resource_group", after=after, limit=limit)]
    if len(names) == limit:
        next_page = f"{request.url.path}?after={encoded(names[-1])}&limit={limit}"
        response.headers["Link"] = f'<{next_page}>; rel="next"'
    return names


@router.get(
    "/{resourcegroup}",
    response_model=ResourceGroupFields,
    responses={**documented(404), 200: _ETAG, 304: {"description": "Not Modified"}},
)
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


@router.post("/{resourcegroup}", status_code=201, responses=documented(404, 409, 428))
def create_resource_group(
    served: ApiContext, caller: Admin, resourcegroup: Segment, fields: Fields, asked: UnconditionalChange
) -> ChangeResponse:
    """Create a resource group; it is a conflict (409) if it exists already."""
    try:
        made = served.service.create("resource_group", resourcegroup, values_of_fields(fields), asked.author(caller))
    except PolicyError as error:
        raise _of_field(error) from error
    return asked.answer(made)


@router.put("/{resourcegroup}", responses=documented(412, 428))
def put_resource_group(
    served: ApiContext, caller: Admin, resourcegroup: Segment, fields: Fields, asked: Change
) -> ChangeResponse:
    """Create or replace a resource group; a rate that the body leaves out is unlimited."""
    revision = asked.expected("resource_group", resourcegroup)
    try:
        made = served.service.put(
            "resource_group", resourcegroup, values_of_fields(fields), asked.author(caller), expected=revision
        )
    except PolicyError as error:
        raise _of_field(error) from error
    return asked.answer(made)


@router.delete("/{resourcegroup}", responses=documented(404, 412, 428))
def delete_resource_group(served: ApiContext, caller: Admin, resourcegroup: Segment, asked: Change) -> ChangeResponse:
    """Delete a resource group; while tenants, namespaces or the defaults are attached to it, the answer is 412."""
    revision = asked.expected("resource_group", resourcegroup)
    made = served.service.delete("resource_group", resourcegroup, asked.author(caller), expected=revision)
    return asked.answer(made, is_entry=False)


def _of_field(error: PolicyError) -> PolicyError:
    return error if not error.path.startswith("resource_groups") else error_of_field(error)


def _own_group(service: PolicyService, tenant: str) -> str | None:
    try:
        return service.get("tenant", tenant).resource_group
    except NotFoundError:
        return None
