"""The account of the crash program, of made-up tables: it is clean for a fair run, and each fault has its count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
import yaml

from spark_throttle.core import policy_change
from spark_throttle.core.fair.work import MESSAGE
from spark_throttle.core.state import DeciderState
from spark_throttle.policy.codec import parse_policies
from spark_throttle.testing.simulation.job import SimulatedJob
from spark_throttle.testing.simulation.rows import Row
from tests.crash.account import FAULTS, Account, Evidence, RunFacts, take_account
from tests.crash.history import DIRECTION, Batch
from tests.crash.tables import ATTEMPT, NO_SIZE
from tests.ledger import BATCH
from tests.life.contract import Contracts

NAMES = ("t/a", "t/b", "t/h")

BATCHES = 40
PERIOD_MS = 500
TURNS = 21
"""Messages that the group earns from batch to batch, and that each namespace offers."""

NONE = pd.DataFrame(columns=["id", "namespace", "size", "note", "part", "reason", "scope", BATCH]).astype(
    {"id": int, "size": int, BATCH: int}
)
"""No rejected rows."""

Doctor = Callable[[Evidence], Evidence]


def contracts(**group: Any) -> Contracts:
    quota = {"messages_per_second": 2 * TURNS, "burst_seconds": 0.5} | group
    document = {"resource_groups": {"g": {"publish": quota}}, "tenants": {"t": {"resource_group": "g"}}}
    return Contracts(parse_policies(yaml.safe_dump(document)), DIRECTION)


def run(shares: tuple[int, ...] = (7, 7, 7), names: tuple[str, ...] = NAMES, **group: Any) -> Evidence:
    """Return a run in which each namespace offers rows in each batch, and `shares` of the group's turns are theirs.

    In its first batch one more passes, for a bucket that is empty owes nothing. In its last all that waits leaves, as
    if the policies were ample then.
    """
    offered, admitted = list[dict[str, Any]](), list[dict[str, Any]]()
    left = dict.fromkeys(names, 0)
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for batch in range(BATCHES + 1):
        for name, share in zip(names, shares, strict=True):
            passes = share + (batch == 0 and name == names[0])
            if batch < BATCHES:
                for _ in range(TURNS):
                    row = {"id": len(offered), "namespace": name, "size": 1, "note": "x", "part": "p"}
                    offered.append(row | {"partition": 0, "place": batch})
                    rows[name].append(row)
            end = min(left[name] + passes, len(rows[name])) if batch < BATCHES else len(rows[name])
            admitted += [row | {BATCH: batch} for row in rows[name][left[name] : end]]
            left[name] = end
    batches = [
        Batch(number, number * PERIOD_MS, "ample" if number == BATCHES else "one", {0: number + 1})
        for number in range(BATCHES + 1)
    ]
    ample = contracts(messages_per_second=100_000)
    policies = {"one": contracts(**group), "ample": ample}
    return Evidence(pd.DataFrame(offered), pd.DataFrame(admitted), NONE, batches, policies, is_partitioned=True)


def account(evidence: Evidence) -> Account:
    return take_account(evidence, RunFacts(0))


def faults(found: Account) -> dict[str, int]:
    return {name: getattr(found, name) for name in FAULTS if getattr(found, name)}


def test_run_without_fault_has_none() -> None:
    found = account(run())
    assert faults(found) == {}
    assert found.keeps_the_laws
    assert (found.revisions, found.batches) == (2, BATCHES + 1)
    assert found.compared == 4 * BATCHES  # a tenant and its three namespaces
    assert 0 < (found.unfair_messages or 0) < 1


def lose(evidence: Evidence) -> Evidence:
    return replace(evidence, admitted=evidence.admitted.iloc[1:])


def double(evidence: Evidence) -> Evidence:
    return replace(evidence, admitted=pd.concat([evidence.admitted.iloc[:1], evidence.admitted]))


def damage(evidence: Evidence) -> Evidence:
    """A row that is not as it was offered is lost, and another is there that nobody offered."""
    return replace(evidence, admitted=evidence.admitted.assign(size=[2, *[1] * (len(evidence.admitted) - 1)]))


def turn_round(evidence: Evidence) -> Evidence:
    """The first two rows of a batch change places."""
    rows = evidence.admitted
    return replace(evidence, admitted=pd.concat([rows.iloc[1:2], rows.iloc[:1], rows.iloc[2:]]))


def break_row(**values: Any) -> Doctor:
    """Offer one row with other values, and admit it."""

    def doctored(evidence: Evidence) -> Evidence:
        offered, admitted = evidence.offered.copy(), evidence.admitted.copy()
        offered.loc[offered["id"] == 0, list(values)] = admitted.loc[admitted["id"] == 0, list(values)] = [
            *values.values()
        ]
        return replace(evidence, offered=offered, admitted=admitted)

    return doctored


def reject(reason: str, scope: str | None, **values: Any) -> Doctor:
    """Offer one row with other values, and reject it for a reason."""

    def doctored(evidence: Evidence) -> Evidence:
        evidence = break_row(**values)(evidence) if values else evidence
        is_first = evidence.admitted["id"] == 0
        rejected = evidence.admitted[is_first].assign(reason=reason, scope=scope)
        return replace(evidence, admitted=evidence.admitted[~is_first], rejected=rejected)

    return doctored


@pytest.mark.parametrize(
    ("doctored", "expected"),
    [
        (lose, {"lost": 1}),
        (double, {"doubled": 1, "over_limit": 1}),
        (damage, {"lost": 1, "doubled": 1}),
        (turn_round, {"out_of_order": 1}),
        (break_row(size=-1), {"wrong_reason": 1}),
        (break_row(part="a\0b"), {"wrong_reason": 1}),
        (reject("size_missing", None, size=NO_SIZE), {}),
        (reject("size_negative", None, size=NO_SIZE), {"wrong_reason": 1}),
        (reject("partition_unwritable", None, part="a\0b"), {}),
        (reject("namespace_too_long", None), {"wrong_reason": 1}),
        (reject("queue_full", "t"), {}),
        (reject("quota", "g"), {"wrong_reason": 1}),
    ],
)
def test_doctored_run_has_its_fault(doctored: Doctor, expected: dict[str, int]) -> None:
    found = account(doctored(run()))
    left_over = {"idle"} if found.admitted < found.offered else set()  # who did not pass left a token for good
    assert {name: count for name, count in faults(found).items() if name not in left_over} == expected
    assert found.keeps_the_laws == (not faults(found))


def unnumbered(evidence: Evidence) -> Evidence:
    """Return the run of a sink that does not say in which batch a row came."""
    told: dict[str, Any] = {BATCH: -1, ATTEMPT: "first"}
    return replace(evidence, admitted=evidence.admitted.assign(**told))


def test_row_may_come_again_by_another_attempt_and_not_twice_by_one() -> None:
    evidence = unnumbered(run())
    again = evidence.admitted.iloc[:5].assign(**{ATTEMPT: "second"})
    by_two = account(replace(evidence, admitted=pd.concat([evidence.admitted, again])))
    assert (faults(by_two), by_two.again) == ({}, 5)
    by_one = account(replace(evidence, admitted=pd.concat([evidence.admitted, again.assign(**{ATTEMPT: "first"})])))
    assert (faults(by_one), by_one.again) == ({"doubled": 5, "out_of_order": 5}, 0)


def test_topic_whose_rows_begin_again_more_often_than_the_job_was_killed_has_doubled_some() -> None:
    evidence = replace(unnumbered(run()), attempts=2)
    assert [take_account(evidence, RunFacts(kills)).doubled for kills in (1, 2)] == [1, 0]


def test_sink_that_does_not_say_the_batch_leaves_laws_unchecked_and_the_account_says_so() -> None:
    evidence = run((9, 6, 6))
    found = account(unnumbered(evidence))
    unchecked = found.over_limit, found.idle, found.starved, found.unfair, found.compared, found.unfair_messages
    assert unchecked == (None,) * 6
    assert found.keeps_the_laws
    assert found.verdict == (
        "no law was broken; not checked: over_limit, idle, starved, unfair "
        "(the sink does not say in which batch a row came)"
    )


def test_verdict_says_what_was_broken_and_that_nobody_was_compared() -> None:
    assert account(lose(run())).verdict == "broken: lost 1, idle 3"
    alone = account(run((TURNS,), ("t/a",), messages_per_second=4 * TURNS))
    assert alone.compared == 0
    assert alone.verdict == "no law was broken; fairness was not tried: nobody waited who could be compared"
    assert account(run()).verdict == "no law was broken"


def test_row_is_rejected_by_a_quota_that_rejects() -> None:
    for scope, wrong in (("g", 0), ("t", 1)):
        assert account(reject("quota", scope)(run(on_excess="reject"))).wrong_reason == wrong


@pytest.mark.parametrize(
    ("shares", "expected"),
    [((8, 8, 6), {"over_limit": 1}), ((9, 6, 6), {"unfair": 2}), ((11, 10, 0), {"starved": 1, "unfair": 1})],
)
def test_division_that_is_not_as_the_policy_says_is_seen(shares: tuple[int, ...], expected: dict[str, int]) -> None:
    found = account(run(shares))
    assert expected.items() <= faults(found).items()
    assert found.lost == found.doubled == found.out_of_order == 0


def test_what_observes_limits_nothing() -> None:
    assert faults(account(run((20, 20, 0), on_excess="observe"))) == {"idle": 3, "starved": 1}


def timed(evidence: Evidence, percents: dict[str, float]) -> Evidence:
    """Return a run whose tenants are of one group, and have quotas on processing time."""
    document = {
        "resource_groups": {"g": {"publish": {"messages_per_second": 2 * TURNS, "burst_seconds": 0.5}}},
        "tenants": {
            tenant: {"resource_group": "g", "publish": {"request_percentage": percent, "burst_seconds": 1}}
            for tenant, percent in percents.items()
        },
    }
    one = Contracts(parse_policies(yaml.safe_dump(document)), DIRECTION)
    return replace(evidence, contracts={**evidence.contracts, "one": one})


@pytest.mark.parametrize(("percent", "starved"), [(50, 1), (0.001, 0)])
def test_who_earns_time_is_expected_to_be_served(percent: float, starved: int) -> None:
    evidence = run((11, 10, 0), ("t/a", "t/b", "u/h"))
    assert account(timed(evidence, {"t": 100, "u": percent})).starved == starved


def test_hour_that_has_more_than_its_budget_is_seen() -> None:
    """Twenty batches are an hour, and the first has a message more than the other."""
    for budget, over in ((20 * TURNS + 1, 0), (20 * TURNS, 2)):  # what is too much is taken off the next
        evidence = run(messages_per_hour=budget)
        batches = [replace(batch, windows=(batch.number // 20, 0, 0)) for batch in evidence.batches]
        found = account(replace(evidence, batches=batches))
        assert found.over_budget == over
        assert faults(found).keys() <= {"over_budget"}
        assert (found.windows_ended, found.budgets_spent, found.budgeted_rows) == (1, 1 + over // 2, 40 * TURNS + 1)
    assert account(run()).over_budget is None


@pytest.mark.parametrize(("shares", "unguaranteed"), [((10, 10, 1), 0), ((11, 10, 0), 1)])
def test_who_has_less_than_it_is_guaranteed_is_seen(shares: tuple[int, ...], unguaranteed: int) -> None:
    document = {
        "resource_groups": {"g": {"publish": {"messages_per_second": 2 * TURNS, "burst_seconds": 0.5}}},
        "tenants": {"t": {"resource_group": "g"}},
        "namespaces": {"t/h": {"publish": {"guaranteed_messages_per_second": 2}}},
    }
    evidence = run(shares)
    one = Contracts(parse_policies(yaml.safe_dump(document)), DIRECTION)
    found = account(replace(evidence, contracts={**evidence.contracts, "one": one}))
    assert (found.unguaranteed, found.guaranteed) == (unguaranteed, BATCHES - 1)
    assert account(evidence).unguaranteed is None


def simulated(*policies: tuple[dict[str, Any], int]) -> Evidence:
    """Return what a job without Spark leaves behind, under one quota of the group after another for so many batches."""
    documents = [
        {"resource_groups": {"g": {"publish": quota}}, "tenants": {"t": {"resource_group": "g"}}}
        for quota, _ in policies
    ]
    job = SimulatedJob(documents[0])
    offered, admitted, batches = list[dict[str, Any]](), list[dict[str, Any]](), list[Batch]()
    for document, (_, count) in zip(documents, policies, strict=True):
        job.set_policies(document)
        for _ in range(count):
            for row in job.offer([(name, 1) for name in NAMES for _ in range(TURNS)]):
                offered.append(told(row) | {"partition": 0, "place": len(batches)})
            batch = job.trigger(after_ms=1_000)
            assert batch is not None
            batches.append(Batch(batch.number, batch.now_ms, batch.revision, {0: len(batches) + 1}))
            admitted += [told(row) | {BATCH: batch.number} for row in batch.admitted]
    contracts = {revision: Contracts(document, DIRECTION) for revision, document in job.documents.items()}
    return Evidence(pd.DataFrame(offered), pd.DataFrame(admitted), NONE, batches, contracts, is_partitioned=False)


def told(row: Row) -> dict[str, Any]:
    return {"id": row.id, "namespace": row.namespace, "size": row.size_bytes, "note": "", "part": ""}


RAISED = ({"messages_per_second": 0.1, "burst_seconds": 10}, 8), ({"messages_per_second": 50}, 30)
ENFORCED = ({"messages_per_second": 10, "on_excess": "observe"}, 25), ({"messages_per_second": 10}, 30)


@pytest.mark.parametrize("policies", [RAISED, ENFORCED])
def test_job_that_keeps_the_laws_has_a_clean_account(policies: tuple[tuple[dict[str, Any], int], ...]) -> None:
    found = account(simulated(*policies))
    assert set(faults(found)) == {"lost"}  # it waits
    assert (found.compared or 0) >= 3
    assert 0 < (found.unfair_messages or 0) <= 2


def test_one_who_is_hundreds_ahead_after_a_change_starves(monkeypatch: pytest.MonkeyPatch) -> None:
    carried = policy_change.carried

    def ahead(*given: Any, **more: Any) -> DeciderState:
        state = carried(*given, **more)
        lead_work = state.flows.lead_work.copy()
        lead_work[0, 0] += 500 * MESSAGE
        return replace(state, flows=replace(state.flows, lead_work=lead_work))

    assert not account(simulated(*RAISED)).starved
    monkeypatch.setattr(policy_change, "carried", ahead)
    found = account(simulated(*RAISED))
    assert (found.starved or 0) > 0
    assert (found.unfair or 0) > 0


def test_dry_run_that_is_owed_starves_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = policy_change.carried_balances
    hours_micro = -(10**9)
    monkeypatch.setattr(policy_change, "carried_balances", lambda *limits: kept(*limits) + hours_micro)
    assert account(simulated(*ENFORCED)).starved == 3
