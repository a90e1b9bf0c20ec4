"""Products, quotients and shifts of integers that would not fit in int64 if they were computed in one step.

A *factor* is a whole number of 2**-30ths, at most 1. Every result is rounded down unless its function says otherwise.
"""

from __future__ import annotations

import numpy as np

from spark_throttle.core.quota import Int64s

FACTOR_BITS = 30

WHOLE = 1 << FACTOR_BITS
"""The factor 1."""

PROPORTION_BITS = 50
"""By default, the result of `proportional` is at most two to this power."""

_MOST = np.iinfo(np.int64).max
_POWERS = np.left_shift(np.int64(1), np.arange(63))
_SEARCHED_BELOW = 1_000
"""For fewer values, one search in the powers of two takes less time than a dozen calls of NumPy."""

_LEADING_BITS = 31
"""The bits of a factor from which `proportional` computes: a product of two fits in int64."""

_PRODUCT_BITS = 62
"""The bits of a product of two factors, and of what is divided."""

_NO_BITS = np.zeros(1, dtype=np.int64)
_NO_BITS.flags.writeable = False
"""The bits that follow the leading ones where no value has any; they go with values of every shape."""

_DIGIT = 10
"""The number of bits of a quotient that are computed at a time: a divisor may have 52."""


def quotient(amount: Int64s, divisor: Int64s, bits: int, *, round_up: bool = False) -> Int64s:
    """Return ``amount / divisor``, which is at most 1, to `bits` binary places; 0 where the amount is 0."""
    divisor = np.maximum(divisor, 1)
    if _fits(amount, _PRODUCT_BITS - bits):
        whole = amount << bits
        return (whole + (divisor - 1) if round_up else whole) // divisor
    quotient, rest = np.divmod(amount, divisor)
    for _ in range(0, bits, _DIGIT):
        digit, rest = np.divmod(rest << _DIGIT, divisor)
        quotient = (quotient << _DIGIT) + digit
    return quotient + (rest > 0) if round_up else quotient


def times(amount: Int64s, factor: Int64s) -> Int64s:
    """Return `amount` times a factor, which is in 2**-30ths and at most 1."""
    if _fits(amount, _PRODUCT_BITS - FACTOR_BITS):
        return amount * factor >> FACTOR_BITS
    high, low = amount >> FACTOR_BITS, amount & (WHOLE - 1)
    return high * factor + (low * factor >> FACTOR_BITS)


def _fits(value: Int64s, bits: int) -> bool:
    """Return whether no value is negative, or has more than so many bits."""
    return not value.size or (int(value.max()) >> max(bits, 0) == 0 and int(value.min()) >= 0)


def bit_length(value: Int64s) -> Int64s:
    """Return the number of bits in each value; values are not negative.

    Examples
    --------
    >>> bit_length(np.array([0, 1, 7, 8, 2**62])).tolist()
    [0, 1, 3, 4, 63]
    """
    if value.size < _SEARCHED_BELOW:
        return np.searchsorted(_POWERS, value, side="right")
    if value.ndim > 1:
        few = int(np.argmin(value.shape))
        return np.stack([bit_length(part) for part in np.moveaxis(value, few, 0)], axis=few)
    least, most = int(value.min(initial=_MOST)), int(value.max(initial=0)).bit_length()
    if least >= 0 and least.bit_length() >= most:
        return np.full(value.shape, most)
    filled = value | value >> 1
    for shift in (2, 4, 8, 16, 32):
        if shift < most:
            filled |= filled >> shift
    return np.bitwise_count(filled).astype(np.int64)


def shifted(amount: Int64s, bits: Int64s) -> Int64s:
    """Return tokens in units of ``2**-bits`` tokens, rounded down; `bits` may be negative."""
    if not bits.size or bits.min() >= 0:
        return amount << bits
    if bits.max() <= 0:
        return amount >> -bits
    return np.where(bits >= 0, amount << np.maximum(bits, 0), amount >> np.maximum(-bits, 0))


def proportional(
    amount: Int64s, to: Int64s, of: Int64s, bits: Int64s | int = 0, *, most_bits: int = PROPORTION_BITS
) -> Int64s:
    """Return ``amount * to / of * 2**bits``, computed from the 31 leading bits of each; at most ``2**most_bits``.

    The result is 0 where any of the three is not positive. They may have any shapes that go together.

    Examples
    --------
    >>> proportional(np.array([6, 6, 0]), np.array([10, 1 << 40, 10]), np.array([4, 3 << 40, 4])).tolist()
    [15, 2, 0]
    >>> proportional(np.array([5]), np.array([1]), np.array([1 << 31]), np.array([33])).tolist()
    [20]
    """
    amount, to = (each if each.min(initial=0) >= 0 else np.maximum(each, 0) for each in (amount, to))
    is_whole = of.min(initial=1) > 0
    divisor = of if is_whole else np.maximum(of, 1)
    (amount, wide_amount), (to, wide_to), (divisor, wide_divisor) = map(leading, (amount, to, divisor))
    product = amount * to
    shift = wide_amount + wide_to - wide_divisor + bits
    least, most = int(shift.min(initial=0)), int(shift.max(initial=0))
    if most + int(product.max(initial=0)).bit_length() <= _PRODUCT_BITS:
        # A quotient that is rounded down twice is what it is when it is rounded down once.
        result = (product << np.maximum(shift, 0) if most else product) // divisor
        result = result >> np.minimum(-shift, _PRODUCT_BITS).clip(0) if least else result
        result = np.minimum(result, 1 << most_bits)
    else:
        room = _PRODUCT_BITS - bit_length(product)
        shift = shift - room
        part = (product << room) // divisor
        is_over = bit_length(part) + shift > most_bits
        kept_shift = np.minimum(np.maximum(shift, -62), 62)  # `np.clip` takes ten times as long for few values
        result = shifted(part, kept_shift)
        np.copyto(result, 1 << most_bits, where=is_over)
    if not is_whole:
        np.copyto(result, 0, where=of <= 0)
    return result


def leading(value: Int64s) -> tuple[Int64s, Int64s]:
    """Return the 31 leading bits of each value, which is not negative, and the number of bits that follow them.

    Where no value has more bits, the second is one 0 for all of them.

    Examples
    --------
    >>> bits, followed_by = leading(np.array([5, 1 << 33]))
    >>> bits.tolist(), followed_by.tolist()
    ([5, 1073741824], [0, 3])
    """
    if not value.max(initial=0) >> _LEADING_BITS:
        return value, _NO_BITS
    wide = np.maximum(bit_length(value) - _LEADING_BITS, 0)
    return value >> wide, wide
