"""Integer arithmetic of few values and of many: NumPy takes another way for each, and both must give the same."""

from __future__ import annotations

import numpy as np
import pytest

from spark_throttle.core.arithmetic.fixed_point import PROPORTION_BITS, bit_length, proportional, shifted
from spark_throttle.testing.oracle import reference_rules

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


@pytest.mark.parametrize("longest_bits", [8, 30, 31, 33, 62])
@pytest.mark.parametrize("rows", [12, 1_500])
def test_proportion_of_short_and_of_long_numbers_is_that_of_the_oracle(rows: int, longest_bits: int) -> None:
    random = np.random.default_rng(longest_bits)
    amount, to, of = (random.integers(-2, 2 ** random.integers(1, longest_bits, rows)) for _ in range(3))

    found = proportional(amount, to, of)

    triples = zip(amount.tolist(), to.tolist(), of.tolist(), strict=True)
    assert found.tolist() == [reference_rules.proportional(*each, PROPORTION_BITS) for each in triples]
    pairs = np.stack([amount, amount], axis=1)
    assert (proportional(pairs, to[:, None], of[:, None]) == found[:, None]).all()
