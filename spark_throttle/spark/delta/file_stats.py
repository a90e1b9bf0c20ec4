"""Statistics of a Parquet file's columns in the form of a Delta log, by which readers skip files.

The numbers are those that the Parquet writer collected. A value that cannot be stated correctly is left out, and
readers then read the file. Text longer than `LONGEST_TEXT` is cut as Spark cuts it, and times are truncated to
milliseconds (readers add one). Text that is not valid UTF-8 has no bounds.

A column that holds NaN has no statistics, either in the log or in the file itself. Spark treats NaN as the largest
number, but pyarrow leaves it out of the bounds, so with a filter ``x > 100`` Spark would skip rows that match.

Source: "Per-file Statistics" of the Delta protocol.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet as pq

LONGEST_TEXT: Final = 32
"""Number of characters of a text that are kept, as in Delta's own writer."""

_LAST_CHARACTER: Final = "\U0010ffff"
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
_FIRST_DAY, _LAST_DAY = _FIRST_MS // 86_400_000, _LAST_MS // 86_400_000
"""Bounds of the years 1 to 9999: not every reader can parse other years."""

Path: TypeAlias = tuple[str, ...]
Bounds: TypeAlias = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class IndexedColumns:
    """The columns for which a table collects statistics."""

    first: int = 32
    """Number of leading columns with statistics (``delta.dataSkippingNumIndexedCols``); all if negative."""

    named: tuple[str, ...] | None = None
    """Columns that replace `first` (``delta.dataSkippingStatsColumns``); a struct includes all of its fields."""

    def holds(self, place: int, path: Path) -> bool:
        """Return whether the column at this position of the schema, with this path, has statistics."""
        if self.named is not None:
            return any(".".join(path[:depth]) in self.named for depth in range(1, len(path) + 1))
        return self.first < 0 or place < self.first


def stats_json(table: pa.Table, metadata: pq.FileMetaData, indexed: IndexedColumns) -> str:
    """Return the statistics of a file that holds `table`, written with statistics of `described_columns`.

    Examples
    --------
    >>> rows, found = pa.table({"id": [3, None, 5], "name": ["a", "b", "b"]}), []
    >>> pq.write_table(
    ...     rows, pa.BufferOutputStream(), write_statistics=described_columns(rows), metadata_collector=found
    ... )
    >>> stats_json(rows, found[0], IndexedColumns(first=1))
    '{"numRecords":3,"minValues":{"id":3},"maxValues":{"id":5},"nullCount":{"id":1}}'
    """
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    place = 0
    for column, (path, data_type) in enumerate(_leaves(table.schema)):
        if path is None:
            continue
        if indexed.holds(place, path):
            groups = [metadata.row_group(group).column(column).statistics for group in range(metadata.num_row_groups)]
            if all(group is not None and group.has_null_count for group in groups):
                _put(nulls, path, sum(group.null_count for group in groups))
            bounds = _bounds(groups, data_type)
            if bounds is not None:
                _put(lowest, path, bounds[0])
                _put(highest, path, bounds[1])
        place += 1
    return _json({"numRecords": table.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls})


def described_columns(table: pa.Table) -> list[str]:
    """Return the columns that may have statistics, in Parquet's dotted form."""
    return [
        ".".join(path)
        for path, data_type in _leaves(table.schema)
        if path is not None and not _may_hold_nan(table, path, data_type)
    ]


def _leaves(fields: pa.Schema | pa.StructType, above: Path = ()) -> Iterator[tuple[Path | None, pa.DataType]]:
    """Yield Parquet's columns in order; those inside a list or a map, which have no statistics, have no path."""
    for field in fields:
        if pa.types.is_struct(field.type):
            yield from _leaves(field.type, (*above, field.name))
        elif pa.types.is_nested(field.type):
            yield from _inner_leaves(field.type)
        else:
            yield (*above, field.name), field.type


def _inner_leaves(data_type: pa.DataType) -> Iterator[tuple[None, pa.DataType]]:
    if pa.types.is_nested(data_type):
        for place in range(data_type.num_fields):
            yield from _inner_leaves(data_type.field(place).type)
    else:
        yield None, data_type


def _may_hold_nan(table: pa.Table, path: Path, data_type: pa.DataType) -> bool:
    if not pa.types.is_floating(data_type):
        return False
    return len(path) > 1 or bool(pc.any(pc.is_nan(table.column(path[0]))).as_py())


def _bounds(groups: list[pq.Statistics | None], data_type: pa.DataType) -> Bounds | None:
    """Return the least and the greatest value in the log's form; `None` if unknown or not representable."""
    # A row group that holds only nulls has no bounds and widens none.
    known = [group for group in groups if group is not None and group.num_values]
    if not known or any(group is None for group in groups) or not all(group.has_min_max for group in known):
        return None
    if pa.types.is_timestamp(data_type):
        return _times(min(g.min_raw for g in known) // 1000, max(g.max_raw for g in known) // 1000, data_type.tz)
    if pa.types.is_date(data_type):
        return _days(min(g.min_raw for g in known), max(g.max_raw for g in known))
    if not (pa.types.is_integer(data_type) or pa.types.is_floating(data_type) or pa.types.is_decimal(data_type)):
        return _texts(min(g.min_raw for g in known), max(g.max_raw for g in known)) if _is_text(data_type) else None
    least, greatest = min(g.min for g in known), max(g.max for g in known)
    return (least, greatest) if np.isfinite(float(least)) and np.isfinite(float(greatest)) else None


def _is_text(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(data_type) or pa.types.is_large_string(data_type))


def _times(least_ms: int, greatest_ms: int, zone: str | None) -> Bounds | None:
    if least_ms < _FIRST_MS or greatest_ms > _LAST_MS:
        return None
    end = "" if zone is None else "Z"
    return f"{np.datetime64(least_ms, 'ms')}{end}", f"{np.datetime64(greatest_ms, 'ms')}{end}"


def _days(least: int, greatest: int) -> Bounds | None:
    if least < _FIRST_DAY or greatest > _LAST_DAY:
        return None
    return str(np.datetime64(least, "D")), str(np.datetime64(greatest, "D"))


def _texts(least_bytes: bytes, greatest_bytes: bytes) -> Bounds | None:
    """Return the bounds of texts in the order of their UTF-8 bytes, which is Spark's order."""
    try:
        least, greatest = least_bytes.decode(), greatest_bytes.decode()
    except UnicodeDecodeError:
        return None
    cut = greatest[:LONGEST_TEXT]
    if len(greatest) > LONGEST_TEXT:
        # Greater than every text with this prefix, unless the part that was cut off begins with that character itself.
        if greatest[LONGEST_TEXT] == _LAST_CHARACTER:
            return None
        cut += _LAST_CHARACTER
    return least[:LONGEST_TEXT], cut


def _put(tree: dict[str, Any], path: Path, value: Any) -> None:  # noqa: ANN401 - a leaf of JSON
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def _json(value: Any) -> str:  # noqa: ANN401 - as above
    """Return JSON in which decimals keep all their digits."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_json(part)}" for name, part in value.items()) + "}"
    return format(value, "f") if isinstance(value, Decimal) else json.dumps(value)
