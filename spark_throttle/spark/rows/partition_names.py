"""The names of a row's partition in a Delta log and as a folder, the same as those of Spark's own writers.

Spark makes a folder's name from each value, with some characters percent-encoded, and Delta reads the value back from
the name. So values with the same written form are one partition: an empty text and null, or two texts that are not
valid UTF-8 and become equal when U+FFFD replaces the bytes that cannot be read.

Some values have no folder: if the name would be longer than `LONGEST_FOLDER_BYTES`, which no file system here accepts,
or would contain a NUL. For a date outside `_FIRST_DAY` to `_LAST_DAY` Spark makes a folder, but then only Spark can
open the table's log. Rows with such values are rejected before they are decided, by either writer (`has_folder`).

Source: ``ExternalCatalogUtils.escapePathName`` of Spark, ``DelayedCommitProtocol`` of Delta; tried out with both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.quota import Bools

PARTITION_PREFIX: Final = "__throttle_partition_"
"""Prefix of a partition column among the helper columns of rows whose payload does not travel."""

LONGEST_FOLDER_BYTES: Final = 255
"""Longest folder name that local file systems and HDFS accept."""

PARTITION_TYPES: Final = ("string", "byte", "short", "integer", "long", "boolean", "date")
"""The types of partition columns, as Delta names them, whose values have such names."""

NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile(r"""[\x01-\x1f"#%'*/:=?\\\x7f{\[\]^]""")
_HALF_PAIR = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT: Final = "\ufffd"
_GROWTH: Final = 3
"""Most bytes that one byte of a text becomes, when it is escaped or is not valid UTF-8."""

_FIRST_DAY: Final = int(np.datetime64("-262143-01-01", "D").astype(np.int64))
_LAST_DAY: Final = int(np.datetime64("262142-12-31", "D").astype(np.int64))
_LAST_SHORT_YEAR: Final = 9999


def partition_values(values: pa.Array) -> pa.StringArray:
    """Return values in the form of a Delta log: texts, whole numbers, booleans or dates.

    Examples
    --------
    >>> days = pa.array([-719529, 0, 2932897], pa.int32()).view(pa.date32())
    >>> partition_values(days).to_pylist()
    ['-0001-12-31', '1970-01-01', '+10000-01-01']
    >>> partition_values(pa.array(["a", "", None])).to_pylist()
    ['a', None, None]
    """
    if _is_text(values.type):
        texts = [_read_by_java(text) for text in values.cast(pa.large_binary()).to_pylist()]
        return pa.array([None if text in ("", NO_VALUE) else text for text in texts], pa.string())
    if pa.types.is_date(values.type):
        return pa.array([_date(day) for day in values.cast(pa.int32()).to_pylist()], pa.string())
    return values.cast(pa.string())


def folder(column: str, value: str | None) -> str:
    """Return the name of the folder of a value in the form of `partition_values`.

    A value that has no folder gets a name made from a digest: in a Delta table its files may lie in any folder. Newly
    admitted rows have no such values. They occur in dead letters that are partitioned by the same columns, and in rows
    that waited while the table changed.

    Examples
    --------
    >>> folder("ns", "漢/a b"), folder("ns", None)
    ('ns=漢%2Fa b', 'ns=__HIVE_DEFAULT_PARTITION__')
    """
    name = f"{_escaped(column)}={NO_VALUE if value is None else _escaped(value)}"
    if _is_folder(name):
        return name
    return f"throttle-{blake2b(name.encode(), digest_size=16).hexdigest()}"


def has_folder(rows: pa.Table, columns: Sequence[str]) -> Bools | None:
    """Return which rows have a folder in a table that is partitioned by `columns`; `None` if all rows have one.

    A column is looked for among the helper columns first.
    """
    found: Bools | None = None
    for column in columns:
        helper = f"{PARTITION_PREFIX}{column}"
        has = _has_folder(column, rows.column(helper if helper in rows.column_names else column))
        if has is not None:
            found = has if found is None else found & has
    return found


def _has_folder(column: str, values: pa.ChunkedArray) -> Bools | None:
    if pa.types.is_date(values.type):
        day = values.cast(pa.int32())
        has = pc.and_(pc.greater_equal(day, _FIRST_DAY), pc.less_equal(day, _LAST_DAY))
    elif _is_text(values.type):
        has = _text_has_folder(_escaped(column), values.cast(pa.large_binary()))
    else:
        return None
    if pc.all(has).as_py() is not False:
        return None
    found: Bools = pc.fill_null(has, fill_value=True).to_numpy(zero_copy_only=False)
    return found


def _text_has_folder(column: str, texts: pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return which texts have a folder: decided at once if all are short, otherwise once per distinct text."""
    plain_bytes = (LONGEST_FOLDER_BYTES - len(column.encode()) - 1) // _GROWTH
    is_short = pc.less_equal(pc.binary_length(texts), plain_bytes)
    is_plain = pc.and_not(is_short, pc.match_substring(texts, pattern=b"\x00"))
    if pc.all(is_plain).as_py() is not False:
        return is_plain
    coded = texts.combine_chunks().dictionary_encode()
    names = (_escaped(_read_by_java(text) or "") for text in coded.dictionary.to_pylist())
    return pa.array([_is_folder(f"{column}={name}") for name in names], pa.bool_()).take(coded.indices)


def _is_text(data_type: pa.DataType) -> bool:
    return any(
        is_kind(data_type)
        for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    )


def _is_folder(name: str) -> bool:
    return "\0" not in name and len(name.encode()) <= LONGEST_FOLDER_BYTES


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _read_by_java(text: bytes | None) -> str | None:
    """Return text as Java decodes it: half of a surrogate pair becomes a single replacement character."""
    if text is None:
        return None
    try:
        return text.decode()
    except UnicodeDecodeError:
        return _HALF_PAIR.sub(_REPLACEMENT.encode(), text).decode("utf-8", "replace")


def _date(day: int | None) -> str | None:
    if day is None:
        return None
    year, month, in_month = str(np.datetime64(day, "D")).rsplit("-", 2)
    sign = "+" if int(year) > _LAST_SHORT_YEAR else "-" if int(year) < 0 else ""
    return f"{sign}{abs(int(year)):04d}-{month}-{in_month}"
