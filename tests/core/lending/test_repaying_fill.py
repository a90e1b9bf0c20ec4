"""Which flows take part in a division where each has already had what it owes."""

from __future__ import annotations

import numpy as np
from spark_throttle.core.lending.debts import Contestants, Debts
from spark_throttle.core.lending.repaying_fill import Fill, RepayingFill, Stock
from spark_throttle.core.lending.scope_time import ScopeTime

from spark_throttle.core.quota import Int64s


def fill(demand: list[int], owed: list[int], *, held: int, credit: list[int]) -> Fill:
    """Fill the claims on messages of one scope, of flows that each have a shard of their own."""
    n = len(demand)
    zero = np.zeros(n, np.int64)

    def messages(numbers: list[int]) -> Int64s:
        return np.stack([np.array(numbers), np.zeros(len(numbers), np.int64)], axis=1)

    flows = Contestants(messages(demand), messages([0] * n), zero + 1, zero, np.arange(n))
    time = ScopeTime(np.array([[1000, 0]]), np.array([[True, False]]), np.array([[0, 0]]))
    stock = Stock(messages([held]), np.array([True]), time)
    return RepayingFill(flows, Debts(messages(owed), np.array(owed)), stock, messages(credit)).fill()


def test_flow_that_owes_more_than_it_is_due_takes_no_part() -> None:
    found = fill([10, 10], [0, 50], held=5, credit=[0, 0])
    assert found.is_out.tolist() == [False, True]
    assert found.filled[:, 0].tolist() == [5, 0]


def test_flows_that_want_tokens_take_part_if_all_of_them_owe_more_and_one_that_wants_none_does_not() -> None:
    """What is owed by a flow that wants nothing would otherwise count as tokens that are there for the others."""
    found = fill([10, 0], [50, 50], held=5, credit=[60, 0])
    assert found.is_out.tolist() == [False, True]
    assert found.available.tolist() == [[0, 0]]
