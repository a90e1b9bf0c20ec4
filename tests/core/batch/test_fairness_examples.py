"""L3 in numbers that can be checked by hand: what a flow has behind it decides whose turn it is."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from spark_throttle.core.batch.admission import plan_admission
from spark_throttle.core.fair.fair_queue import VT_SECOND
from spark_throttle.core.quota import CompiledPolicy, Dimension, Verdict
from spark_throttle.core.state import NO_BOUND, DeciderState
from spark_throttle.testing.oracle.worlds import Namespace, granted, limit, make_arrivals, make_policy

Rows = list[tuple[str, int]]


class Shard:
    """A shard whose batches are granted by hand."""

    def __init__(self, policy: CompiledPolicy) -> None:
        self.policy = policy
        self.state = DeciderState.initial(len(policy.shared))
        self.now_ms = 0

    def batch(
        self, rows: Rows, tokens: dict[str, tuple[int, int]], *, ahead_bound_bytes: int | None = None
    ) -> Counter[str]:
        """Return how many messages of each namespace pass when scopes grant so many messages and bytes.

        The bound is the job's: a flow of weight 1 that is so far ahead takes nothing.
        """
        self.now_ms += 1
        names = self.state.flows.names.to_pylist()
        waiting = [names[flow] for flow in self.state.queue.flow]
        state = granted(self.state, self.policy, tokens, now_ms=self.now_ms)
        if ahead_bound_bytes is not None:
            bound_milli = np.full((len(self.policy.shared), 2), NO_BOUND, dtype=np.int64)
            bound_milli[0, Dimension.BYTES] = ahead_bound_bytes * 1000
            state = replace(state, grants=replace(state.grants, ahead_bound_milli=bound_milli))
        plan = plan_admission(state, make_arrivals(rows), self.policy, now_ms=self.now_ms, shards=1)
        self.state = plan.state
        of = waiting + [name for name, _ in rows]
        return Counter(
            name for name, verdict in zip(of, plan.decisions.verdict, strict=True) if verdict == Verdict.ADMIT
        )


def test_who_is_too_far_ahead_in_the_job_is_asked_by_the_weight_of_its_group_too() -> None:
    policy = make_policy(
        job=limit(bytes_per_second=10_000),
        groups={
            "gold": limit(bytes_per_second=10**6, weight=4),
            "tin": limit(bytes_per_second=10**6),
        },
        namespaces={"a/gold": Namespace(group="gold"), "b/tin": Namespace(group="tin")},
    )
    plenty = {"gold": (0, 10**6), "tin": (0, 10**6)}
    for ahead_bound_bytes, of_gold in ((501, 1), (499, 0)):
        shard = Shard(policy)
        # It overdraws the job by its message, and is 2,000 bytes ahead: 500 for its weight of 1 times 4.
        assert shard.batch([("a/gold", 2_000), ("b/tin", 10)], plenty | {"": (0, 0)}) == {"a/gold": 1}
        got = shard.batch([("a/gold", 10)], plenty | {"": (0, 5_000)}, ahead_bound_bytes=ahead_bound_bytes)
        assert got == Counter({"b/tin": 1, "a/gold": of_gold})


def test_clock_of_the_resource_that_a_flow_did_not_use_is_remembered_for_two_seconds() -> None:
    policy = make_policy(
        groups={"gold": limit(messages_per_second=10, bytes_per_second=10_000)}, default=Namespace(group="gold")
    )
    shard = Shard(policy)
    small, large = [("a/x", 1)] * 100, [("b/y", 10_000)] * 10
    later = [("a/x", 10_000)] * 9 + [("b/y", 10_000)] * 9
    # Ten seconds of service each: of messages for one, of bytes for the other.
    assert shard.batch(small + large + later, {"gold": (109, 10**6)}) == {"a/x": 100, "b/y": 10}
    # Two seconds are 20 messages, each of which is told as a millisecond.
    assert -shard.state.flows.lead_vt.min() == 20 * VT_SECOND // 1000
    # The clock of the bytes of a is 2 s behind, not 10: its messages start at 0, 0.1, 0.2 and 1 s; b's at 0 and 1.
    assert shard.batch([], {"gold": (10**3, 50_001)}) == {"a/x": 4, "b/y": 2}
