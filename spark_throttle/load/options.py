"""The options of `throttle_load`, parsed strictly: an unknown name or an invalid value is an error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from spark_throttle.errors import ConfigurationError, did_you_mean
from spark_throttle.load.traffic import DEFAULT_START_MS, MAX_ROWS, Traffic, TrafficGroup

_GROUP_KEYS = {"prefix", "namespaces", "messages_per_second", "tenants", "zipf_exponent", "bursts"}


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The options of one `throttle_load`.

    Examples
    --------
    >>> LoadOptions.parse({"rowsPerSecond": "20000", "limit": "600000"}).traffic.rows_per_second
    20000
    >>> LoadOptions.parse({"rowsPerSeconds": "20000"})
    Traceback (most recent call last):
    spark_throttle.errors.ConfigurationError: throttle_load: unknown option rowsPerSeconds; did you mean rowsPerSecond?
    """

    traffic: Traffic
    limit: int | None
    max_rows_per_batch: int
    partitions: int

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> LoadOptions:
        """Return the options from the strings that Spark passes; the case of their names does not matter."""
        given = _Options(options)
        parsed = cls(
            traffic=Traffic(
                groups=_parse_groups(given),
                seed=given.whole("seed", 0, 0, 2**63 - 1),
                burst_factor=given.whole("burstFactor", 1, 1, 1000),
                burst_seconds=given.whole("burstSeconds", 5, 1, 86_400),
                size_median_bytes=given.whole("sizeMedianBytes", 1024, 1, 2**31 - 1),
                size_sigma=given.fraction("sizeSigma", 1.0, 10.0),
                payload_bytes=given.whole("payloadBytes", 8, 0, 65_536),
                start_ms=given.whole("startMs", DEFAULT_START_MS, 0, 253_402_300_799_000),
            ),
            limit=given.whole("limit", 0, 0, MAX_ROWS) if given.has("limit") else None,
            max_rows_per_batch=given.whole("maxRowsPerBatch", 200_000, 1, MAX_ROWS),
            partitions=given.whole("partitions", 2, 1, 10_000),
        )
        given.refuse_others()
        return parsed


class _Options:
    """Options by name in any case; it remembers which names were asked for."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._given = {name.lower(): (name, value) for name, value in options.items()}
        self._known: dict[str, str] = {}

    def has(self, name: str) -> bool:
        self._known[name.lower()] = name
        return name.lower() in self._given

    def text(self, name: str) -> str | None:
        return self._given[name.lower()][1] if self.has(name) else None

    def whole(self, name: str, default: int, least: int, most: int) -> int:
        text = self.text(name)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            raise ConfigurationError(f"throttle_load: {name} must be a whole number, not {text!r}") from None
        if not least <= value <= most:
            raise ConfigurationError(f"throttle_load: {name} must be from {least} to {most}, not {value}")
        return value

    def fraction(self, name: str, default: float, most: float) -> float:
        text = self.text(name)
        return default if text is None else _fraction(name, text, most)

    def refuse_others(self) -> None:
        for lowered, (name, _) in self._given.items():
            if lowered not in self._known:
                hint = did_you_mean(lowered, self._known)
                for known_lowered, known in self._known.items():
                    hint = hint.replace(f" {known_lowered}?", f" {known}?")
                raise ConfigurationError(f"throttle_load: unknown option {name}{hint}")


def _fraction(name: str, value: object, most: float) -> float:
    try:
        number = float(str(value))
    except ValueError:
        raise ConfigurationError(f"throttle_load: {name} must be a number, not {value!r}") from None
    if not 0 <= number <= most:
        raise ConfigurationError(f"throttle_load: {name} must be from 0 to {most}, not {value}")
    return number


def _parse_groups(given: _Options) -> tuple[TrafficGroup, ...]:
    zipf_exponent = given.fraction("zipfExponent", 1.0, 10.0)
    text = given.text("groups")
    tenants = given.whole("tenants", 10 if text is None else 1, 1, 1_000_000)
    if text is None:
        namespaces = given.whole("namespaces", 100, 1, 10_000_000)
        rate = given.whole("rowsPerSecond", 1000, 1, 100_000_000)
        return (TrafficGroup("tenant", namespaces, tenants, rate, zipf_exponent),)
    for name in ("namespaces", "rowsPerSecond"):
        if given.has(name):
            raise ConfigurationError(f"throttle_load: {name} and groups were both given; set it in each group instead")
    try:
        entries = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"throttle_load: groups is not JSON: {error}") from None
    if not isinstance(entries, list) or not entries:
        raise ConfigurationError("throttle_load: groups must be a JSON list with at least one group")
    return tuple(_parse_group(entry, f"groups[{i}]", tenants, zipf_exponent) for i, entry in enumerate(entries))


def _parse_group(entry: object, path: str, tenants: int, zipf_exponent: float) -> TrafficGroup:
    if not isinstance(entry, dict):
        raise ConfigurationError(f"throttle_load: {path} must be an object, not {entry!r}")
    for key in entry:
        if key not in _GROUP_KEYS:
            raise ConfigurationError(f"throttle_load: unknown key {path}.{key}{did_you_mean(key, _GROUP_KEYS)}")

    def whole(key: str, default: int | None, most: int) -> int:
        value = entry.get(key, default)
        if type(value) is not int or not 1 <= value <= most:
            raise ConfigurationError(f"throttle_load: {path}.{key} must be from 1 to {most}, not {value!r}")
        return value

    if not isinstance(entry.get("prefix"), str) or not isinstance(entry.get("bursts", True), bool):
        raise ConfigurationError(f"throttle_load: {path} needs a string as prefix, and true or false as bursts")
    return TrafficGroup(
        prefix=entry["prefix"],
        namespaces=whole("namespaces", None, 10_000_000),
        tenants=whole("tenants", tenants, 1_000_000),
        messages_per_second=whole("messages_per_second", None, 100_000_000),
        zipf_exponent=_fraction(f"{path}.zipf_exponent", entry.get("zipf_exponent", zipf_exponent), 10.0),
        bursts=entry.get("bursts", True),
    )
