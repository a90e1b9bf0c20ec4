"""What a Delta log says of a Parquet file's columns, so that readers can skip the file.

The numbers are those that the Parquet writer gathered. A value is left out rather than said wrongly, and a reader then
reads the file: text over `LONGEST_TEXT` is cut as Spark cuts it, and times are cut to milliseconds (readers add one).
Of text that is no UTF-8 a log can say nothing.

A column that holds NaN has no numbers, in the log nor in the file itself. Spark takes NaN for the largest number, and
pyarrow leaves it out of its bounds: asked for ``x > 100``, Spark would skip rows that it means.

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
"""Characters of text that are kept, as Delta's own writer keeps them."""

_LAST_CHARACTER: Final = "\U0010ffff"
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
_FIRST_DAY, _LAST_DAY = _FIRST_MS // 86_400_000, _LAST_MS // 86_400_000
"""The years 1 to 9999: others have no form that every reader knows."""

Path: TypeAlias = tuple[str, ...]
Bounds: TypeAlias = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class IndexedColumns:
    """Which columns a table wants statistics of."""

    first: int = 32
    """The first so many (``delta.dataSkippingNumIndexedCols``); negative for all."""

    named: tuple[str, ...] | None = None
    """These instead (``delta.dataSkippingStatsColumns``), a struct with all that is in it."""

    def holds(self, place: int, path: Path) -> bool:
        """Return whether the column at a place of the schema is one."""
        if self.named is not None:
            return any(".".join(path[:depth]) in self.named for depth in range(1, len(path) + 1))
        return self.first < 0 or place < self.first


def stats_json(table: pa.Table, metadata: pq.FileMetaData, indexed: IndexedColumns) -> str:
    """Return the statistics of a file that holds `table` and was written with those of `described_columns`.

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
    """Return the columns that a file may have statistics of, in Parquet's dotted form."""
    return [
        ".".join(path)
        for path, data_type in _leaves(table.schema)
        if path is not None and not _may_hold_nan(table, path, data_type)
    ]


def _leaves(fields: pa.Schema | pa.StructType, above: Path = ()) -> Iterator[tuple[Path | None, pa.DataType]]:
    """Yield Parquet's columns in their order; those inside a list or a map, of which nothing is said, without path."""
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
    """Return the least and the greatest value in the log's form; `None` where they are unknown or have none."""
    # A row group of nulls alone has no bounds, and widens none.
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
    """Return bounds in the order of bytes, which is Spark's."""
    try:
        least, greatest = least_bytes.decode(), greatest_bytes.decode()
    except UnicodeDecodeError:
        return None
    cut = greatest[:LONGEST_TEXT]
    if len(greatest) > LONGEST_TEXT:
        # Greater than all that begins so, unless what was cut off begins with that character itself.
        if greatest[LONGEST_TEXT] == _LAST_CHARACTER:
            return None
        cut += _LAST_CHARACTER
    return least[:LONGEST_TEXT], cut


def _put(tree: dict[str, Any], path: Path, value: Any) -> None:  # noqa: ANN401 - a leaf of JSON
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def _json(value: Any) -> str:  # noqa: ANN401 - as above
    """Return JSON in which a decimal stands with all its digits."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_json(part)}" for name, part in value.items()) + "}"
    return format(value, "f") if isinstance(value, Decimal) else json.dumps(value)
