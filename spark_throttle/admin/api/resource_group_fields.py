"""Resource groups in PIP-82's fields, and the policies that they stand for.

PIP-82 has four rates for each group. The other settings of our quotas are additional fields with similar names. A rate
that is absent or null sets no limit, and 0 admits nothing; a PUT replaces the whole group, so a rate that it leaves out
is unlimited. (Pulsar reads 0 and -1 as no limit, and -1 in an update as "leave as it is", so a limit that was set
cannot be lifted there; here a negative rate is refused.)
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
"""The direction and the key of the quota that each field stands for."""

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
    """The quotas of a resource group, per second; a rate that is absent or null sets no limit, and 0 admits nothing."""

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
    """Return the policy that fields stand for, in the form of a policy document.

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
    """Return a group's policy as fields."""
    return ResourceGroupFields(**{
        _NAMES[direction, key]: value
        for direction, quota in values.items()
        for key, value in quota.items()
    })  # fmt: skip


def error_of_field(error: PolicyError) -> PolicyError:
    """Return the error with a field of the request as its path, instead of a place in a policy document."""
    match = _QUOTA_PATH.search(error.path)
    if match is None:
        return PolicyError("resourcegroup", error.problem)
    return PolicyError(_NAMES.get((match[1], match[2]), match[1]), error.problem)
