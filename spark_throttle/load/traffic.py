"""Seeded multi-tenant traffic in which row i is a pure function of the options and i.

Row i uses the i-th 64-bit draw of the Philox counter generator: the upper 32 bits choose its namespace, the
next 12 bits its size. So any range can be generated again, in any order and in any process, and equals the
rows that a stream offered. The draws are integers that are compared with integer tables. NumPy guarantees
the stream of a bit generator, and choosing a row uses no floating-point arithmetic.

Within a group, namespaces get rows by Zipf's law (the namespace of rank r in proportion to r to the power of
-exponent). The namespaces of a bursting group are on and off: each sends in one of every `burst_factor` slots
of `burst_seconds`, at about `burst_factor` times its mean rate. The group's total rate does not change. Sizes
follow a lognormal distribution, reduced to 4096 quantiles.

The options of `throttle_load` are parsed strictly: an unknown name or an invalid value is an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_throttle.errors import ConfigurationError, did_you_mean

Int64s: TypeAlias = npt.NDArray[np.int64]

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("namespace", pa.string()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("size_bytes", pa.int32()),
        ("payload", pa.binary()),
    ]
)

MAX_ROWS = 2**40
"""Maximum number of rows of a stream, so that i * 1,000,000 stays within int64."""

DEFAULT_START_MS = 1_767_225_600_000
"""2026-01-01: a fixed day, so that rows do not depend on the time of generation."""

_ROWS_A_BATCH = 8192
_SIZE_QUANTILES = 4096
_MAX_SIZE_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class TrafficGroup:
    """Namespaces that share a rate: `<prefix>-TT/ns-NNNN`, namespace k under tenant k modulo `tenants`."""

    prefix: str
    namespaces: int
    tenants: int
    messages_per_second: int
    zipf_exponent: float
    bursts: bool = True
    """Whether its namespaces are on and off in turn, if the traffic's `burst_factor` is above 1."""

    def names(self) -> list[str]:
        """Return the namespaces, from the most to the least busy.

        Examples
        --------
        >>> TrafficGroup("gold", 3, 2, 100, 1.0).names()
        ['gold-00/ns-0000', 'gold-01/ns-0001', 'gold-00/ns-0002']
        """
        return [f"{self.prefix}-{k % self.tenants:02d}/ns-{k:04d}" for k in range(self.namespaces)]


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic that a load source offers.

    Examples
    --------
    >>> traffic = Traffic((TrafficGroup("gold", 3, 2, 500, 1.0),), seed=7)
    >>> traffic.rows(0, 1000).slice(990).equals(traffic.rows(990, 1000))
    True
    >>> traffic.rows(500, 501)["ts"][0].as_py().isoformat()
    '2026-01-01T00:00:01+00:00'
    """

    groups: tuple[TrafficGroup, ...]
    seed: int = 0
    burst_factor: int = 1
    burst_seconds: int = 5
    size_median_bytes: int = 1024
    size_sigma: float = 1.0
    payload_bytes: int = 8
    start_ms: int = DEFAULT_START_MS
    """Event time of row 0."""

    @property
    def rows_per_second(self) -> int:
        """Total rate of all groups."""
        return sum(group.messages_per_second for group in self.groups)

    def namespaces(self) -> pa.StringArray:
        """Return every namespace, group by group, in the order to which `entry_index` refers."""
        return _names(self.groups)

    def entry_index(self, start: int, end: int) -> Int64s:
        """Return the namespaces of rows `start` to `end` (excluded), as positions in `namespaces()`."""
        return self._namespaces_of(_draws(self.seed, start, end), start)

    def size_bytes(self, start: int, end: int) -> npt.NDArray[np.int32]:
        """Return the sizes of rows `start` to `end` (excluded)."""
        return self._sizes_of(_draws(self.seed, start, end))

    def rows(self, start: int, end: int) -> pa.RecordBatch:
        """Return rows `start` to `end` (excluded)."""
        draws = _draws(self.seed, start, end)
        ids = np.arange(start, end, dtype=np.int64)
        ts = self.start_ms * 1000 + ids * 1_000_000 // self.rows_per_second
        columns = [
            pa.array(ids),
            self.namespaces().take(pa.array(self._namespaces_of(draws, start))),
            pa.array(ts, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            pa.array(self._sizes_of(draws)),
            _payloads(ids, self.payload_bytes),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def batches(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield rows `start` to `end` (excluded) in batches of a size that suits Spark."""
        for first in range(start, end, _ROWS_A_BATCH):
            yield self.rows(first, min(first + _ROWS_A_BATCH, end))

    def _namespaces_of(self, draws: npt.NDArray[np.uint64], start: int) -> Int64s:
        choice = (draws >> np.uint64(32)).astype(np.int64)
        ids = np.arange(start, start + len(draws), dtype=np.int64)
        slot = ids // (self.rows_per_second * self.burst_seconds) % self.burst_factor
        chosen = np.empty(len(draws), dtype=np.int64)
        for each in np.unique(slot).tolist():
            rows = slot == each
            chosen[rows] = _choose(_thresholds(self, each), choice[rows])
        return chosen

    def _sizes_of(self, draws: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
        quantile = (draws >> np.uint64(20)) & np.uint64(_SIZE_QUANTILES - 1)
        return _size_table(self.size_median_bytes, self.size_sigma)[quantile.astype(np.int64)]


def _draws(seed: int, start: int, end: int) -> npt.NDArray[np.uint64]:
    """Return draws `start` to `end` (excluded); one step of the counter makes four draws."""
    skipped = start % 4
    generator = np.random.Philox(key=_key(seed, 0), counter=start // 4)
    return generator.random_raw(skipped + end - start)[skipped:]


def _key(seed: int, stream: int) -> npt.NDArray[np.uint64]:
    return np.array([seed, stream], dtype=np.uint64)


def _choose(thresholds: Int64s, choice: Int64s) -> Int64s:
    return np.searchsorted(thresholds, choice, side="right").astype(np.int64)


@lru_cache(maxsize=4)
def _names(groups: tuple[TrafficGroup, ...]) -> pa.StringArray:
    return pa.array([name for group in groups for name in group.names()], pa.string())


@lru_cache(maxsize=64)
def _thresholds(traffic: Traffic, slot: int) -> Int64s:
    """Return the end of each namespace's interval of [0, 2**32) in the given slot."""
    count = sum(group.namespaces for group in traffic.groups)
    phase = np.random.Philox(key=_key(traffic.seed, 1)).random_raw(count) % np.uint64(traffic.burst_factor)
    shares, first = [], 0
    for group in traffic.groups:
        weight = np.arange(1, group.namespaces + 1, dtype=np.float64) ** -group.zipf_exponent
        is_on = phase[first : first + group.namespaces] == slot
        if group.bursts and is_on.any():
            weight = np.where(is_on, weight, 0.0)
        shares.append(weight / weight.sum() * (group.messages_per_second / traffic.rows_per_second))
        first += group.namespaces
    ends = np.rint(np.cumsum(np.concatenate(shares)) * 2.0**32).astype(np.int64)
    ends[-1] = 2**32
    return ends


@lru_cache(maxsize=4)
def _size_table(median_bytes: int, sigma: float) -> npt.NDArray[np.int32]:
    normal = NormalDist()
    middles = ((q + 0.5) / _SIZE_QUANTILES for q in range(_SIZE_QUANTILES))
    sizes = [median_bytes * math.exp(min(sigma * normal.inv_cdf(middle), 40.0)) for middle in middles]
    return np.array([min(max(round(size), 1), _MAX_SIZE_BYTES) for size in sizes], dtype=np.int32)


def _payloads(ids: Int64s, width_bytes: int) -> pa.BinaryArray:
    """Return the eight little-endian bytes of each id, repeated to `width_bytes`, so that damage is visible."""
    octets = ids.astype("<i8").view(np.uint8).reshape(-1, 8)
    data = np.ascontiguousarray(np.tile(octets, (1, -(-width_bytes // 8)))[:, :width_bytes])
    offsets = np.arange(len(ids) + 1, dtype=np.int32) * np.int32(width_bytes)
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data.tobytes())]
    return pa.Array.from_buffers(pa.binary(), len(ids), buffers)


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
