"""Lives whose rows cost what is told later: the laws on tokens find what is settled wrongly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pytest

from spark_throttle.core import corrections, reservations
from spark_throttle.core.corrections import Owed
from spark_throttle.core.quota import CompiledPolicy
from spark_throttle.core.reservations import LateCosts, SettledCosts
from spark_throttle.core.state import DeciderState
from spark_throttle.spark.move import decider_batch
from tests.life.drawing import Step
from tests.life.laws import Violation
from tests.life.life import ISOLATION, Birth, Life, draw_script

Fault: TypeAlias = Callable[[pytest.MonkeyPatch], None]

# What is said of bytes is of units in these lives.
JOB = {"version": 1, "job": {"publish": {"bytes_per_second": 100, "burst_seconds": 10}}}
BIRTH = Birth(JOB, counts_units=True, tells_costs=True)
FLOOD = Step("flood", {"rows": [("acme/a", 20, 150), ("blue/a", 10, 150)], "triggers": 12, "after_ms": 1_000})


def with_owed(changed: Callable[[Owed], Owed]) -> Fault:
    charge = corrections.with_owed

    def charged(state: DeciderState, owed: Owed, policy: CompiledPolicy) -> DeciderState:
        return charge(state, changed(owed), policy)

    return lambda patch: patch.setattr(reservations, "with_owed", charged)


def charges_nothing_more(owed: Owed) -> Owed:
    return replace(owed, own=np.minimum(owed.own, 0), shared=np.minimum(owed.shared, 0))


def gives_nothing_back(owed: Owed) -> Owed:
    return replace(owed, own=np.maximum(owed.own, 0), shared=np.maximum(owed.shared, 0))


def knows_no_shared_scope(owed: Owed) -> Owed:
    return replace(owed, shared=np.zeros_like(owed.shared))


def keeps_what_is_settled(patch: pytest.MonkeyPatch) -> None:
    """A cost that is told again settles again."""
    settle = reservations.settled

    def settled(state: DeciderState, costs: LateCosts, policy: CompiledPolicy) -> tuple[DeciderState, SettledCosts]:
        twice = settle(state, costs, policy)[0]
        return settle(replace(twice, reservations=state.reservations), costs, policy)

    patch.setattr(decider_batch, "settled_by", settled)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("law", "fault"),
    [
        ("L2", with_owed(charges_nothing_more)),
        ("L4", with_owed(gives_nothing_back)),
        ("L2", with_owed(knows_no_shared_scope)),
        ("L4", keeps_what_is_settled),
    ],
)
def test_a_law_on_tokens_finds_costs_that_are_settled_wrongly(
    law: str, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(BIRTH, (law, ISOLATION))
    life.play([FLOOD])
    assert life.world.reservations.settled > 50
    fault(monkeypatch)
    with pytest.raises(Violation) as found:
        Life(BIRTH, (law, ISOLATION)).play([FLOOD])
    assert found.value.law == law


def test_a_part_of_drawn_lives_tells_costs_late() -> None:
    births = [draw_script(3, number).birth for number in range(60)]
    late = [birth for birth in births if birth.tells_costs]
    assert len(late) >= 4
    assert all(birth.counts_units and not birth.is_sharing for birth in late)
