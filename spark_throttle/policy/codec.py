"""Policy documents from YAML, JSON or mappings, and back; everything wrong is reported by one `PolicyError`.

Its `path` is the dotted path of the first mistake. Its `problem` says what to write instead, and lists the
other mistakes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from spark_throttle.core.arithmetic.units import describe
from spark_throttle.core.names.visible_text import visible
from spark_throttle.errors import PolicyError, did_you_mean
from spark_throttle.policy.model import (
    DIRECTIONS,
    DestinationPolicy,
    GroupPolicy,
    JobPolicy,
    NamespacePolicy,
    PolicyDocument,
    QueuePolicy,
    TenantPolicy,
)
from spark_throttle.policy.quotas import ExceptionPolicy, NamespaceQuota, OtherQuota, Quota, ScheduledQuotas
from spark_throttle.policy.yaml_text import dump_yaml, read_yaml

_MOST_LISTED: Final = 10
_LONGEST_PART: Final = 64
_PLAIN_PART = re.compile(r"[\w/:@…-]+")

_SECTIONS: Final[dict[str, type[BaseModel]]] = {
    "resource_groups": GroupPolicy,
    "tenants": TenantPolicy,
    "namespaces": NamespacePolicy,
}
_SINGLES: Final[dict[str, type[BaseModel]]] = {"defaults": NamespacePolicy, "job": JobPolicy, "queue": QueuePolicy}


_TYPE_PROBLEMS: Final = {
    "missing": "the key is missing; write it",
    "invalid_key": "the key {shown} is not text; put it in quotes",
    "string_type": "{shown} is not text; put it in quotes",
    "model_type": "{shown} stands where a mapping belongs",
    "dict_type": "{shown} stands where a mapping belongs",
    "mapping_type": "{shown} stands where a mapping belongs",
    "int_type": "{shown} is not a whole number; write one such as 3",
    "bool_type": "{shown} is neither true nor false",
    "int_from_float": "{shown} is not a whole number; write one such as 3",
    "greater_than_equal": "{shown} is less than {ge}, the least allowed; give a whole number",
    "less_than_equal": "{shown} is more than {le}, the most allowed; give a whole number",
}


def parse_policies(text: str | bytes) -> PolicyDocument:
    """Return the checked policy document that a YAML or JSON text holds."""
    return parse_document(read_yaml(text))


def parse_document(value: object) -> PolicyDocument:
    """Return the checked policy document that plain values hold."""
    if value is None:
        # Most likely the file is just being written; as a policy it would lift every limit.
        raise PolicyError("", "the document is empty; write {} if nothing is to be limited")
    if not isinstance(value, Mapping):
        known = ", ".join(PolicyDocument.model_fields)
        raise PolicyError("", f"the document is {describe(value)}; it should be a mapping with the keys {known}")
    try:
        return PolicyDocument.model_validate(dict(value))
    except ValidationError as error:
        raise _as_policy_error(error) from None


def dump_policies(document: PolicyDocument) -> str:
    """Return `document` as YAML, without default values; `parse_policies` reads an equal document from it.

    Examples
    --------
    >>> print(dump_policies(parse_document({"job": {"publish": {"bytes_per_second": "1MiB"}}})))
    version: 1
    job:
      publish:
        bytes_per_second: 1048576
    <BLANKLINE>
    """
    values = {"version": document.version, **document.model_dump(exclude_defaults=True)}
    return dump_yaml(values)


def _as_policy_error(error: ValidationError) -> PolicyError:
    wrong: list[tuple[Sequence[int | str], Callable[[], str]]] = []
    for item in error.errors(include_url=False):
        if item["type"] == "missing_groups":
            known = item["ctx"]["known"]
            wrong += [(path, partial(_missing_group, name, known)) for path, name in item["ctx"]["missing"]]
        elif item["type"] == "broken_guarantee":
            wrong.append((item["ctx"]["path"], partial(str, item["ctx"]["problem"])))
        else:
            wrong.append((item["loc"], partial(_problem, item)))
    # Hints are slow to find, so only the problems that are shown are put into words.
    (path, problem), *others = ((_dotted(loc), describe_it()) for loc, describe_it in wrong[: 1 + _MOST_LISTED])
    if others:
        unlisted = len(wrong) - 1 - _MOST_LISTED
        listed = [*(f"{path}: {problem}" for path, problem in others), *([f"and {unlisted} more"] * (unlisted > 0))]
        problem += f" ({len(wrong) - 1} more: {'; '.join(listed)})"
    return PolicyError(path, problem)


def _missing_group(name: str, known: Iterable[str]) -> str:
    hint = did_you_mean(name, known) or "; define it under resource_groups"
    return f"{describe(name)} is not a resource group{hint}"


def _problem(item: Any) -> str:  # noqa: ANN401 - an ErrorDetails whose `ctx` depends on its type
    kind, value, context = item["type"], item["input"], item.get("ctx", {})
    shown = describe(value)
    if kind == "extra_forbidden":
        return _unknown_key(item["loc"])
    if value is None and kind not in ("invalid_key", "string_type"):
        return "there is no value; write one, or leave the key out"
    if kind == "policy":
        return str(context["problem"])
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        return f"{shown} is none of {', '.join(choices)}{did_you_mean(str(value)[:_LONGEST_PART], choices)}"
    return _TYPE_PROBLEMS.get(kind, "{shown}: {said}").format(shown=shown, said=item["msg"], **context)


def _unknown_key(loc: tuple[int | str, ...]) -> str:
    *scope, key = loc
    model: type[BaseModel] = PolicyDocument
    if scope:
        section = str(scope[0])
        model = _SECTIONS.get(section) or _SINGLES[section]
        inner = scope[1 if section in _SINGLES else 2 :]
        if inner[:1] == ["schedule"] and inner[1:]:
            model = OtherQuota if inner[2:] else ScheduledQuotas
        elif inner[:1] == ["exception"]:
            model = OtherQuota if inner[1:] else ExceptionPolicy
        elif inner and inner[0] in DIRECTIONS:
            model = NamespaceQuota if issubclass(model, NamespacePolicy) else Quota
        elif inner == ["destination"]:
            model = DestinationPolicy
    known: Iterable[str] = model.model_fields
    if model in (Quota, OtherQuota) and key in NamespaceQuota.model_fields:
        others = "scopes that they share, schedules and exceptions have none"
        return f"{key} is for namespaces, by a glob or the defaults; {others}"
    what, _, period = str(key).partition("_per_")
    if "units_per_second" in known and period == "minute":
        return "unknown key; to limit what goes in a minute, give what is …_per_second a 60th, and burst_seconds: 60"
    hint = did_you_mean(str(key), known) or f"; the keys here are {', '.join(known)}"
    if f"units_per_{period}" in known and not did_you_mean(what, ("messages", "bytes", "units")):
        hint = f"; did you mean units_per_{period}? The job's unit names what they are"
    return f"unknown key{hint}"


def _dotted(loc: Iterable[int | str]) -> str:
    return ".".join(_part(part) for part in loc if part != "[key]")


def _part(part: int | str) -> str:
    text = str(part)
    if len(text) > _LONGEST_PART:
        text = text[:_LONGEST_PART] + "…"
    return text if _PLAIN_PART.fullmatch(text) else visible(json.dumps(text, ensure_ascii=False))
