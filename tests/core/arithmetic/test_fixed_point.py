"""Integer arithmetic of few values and of many: NumPy takes another way for each, and both must give the same."""

from __future__ import annotations

import numpy as np
import pytest

from spark_throttle.core.arithmetic.fixed_point import bit_length

EDGES = [0, 1, 2, 3, 4, 2**31 - 1, 2**31, 2**53 + 1, 2**62 - 1, 2**62, 2**63 - 1]


@pytest.mark.parametrize("shape", [(11,), (2_200,), (11, 2), (1_100, 2)])
def test_bit_length_of_few_and_of_many_values_is_that_of_python(shape: tuple[int, ...]) -> None:
    """One column or two; the last value has all the bits that an integer of 64 bits may have."""
    values = np.resize(EDGES, shape)
    assert bit_length(values).tolist() == np.vectorize(lambda value: int(value).bit_length())(values).tolist()
    assert bit_length(values).dtype == np.int64
