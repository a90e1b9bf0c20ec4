"""Policies from Apache Pulsar's resource groups (PIP-82).

The input is what ``pulsar-admin resourcegroups`` prints: the rates of ``get``, with the name of the group given beside
them; the names of ``list``; or both, each name followed by its rates::

    for group in $(pulsar-admin resourcegroups list); do
        echo $group; pulsar-admin resourcegroups get $group
    done

Or it is JSON or YAML with up to three sections: ``resourcegroups``, each as ``get`` prints it, and ``tenants`` and
``namespaces`` with the group that each is attached to. Without sections the whole is read as ``{group:
{publishRateInMsgs: …}}``.

In Pulsar a rate that is 0, negative or absent sets no limit; such a rate is left out here, where 0 would admit nothing.
A namespace that is attached to another group than its tenant counts in both groups in Pulsar, and here only in its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from spark_throttle.errors import PolicyError
from spark_throttle.importers.origin import ImportResult, Origin, check_origin, mapping_of
from spark_throttle.policy.yaml_text import read_yaml
from spark_throttle.remedies import Remedy

_FIELDS: Final = {
    "publishrateinmsgs": ("publish", "messages_per_second"),
    "publishrateinbytes": ("publish", "bytes_per_second"),
    "dispatchrateinmsgs": ("dispatch", "messages_per_second"),
    "dispatchrateinbytes": ("dispatch", "bytes_per_second"),
}
_OF_REPLICATION: Final = (
    "replicationdispatchrateinmsgs", "replicationdispatchrateinbytes", "replicatordispatchrate",
)  # fmt: skip
_ONLY_NAMED: Final = object()
"""Stands for the rates of a group of which only the name is known."""

_NAMED: Final = "the text names its groups, so {group!r} cannot be the name of one group's rates"
_SECTIONS: Final = ("resourcegroups", "tenants", "namespaces")
_YAML_KEY = re.compile(r"[^\s{\[\"'][^\n]*:(?:\s|$)", re.MULTILINE)
"""A line of a YAML mapping; the names that `list` prints have none."""


def import_pulsar(text: str, *, group: str | None = None) -> ImportResult:
    """Return Pulsar's resource groups, and the tenants and namespaces attached to them, as policies.

    Parameters
    ----------
    group
        The group whose rates the text holds, if it is what ``get`` prints for one.

    Examples
    --------
    >>> found = import_pulsar('{"gold": {"publishRateInMsgs": 100, "dispatchRateInMsgs": -1, "ratio": 2}}')
    >>> found.document.resource_groups["gold"].publish.messages_per_second
    Decimal('100')
    >>> found.unexpressed
    ('resourcegroups.gold.ratio = 2 is not a rate of a policy',)
    """
    check_origin(text, Origin.PULSAR)
    values = _values(text, group)
    sections = values if any(section in values for section in _SECTIONS) else {"resourcegroups": values}
    unexpressed = [f"{key} is not a section that can be imported" for key in sections if key not in _SECTIONS]
    groups = {
        name: {}
        if fields is _ONLY_NAMED
        else _quotas(mapping_of(fields, f"resourcegroups.{name}"), f"resourcegroups.{name}", unexpressed)
        for name, fields in mapping_of(sections.get("resourcegroups") or {}, "resourcegroups").items()
    }
    unexpressed += [
        f"resourcegroups.{name}: only its name is known; import what resourcegroups get prints for it too"
        for name in groups
        if sections["resourcegroups"][name] is _ONLY_NAMED
    ]
    tenants, namespaces = (_attached(sections, section, unexpressed) for section in ("tenants", "namespaces"))
    for name, entry in namespaces.items():
        tenant = name.partition("/")[0]
        through = tenants.get(tenant, {}).get("resource_group")
        if through not in (None, entry["resource_group"]):
            unexpressed.append(
                f"namespaces.{name} counts only in {entry['resource_group']}; in Pulsar it also counts in {through}, "
                f"the group of its tenant"
            )
    document = {"resource_groups": groups, "tenants": tenants, "namespaces": namespaces}
    return ImportResult.of(document, unexpressed)


def _values(text: str, group: str | None) -> Mapping[str, Any]:
    """Return the sections, or the groups, of a text."""
    if not text.lstrip().startswith("{") and not _YAML_KEY.search(_without_objects(text)):
        if group is not None:
            raise PolicyError("", _NAMED.format(group=group))
        return _printed(text)
    values = mapping_of(read_yaml(text), "")
    if group is not None:
        inner = [value for key, value in values.items() if isinstance(value, Mapping) and not _is_field(key)]
        if any(_is_field(key) for each in inner for key in each):
            raise PolicyError("", _NAMED.format(group=group))
        return {group: values}
    if values and all(_is_field(key) for key in values):
        raise PolicyError("", "the text holds the rates of one group without its name", Remedy.NAME_GROUP)
    return values


def _is_field(key: str) -> bool:
    return key.lower() in _FIELDS or key.lower() in _OF_REPLICATION


def _without_objects(text: str) -> str:
    return re.sub(r"^\{.*?^\}", "", text, flags=re.MULTILINE | re.DOTALL)


def _printed(text: str) -> dict[str, Any]:
    """Return the groups that ``list`` printed, with the rates that ``get`` printed after a name."""
    if text.lstrip().startswith("["):
        names = read_yaml(text)
        return {str(name): _ONLY_NAMED for name in names} if isinstance(names, list) else {}
    groups: dict[str, Any] = {}
    name: str | None = None
    at = 0
    while at < len(text):
        line, _, _ = text[at:].partition("\n")
        if line.startswith("{"):
            try:
                value, length = json.JSONDecoder(parse_float=Decimal).raw_decode(text[at:])
            except ValueError as error:
                raise PolicyError("", f"what stands after the name {name!r} is not JSON: {error}") from None
            if name is None or groups[name] is not _ONLY_NAMED:
                raise PolicyError("", f"rates follow those of the group {name!r}; print the next name before them")
            groups[name] = value
            at += length
            continue
        if line.strip():
            name = line.strip()
            if name in groups:
                raise PolicyError("", f"the group {name!r} is there twice; keep one of them")
            groups[name] = _ONLY_NAMED
        at += len(line) + 1
    return groups


def _quotas(fields: Mapping[str, Any], path: str, unexpressed: list[str]) -> dict[str, Any]:
    says: dict[str, Any] = {}
    for field, rate in fields.items():
        known = _FIELDS.get(field.lower())
        if field.lower() in _OF_REPLICATION and rate in (None, -1, 0, {}):
            continue
        if known is None:
            unexpressed.append(f"{path}.{field} = {rate} is not a rate of a policy")
        elif rate is None or (isinstance(rate, int) and rate <= 0):
            continue
        elif not isinstance(rate, int):
            raise PolicyError(f"{path}.{field}", f"{rate!r} is not a whole number")
        else:
            says.setdefault(known[0], {})[known[1]] = rate
    return says


def _attached(sections: Mapping[str, Any], section: str, unexpressed: list[str]) -> dict[str, dict[str, Any]]:
    """Return the attachments of a section; each value is the group's name, or a mapping of policies that holds it."""
    found = {}
    for name, value in mapping_of(sections.get(section) or {}, section).items():
        group = value
        if isinstance(value, Mapping):
            group = None
            for key, inner in value.items():
                if key.lower().replace("_", "") in ("resourcegroup", "resourcegroupname"):
                    group = inner
                else:
                    unexpressed.append(f"{section}.{name}.{key} = {inner} is not a quota of a policy")
        if group is not None:
            found[name] = {"resource_group": group}
    return found
