"""A decider that a test drives one batch at a time, decided by the kernel or by the oracle.

Examples
--------
>>> from tests.oracle.worlds import Namespace, limit, make_policy
>>> decider = Decider("kernel", make_policy(default=Namespace(limit(messages_per_second=1))))
>>> [decision.verdict.name for decision in decider.batch(0, [("acme/logs", 100)] * 3)]
['ADMIT', 'ADMIT', 'DELAY']
>>> [decision.throttle_time_ms for decision in decider.batch(400)]
[600]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from spark_throttle.core.batch.admission import plan_admission
from spark_throttle.core.policy_change import under_epoch
from spark_throttle.core.quota import CompiledPolicy
from spark_throttle.core.state import DeciderState
from tests.oracle.comparison import as_reference
from tests.oracle.history import pins
from tests.oracle.reference import ReferencePlan, reference_admission
from tests.oracle.reference_change import reference_epoch
from tests.oracle.reference_usage import Decision
from tests.oracle.worlds import ArrivingRow, make_arrivals, with_tokens

START_MS = 1_760_000_000_000
"""The batch time to which `Decider.batch` adds `at_ms`."""

Engine: TypeAlias = Literal["kernel", "oracle"]


@dataclass
class Decider:
    """A decider's state, and the plan of its last batch."""

    engine: Engine

    policy: CompiledPolicy
    """The policy; a policy that is assigned takes effect in the next batch."""

    state: DeciderState = field(init=False)
    plan: ReferencePlan = field(init=False)
    in_force: CompiledPolicy = field(init=False)
    """The policy of the last batch."""

    def __post_init__(self) -> None:
        self.in_force = self.policy
        self.state = DeciderState.initial(self.policy, now_ms=START_MS)

    def batch(
        self,
        at_ms: int,
        rows: Iterable[ArrivingRow] = (),
        tokens: dict[str, tuple[float, float]] | None = None,
    ) -> list[Decision]:
        """Return the decisions of one batch.

        Parameters
        ----------
        tokens
            What the shared buckets hold when the batch begins, as in `with_tokens`; `None` for what they earned.
        """
        now_ms = START_MS + at_ms
        if self.policy is not self.in_force:
            self._change(now_ms)
        if tokens is not None:
            shared = self.state.shared.refilled(self.policy, now_ms=now_ms)
            self.state = with_tokens(replace(self.state, shared=shared), self.policy, tokens)
        arrivals = make_arrivals(rows)
        if self.engine == "oracle":
            self.plan = reference_admission(self.state, arrivals, self.policy, now_ms=now_ms)
            self.state = self.plan.state.to_arrays(self.policy)
        else:
            plan = plan_admission(self.state, arrivals, self.policy, now_ms=now_ms)
            self.plan = as_reference(plan, self.policy)
            self.state = plan.state
        return self.plan.decisions

    def _change(self, now_ms: int) -> None:
        """Bring the new policy, in an epoch that is made at this moment."""
        before, self.in_force = self.in_force, self.policy
        row = pins(self.state.epoch + 1, now_ms)
        if self.engine == "oracle":
            told = reference_epoch(self.state, row, before, self.policy, now_ms=now_ms)
            self.state = told.to_arrays(self.policy)
        else:
            self.state = under_epoch(self.state, row, before, self.policy, now_ms=now_ms)

    def admitted(self) -> Counter[str]:
        """Return the number of messages that the last batch admitted, by namespace."""
        return Counter({name: usage.admitted[0] for name, usage in self.plan.usage.items()})
