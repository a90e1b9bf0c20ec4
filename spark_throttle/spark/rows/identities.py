"""The identity of a row whose cost is known late: 128 bits of SHA-256 of the bytes by which its cost is told.

Text counts by its UTF-8, a binary as it is, and a whole number as its decimal text: so the number 7 and the text "7"
are one identity, and a stream of JSON may settle what a stream of numbers reserved. Spark computes it for rows
(`identity_column`), and Python for what a function tells (`identity_of`), and they agree.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.types import BinaryType, DataType, IntegralType, StringType

from spark_throttle.core.quota import Int64s
from spark_throttle.core.reservations import no_identities
from spark_throttle.errors import ConfigurationError

IDENTITY_BYTES: Final = 16
_BITS: Final = 256


def check_identity(name: str, kind: DataType) -> None:
    """Refuse an identity that has several forms, as a fraction or a time has.

    Raises
    ------
    ConfigurationError
        If it is no text, no binary and no whole number.
    """
    if not isinstance(kind, StringType | BinaryType | IntegralType):
        raise ConfigurationError(
            f"{name} is {kind.simpleString()}, by which no row can be found again: give text, a binary or a whole "
            f"number, such as cast(… AS string)"
        )


def identity_column(value: Column, kind: DataType) -> Column:
    """Return the expression of the identity of rows, null where they have none."""
    content = value.cast("string") if isinstance(kind, IntegralType) else value
    return F.unhex(F.substring(F.sha2(content.cast("binary"), _BITS), 1, 2 * IDENTITY_BYTES))


def identity_of(value: str | bytes | int) -> bytes:
    """Return the identity of one row.

    Examples
    --------
    >>> identity_of("7") == identity_of(7) == identity_of(b"7") != identity_of("07")
    True
    """
    content = value if isinstance(value, bytes) else str(value).encode()
    return hashlib.sha256(content).digest()[:IDENTITY_BYTES]


def identity_words(identities: pa.Array) -> Int64s:
    """Return identities as the core takes them, zeros where there is none.

    Examples
    --------
    >>> identity_words(pa.array([bytes([7, *[0] * 15]), None], pa.binary())).tolist()
    [[7, 0], [0, 0]]
    """
    found = no_identities(len(identities))
    is_valid = identities.is_valid().to_numpy(zero_copy_only=False)
    each = identities.drop_null().cast(pa.binary(IDENTITY_BYTES))
    if len(each):
        words = np.frombuffer(each.buffers()[1], "<i8").reshape(-1, found.shape[1])
        found[is_valid] = words[each.offset : each.offset + len(each)]
    return found
