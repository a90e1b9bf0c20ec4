"""The result of importing another system's quotas: a policy document, and what it cannot express."""

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
    """Each part of the original that the document omits or expresses differently; nothing is left out silently."""

    @classmethod
    def of(cls, values: Mapping[str, Any], unexpressed: list[str]) -> ImportResult:
        """Return the result for the plain values of a document; empty sections are left out."""
        return cls(parse_document({key: value for key, value in values.items() if value}), tuple(unexpressed))


def mapping_of(value: object, path: str) -> Mapping[str, Any]:
    """Return `value` if it is a mapping; raise a `PolicyError` otherwise."""
    if not isinstance(value, Mapping):
        raise PolicyError(path, f"{describe(value)} stands where a mapping belongs")
    return value
