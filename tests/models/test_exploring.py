"""Both models keep their promises within their bounds, do all that they can, and see each fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import pytest

from tests.models.batches import Batches
from tests.models.checker import Fault, Model, explore
from tests.models.exploring import CASES, explored_model
from tests.models.faults import OF_BATCHES, OF_LEASES
from tests.models.leases import Leases

pytestmark = pytest.mark.slow

REACHING: Final[Mapping[type[Model[Any]], tuple[str, ...]]] = {
    Batches: ("committed", "logged"),
    Leases: ("runs of one job", "a quota falls", "damaged", "paid", "a job that is put back"),
}
"""Cases that together take every action of a model."""

FAULTS: Final[Mapping[str, Fault]] = {**OF_BATCHES, **OF_LEASES}


def explored(model: Any) -> Any:
    return explore(model, model.begins)


@pytest.mark.parametrize("case", CASES)
def test_no_promise_of_a_model_is_broken_within_the_bounds_of_a_case(case: str) -> None:
    found = explored(explored_model(case))
    assert found.broken is None, str(found)
    assert found.is_whole


@pytest.mark.parametrize("model", REACHING)
def test_every_action_of_a_model_is_reached_from_a_scene(model: type[Model[Any]]) -> None:
    reached: Counter[str] = Counter()
    for case in REACHING[model]:
        reached += explored(explored_model(case)).steps
    assert set(reached) == set(model.actions)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_seen_by_its_invariant(fault: str) -> None:
    found = explored(explored_model(FAULTS[fault].case, without=frozenset({fault})))
    assert found.broken == FAULTS[fault].invariant


@pytest.mark.parametrize(("model", "faults"), [(Batches, OF_BATCHES), (Leases, OF_LEASES)])
def test_each_invariant_of_a_model_sees_a_fault(model: type[Model[Any]], faults: Mapping[str, Fault]) -> None:
    assert {fault.invariant for fault in faults.values()} == set(model.invariants)


def test_ten_faults_that_the_project_had_can_be_switched_on_again() -> None:
    assert len([fault for fault in FAULTS.values() if fault.found]) >= 10
