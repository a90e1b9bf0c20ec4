"""Policies from Apache Pulsar's resource groups (PIP-82).

The input is JSON or YAML with up to three sections: ``resourcegroups``, each as ``pulsar-admin resourcegroups get``
prints it, and ``tenants`` and ``namespaces`` with the group that each is attached to. Without sections the whole is
read as ``{group: {publishRateInMsgs: …}}``.

In Pulsar a rate that is 0, negative or absent sets no limit; such a rate is left out here, where 0 would admit nothing.
A namespace that is attached to another group than its tenant counts in both groups in Pulsar, and here only in its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from spark_throttle.errors import PolicyError
from spark_throttle.importers.import_result import ImportResult, mapping_of
from spark_throttle.policy.yaml_text import read_yaml

_FIELDS: Final = {
    "publishrateinmsgs": ("publish", "messages_per_second"),
    "publishrateinbytes": ("publish", "bytes_per_second"),
    "dispatchrateinmsgs": ("dispatch", "messages_per_second"),
    "dispatchrateinbytes": ("dispatch", "bytes_per_second"),
}
_SECTIONS: Final = ("resourcegroups", "tenants", "namespaces")


def import_pulsar(text: str) -> ImportResult:
    """Return Pulsar's resource groups, and the tenants and namespaces attached to them, as policies.

    Examples
    --------
    >>> found = import_pulsar('{"gold": {"publishRateInMsgs": 100, "dispatchRateInMsgs": -1, "ratio": 2}}')
    >>> found.document.resource_groups["gold"].publish.messages_per_second
    Decimal('100')
    >>> found.unexpressed
    ('resourcegroups.gold.ratio = 2 is not a rate of a policy',)
    """
    values = mapping_of(read_yaml(text), "")
    sections = values if any(section in values for section in _SECTIONS) else {"resourcegroups": values}
    unexpressed = [f"{key} is not a section that can be imported" for key in sections if key not in _SECTIONS]
    groups = {
        name: _quotas(mapping_of(fields, f"resourcegroups.{name}"), f"resourcegroups.{name}", unexpressed)
        for name, fields in mapping_of(sections.get("resourcegroups") or {}, "resourcegroups").items()
    }
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


def _quotas(fields: Mapping[str, Any], path: str, unexpressed: list[str]) -> dict[str, Any]:
    says: dict[str, Any] = {}
    for field, rate in fields.items():
        known = _FIELDS.get(field.lower())
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
