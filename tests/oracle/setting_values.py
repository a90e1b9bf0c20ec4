"""What a setting of a policy is tried with, from what the model says of it."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import BaseModel

from spark_throttle.policy.model import SETTINGS, GroupPolicy, NamespacePolicy
from spark_throttle.policy.quotas import NamespaceQuota


def settings_of(part: type[BaseModel]) -> list[str]:
    """Return the settings that a part of a policy may have."""
    return [key for key in SETTINGS if key in part.model_fields]


@cache
def values_of(key: str, numbers: tuple[int, ...]) -> tuple[Any, ...]:
    """Return values of a setting: its words, true and false, or those of some numbers that are within its bounds.

    Examples
    --------
    >>> values_of("fair_between", (5,)), values_of("max_message_bytes", (0, 5))
    (('tenants', 'namespaces'), (5,))
    """
    part = next(part for part in (NamespaceQuota, NamespacePolicy, GroupPolicy) if key in part.model_fields)
    schema = part.model_json_schema()["properties"][key]
    schema = schema.get("anyOf", [schema])[0]
    if schema["type"] == "boolean":
        return False, True
    least, most = schema.get("minimum", 0), schema.get("maximum", max(numbers))
    return tuple(schema.get("enum") or [number for number in numbers if least <= number <= most])
