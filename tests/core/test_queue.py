"""A queue whose end is put in another order: whole rows move, and no row before the end does."""

from __future__ import annotations

import numpy as np

from spark_throttle.core.state import Queue


def test_rows_at_the_end_move_with_all_that_is_known_of_them() -> None:
    columns = np.arange(20).reshape(4, 5)
    moved = Queue(*columns).with_end_in(np.array([2, 0, 1]))
    found = [moved.flow, moved.size_bytes, moved.arrival_ms, moved.release_ms]
    assert np.array_equal(found, columns[:, [0, 1, 4, 2, 3]])
