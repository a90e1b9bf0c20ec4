"""A claim for far more than there is drops bits when it is counted, whatever is claimed of other scopes."""

from __future__ import annotations

import numpy as np
from spark_throttle.core.lending.level_parts import FINE_BITS, Holding, Level


def level(claims_tokens: list[int]) -> Level:
    """Return a level of one shard, with a claim on each scope; each scope has ten messages and no limit on bytes."""
    count = len(claims_tokens)
    none, one = np.zeros((count, 2), dtype=np.int64), np.ones(count, dtype=np.int64)
    demand = np.array([[tokens << FINE_BITS, 0] for tokens in claims_tokens])
    holding = Holding(
        tokens=np.array([[10, 0]] * count),
        is_limited=np.array([[True, False]] * count),
        is_shut=np.zeros(count, dtype=np.bool_),
        rate_micro_per_ms=np.array([[1_000, 0]] * count),
    )
    return Level(demand, none, one, none, one, np.arange(count), np.arange(count), holding, none)


def test_far_claim_drops_as_many_bits_beside_a_near_one_as_alone() -> None:
    far = 1 << 40
    (alone,) = level([far]).shortage().coarse_bits[:, 0].tolist()
    beside = level([3, far]).shortage()
    near, of_far = beside.coarse_bits[:, 0].tolist()
    assert of_far == alone == near + far.bit_length() - (10).bit_length() - 1  # it is still for more than there is
    assert beside.is_short.tolist() == [False, True]
