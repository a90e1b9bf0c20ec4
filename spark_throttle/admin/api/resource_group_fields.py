"""Resource groups in PIP-82's fields, and the policies that they stand for.

PIP-82 has four rates for each group. The other settings of our quotas are additional fields with similar names. As in
Pulsar's broker (`ResourceGroupsBase.internalUpdateResourceGroup`), a field that is absent or null stays as it is, and
-1 sets no limit; a group that is read has -1 for each rate without a limit. Two things differ: 0 admits nothing, where
Pulsar reads it as no limit, and limits of replication between clusters are accepted, but neither kept nor enforced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, WithJsonSchema

from spark_throttle.core.quota import MAX_BURST_TOKENS, MAX_SIZE_BYTES
from spark_throttle.errors import PolicyError
from spark_throttle.policy.model import DIRECTIONS, MAX_WEIGHT, RATES, Direction

FIELDS: Final[Mapping[str, tuple[Direction, str]]] = {
    f"{direction}{suffix}": (direction, key)
    for direction in ("publish", "dispatch")
    for suffix, key in (
        ("RateInMsgs", "messages_per_second"), ("RateInBytes", "bytes_per_second"),
        ("BurstInSeconds", "burst_seconds"), ("Weight", "weight"), ("OnExcess", "on_excess"),
        ("MaxMessageSize", "max_message_bytes"), ("RequestPercentage", "request_percentage"),
    )
}  # fmt: skip
"""The direction and the key of the quota that each field stands for."""

NOT_ENFORCED: Final = (
    "replicationDispatchRateInMsgs", "replicationDispatchRateInBytes", "replicatorDispatchRate",
)  # fmt: skip
"""Pulsar's fields that limit the replication between clusters, which no job of ours does."""

UNLIMITED: Final = -1
_LIMITS: Final = (*RATES, "max_message_bytes")
_PULSARS_RATES: Final = ("messages_per_second", "bytes_per_second")
_ZERO: Final = ", and 0 admits nothing"
_NAMES: Final[Mapping[tuple[str, str], str]] = {place: field for field, place in FIELDS.items()}
_QUOTA_PATH = re.compile(r"\.(publish|dispatch)(?:\.(\w+))?$")


def _nullable(*schemas: dict[str, object]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [*schemas, {"type": "null"}], "default": None})


_NO_LIMIT: Final[dict[str, object]] = {"type": "integer", "const": UNLIMITED}
Rate = Annotated[Any, _nullable({"type": "number", "minimum": 0, "maximum": MAX_BURST_TOKENS}, _NO_LIMIT)]
Percentage = Annotated[Any, _nullable({"type": "number", "minimum": 0}, _NO_LIMIT)]
Seconds = Annotated[Any, _nullable({"type": "number", "minimum": 0.001})]
MessageBytes = Annotated[Any, _nullable({"type": "integer", "minimum": 1, "maximum": MAX_SIZE_BYTES}, _NO_LIMIT)]
Weight = Annotated[Any, _nullable({"type": "integer", "minimum": 1, "maximum": MAX_WEIGHT})]
OnExcess = Annotated[Any, _nullable({"type": "string", "enum": ["delay", "reject", "observe"]})]
ReplicationRate = Annotated[Any, _nullable({"type": "number"})]
ReplicationRates = Annotated[Any, _nullable({"type": "object"})]


class ResourceGroupFields(BaseModel):
    """The quotas of a resource group, per second; -1 sets no limit, and 0 admits nothing."""

    model_config = ConfigDict(extra="forbid")

    publishRateInMsgs: Rate = None  # noqa: N815 - PIP-82's names, here and below
    publishRateInBytes: Rate = None  # noqa: N815
    publishBurstInSeconds: Seconds = None  # noqa: N815
    publishWeight: Weight = None  # noqa: N815
    publishOnExcess: OnExcess = None  # noqa: N815
    publishMaxMessageSize: MessageBytes = None  # noqa: N815
    publishRequestPercentage: Percentage = None  # noqa: N815
    dispatchRateInMsgs: Rate = None  # noqa: N815
    dispatchRateInBytes: Rate = None  # noqa: N815
    dispatchBurstInSeconds: Seconds = None  # noqa: N815
    dispatchWeight: Weight = None  # noqa: N815
    dispatchOnExcess: OnExcess = None  # noqa: N815
    dispatchMaxMessageSize: MessageBytes = None  # noqa: N815
    dispatchRequestPercentage: Percentage = None  # noqa: N815


class ResourceGroupChange(ResourceGroupFields):
    """What a change says of a resource group; a field that is absent or null stays as it is."""

    replicationDispatchRateInMsgs: ReplicationRate = None  # noqa: N815
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
        if key in _LIMITS and is_number and value == UNLIMITED:
            changed.get(direction, {}).pop(key, None)
            continue
        if key in _LIMITS and is_number and value < 0:
            raise PolicyError(field, f"{value} is negative; -1 sets no limit{_ZERO if key in RATES else ''}")
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


def error_of_field(error: PolicyError) -> PolicyError:
    """Return the error with a field of the request as its path, instead of a place in a policy document."""
    match = _QUOTA_PATH.search(error.path)
    if match is None:
        return PolicyError("resourcegroup", error.problem)
    return PolicyError(_NAMES.get((match[1], match[2]), match[1]), error.problem)
