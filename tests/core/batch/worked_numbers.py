"""Policies and decisions that the worked numbers are told with."""

from __future__ import annotations

from collections import Counter
from typing import Final

from spark_throttle.core.quota import CompiledPolicy, Dimension, Level, Verdict
from tests.oracle.reference_usage import Decision
from tests.oracle.worlds import Namespace, make_policy

NS: Final = "acme/logs"
ADMITTED: Final = Decision(Verdict.ADMIT)


def one_namespace(rules: Namespace) -> CompiledPolicy:
    """Return a policy of one entry, for `NS`."""
    return make_policy(namespaces={NS: rules})


def by_quota(verdict: Verdict, throttle_time_ms: int, dimension: Dimension = Dimension.BYTES) -> Decision:
    """Return a decision that the quota of the namespace itself takes."""
    return Decision(verdict, "quota", Level.NAMESPACE, dimension, -1, throttle_time_ms)


def verdicts(decisions: list[Decision]) -> Counter[Verdict]:
    """Return how many decisions there are of each verdict."""
    return Counter(decision.verdict for decision in decisions)
