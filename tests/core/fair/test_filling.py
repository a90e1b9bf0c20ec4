"""Nodes that were given too little for all that they would send are lowered to a level together."""

from __future__ import annotations

import numpy as np
import pytest

from spark_throttle.core.fair.filling import Vessels
from spark_throttle.core.fair.tree import Level, Tree
from spark_throttle.core.fair.work import Rows


@pytest.mark.parametrize("seed", range(10))
def test_leaves_are_lowered_to_the_highest_level_that_fits_but_for_one_row_each(seed: int) -> None:
    random = np.random.default_rng(seed)
    leaves, counts = 5, random.integers(1, 40, 5)
    work = [random.integers(1, 1_000, count) for count in counts]
    lead, weight = random.integers(-2_000, 2_000, leaves), random.integers(1, 9, leaves)
    asked, none = np.array([each.sum() for each in work]), np.zeros(leaves, dtype=np.int64)
    rows = Rows.of(np.cumsum(counts) - counts, (), np.concatenate(work))
    tree = Tree((Level.of(none, 1, weight),))
    want = np.maximum(asked + lead, 0)
    most = int(asked.sum()) // 3
    found = Vessels(tree, [lead], [none], [asked], [want], rows, none, counts).lowered(np.array([most]), want)

    def sent(line: int) -> list[int]:
        budgets = np.maximum(weight * line - lead, 0)
        return [int((np.cumsum(each) <= budget).sum()) for each, budget in zip(work, budgets, strict=True)]

    def total(counts: list[int]) -> int:
        return sum(int(each[:count].sum()) for each, count in zip(work, counts, strict=True))

    low, high = min(lead // weight), int(want.max()) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if total(sent(middle)) <= most else (low, middle)
    assert total(found.count.tolist()) <= most
    assert set((sent(low) - found.count).tolist()) <= {0, 1}
