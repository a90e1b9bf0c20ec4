"""PIP-82's calls that attach namespaces and tenants to resource groups, and detach them.

Of namespaces they answer as Pulsar's broker does: a name is answered as bare text and no name as 204; ``POST``, which
Pulsar's clients send, moves a namespace from another group; and to detach what is not attached changes nothing.
Pulsar has no such calls for tenants; theirs are alike.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import Response
from fastapi.responses import PlainTextResponse

from spark_throttle.admin.api.calls import ApiContext, Calls, Change, ChangeResponse, Context, OwnNamespace, OwnTenant
from spark_throttle.admin.api.requests import ETAG, Segment
from spark_throttle.errors import NotFoundError
from spark_throttle.store.committer import CommitResult
from spark_throttle.store.entry_conditions import Expected
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author, Kind

calls = Calls("attachments")

_NAMESPACE: Final = "/namespaces/{tenant}/{namespace}/resourcegroup"
_TENANT: Final = "/tenants/{tenant}/resourcegroup"
_GROUP: Final = "/{resourcegroup}"
_ATTACHED: Final[dict[str, Any]] = {
    "response_class": PlainTextResponse,
    "responses": {200: ETAG, 204: {"description": "It is attached to no group by itself."}},
}


@calls.at(f"GET {_NAMESPACE}", **_ATTACHED)
def get_namespace_attachment(served: ApiContext, name: OwnNamespace) -> Response:
    """Return the name of the resource group that the namespace itself, not its tenant, is attached to, as text."""
    return _attached(served, "namespace", name)


@calls.at(f"POST {_NAMESPACE}{_GROUP}", errors=[404])
def move_namespace(name: OwnNamespace, resourcegroup: Segment, change: Change) -> ChangeResponse:
    """Attach a namespace to a resource group, also if it is attached to another; Pulsar's clients send this."""
    return change.made(PolicyService.attach, "namespace", name, resourcegroup, is_moved=True)


@calls.at(f"PUT {_NAMESPACE}{_GROUP}", errors=[404, 409])
def attach_namespace(name: OwnNamespace, resourcegroup: Segment, change: Change) -> ChangeResponse:
    """Attach a namespace to a resource group; it is a conflict (409) if it is attached to another."""
    return change.made(PolicyService.attach, "namespace", name, resourcegroup)


@calls.at(f"DELETE {_NAMESPACE}")
def detach_namespace(name: OwnNamespace, change: Change) -> ChangeResponse:
    """Detach a namespace from its resource group, if it is attached to one."""
    return change.made(_detach_if_attached, "namespace", name, is_entry=False)


@calls.at(f"DELETE {_NAMESPACE}{_GROUP}", errors=[404])
def detach_namespace_from(name: OwnNamespace, resourcegroup: Segment, change: Change) -> ChangeResponse:
    """Detach a namespace from a resource group, if that is its group."""
    return change.made(PolicyService.detach, "namespace", name, resource_group=resourcegroup, is_entry=False)


@calls.at(f"GET {_TENANT}", **_ATTACHED)
def get_tenant_attachment(served: ApiContext, name: OwnTenant) -> Response:
    """Return the name of the resource group that the tenant is attached to, as text."""
    return _attached(served, "tenant", name)


@calls.at(f"PUT {_TENANT}{_GROUP}", who=["admin"], errors=[404, 409])
def attach_tenant(name: OwnTenant, resourcegroup: Segment, change: Change) -> ChangeResponse:
    """Attach a tenant to a resource group; it is a conflict (409) if it is attached to another."""
    return change.made(PolicyService.attach, "tenant", name, resourcegroup)


@calls.at(f"DELETE {_TENANT}", who=["admin"])
def detach_tenant(name: OwnTenant, change: Change) -> ChangeResponse:
    """Detach a tenant from its resource group, if it is attached to one."""
    return change.made(_detach_if_attached, "tenant", name, is_entry=False)


@calls.at(f"DELETE {_TENANT}{_GROUP}", who=["admin"], errors=[404])
def detach_tenant_from(name: OwnTenant, resourcegroup: Segment, change: Change) -> ChangeResponse:
    """Detach a tenant from a resource group, if that is its group."""
    return change.made(PolicyService.detach, "tenant", name, resource_group=resourcegroup, is_entry=False)


def _attached(served: Context, kind: Kind, name: str) -> Response:
    try:
        stored = served.service.attached(kind, name)
    except NotFoundError:
        return Response(status_code=204)
    return PlainTextResponse(stored.resource_group, headers={"ETag": stored.version.etag})


def _detach_if_attached(
    service: PolicyService, kind: Kind, name: str, author: Author, *, expected: Expected
) -> CommitResult:
    try:
        return service.detach(kind, name, author, expected=expected)
    except NotFoundError as error:
        return CommitResult(service.store.revision(), is_changed=False, notes=(str(error),))
