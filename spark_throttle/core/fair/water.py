"""Weighted max-min levels: how high an amount fills many vessels at once, exact in integers.

Children of one node share what the node is given as vessels of the widths `weight` share water that flows between them:
all are filled to one level, except those that are full below it. That is the fluid ideal of a batch, because all its
rows are there when it begins::

    sum(min(want, weight * level))  =  amount, less what no whole level gives out

The sum is concave in the level, so Newton's steps from below approach it without passing it, and each step leaves at
least one more vessel full. Equal demands take one step, drawn ones three to six. Every step is taken for all nodes of a
level of the tree at once. Levels are whole numbers: less than the sum of the weights of those that are not full stays.
"""

from __future__ import annotations

import numpy as np

from spark_throttle.core.arithmetic.segments import running_total
from spark_throttle.core.quota import Int64s


def totals(values: Int64s, bounds: Int64s) -> Int64s:
    """Return the sum of each node's values, which lie between its bounds; a node may have none.

    Examples
    --------
    >>> totals(np.array([1, 2, 3]), np.array([0, 2, 2, 3])).tolist()
    [3, 0, 3]
    """
    if len(bounds) == 2:
        return values.sum(keepdims=True) if len(values) else np.zeros(1, dtype=np.int64)
    first, end = bounds[:-1], bounds[1:]
    if (first < end).all():
        return np.add.reduceat(values, first)
    total = running_total(values)
    return total[end] - total[first]


def covered(want: Int64s, weight: Int64s, parent: Int64s, bounds: Int64s, amount: Int64s) -> Int64s:
    """Return what each child gets of the `amount` of its node.

    Parameters
    ----------
    want
        What each child can take; none is negative.
    parent, bounds
        The node of each child, ascending, and where the children of each node begin and end.

    Examples
    --------
    Twelve are divided between wants of 2, 100 and 100, the last of twice the weight:

    >>> one = np.zeros(3, dtype=np.int64)
    >>> covered(np.array([2, 100, 100]), np.array([1, 1, 2]), one, np.array([0, 3]), np.array([12])).tolist()
    [2, 3, 6]
    """
    asked = totals(want, bounds)
    is_open = amount < asked
    if not is_open.any():
        return want
    amount = np.where(is_open, np.maximum(amount, 0), 0)
    # A child is filled to its brim where `want // weight < level`; the product with the level may wrap only there.
    brim = want // weight
    active, level = totals(weight, bounds), np.zeros(len(asked), dtype=np.int64)
    filled = np.zeros(len(asked), dtype=np.int64)
    while True:
        step = (amount - filled) // np.maximum(active, 1)
        if not step.any():
            break
        level += step
        of_parent = level[parent]
        is_full = brim < of_parent
        got = np.where(is_full, want, weight * of_parent)
        filled, active = totals(got, bounds), totals(np.where(is_full, 0, weight), bounds)
    of_parent = level[parent]
    got = np.where(brim < of_parent, want, weight * of_parent)
    return got if is_open.all() else np.where(is_open[parent], got, want)
