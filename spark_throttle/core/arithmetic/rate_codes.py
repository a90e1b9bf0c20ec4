"""Rates as 32-bit codes: jobs exchange them in half the bytes, with a loss of less than one part in 2**25.

A code is a mantissa of 26 bits and an exponent of 6. A rate below 2**26 is exact; a larger one is rounded down. A code
decodes to the same rate in every process, so all jobs agree, to the unit, on what one of them claims.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from spark_throttle.core.arithmetic.fixed_point import bit_length
from spark_throttle.core.quota import Int64s

Codes: TypeAlias = npt.NDArray[np.uint32]

MAX_RATE = (1 << 52) - 1
"""The largest rate that has a code, to which larger ones are cut. In micro-tokens per millisecond, above any quota."""

_MANTISSA_BITS = 26


def encode(rate: Int64s) -> Codes:
    """Return the codes of rates, none of which is negative.

    Examples
    --------
    >>> decode(encode(np.array([0, 7, 2**26 + 1, 2**40 + 2**20]))).tolist() == [0, 7, 2**26, 2**40 + 2**20]
    True
    """
    capped = np.minimum(rate, MAX_RATE)
    exponent = np.maximum(bit_length(capped) - _MANTISSA_BITS, 0)
    return (exponent << _MANTISSA_BITS | capped >> exponent).astype(np.uint32)


def decode(code: Codes) -> Int64s:
    """Return the rates that codes stand for."""
    wide = code.astype(np.int64)
    return (wide & (1 << _MANTISSA_BITS) - 1) << (wide >> _MANTISSA_BITS)


def ceiling(rate: Int64s) -> Int64s:
    """Return the least amounts with a code that are not less, up to `MAX_RATE`.

    Examples
    --------
    >>> ceiling(np.array([7, 2**26, 2**26 + 1])).tolist() == [7, 2**26, 2**26 + 2]
    True
    """
    below = decode(encode(rate))
    step = 1 << np.maximum(bit_length(below) - _MANTISSA_BITS, 0)
    return decode(encode(np.where(below < rate, below + step, below)))


class CodedRates:
    """An attribute that stores rates as codes: in half the space, rounded down to the nearest rate that has a code.

    Examples
    --------
    >>> class Job:
    ...     share = CodedRates()
    >>> job = Job()
    >>> job.share = np.array([7, 2**40 + 1])
    >>> job.share.tolist() == [7, 2**40]
    True
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._slot = f"{name}_codes"

    def __get__(self, holder: object, owner: type) -> Int64s:
        return decode(getattr(holder, self._slot))

    def __set__(self, holder: object, rate: Int64s) -> None:
        setattr(holder, self._slot, encode(rate))
