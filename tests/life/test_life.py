"""Lives of a job under all laws: a short run here, ``make life`` for long."""

from __future__ import annotations

import random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from spark_throttle.policy.model import GroupPolicy, NamespacePolicy, PolicyDocument, QueuePolicy
from spark_throttle.policy.quotas import Quota
from tests.effort import examples, thorough_after
from tests.life.drawing import Step
from tests.life.laws import Violation
from tests.life.life import LAW_NAMES, Birth, Life, draw_script
from tests.life.policies import KINDS, Tempers, changed, first, in_units
from tests.life.run import Tally, broken_by, main, report
from tests.life.shrink import shrunk
from tests.life.steps import RULES


# A seed that is smaller is no simpler: `report` takes steps out instead.
@pytest.mark.slow
@pytest.mark.parametrize("number", thorough_after(1, [0, 1]))
@settings(examples(2), phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(seed=st.integers(0, 2**32 - 1))
def test_no_law_is_broken_in_any_life(number: int, seed: int) -> None:
    script = draw_script(seed, number)
    found = broken_by(script, script.steps, LAW_NAMES)
    if found is not None:
        command = f"python -m tests.life.run --seed {seed} --life {number}"
        pytest.fail("\n".join(report(script, found, LAW_NAMES, command, is_cut=True)))


def keys_of(value: object) -> set[str]:
    """Return all keys of a document, those of mappings in it too."""
    if not isinstance(value, dict):
        return set()
    return set(value).union(*map(keys_of, value.values()))


def test_lives_draw_every_key_of_a_policy() -> None:
    """No law checks a key that no life has: draw it in `tests.life.policies`."""
    rng, tempers = random.Random(1), Tempers(frozenset(KINDS) - {"revert", "absent"})
    document = first(rng, tempers)
    drawn = keys_of(document)
    for _ in range(500):
        document = changed(rng, tempers, document, [])
        drawn |= keys_of(document) | keys_of(in_units(document))
    models = (PolicyDocument, GroupPolicy, NamespacePolicy, QueuePolicy, Quota)
    of_publish = {key for model in models for key in model.model_fields} - {"dispatch", "read_throttling"}
    of_publish -= {"locked"}  # who may change an entry decides about no row
    of_publish -= {"fair_between", "destination"}  # the laws know neither
    assert of_publish <= drawn


def test_a_law_that_there_is_none_of_is_refused_and_not_found_to_hold() -> None:
    script = draw_script(1, 0)
    with pytest.raises(ValueError, match="unknown laws Nonsense; there are L1, L2"):
        broken_by(script, script.steps, ["L2", "Nonsense"])


def test_the_auditor_finds_a_row_that_a_table_has_lost() -> None:
    life = Life(Birth({"version": 1}))
    life.offer([("acme/a", 1, 3)])
    life.trigger(1_000)
    life.audit()
    life.job.outside.table.rows.pop()
    with pytest.raises(Violation, match=r"Audit: L1: Row\(id=2"):
        life.audit()


@pytest.mark.slow
def test_drawn_lives_are_steps_of_the_models() -> None:
    tally = Tally()
    rules = [rule for rule in RULES if rule != "clone"]
    for number in (8, 11):  # the first shares its quotas
        script = draw_script(77, number, rules=rules, steps=10)
        assert broken_by(script, script.steps, LAW_NAMES, tally, is_traced=True) is None
    assert tally.reached.total() > 200
    assert tally.of_leases.total() > 300


def test_a_seed_and_a_number_are_one_life() -> None:
    assert draw_script(3, 4) == draw_script(3, 4)
    assert draw_script(3, 4) != draw_script(3, 5)


def test_lives_charge_processing_time_and_have_quotas_on_it() -> None:
    births = [draw_script(3, number).birth for number in range(40)]
    costly = [birth for birth in births if any(row_ns for _, row_ns in birth.row_ns)]
    assert len(costly) >= 8
    assert any("request_percentage" in str(birth.document) for birth in costly)


def test_shrinking_leaves_the_steps_that_matter() -> None:
    steps = [Step("burst", {"number": number}) for number in range(40)]
    needed = [steps[5], steps[23]]
    assert shrunk(steps, lambda some: all(step in some for step in needed)) == needed


def test_the_last_line_of_a_run_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "1", "--minutes", "0"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        '{"seed": 1, "steps": 0, "violations": 0, "by_law": {"L1": 0, "L2": 0, "L3": 0, "Pace": 0, "L4": 0, "L5": 0, '
        '"L6": 0, "L7": 0, "L8": 0, "Debt": 0, "Starvation": 0, "L9": 0, "Queue": 0, "Sharing": 0, "Rejection": 0, '
        '"Charges": 0, "Time": 0, "Unspent": 0, "Budget": 0, "Isolation": 0, "Takeover": 0, "Audit": 0, "Model": 0}, '
        '"lives": 0, "batches": 0, "model_steps": 0, "model_actions": "0 of 19", "lease_actions": "0 of 14"}'
    )
