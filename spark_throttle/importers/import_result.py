"""What is taken over from another system's quotas: a policy document, and what it cannot express."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_throttle.core.arithmetic.units import describe
from spark_throttle.errors import PolicyError
from spark_throttle.policy.codec import parse_document
from spark_throttle.policy.model import PolicyDocument


@dataclass(frozen=True, slots=True)
class ImportResult:
    """A policy document made from another system's quotas."""

    document: PolicyDocument
    unexpressed: tuple[str, ...]
    """Everything of the original that the document does not say, or says otherwise; never left out silently."""

    @classmethod
    def of(cls, values: Mapping[str, Any], unexpressed: list[str]) -> ImportResult:
        """Return what plain values make, without empty sections."""
        return cls(parse_document({key: value for key, value in values.items() if value}), tuple(unexpressed))


def mapping_of(value: object, path: str) -> Mapping[str, Any]:
    """Return a mapping that was read, or say that something else stands there."""
    if not isinstance(value, Mapping):
        raise PolicyError(path, f"{describe(value)} stands where a mapping belongs")
    return value
