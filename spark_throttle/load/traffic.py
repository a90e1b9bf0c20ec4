"""Seeded multi-tenant traffic in which row i is a pure function of the options and i.

Row i uses the i-th 64-bit draw of the Philox counter generator: the upper 32 bits choose its namespace, the
next 12 bits its size. So any range can be generated again, in any order and in any process, and equals the
rows that a stream offered. The draws are integers that are compared with integer tables. NumPy guarantees
the stream of a bit generator, and choosing a row uses no floating-point arithmetic.

Within a group, namespaces get rows by Zipf's law (the namespace of rank r in proportion to r to the power of
-exponent). The namespaces of a bursting group are on and off: each sends in one of every `burst_factor` slots
of `burst_seconds`, at about `burst_factor` times its mean rate. The group's total rate does not change. Sizes
follow a lognormal distribution, reduced to 4096 quantiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
        """Return every namespace, group by group, in the order to which `namespace_index` refers."""
        return _names(self.groups)

    def namespace_index(self, start: int, end: int) -> Int64s:
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
