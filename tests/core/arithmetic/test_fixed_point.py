"""Integer arithmetic of few values and of many: NumPy takes another way for each, and both must give the same."""

from __future__ import annotations

import numpy as np
import pytest

from spark_throttle.core.arithmetic.fixed_point import (
    PROPORTION_BITS,
    WHOLE,
    bit_length,
    leading,
    proportional,
    quotient,
    shifted,
    times,
)

EDGES = sorted({0, *(2**bits + each for bits in range(63) for each in (-1, 0, 1)), 2**63 - 1})
"""The powers of two and their neighbours: a float64 holds only some of them, and rounds the others."""

SHAPES = [(len(EDGES),), (2_200,), (len(EDGES), 2), (1_100, 2)]


@pytest.mark.parametrize("shape", SHAPES)
def test_bit_length_of_few_and_of_many_values_is_that_of_python(shape: tuple[int, ...]) -> None:
    """One column or two; the last value has all the bits that an integer of 64 bits may have."""
    values = np.resize(EDGES, shape)
    assert bit_length(values).tolist() == np.vectorize(lambda value: int(value).bit_length())(values).tolist()
    assert bit_length(values).dtype == np.int64


@pytest.mark.parametrize("least_bits", [-62, -5, 0, 3])
@pytest.mark.parametrize("most_bits", [-3, 0, 5, 20])
def test_shift_to_the_left_to_the_right_or_to_either_side_is_that_of_python(least_bits: int, most_bits: int) -> None:
    bits = np.arange(least_bits, max(least_bits, most_bits) + 1)
    amounts = np.array([0, 1, 3, 2**31 - 1, 2**40])[:, None]

    wanted = [[a << b if b >= 0 else a >> -b for b in bits.tolist()] for a in amounts[:, 0].tolist()]

    assert shifted(amounts, bits).tolist() == wanted


def proportion_of_leading_bits(amount: int, to: int, of: int) -> int:
    if min(amount, to, of) <= 0:
        return 0
    wide_amount, wide_to, wide_of = (max(each.bit_length() - 31, 0) for each in (amount, to, of))
    product = (amount >> wide_amount) * (to >> wide_to)
    room = 62 - product.bit_length()
    part = (product << room) // (of >> wide_of)
    shift = wide_amount + wide_to - wide_of - room
    return min(part << shift if shift >= 0 else part >> -shift, 2**PROPORTION_BITS)


@pytest.mark.parametrize("longest_bits", [8, 30, 31, 33, 62])
@pytest.mark.parametrize("rows", [12, 1_500])
def test_proportion_of_short_and_of_long_numbers_is_that_of_the_oracle(rows: int, longest_bits: int) -> None:
    random = np.random.default_rng(longest_bits)
    amount, to, of = (random.integers(-2, 2 ** random.integers(1, longest_bits, rows)) for _ in range(3))

    found = proportional(amount, to, of)

    triples = zip(amount.tolist(), to.tolist(), of.tolist(), strict=True)
    assert found.tolist() == [proportion_of_leading_bits(*each) for each in triples]
    pairs = np.stack([amount, amount], axis=1)
    assert (proportional(pairs, to[:, None], of[:, None]) == found[:, None]).all()


@pytest.mark.parametrize("bits", [-40, -3, 0, 7, 25])
def test_proportion_of_short_numbers_is_the_same_beside_a_long_one(bits: int) -> None:
    random = np.random.default_rng(bits + 40)
    amount, to, of = (random.integers(0, 2 ** random.integers(1, 31), 500) for _ in range(3))
    with_long = [np.append(each, 2**62 - 1) for each in (amount, to, of)]

    beside_long = proportional(with_long[0], with_long[1], with_long[2], bits)

    assert proportional(amount, to, of, bits).tolist() == beside_long[:-1].tolist()


@pytest.mark.parametrize("most_bits", [20, 32, 52])
def test_quotients_and_products_of_short_and_of_long_numbers_are_those_of_python(most_bits: int) -> None:
    random = np.random.default_rng(most_bits)
    divisor = random.integers(0, 2**most_bits, 500)
    amount = np.minimum(random.integers(0, 2**most_bits, 500), divisor)
    factor = random.integers(0, WHOLE + 1, 500)

    pairs = list(zip(amount.tolist(), np.maximum(divisor, 1).tolist(), strict=True))
    assert quotient(amount, divisor, 30).tolist() == [(a << 30) // d for a, d in pairs]
    assert quotient(amount, divisor, 30, round_up=True).tolist() == [-(-(a << 30) // d) for a, d in pairs]
    assert times(amount, factor).tolist() == [
        a * f >> 30 for a, f in zip(amount.tolist(), factor.tolist(), strict=True)
    ]


def test_number_of_bits_that_follow_short_values_cannot_be_changed_for_the_next_ones() -> None:
    _, followed_by = leading(np.array([5, 7]))
    with pytest.raises(ValueError, match="read-only"):
        followed_by += 1
