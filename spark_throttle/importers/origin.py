"""Which system's tools a text is from, so that an importer refuses another's instead of reading nothing out of it.

A text is known by words that only one system writes, such as the names of its quotas. One that has its importer's own
words is never refused, whatever else stands in it; one that has nobody's is left to the importer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from spark_throttle.errors import PolicyError


class Origin(StrEnum):
    """The systems whose quotas can be imported, by the names of their importers; and our own policies."""

    KAFKA = "kafka"
    PEGASUS = "pegasus"
    PULSAR = "pulsar"
    POLICY = "policy"


def _keys(*names: str) -> str:
    return rf"(?:^|[\s,{{\"'])(?:{'|'.join(names)})[\"']?\s*[:=]"


_WORDS: Final[Mapping[Origin, Sequence[re.Pattern[str]]]] = {
    origin: [re.compile(pattern, re.MULTILINE | re.IGNORECASE) for pattern in patterns]
    for origin, patterns in {
        Origin.KAFKA: (
            r"^[ \t]*(?:Quota configs|Configs|SCRAM credential configs) for .+ are\s",
            _keys("producer_byte_rate", "consumer_byte_rate", "controller_mutation_rate"),
        ),
        Origin.PEGASUS: (
            r"^[ \t]*\[app_envs\]|^get app envs succeed",
            _keys("app_envs", r"replica\.(?:read|write)_throttling\w*"),
        ),
        Origin.PULSAR: (
            _keys("resourcegroups", r"(?:publish|dispatch)RateIn(?:Msgs|Bytes)", r"replication\w*RateIn\w+"),
        ),
        Origin.POLICY: (_keys("resource_groups", "messages_per_second", "bytes_per_second"),),
    }.items()
}
_TOGETHER: Final = [re.compile(_keys(name)) for name in ("entity", "quotas")]
"""Each says nothing, but both say Kafka."""

_WORD = re.compile(r"\w[\w. ]*")


def check_origin(text: str, own: Origin) -> None:
    """Refuse a text that another importer reads.

    Raises
    ------
    PolicyError
        If it is from another system, or a policy document already.

    Examples
    --------
    >>> check_origin("gold: {publishRateInMsgs: 5}", Origin.PEGASUS)
    Traceback (most recent call last):
    ...
    spark_throttle.errors.PolicyError: the text is of pulsar ('publishRateInMsgs'), not of pegasus; import it as pulsar
    """
    if _word(own, text) is not None:
        return
    for origin in Origin:
        if (word := _word(origin, text)) is not None:
            remedy = "apply it as it is" if origin is Origin.POLICY else f"import it as {origin}"
            raise PolicyError("", f"the text is of {origin} ({word!r}), not of {own}; {remedy}")


def _word(origin: Origin, text: str) -> str | None:
    """Return the first word of a system in a text."""
    patterns = _WORDS[origin]
    if origin is Origin.KAFKA and all(each.search(text) for each in _TOGETHER):
        patterns = [*patterns, *_TOGETHER]
    found = next(filter(None, (pattern.search(text) for pattern in patterns)), None)
    return None if found is None else _WORD.findall(found[0].partition(" for ")[0])[0]
