"""Resource groups in PIP-82's fields, and the policies that they stand for.

PIP-82 has four rates a group. Beside them stands, named alike, what a quota of ours says more. Absent or null is no
limit and 0 admits nothing; a PUT says the whole group, so what it leaves out is not limited. (Pulsar reads 0 and -1 as
no limit, and -1 in an update as "leave as it is", so that a limit, once set, cannot be lifted: a negative rate is
refused here.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, WithJsonSchema

from spark_throttle.core.quota import MAX_BURST_TOKENS, MAX_SIZE_BYTES
from spark_throttle.errors import PolicyError
from spark_throttle.policy.model import MAX_WEIGHT, Direction

FIELDS: Final[Mapping[str, tuple[Direction, str]]] = {
    f"{direction}{suffix}": (direction, key)
    for direction in ("publish", "dispatch")
    for suffix, key in (
        ("RateInMsgs", "messages_per_second"), ("RateInBytes", "bytes_per_second"),
        ("BurstInSeconds", "burst_seconds"), ("Weight", "weight"), ("OnExcess", "on_excess"),
        ("MaxMessageSize", "max_message_bytes"),
    )
}  # fmt: skip
"""Which key of which direction's quota a field is."""

_NAMES: Final[Mapping[tuple[str, str], str]] = {place: field for field, place in FIELDS.items()}
_QUOTA_PATH = re.compile(r"\.(publish|dispatch)(?:\.(\w+))?$")


def _nullable(**schema: object) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [schema, {"type": "null"}], "default": None})


Rate = Annotated[Any, _nullable(type="number", minimum=0, maximum=MAX_BURST_TOKENS)]
Seconds = Annotated[Any, _nullable(type="number", minimum=0.001)]
MessageBytes = Annotated[Any, _nullable(type="integer", minimum=1, maximum=MAX_SIZE_BYTES)]
Weight = Annotated[Any, _nullable(type="integer", minimum=1, maximum=MAX_WEIGHT)]
OnExcess = Annotated[Any, _nullable(enum=["delay", "reject", "observe"], type="string")]


class ResourceGroupFields(BaseModel):
    """The quotas of a resource group, a second each; what is absent or null is not limited, and 0 admits nothing."""

    model_config = ConfigDict(extra="forbid")

    publishRateInMsgs: Rate = None  # noqa: N815 - PIP-82's names, here and below
    publishRateInBytes: Rate = None  # noqa: N815
    publishBurstInSeconds: Seconds = None  # noqa: N815
    publishWeight: Weight = None  # noqa: N815
    publishOnExcess: OnExcess = None  # noqa: N815
    publishMaxMessageSize: MessageBytes = None  # noqa: N815
    dispatchRateInMsgs: Rate = None  # noqa: N815
    dispatchRateInBytes: Rate = None  # noqa: N815
    dispatchBurstInSeconds: Seconds = None  # noqa: N815
    dispatchWeight: Weight = None  # noqa: N815
    dispatchOnExcess: OnExcess = None  # noqa: N815
    dispatchMaxMessageSize: MessageBytes = None  # noqa: N815


def values_of_fields(fields: ResourceGroupFields) -> dict[str, dict[str, object]]:
    """Return the policy that fields stand for, as a policy document has it.

    Raises
    ------
    PolicyError
        If a number is given as text.

    Examples
    --------
    >>> values_of_fields(ResourceGroupFields(publishRateInMsgs=5, publishWeight=2))
    {'publish': {'messages_per_second': 5, 'weight': 2}}
    """
    values: dict[str, dict[str, object]] = {}
    for field, (direction, key) in FIELDS.items():
        value = getattr(fields, field)
        if value is None:
            continue
        if key != "on_excess" and isinstance(value, str):
            raise PolicyError(field, "it is text; give a JSON number")
        values.setdefault(direction, {})[key] = value
    return values


def fields_of_values(values: Mapping[str, Any]) -> ResourceGroupFields:
    """Return the fields that say what a group's policy says."""
    return ResourceGroupFields(**{
        _NAMES[direction, key]: value
        for direction, quota in values.items()
        for key, value in quota.items()
    })  # fmt: skip


def error_of_field(error: PolicyError) -> PolicyError:
    """Return an error whose path is the field of the request, where it was the place in a policy document."""
    match = _QUOTA_PATH.search(error.path)
    if match is None:
        return PolicyError("resourcegroup", error.problem)
    return PolicyError(_NAMES.get((match[1], match[2]), match[1]), error.problem)
