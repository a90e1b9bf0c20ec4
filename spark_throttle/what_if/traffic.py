"""Recorded traffic is what each namespace sent in each interval of event time: messages, bytes and the largest message.

A day of 10,000 namespaces and 10^8 events is some 3 * 10^7 such sums, 40 bytes each. What they forget is where in its
interval an event lay, and how the bytes were divided: an interval's messages are taken to arrive at its end, and all
but the largest to be of one size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.arithmetic.segments import begins_run, ranges
from spark_throttle.core.names.matching import match, tenants_of
from spark_throttle.core.quota import MAX_SIZE_BYTES, MAX_UNITS, CompiledPolicy, Int64s
from spark_throttle.errors import ConfigurationError

SUMS: Final = pa.schema([
    ("interval", pa.int64()), ("namespace", pa.string()), ("messages", pa.int64()), ("bytes", pa.int64()),
    ("largest_bytes", pa.int64()), ("units", pa.int64()), ("largest_units", pa.int64()),
])  # fmt: skip
"""The schema of sums: the number of the interval since 1970, and what a namespace sent in it. Those without the last
two columns have no units."""

_UNITS: Final = ("units", "largest_units")

INTERVALS_MS: Final = (1_000, 2_000, 5_000, 10_000, 20_000, 60_000)
"""The intervals that are chosen from where none is given."""

_MANY_INTERVALS: Final = 5_000
_MOST_MESSAGES: Final = 2**32
"""The most of one namespace in an interval: the sum of all then stays in int64."""


def interval_for(covered_ms: int) -> int:
    """Return the interval in which so much time is summed: the shortest that makes at most 5,000 of them.

    Examples
    --------
    >>> interval_for(3_600_000), interval_for(86_400_000)
    (1000, 20000)
    """
    return next((each for each in INTERVALS_MS if covered_ms <= each * _MANY_INTERVALS), INTERVALS_MS[-1])


@dataclass(frozen=True, slots=True, eq=False)
class Arrived:
    """What arrived in one interval; arrays run over the namespaces that sent anything."""

    number: int
    """The number of the interval since 1970."""

    known: Int64s
    """The namespaces, as positions in `Traffic.names`."""

    messages: Int64s
    totals: tuple[Int64s, ...]
    """What their messages together have of `AMOUNTS`: bytes, and units if any of the traffic has some."""

    largest: tuple[Int64s, ...]
    """The most that one message has of them."""

    @classmethod
    def none(cls) -> Arrived:
        """Return an interval in which nothing arrived."""
        nothing = np.zeros(0, dtype=np.int64)
        return cls(-1, nothing, nothing, (nothing,), (nothing,))

    def rows(self, messages: Int64s) -> tuple[Int64s, tuple[Int64s, ...]]:
        """Return the namespace of each message, as a position in `known`, and its `AMOUNTS`.

        Parameters
        ----------
        messages
            How many of each namespace's messages are returned: all, its largest one, or none.
        """
        at = np.repeat(np.arange(len(messages)), messages)
        place = ranges(np.zeros(len(messages), dtype=np.int64), messages)
        each = zip(self.totals, self.largest, strict=True)
        return at, tuple(_dealt(total, most, self.messages, at, place) for total, most in each)


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """Recorded traffic; arrays run over the sums, in the order of their intervals.

    Examples
    --------
    >>> sums = pa.table(
    ...     {"interval": [7], "namespace": ["acme/a"], "messages": [3], "bytes": [10], "largest_bytes": [5]}
    ... )
    >>> [each.rows(each.messages)[1][0].tolist() for each in Traffic.of(sums, interval_ms=1_000).arrived()]
    [[5, 3, 2]]
    """

    interval_ms: int
    names: pa.StringArray
    """All namespaces, each once, in the order of their bytes."""

    interval: Int64s
    name: Int64s
    """The namespace of each sum, as a position in `names`."""

    messages: Int64s
    bytes: Int64s
    largest_bytes: Int64s
    units: Int64s
    largest_units: Int64s
    unusable_messages: int = 0
    """The events without a usable namespace, size or time: a job would reject them, and the replay leaves them out."""

    @classmethod
    def of(cls, sums: pa.Table, *, interval_ms: int, unusable_messages: int = 0) -> Traffic:
        """Return traffic from a table of `SUMS` in any order.

        Raises
        ------
        ConfigurationError
            If there is no event, or one is before 1970, or larger than a message may be; or a sum is none, as in a
            table that somebody else wrote.
        """
        if not len(sums):
            raise ConfigurationError(
                f"there is no event to replay ({unusable_messages} have no usable namespace, size or time); "
                "give events of the time that is asked for"
            )
        given = [each for each in SUMS.names if each not in _UNITS or each in sums.column_names]
        lacking = [each for each in given if sums[each].null_count]
        if lacking:
            raise ConfigurationError(f"the recorded traffic has rows without {', '.join(lacking)}; leave them out")
        # There may be tens of millions: each column is taken by itself, so that few of them are held twice.
        names, name = _numbered(sums["namespace"])
        interval = sums["interval"].cast(pa.int64()).to_numpy()
        order = np.lexsort((name, interval))
        columns = {"units": _zeros(len(sums)), "largest_units": _zeros(len(sums))}
        columns |= {each: sums[each].cast(pa.int64()).to_numpy()[order] for each in given[2:]}
        interval = interval[order]
        most = int(columns["messages"].max())
        if min(int(each.min()) for each in columns.values()) < 0:
            raise ConfigurationError("the recorded traffic has rows with numbers below 0; leave them out")
        if most > _MOST_MESSAGES:
            raise ConfigurationError(
                f"{most:,} messages of one namespace in {interval_ms} ms are not replayed; leave them out"
            )
        largest, largest_units = (int(columns[f"largest_{each}"].max()) for each in ("bytes", "units"))
        if int(interval[0]) < 0 or largest > MAX_SIZE_BYTES:
            raise ConfigurationError(
                f"an event is before 1970, or larger than {MAX_SIZE_BYTES} bytes ({largest}); leave it out"
            )
        if largest_units > MAX_UNITS:
            raise ConfigurationError(f"an event has more than {MAX_UNITS} units ({largest_units}); leave it out")
        return cls(
            interval_ms, names, interval, name[order].astype(np.int64), columns["messages"], columns["bytes"],
            columns["largest_bytes"], columns["units"], columns["largest_units"], unusable_messages,
        )  # fmt: skip

    @property
    def first_ms(self) -> int:
        """When the first interval begins."""
        return int(self.interval[0]) * self.interval_ms

    @property
    def end_ms(self) -> int:
        """When the last interval ends."""
        return (int(self.interval[-1]) + 1) * self.interval_ms

    def groups_and_tenants(self, policy: CompiledPolicy) -> Iterator[tuple[str, pa.StringArray, Int64s]]:
        """Yield for either level its scopes, and the scope of each of `names` as a position among them, -1 for none.

        Tenants are those that sent anything, also where the policy does not name them.
        """
        yield "resource_group", policy.group_names, match(self.names, policy).group
        tenants = tenants_of(self.names).dictionary_encode()
        yield "tenant", tenants.dictionary, tenants.indices.to_numpy().astype(np.int64)

    def arrived(self) -> Iterator[Arrived]:
        """Yield what arrived in each interval in which anything did."""
        amounts = [(self.bytes, self.largest_bytes)]
        if self.units.any():
            amounts.append((self.units, self.largest_units))
        for first, end in pairwise([*np.flatnonzero(begins_run(self.interval)).tolist(), len(self.interval)]):
            totals, largest = zip(*((total[first:end], most[first:end]) for total, most in amounts), strict=True)
            yield Arrived(int(self.interval[first]), self.name[first:end], self.messages[first:end], totals, largest)


def _zeros(rows: int) -> Int64s:
    return np.broadcast_to(np.int64(0), (rows,))


def _numbered(namespaces: pa.ChunkedArray) -> tuple[pa.StringArray, npt.NDArray[np.int32]]:
    """Return all names, each once, in the order of their bytes, and of each row the position of its name."""
    encoded = namespaces.cast(pa.string()).dictionary_encode().unify_dictionaries()
    names = encoded.chunk(0).dictionary
    in_order = pc.sort_indices(names)
    place = np.empty(len(names), dtype=np.int32)
    place[in_order.to_numpy()] = np.arange(len(names), dtype=np.int32)
    return names.take(in_order), np.concatenate([place[chunk.indices.to_numpy()] for chunk in encoded.chunks])


def _dealt(total: Int64s, largest: Int64s, messages: Int64s, at: Int64s, place: Int64s) -> Int64s:
    """Return what each message has of a total: the first has the largest, and the others share the rest.

    Parameters
    ----------
    at, place
        The sum of each message, and its place in it.
    """
    others, rest = np.maximum(messages - 1, 1), np.maximum(total - largest, 0)
    found = (rest // others)[at] + (place - 1 < (rest % others)[at])  # those in front have one more
    is_first = place == 0
    found[is_first] = largest[at[is_first]]
    return found
