"""A rule for many names observes a stable part of them: that of a slow hash, whatever other names there are."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pytest

from spark_throttle.core.batch.admission import plan_admission
from spark_throttle.core.batch.decisions import Reason
from spark_throttle.core.names import matching
from spark_throttle.core.names.matching import match
from spark_throttle.core.policy_change import carried
from spark_throttle.core.quota import CompiledPolicy, OnExcess, Verdict
from spark_throttle.core.state import DeciderState
from spark_throttle.policy.codec import parse_document
from spark_throttle.policy.compile import compile_policy
from spark_throttle.status.usage_table import usage_rows
from tests.oracle.reference_rules import hash_of
from tests.oracle.worlds import make_arrivals

NAMES: Final = [f"acme/{n}" for n in range(1_000)] + ["acme/", "acme/é", "acme/\x00", "acme/" + "x" * 1_019]


def policy(percent: int, **quota: object) -> CompiledPolicy:
    """Return a policy under which each namespace of a tenant may send one message a second."""
    rule = {"messages_per_second": 1, "burst_seconds": 1, "observe_percent": percent, **quota}
    return compile_policy(parse_document({"namespaces": {"acme/*": {"publish": rule}}}), "publish")


def enforced(percent: int, names: list[str]) -> list[str]:
    limits = match(pa.array(names, pa.string()), policy(percent)).own_limits(policy(percent))
    return [name for name, action in zip(names, limits.on_excess.tolist(), strict=True) if action != OnExcess.OBSERVE]


@pytest.mark.parametrize("percent", [0, 1, 50, 90, 99, 100])
def test_names_that_are_held_are_those_of_the_slow_hash(percent: int) -> None:
    assert enforced(percent, NAMES) == [name for name in NAMES if hash_of(name) % 100 >= percent]


def test_who_is_held_at_a_larger_part_is_held_at_every_smaller_one() -> None:
    held = [set(enforced(percent, NAMES)) for percent in range(0, 101, 5)]
    assert all(fewer < more or fewer == more == set() for more, fewer in pairwise(held))
    assert (len(held[0]), held[-1]) == (len(NAMES), set())
    assert len(held[10]) / len(NAMES) == pytest.approx(0.5, abs=0.05)


def test_part_of_a_name_does_not_depend_on_the_names_beside_it() -> None:
    draw, held = random.Random(3), set(enforced(60, NAMES))
    for _ in range(20):
        some = draw.sample(NAMES, draw.randrange(1, 30))
        assert set(enforced(60, some)) == held.intersection(some)


def test_observed_names_pass_and_what_would_have_waited_is_counted() -> None:
    names, compiled = NAMES[:40], policy(70)
    held = set(enforced(70, names))
    rows = make_arrivals([(name, 1) for name in names for _ in range(5)])
    plan = plan_admission(DeciderState.initial(compiled, now_ms=1_000), rows, compiled, now_ms=1_000)
    told = {row["scope"]: row for row in usage_rows(plan.usage, compiled, 0).to_pylist() if row["level"] == "namespace"}
    for name in names:
        # A full bucket of one token passes two messages.
        admitted, waiting, observed = (2, 3, 0) if name in held else (5, 0, 3)
        row = told[name]
        assert (row["admitted_messages"], row["waiting_messages"]) == (admitted, waiting), name
        assert row["observed_messages"] == observed, name


def test_name_that_is_held_from_now_on_owes_one_burst_at_most() -> None:
    """As everywhere where a quota no longer observes."""
    name = next(name for name in NAMES if 50 <= hash_of(name) % 100 < 90)
    observing, holding = (policy(percent, bytes_per_second=10) for percent in (90, 50))
    rows = make_arrivals([(name, 1_000)])
    state = plan_admission(DeciderState.initial(observing, now_ms=1_000), rows, observing, now_ms=1_000).state
    assert state.flows.balance_micro[0, 1] == -990_000_000
    assert carried(state, observing, holding, now_ms=1_000).flows.balance_micro[0, 1] == -10_000_000


def test_larger_messages_of_observed_names_are_marked_alone() -> None:
    names, compiled = NAMES[:40], policy(50, max_message_bytes=10)
    plan = plan_admission(
        DeciderState.initial(compiled, now_ms=1_000), make_arrivals([(name, 11) for name in names]), compiled,
        now_ms=1_000,
    )  # fmt: skip
    is_held = np.isin(names, enforced(50, names))
    assert (plan.decisions.verdict == Verdict.REJECT).tolist() == is_held.tolist()
    assert set(plan.decisions.reason.tolist()) == {Reason.SIZE_TOO_LARGE}


def test_many_names_are_hashed_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = enforced(60, NAMES)
    monkeypatch.setattr(matching, "_HASHED_AT_ONCE", 7)
    assert enforced(60, NAMES) == whole
