"""How long messages waited is summed over the namespaces of a scope."""

from __future__ import annotations

import numpy as np

from spark_throttle.core.waiting_times import WaitingTimes


def test_waiting_times_of_a_scope_are_those_of_its_namespaces() -> None:
    times = WaitingTimes.of(np.array([0, 1, 1, 2, 3]), np.array([7, 7, 20, 9, 5]))
    found = times.among(np.array([1, 1, 2, -1]))
    assert (found.at.tolist(), found.bin.tolist(), found.messages.tolist()) == ([1, 1, 2], [7, 20, 9], [2, 1, 1])
