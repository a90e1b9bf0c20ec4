"""The origin of an imported text, so that an importer refuses another's and says its name; and the import's result.

A text is known by keys and lines that only one command writes, such as the names of quotas. One that has its
importer's own is never refused, whatever else stands in it; one that has nobody's is left to the importer.

A result is a policy document, and what it cannot express.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from spark_throttle.core.arithmetic.units import describe
from spark_throttle.errors import PolicyError
from spark_throttle.policy.codec import parse_document
from spark_throttle.policy.model import PolicyDocument
from spark_throttle.policy.yaml_text import read_yaml


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


class Origin(StrEnum):
    """The systems whose quotas can be imported, by the names of their importers; and our own policies."""

    KAFKA = "kafka"
    PEGASUS = "pegasus"
    PULSAR = "pulsar"
    POLICY = "policy"


_KEYS: Final[Mapping[Origin, re.Pattern[str]]] = {
    origin: re.compile("|".join(names), re.IGNORECASE)
    for origin, names in {
        Origin.KAFKA: ("producer_byte_rate", "consumer_byte_rate", "controller_mutation_rate"),
        Origin.PEGASUS: ("app_envs", r"replica\.(?:read|write)_throttling\w*"),
        Origin.PULSAR: ("resourcegroups", r"(?:publish|dispatch)RateIn(?:Msgs|Bytes)", r"replication\w*RateIn\w+"),
        Origin.POLICY: ("resource_groups", "messages_per_second", "bytes_per_second"),
    }.items()
}
"""The keys that only one system writes."""

_LINES: Final[Mapping[Origin, re.Pattern[str]]] = {
    origin: re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    for origin, pattern in {
        Origin.KAFKA: (
            r"^[ \t]*(?:Quota configs|Configs|SCRAM credential configs) for "
            r"(?!(?:the )?(?:default )?(?:topic|broker)s?\b).+ are\s"
        ),
        Origin.PEGASUS: r"^[ \t]*\[app_envs\]|^get app envs succeed",
    }.items()
}
"""The beginnings of lines that only one system prints."""

_COMMANDS: Final[Mapping[Origin, str]] = {
    Origin.KAFKA: "kafka-configs.sh --describe prints with --entity-type users or clients",
    Origin.PEGASUS: "get_app_envs prints",
    Origin.PULSAR: "pulsar-admin resourcegroups get prints",
}
"""What can be imported."""

_SIBLINGS: Final[Sequence[tuple[Origin, str, re.Pattern[str]]]] = tuple(
    (origin, command, re.compile(pattern, re.IGNORECASE | re.MULTILINE))
    for origin, command, pattern in (
        (Origin.PULSAR, "pulsar-admin namespaces policies", r"\bauth_policies\W*:"),
        (Origin.PULSAR, "pulsar-admin namespaces get-publish-rate", r"\bpublishThrottlingRateIn(?:Msg|Byte)\W*:"),
        (Origin.PULSAR, "pulsar-admin namespaces get-dispatch-rate", r"\bdispatchThrottlingRateIn(?:Msg|Byte)\W*:"),
        (Origin.PULSAR, "pulsar-admin tenants get", r"\b(?:allowedClusters|adminRoles)\W*:"),
        (Origin.PULSAR, "pulsar-admin namespaces get-resource-group", r"\A\s*null\s*\Z"),
        (Origin.PULSAR, "pulsar-admin topics list", r"\A\W*(?:non-)?persistent://"),
        (Origin.PULSAR, "pulsar-admin namespaces list", r"\A(?:\s*[^\s/:{}]+/[^\s/:{}]+[ \t]*$)+\s*\Z"),
        (Origin.KAFKA, "kafka-configs.sh --describe --entity-type topics",
         r"^[ \t]*(?:(?:Dynamic|All) )?Configs for (?:the )?(?:default )?topics?\b"),
        (Origin.KAFKA, "kafka-configs.sh --describe --entity-type brokers",
         r"^[ \t]*(?:(?:Dynamic|All|Default) )?Configs for (?:the )?(?:default )?brokers?\b"),
        (Origin.KAFKA, "kafka-topics.sh --describe", r"^[ \t]*Topic: ?\S+\s+(?:TopicId|PartitionCount|Partition): "),
        (Origin.KAFKA, "kafka-consumer-groups.sh --describe", r"^[ \t]*GROUP\s+TOPIC\s+PARTITION\b"),
        (Origin.PEGASUS, "app", r"^\[(?:parameters|replicas)\]"),
        (Origin.PEGASUS, "ls", r"^\[general_info\]"),
        (Origin.PEGASUS, "nodes", r"^\[details\]"),
    )
)  # fmt: skip
"""What other commands print of the same things: which, and a pattern of it; a wider text comes before its parts."""

_KEY_IN_TEXT: Final = re.compile(r"(?:^|[\s,{\"'])([\w.\-]+)[\"']?\s*[:=]", re.MULTILINE)
_COMMENT: Final = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)
_TOGETHER: Final = ("entity", "quotas")
"""Each says nothing, but both say Kafka."""

_WORD = re.compile(r"\w[\w. ]*")


def check_origin(text: str, own: Origin) -> None:
    """Refuse a text that another importer reads, or that no importer reads but a command prints.

    Raises
    ------
    PolicyError
        If it is from another command or system, or a policy document already.

    Examples
    --------
    >>> check_origin("gold: {publishRateInMsgs: 5}", Origin.PEGASUS)
    Traceback (most recent call last):
    ...
    spark_throttle.errors.PolicyError: the text is of pulsar ('publishRateInMsgs'), not of pegasus; import it as pulsar
    """
    keys = _keys_of(text)
    if _word(own, text, keys) is not None:
        return
    for origin, command, pattern in _SIBLINGS:
        if pattern.search(text):
            raise PolicyError("", f"the text is what {command} prints; give what {_COMMANDS[origin]}")
    for origin in Origin:
        if (word := _word(origin, text, keys)) is not None:
            remedy = "apply it as it is" if origin is Origin.POLICY else f"import it as {origin}"
            raise PolicyError("", f"the text is of {origin} ({word!r}), not of {own}; {remedy}")


def _word(origin: Origin, text: str, keys: Sequence[str]) -> str | None:
    """Return the first word of a system in a text."""
    if origin in _LINES and (line := _LINES[origin].search(text)):
        return _WORD.findall(line[0].partition(" for ")[0])[0]
    word = next((key for key in keys if _KEYS[origin].fullmatch(key)), None)
    is_both = origin is Origin.KAFKA and all(key in keys for key in _TOGETHER)
    return _TOGETHER[0] if word is None and is_both else word


def _keys_of(text: str) -> list[str]:
    """Return the keys of a text: comments and values may hold the words of any system.

    What tools print for people is no YAML; its keys are the words before a colon or an equals sign.
    """
    try:
        value = read_yaml(text)
    except PolicyError:
        value = None
    keys = list(_keys_in(value))
    return keys or _KEY_IN_TEXT.findall(_COMMENT.sub("", text))


def _keys_in(value: object) -> Iterator[str]:
    """Yield the keys of a parsed text; what an alias repeats is looked at once."""
    left, seen = [value], set[int]()
    while left:
        part = left.pop()
        if not isinstance(part, (Mapping, list)) or id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, Mapping):
            yield from part
            left += reversed([*part.values()])
        else:
            left += reversed(part)
