"""Tables of the state: rows of a queue move whole, and nothing is kept of nobody."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from spark_throttle.core.state import Flows, NodeLeads, Queue


def test_rows_at_the_end_move_with_all_that_is_known_of_them() -> None:
    columns = np.arange(20).reshape(4, 5)
    moved = Queue(*columns).with_end_in(np.array([2, 0, 1]))
    found = [moved.flow, moved.size_bytes, moved.arrival_ms, moved.release_ms]
    assert np.array_equal(found, columns[:, [0, 1, 4, 2, 3]])


def test_nothing_is_kept_of_no_namespace_and_of_no_node() -> None:
    flows, nodes = Flows.empty(), NodeLeads.none()
    columns = [getattr(flows, each.name) for each in fields(flows)]
    assert {len(each) for each in columns if each is not None} == {0}
    assert nodes.lead_work.shape == (0, 2)
