"""PIP-82's calls: resource groups, and the namespaces and tenants that are attached to them.

PIP-82 writes ``resourcegroup``, and Pulsar serves ``resourcegroups``: the calls are the same under both. A ``PUT``
changes what it names, as Pulsar's does; `policies/resource_groups` takes the whole group.

PIP-82 has four rates for each group. The other settings of our quotas are additional fields with similar names. As in
Pulsar's broker (`ResourceGroupsBase.internalUpdateResourceGroup`), a field that is absent or null stays as it is, and
-1 sets no limit; a group that is read has -1 for each rate without a limit. Two things differ: 0 admits nothing, where
Pulsar reads it as no limit, and limits of replication between clusters are accepted, but neither kept nor enforced.

Of the attachment of a namespace they answer as Pulsar's broker does: a name is answered as bare text and no name as
204; ``POST``, which Pulsar's clients send, moves a namespace from another group; and to detach what is not attached
changes nothing. Pulsar has no such calls for tenants; theirs are alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final

from fastapi import Body, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import ConfigDict, WithJsonSchema, create_model
from starlette.exceptions import HTTPException

from spark_throttle.admin.api.calls import (
    ApiContext,
    Calls,
    Change,
    ChangeResponse,
    Context,
    OwnNamespace,
    OwnTenant,
    SeenTenant,
    answered,
)
from spark_throttle.admin.api.requests import ETAG, After, IfNoneMatch, Limit, Segment, encoded
from spark_throttle.admin.caller import READS_ALL
from spark_throttle.errors import NotFoundError, PolicyError
from spark_throttle.policy.model import DIRECTIONS, Direction
from spark_throttle.policy.quotas import GUARANTEES, LIMITS, RATES, Quota
from spark_throttle.store.committer import CommitResult
from spark_throttle.store.entry_conditions import Expected
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author, Kind

_PULSARS_RATES: Final = {"messages_per_second": "RateInMsgs", "bytes_per_second": "RateInBytes"}
OTHER_NAMES: Final = {**_PULSARS_RATES, "burst_seconds": "BurstInSeconds", "max_message_bytes": "MaxMessageSize"}
"""The keys of a quota whose fields have not their names."""

FIELDS: Final[Mapping[str, tuple[Direction, str]]] = {
    direction + OTHER_NAMES.get(key, key.title().replace("_", "")): (direction, key)
    for direction in DIRECTIONS
    for key in Quota.model_fields
}
"""The direction and the key of the quota that each field stands for."""

NOT_ENFORCED: Final = (
    "replicationDispatchRateInMsgs", "replicationDispatchRateInBytes", "replicatorDispatchRate",
)  # fmt: skip
"""Pulsar's fields that limit the replication between clusters, which no job of ours does."""

UNLIMITED: Final = -1
_MAY_BE_ABSENT: Final = (*LIMITS, *GUARANTEES)
_ZERO: Final = ", and 0 admits nothing"
_NAMES: Final[Mapping[tuple[str, str], str]] = {place: field for field, place in FIELDS.items()}
_QUOTA_PATH = re.compile(r"\.(publish|dispatch)(?:\.(\w+))?$")


def _nullable(*schemas: dict[str, object]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [*schemas, {"type": "null"}], "default": None})


ReplicationRate = Annotated[Any, _nullable({"type": "number"})]
ReplicationRates = Annotated[Any, _nullable({"type": "object"})]
_QUOTA: Final = Quota.model_json_schema()["properties"]


def _described(key: str) -> Any:  # noqa: ANN401 - a field of any type
    """Return the field for a key of a quota; the policy judges its value."""
    schema = {word: said for word, said in _QUOTA[key].items() if word not in ("title", "default")}
    unlimited = [{"type": "integer", "const": UNLIMITED}] if key in _MAY_BE_ABSENT else []
    return Annotated[Any, _nullable(schema, *unlimited)], None


_Fields = create_model("_Fields", **{field: _described(key) for field, (_, key) in FIELDS.items()})


class ResourceGroupFields(_Fields):  # type: ignore[valid-type, misc]
    """The quotas of a resource group, per second; -1 sets no limit, and 0 admits nothing."""

    model_config = ConfigDict(extra="forbid")


class ResourceGroupChange(ResourceGroupFields):
    """What a change says of a resource group; a field that is absent or null stays as it is."""

    replicationDispatchRateInMsgs: ReplicationRate = None  # noqa: N815 - Pulsar's names, here and below
    replicationDispatchRateInBytes: ReplicationRate = None  # noqa: N815
    replicatorDispatchRate: ReplicationRates = None  # noqa: N815


def changed_values(values: Mapping[str, Any], change: ResourceGroupChange) -> dict[str, dict[str, object]]:
    """Return a group's policy with a change, in the form of a policy document.

    Raises
    ------
    PolicyError
        If a number is given as text, or is negative and not -1; or a limit of replication has not Pulsar's form.

    Examples
    --------
    >>> limited = {"publish": {"messages_per_second": 5, "bytes_per_second": 1024}}
    >>> changed_values(limited, ResourceGroupChange(publishRateInMsgs=9))
    {'publish': {'messages_per_second': 9, 'bytes_per_second': 1024}}
    >>> changed_values(limited, ResourceGroupChange(publishRateInBytes=-1))
    {'publish': {'messages_per_second': 5}}
    """
    for field in NOT_ENFORCED:
        _refuse_other_form(field, getattr(change, field))
    changed: dict[str, dict[str, object]] = {key: dict(part) for key, part in values.items()}
    for field, (direction, key) in FIELDS.items():
        value = getattr(change, field)
        if value is None:
            continue
        if key != "on_excess" and isinstance(value, str):
            raise PolicyError(field, "it is text; give a JSON number")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if key in _MAY_BE_ABSENT and is_number and value == UNLIMITED:
            changed.get(direction, {}).pop(key, None)
            continue
        if key in _MAY_BE_ABSENT and is_number and value < 0:
            what = "guarantee" if key in GUARANTEES else "limit"
            raise PolicyError(field, f"{value} is negative; -1 sets no {what}{_ZERO if key in RATES else ''}")
        changed.setdefault(direction, {})[key] = value
    # An empty quota is none, but a destination without settings is one: no field of these stands for it.
    return {key: part for key, part in changed.items() if part or key not in DIRECTIONS}


def _refuse_other_form(field: str, value: object) -> None:
    """Refuse a limit of replication that has not the form of its schema, though it is not kept."""
    if value is None:
        return
    is_rates = field == "replicatorDispatchRate"
    has_form = isinstance(value, dict) if is_rates else isinstance(value, int | float) and not isinstance(value, bool)
    if not has_form:
        raise PolicyError(field, f"{value!r} is not a JSON {'object of rates by cluster' if is_rates else 'number'}")


def notes_on(change: ResourceGroupChange) -> tuple[str, ...]:
    """Return what a caller who knows Pulsar may not expect of a change.

    Examples
    --------
    >>> notes_on(ResourceGroupChange(publishRateInMsgs=5, replicationDispatchRateInMsgs=7))
    ('replicationDispatchRateInMsgs = 7 is neither kept nor enforced: nothing here replicates between clusters',)
    """
    shut = (
        f"{field} = 0 admits nothing; Pulsar reads 0 as no limit, which is -1 here"
        for field, (_, key) in FIELDS.items()
        if key in _PULSARS_RATES and getattr(change, field) == 0
    )
    ignored = (
        f"{field} = {getattr(change, field)} is neither kept nor enforced: nothing here replicates between clusters"
        for field in NOT_ENFORCED
        if getattr(change, field) not in (None, UNLIMITED)
    )
    return (*shut, *ignored)


def fields_of_values(values: Mapping[str, Any]) -> ResourceGroupFields:
    """Return a group's policy as fields; a rate without a limit is -1, as Pulsar stores it.

    Examples
    --------
    >>> fields_of_values({"publish": {"messages_per_second": 5}}).dispatchRateInBytes
    -1
    """
    unlimited = {_NAMES[place]: UNLIMITED for place in FIELDS.values() if place[1] in _PULSARS_RATES}
    quotas = {direction: values.get(direction, {}) for direction in DIRECTIONS}
    said = {_NAMES[direction, key]: value for direction, quota in quotas.items() for key, value in quota.items()}
    return ResourceGroupFields(**{**unlimited, **said})


@contextmanager
def _in_fields() -> Iterator[None]:
    """Name in an error the field of the request, instead of the place in a policy document."""
    try:
        yield
    except PolicyError as error:
        if not error.path.startswith("resource_groups"):
            raise
        place = _QUOTA_PATH.search(error.path)
        field = "resourcegroup" if place is None else _NAMES.get((place[1], place[2]), place[1])
        raise PolicyError(field, error.problem) from error


group_calls = Calls("resource groups")
Fields = Annotated[ResourceGroupChange, Body()]
_PAGE: Final = 1000


def _both(method: str, group: str = "/{resourcegroup}") -> tuple[str, str]:
    """Return a call under PIP-82's path and under Pulsar's."""
    return f"{method} /resourcegroup{group}", f"{method} /resourcegroups{group}"


@group_calls.at(*_both("GET", ""), who=READS_ALL, errors=[404])
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


@group_calls.at(
    *_both("GET"), errors=[404], response_model=ResourceGroupFields,
    responses={200: ETAG, 304: {"description": "Not Modified"}},
)  # fmt: skip
def get_resource_group(
    served: ApiContext,
    tenant: SeenTenant,
    resourcegroup: Segment,
    response: Response,
    if_none_match: IfNoneMatch = None,
) -> ResourceGroupFields | Response:
    """Return the quotas of a resource group; a tenant admin sees only the group of its tenant."""
    if tenant is not None and resourcegroup != _own_group(served.service, tenant):
        raise HTTPException(403, "a tenant admin sees only the group that its tenant is attached to")
    stored = served.service.get("resource_group", resourcegroup)
    return answered(stored, if_none_match, response, lambda group: fields_of_values(group.values))


@group_calls.at(*_both("POST"), who=["admin"], errors=[404, 409, 415], status_code=201)
def create_resource_group(resourcegroup: Segment, fields: Fields, change: Change) -> ChangeResponse:
    """Create a resource group; it is a conflict (409) if it exists already.

    Its condition is judged first (412).
    """
    with _in_fields():
        values = changed_values({}, fields)
        return change.made(PolicyService.create, "resource_group", resourcegroup, values, notes=notes_on(fields))


@group_calls.at(*_both("PUT"), who=["admin"], errors=[415])
def put_resource_group(resourcegroup: Segment, fields: Fields, change: Change) -> ChangeResponse:
    """Create a resource group, or change the fields that the body names; -1 lifts a limit.

    `PUT policies/resource_groups/{name}` says the whole group instead.
    """

    def edited(values: Mapping[str, Any]) -> Mapping[str, object]:
        return changed_values(values, fields)

    with _in_fields():
        return change.made(PolicyService.edit, "resource_group", resourcegroup, edited, notes=notes_on(fields))


@group_calls.at(*_both("DELETE"), who=["admin"])
def delete_resource_group(resourcegroup: Segment, change: Change) -> ChangeResponse:
    """Delete a resource group; while tenants, namespaces or the defaults are attached to it, the answer is 412."""
    return change.made(PolicyService.delete, "resource_group", resourcegroup, is_entry=False)


def _own_group(service: PolicyService, tenant: str) -> str | None:
    try:
        return service.get("tenant", tenant).resource_group
    except NotFoundError:
        return None


attachment_calls = Calls("attachments")

_NAMESPACE: Final = "/namespaces/{tenant}/{namespace}/resourcegroup"
_TENANT: Final = "/tenants/{tenant}/resourcegroup"
_GROUP: Final = "/{resourcegroup}"
_ATTACHED: Final[dict[str, Any]] = {
    "response_class": PlainTextResponse,
    "responses": {200: ETAG, 204: {"description": "It is attached to no group by itself."}},
}


@attachment_calls.at(f"GET {_NAMESPACE}", **_ATTACHED)
def get_namespace_attachment(served: ApiContext, name: OwnNamespace) -> Response:
    """Return the name of the resource group that the namespace itself, not its tenant, is attached to, as text."""
    return _attached(served, "namespace", name)


@attachment_calls.at(f"POST {_NAMESPACE}{_GROUP}")
def move_namespace(name: OwnNamespace, resourcegroup: Segment, change: Change) -> ChangeResponse:
    """Attach a namespace to a resource group, also if it is attached to another; Pulsar's clients send this."""
    return change.made(PolicyService.attach, "namespace", name, resourcegroup, is_moved=True)


@attachment_calls.at(f"PUT {_NAMESPACE}{_GROUP}", errors=[409])
def attach_namespace(name: OwnNamespace, resourcegroup: Segment, change: Change) -> ChangeResponse:
    """Attach a namespace to a resource group; it is a conflict (409) if it is attached to another."""
    return change.made(PolicyService.attach, "namespace", name, resourcegroup)


@attachment_calls.at(f"DELETE {_NAMESPACE}")
def detach_namespace(name: OwnNamespace, change: Change) -> ChangeResponse:
    """Detach a namespace from its resource group, if it is attached to one."""
    return change.made(_detach_if_attached, "namespace", name, is_entry=False)


@attachment_calls.at(f"DELETE {_NAMESPACE}{_GROUP}")
def detach_namespace_from(name: OwnNamespace, resourcegroup: Segment, change: Change) -> ChangeResponse:
    """Detach a namespace from a resource group, if that is its group."""
    return change.made(PolicyService.detach, "namespace", name, resource_group=resourcegroup, is_entry=False)


@attachment_calls.at(f"GET {_TENANT}", **_ATTACHED)
def get_tenant_attachment(served: ApiContext, name: OwnTenant) -> Response:
    """Return the name of the resource group that the tenant is attached to, as text."""
    return _attached(served, "tenant", name)


@attachment_calls.at(f"PUT {_TENANT}{_GROUP}", who=["admin"], errors=[409])
def attach_tenant(name: OwnTenant, resourcegroup: Segment, change: Change) -> ChangeResponse:
    """Attach a tenant to a resource group; it is a conflict (409) if it is attached to another."""
    return change.made(PolicyService.attach, "tenant", name, resourcegroup)


@attachment_calls.at(f"DELETE {_TENANT}", who=["admin"])
def detach_tenant(name: OwnTenant, change: Change) -> ChangeResponse:
    """Detach a tenant from its resource group, if it is attached to one."""
    return change.made(_detach_if_attached, "tenant", name, is_entry=False)


@attachment_calls.at(f"DELETE {_TENANT}{_GROUP}", who=["admin"])
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
