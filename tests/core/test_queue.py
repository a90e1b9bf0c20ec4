"""A queue whose end is put in another order: whole rows move, and no row before the end does."""

from __future__ import annotations

import numpy as np
import pytest

from spark_throttle.core.quota import Bools
from spark_throttle.core.state import Queue


@pytest.mark.parametrize("is_deferred", [None, np.array([True, False, True, False, False])])
def test_rows_at_the_end_move_with_all_that_is_known_of_them(is_deferred: Bools | None) -> None:
    flow, size_bytes, arrival_ms, release_ms = np.arange(20).reshape(4, 5)
    queue = Queue(flow, size_bytes, arrival_ms, release_ms, is_deferred)
    moved = queue.with_end_in(np.array([2, 0, 1]))
    at = [0, 1, 4, 2, 3]
    assert moved.flow.tolist() == flow[at].tolist()
    assert moved.size_bytes.tolist() == size_bytes[at].tolist()
    assert moved.arrival_ms.tolist() == arrival_ms[at].tolist()
    assert moved.release_ms.tolist() == release_ms[at].tolist()
    if is_deferred is None:
        assert moved.is_deferred is None
    else:
        assert moved.is_deferred is not None
        assert moved.is_deferred.tolist() == is_deferred[at].tolist()
