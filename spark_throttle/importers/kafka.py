r"""Policies from Apache Kafka's client quotas (KIP-13, KIP-55, KIP-546), with the eight levels of their precedence.

The input is the lines that ``kafka-configs.sh --describe`` prints, or JSON as the admin client's
``describeClientQuotas`` has it, ``[{"entity": {"user": "alice", "client-id": null}, "quotas": {"producer_byte_rate":
1024}}]``, where null means the default. A client of a user becomes the namespace ``user/client-id``.

In Kafka only the first level that has a quota limits a client; here every level limits a namespace. So no level becomes
a tenant's quota, which would act in addition to the others::

    1  user U, client C            namespace U/C, a bucket of its own
    2  user U, any client          glob U/*, a bucket for each client
    3  user U                      glob U/* in a resource group: one bucket for all of U's other clients
    4  any user, client C          glob */C, a bucket for each user
    5  any user, any client        the defaults, a bucket for each pair
    6  any user                    not expressed: it needs a bucket for each user without a quota of its own
    7  client C                    glob */C in a resource group: one bucket for all users
    8  any client                  not expressed: it needs one bucket for each client, for all users

SCRAM credentials, which the tool prints among the quotas of users, are listed without their secrets. A level that a
higher one always hides is listed as not expressed too. ``producer_byte_rate`` becomes a publish quota
and ``consumer_byte_rate`` a dispatch quota. ``request_percentage`` becomes a publish quota: in Kafka it limits the time
of both kinds of requests, but two jobs that each give it would give it twice. The other quotas have no counterpart.
Kafka's window (11 samples of a second) becomes a burst of 10 seconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from spark_throttle.core.arithmetic.units import describe
from spark_throttle.errors import PolicyError
from spark_throttle.importers.origin import ImportResult, Origin, check_origin, mapping_of
from spark_throttle.policy.yaml_text import read_yaml

DEFAULT: Final = "<default>"

_TIME: Final = "time"
_KINDS: Final = {"producer_byte_rate": "publish", "consumer_byte_rate": "dispatch", "request_percentage": _TIME}
"""What a quota limits. Kafka looks up each kind by itself."""

_KEYS: Final = {"publish": "bytes_per_second", "dispatch": "bytes_per_second", _TIME: "request_percentage"}
_OTHERS: Final = ("controller_mutation_rate", "connection_creation_rate")
_LINE = re.compile(r"(?:Quota configs|Configs) for (.+) are\s*([\w-]+=.*)?")
"""The name may hold anything, also ' are ': what follows the last one is the quotas."""

_LOGGED = re.compile(r"^\[\d{4}-\d\d-\d\d[ T][\d:,.]+\] (?:TRACE|DEBUG|INFO|WARN|ERROR|FATAL)\b.*$", re.MULTILINE)
"""What the tool logs (log4j) may stand between what it prints; it is no quota."""

_CREDENTIALS = re.compile(r"(?:Error retrieving )?SCRAM credential configs for (.+?)(?: are |: ).*")
_PAIR = re.compile(r",\s*(?=[\w-]+=)")
_SCRAM: Final = "SCRAM-"
_OF_SCRAM: Final = ("salt", "stored_key", "server_key", "iterations")
"""What older tools print of a credential, as if each were a quota."""

_PART = re.compile(r"(?:the )?(default )?(user-principal|client-id|ip|user|client)(?: '(.*)')?", re.IGNORECASE)
_SEAM = re.compile(
    r"(?:(?<=')|(?<=default user-principal)|(?<=default user)), (?=(?:the )?(?:default )?client(?:-id)?(?: '|$))",
    re.IGNORECASE,
)
"""Where the user ends and the client begins."""


@dataclass(frozen=True, slots=True)
class _Entity:
    """The entity of a quota; a part that the quota does not name is `None`, and `DEFAULT` stands for any."""

    user: str | None
    client: str | None

    @property
    def level(self) -> int:
        """Place in Kafka's precedence: 1 comes first, 8 last."""
        users = {None: 6, DEFAULT: 3}.get(self.user, 0)
        clients = {None: 3, DEFAULT: 2}.get(self.client, 1)
        return users + clients

    def __str__(self) -> str:
        parts = [f"user {self.user}" if self.user else "", f"client-id {self.client}" if self.client else ""]
        return ", ".join(part for part in parts if part)


def import_kafka(text: str) -> ImportResult:
    """Return Kafka's client quotas as policies.

    Examples
    --------
    >>> found = import_kafka("Quota configs for user-principal 'alice', client-id 'app' are producer_byte_rate=1024.0")
    >>> found.document.namespaces["alice/app"].publish.bytes_per_second
    Decimal('1024')
    """
    check_origin(text, Origin.KAFKA)
    unexpressed: list[str] = []
    quotas: dict[_Entity, dict[str, Decimal]] = {}
    for entity, values in _described(text, unexpressed):
        if entity.user is None and entity.client is None:
            raise PolicyError("", f"a quota names neither a user nor a client-id: {values}")
        quotas.setdefault(entity, {}).update(_rates(entity, values, unexpressed))
    rules: dict[str, dict[str, Any]] = {}
    groups: dict[str, dict[str, Any]] = {}
    defaults: dict[str, Any] = {}
    for entity in sorted(quotas, key=lambda each: (each.level, str(each))):
        if quotas[entity]:
            _express(entity, quotas[entity], rules, groups, defaults, unexpressed)
    _fill_from_defaults(rules, groups, defaults, unexpressed)
    for entry in (*groups.values(), *rules.values(), defaults):
        if _TIME in entry:
            entry["publish"] = {**entry.get("publish", {}), **entry.pop(_TIME)}
    return ImportResult.of({"resource_groups": groups, "namespaces": rules, "defaults": defaults}, unexpressed)


def _express(
    entity: _Entity,
    rates: dict[str, Decimal],
    rules: dict[str, dict[str, Any]],
    groups: dict[str, dict[str, Any]],
    defaults: dict[str, Any],
    unexpressed: list[str],
) -> None:
    level = entity.level
    names = [name for name in (entity.user, entity.client) if name not in (None, DEFAULT)]
    if any("/" in name or "*" in name for name in names if name) or "" in names:
        unexpressed.append(f"{entity}: a name that is empty, or has / or * in it, cannot become a namespace")
        return
    if level in (6, 8):
        wanted = "user, for all its clients" if level == 6 else "client-id, for all users"
        unexpressed.append(f"{entity}: {_said(rates)} needs one bucket for each {wanted}; name them one by one")
        return
    quota = {kind: {_KEYS[kind]: rate} for kind, rate in rates.items()}
    if level == 5:
        defaults.update(quota)
        return
    pattern = (
        f"{entity.user if entity.user not in (None, DEFAULT) else '*'}/{entity.client if level in (1, 4, 7) else '*'}"
    )
    hidden = {kind for kind in quota if kind in _expressed(rules.get(pattern, {}), groups)}
    if level == 7:
        hidden |= set(quota) & set(defaults)
    if hidden:
        what = ", ".join(sorted(hidden))
        unexpressed.append(f"{entity}: its {what} quota never acts in Kafka: a more specific one always comes first")
        quota = {kind: each for kind, each in quota.items() if kind not in hidden}
    if not quota:
        return
    rule = rules.setdefault(pattern, {})
    if level in (3, 7):
        group = f"user {entity.user}" if level == 3 else f"client-id {entity.client}"
        groups[group] = quota
        rule["resource_group"] = group
    else:
        rule.update(quota)


def _expressed(rule: Mapping[str, Any], groups: Mapping[str, dict[str, Any]]) -> set[str]:
    """Return the kinds of which a rule has a quota, its own or its group's."""
    return {*(rule.keys() - {"resource_group"}), *groups.get(rule.get("resource_group", ""), {})}


def _fill_from_defaults(
    rules: dict[str, dict[str, Any]],
    groups: dict[str, dict[str, Any]],
    defaults: dict[str, Any],
    unexpressed: list[str],
) -> None:
    """Give rules the quotas that they lack: Kafka looks up each kind by itself, but here one rule decides all.

    A quota for each pair can be copied into any rule. The quota of a wider glob can be copied into the rule of a name;
    where it cannot be, it is listed.
    """
    by_width = sorted(rules, key=lambda name: name.count("*"))
    for name in by_width:
        rule = rules[name]
        for kind in _KEYS:
            if kind in _expressed(rule, groups):
                continue
            user, _, client = name.partition("/")
            wider = [each for each in (f"{user}/*", f"*/{client}") if each != name and each in rules]
            holding = next((each for each in wider if kind in _expressed(rules[each], groups)), None)
            if holding is not None and kind in rules[holding]:
                rule[kind] = rules[holding][kind]
            elif holding is not None and "*" not in name and "resource_group" not in rule:
                group = rules[holding]["resource_group"]
                if len(groups[group]) == 1:
                    rule["resource_group"] = group
                else:
                    unexpressed.append(f"{name}: its {kind} quota is that of {group}; it limits more than that")
            elif holding is not None:
                unexpressed.append(f"{name}: in Kafka its {kind} quota is that of {holding}; here it has none")
            elif kind in defaults:
                rule[kind] = defaults[kind]


def _said(rates: Mapping[str, Decimal]) -> str:
    return ", ".join(
        f"request_percentage {rate}" if kind == _TIME else f"{kind} {rate} bytes/s" for kind, rate in rates.items()
    )


def _rates(entity: _Entity, values: Mapping[str, Any], unexpressed: list[str]) -> dict[str, Decimal]:
    rates = {}
    for key, value in values.items():
        if key in _OTHERS:
            unexpressed.append(f"{entity}: {key} = {value} has no counterpart in a policy")
            continue
        if key not in _KINDS:
            raise PolicyError(str(entity), f"{key} is not a quota of Kafka")
        if value is None:
            continue
        rates[_KINDS[key]] = _rate(str(entity), key, value)
    return rates


def _rate(path: str, key: str, value: object) -> Decimal:
    try:
        rate = Decimal(str(value))
    except InvalidOperation:
        raise PolicyError(path, f"{key} is {value!r}, which is not a number") from None
    if not rate.is_finite() or rate <= 0:
        raise PolicyError(path, f"{key} is {value} and must be greater than 0")
    if _KINDS[key] == _TIME:
        return rate.normalize()
    if rate % 1:
        raise PolicyError(path, f"{key} is {value} and cannot be a fractional value")
    return rate.quantize(Decimal(1))


def _described(text: str, unexpressed: list[str]) -> list[tuple[_Entity, Mapping[str, Any]]]:
    logged = _LOGGED.search(text)
    text = _LOGGED.sub("", text)
    if logged is not None and not text.strip():
        raise PolicyError("", f"the text has only lines of the tool's log, such as {describe(logged[0].strip())}")
    if text.lstrip().startswith(("[", "{", "- ")):
        return _from_json(read_yaml(text), unexpressed)
    found: list[tuple[_Entity, Mapping[str, Any]]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        if credentials := _CREDENTIALS.fullmatch(line.strip()):
            unexpressed.append(f"{credentials[1]}: SCRAM credentials are not a quota")
            continue
        said = _LINE.fullmatch(line.strip())
        if said is None:
            raise PolicyError("", f"line {number}: this is not a line that kafka-configs.sh --describe prints")
        values = _pairs(said[1], said[2] or "", unexpressed)
        entity = _entity(said[1], number)
        if entity is None:
            unexpressed.append(f"{said[1]}: {said[2]} is not for a user or a client-id")
        else:
            found.append((entity, values))
    return found


def _entity(said: str, number: int) -> _Entity | None:
    """Return the entity that a line names; `None` for one that is neither a user nor a client.

    The tool escapes nothing, so a name may hold quotes and commas.
    """
    parts = _SEAM.split(said)
    if len(parts) > 2:
        raise PolicyError("", f"line {number}: it is unclear where one name ends and the next begins; give it as JSON")
    names: dict[str, str] = {}
    for part in parts:
        match = _PART.fullmatch(part)
        if match is None or match[2].lower() == "ip":
            return None
        names[match[2].lower().partition("-")[0]] = DEFAULT if match[1] or match[3] in (None, DEFAULT) else match[3]
    return _Entity(names.get("user"), names.get("client"))


def _pairs(entity: str, said: str, unexpressed: list[str]) -> dict[str, str]:
    """Return the quotas of a line; credentials are listed, without what they hold."""
    values: dict[str, str] = {}
    is_credential = False
    for pair in _PAIR.split(said) if said else []:
        key, _, value = (part.strip() for part in pair.partition("="))
        if key.startswith(_SCRAM):
            unexpressed.append(f"{entity}: {key} credentials are not a quota")
        elif not (is_credential and key in _OF_SCRAM):
            values[key] = value
        is_credential = key.startswith(_SCRAM) or (is_credential and key in _OF_SCRAM)
    return values


def _from_json(value: object, unexpressed: list[str]) -> list[tuple[_Entity, Mapping[str, Any]]]:
    found: list[tuple[_Entity, Mapping[str, Any]]] = []
    for position, item in enumerate(value if isinstance(value, list) else [value]):
        fields = mapping_of(item, f"{position}")
        entity = mapping_of(fields.get("entity"), f"{position}.entity")
        values = mapping_of(fields.get("quotas"), f"{position}.quotas")
        unknown = sorted(set(entity) - {"user", "client-id", "ip"})
        if unknown:
            raise PolicyError(f"{position}.entity", f"{unknown[0]!r} is not a kind of entity: user, client-id or ip")
        if "ip" in entity:
            if len(entity) > 1:
                raise PolicyError(f"{position}.entity", "an ip stands alone, without a user or a client-id")
            unexpressed.append(f"ip {entity['ip']}: {dict(values)} is not for a user or a client-id")
            continue
        user, client = (
            (DEFAULT if entity[key] is None else str(entity[key])) if key in entity else None
            for key in ("user", "client-id")
        )
        found.append((_Entity(user, client), values))
    return found
