"""PIP-82's calls that attach namespaces and tenants to resource groups, and detach them.

Of namespaces they answer as Pulsar's broker does: a name is answered as bare text and no name as 204; ``POST``, which
Pulsar's clients send, moves a namespace from another group; and to detach what is not attached changes nothing.
Pulsar has no such calls for tenants; theirs are alike.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from spark_throttle.admin.api.answers import documented
from spark_throttle.admin.api.calls import (
    Admin,
    AnyCaller,
    ApiContext,
    Change,
    ChangeRequest,
    ChangeResponse,
    Context,
    check_tenant,
    is_known,
)
from spark_throttle.admin.api.requests import ETAG, Segment, TenantSegment
from spark_throttle.admin.caller import Caller
from spark_throttle.errors import NotFoundError
from spark_throttle.store.committer import CommitResult
from spark_throttle.store.store import Kind

router = APIRouter(prefix="/admin/v2", tags=["attachments"])

_NAMESPACE = "/namespaces/{tenant}/{namespace}/resourcegroup"
_TENANT = "/tenants/{tenant}/resourcegroup"
_ATTACHED: dict[int | str, dict[str, Any]] = {
    200: ETAG,
    204: {"description": "It is attached to no group by itself."},
}


@router.get(_NAMESPACE, response_class=PlainTextResponse, responses={**documented(), **_ATTACHED})
def get_namespace_attachment(
    served: ApiContext, caller: AnyCaller, tenant: TenantSegment, namespace: Segment
) -> Response:
    """Return the name of the resource group that the namespace itself, not its tenant, is attached to, as text."""
    check_tenant(caller, tenant)
    return _attached(served, "namespace", f"{tenant}/{namespace}")


@router.post(_NAMESPACE + "/{resourcegroup}", responses=documented(404, 412, 428))
def move_namespace(
    caller: AnyCaller,
    tenant: TenantSegment,
    namespace: Segment,
    resourcegroup: Segment,
    asked: Change,
) -> ChangeResponse:
    """Attach a namespace to a resource group, also if it is attached to another; Pulsar's clients send this."""
    name = f"{tenant}/{namespace}"
    check_tenant(caller, name)
    return _attach(asked, caller, "namespace", name, resourcegroup, is_moved=True)


@router.put(_NAMESPACE + "/{resourcegroup}", responses=documented(404, 409, 412, 428))
def attach_namespace(
    caller: AnyCaller,
    tenant: TenantSegment,
    namespace: Segment,
    resourcegroup: Segment,
    asked: Change,
) -> ChangeResponse:
    """Attach a namespace to a resource group; it is a conflict (409) if it is attached to another."""
    name = f"{tenant}/{namespace}"
    check_tenant(caller, name)
    return _attach(asked, caller, "namespace", name, resourcegroup)


@router.delete(_NAMESPACE, responses=documented(412, 428))
def detach_namespace(caller: AnyCaller, tenant: TenantSegment, namespace: Segment, asked: Change) -> ChangeResponse:
    """Detach a namespace from its resource group, if it is attached to one."""
    name = f"{tenant}/{namespace}"
    check_tenant(caller, name)
    return _detach(asked, caller, "namespace", name, None)


@router.delete(_NAMESPACE + "/{resourcegroup}", responses=documented(404, 412, 428))
def detach_namespace_from(
    caller: AnyCaller, tenant: TenantSegment, namespace: Segment, resourcegroup: Segment, asked: Change
) -> ChangeResponse:
    """Detach a namespace from a resource group, if that is its group."""
    name = f"{tenant}/{namespace}"
    check_tenant(caller, name)
    return _detach(asked, caller, "namespace", name, resourcegroup)


@router.get(_TENANT, response_class=PlainTextResponse, responses={**documented(), **_ATTACHED})
def get_tenant_attachment(served: ApiContext, caller: AnyCaller, tenant: TenantSegment) -> Response:
    """Return the name of the resource group that the tenant is attached to, as text."""
    check_tenant(caller, tenant)
    return _attached(served, "tenant", tenant)


@router.put(_TENANT + "/{resourcegroup}", responses=documented(404, 409, 412, 428))
def attach_tenant(caller: Admin, tenant: TenantSegment, resourcegroup: Segment, asked: Change) -> ChangeResponse:
    """Attach a tenant to a resource group; it is a conflict (409) if it is attached to another."""
    return _attach(asked, caller, "tenant", tenant, resourcegroup)


@router.delete(_TENANT, responses=documented(412, 428))
def detach_tenant(caller: Admin, tenant: TenantSegment, asked: Change) -> ChangeResponse:
    """Detach a tenant from its resource group, if it is attached to one."""
    return _detach(asked, caller, "tenant", tenant, None)


@router.delete(_TENANT + "/{resourcegroup}", responses=documented(404, 412, 428))
def detach_tenant_from(caller: Admin, tenant: TenantSegment, resourcegroup: Segment, asked: Change) -> ChangeResponse:
    """Detach a tenant from a resource group, if that is its group."""
    return _detach(asked, caller, "tenant", tenant, resourcegroup)


def _attached(served: Context, kind: Kind, name: str) -> Response:
    try:
        stored = served.service.attached(kind, name)
    except NotFoundError:
        return Response(status_code=204)
    response = PlainTextResponse(stored.resource_group)
    is_known(stored, None, response)
    return response


def _attach(
    asked: ChangeRequest, caller: Caller, kind: Kind, name: str, group: str, *, is_moved: bool = False
) -> ChangeResponse:
    made = asked.context.service.attach(
        kind, name, group, asked.author(caller), expected=asked.expected, is_moved=is_moved
    )
    return asked.answer(made)


def _detach(asked: ChangeRequest, caller: Caller, kind: Kind, name: str, group: str | None) -> ChangeResponse:
    service, author = asked.context.service, asked.author(caller)
    try:
        made = service.detach(kind, name, author, resource_group=group, expected=asked.expected)
    except NotFoundError as error:
        if group is not None:
            raise
        made = CommitResult(service.store.revision(), is_changed=False, notes=(str(error),))
    return asked.answer(made, is_entry=False)
