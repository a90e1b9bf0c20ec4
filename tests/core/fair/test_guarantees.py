"""L9: what a scope is guaranteed it has, whatever the others do; and what is left is divided as ever."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from spark_throttle.core.policy_change import carried_guarantees
from spark_throttle.core.quota import MICRO, UNLIMITED, Dimension
from spark_throttle.core.shared_buckets import guaranteed_rates
from spark_throttle.policy.codec import parse_document
from spark_throttle.policy.compile import compile_policy
from tests.core.fair.fluid import Fluid, Path
from tests.core.fair.guaranteed_worlds import DrawnWorld, Job, Values
from tests.effort import first_of
from tests.oracle.promised import Promise, PromisedBucket

UNITS = (MICRO, MICRO)
MOST_BEHIND = 2
"""By how many of the largest messages a scope may be behind, beside one for each below it that is guaranteed any."""


def job_of(rate: int, **tenants: Values) -> Job:
    """Return a job of so many messages a second among tenants."""
    return Job.of({
        "job": {"publish": {"messages_per_second": rate, "burst_seconds": 10}},
        "tenants": {name: {"publish": quota} for name, quota in tenants.items()},
    })  # fmt: skip


def messages(job: Job, offers: dict[str, int], seconds: int = 1) -> Counter[str]:
    """Return the messages that tenants are served in some seconds, in each of which they offer so many."""
    served: Counter[str] = Counter()
    for _ in range(seconds):
        batch = job.batch([(f"{tenant}/x", 1) for tenant, rows in offers.items() for _ in range(rows)], 1_000)
        served.update({name.partition("/")[0]: count for name, (count, _) in batch.items()})
    return served


def played(world: DrawnWorld, rng: random.Random, batches: int, *, largest_bytes: int) -> dict[str, Promise]:
    """Return what became of each promise while everybody else offers a hundred times what the job has."""
    job = Job.of(world.document)
    promises = {
        path: Promise([None if rate is None else rate * 1_000 for rate in rates])
        for path, rates in world.guaranteed.items()
    }
    sends = {name: rng.random() < 0.8 for name in world.names}
    for _ in range(batches):
        sends |= {name: not sends[name] for name in world.names if rng.random() < 0.1}
        rows = [
            (name, rng.choice((1, largest_bytes // 2, largest_bytes)))
            for name in world.names
            for _ in range(rng.choice((20, 200)) if sends[name] else 0)
            if job.waiting[name] < 1_000
        ]
        rng.shuffle(rows)
        served = job.batch(rows, rng.choice((100, 500, 1_000, 3_000)))
        for path, promise in promises.items():
            names = world.names_of(path)
            total = [sum(served.get(name, (0, 0))[d] for name in names) for d in (0, 1)]
            promise.note(job.now_ms, total, is_behind=any(job.waiting[name] for name in names))
    return promises


@pytest.mark.parametrize("seed", first_of(4, range(200)))
def test_scope_has_what_it_is_guaranteed_in_every_window(seed: int) -> None:
    rng = random.Random(seed)
    world = DrawnWorld.draw(rng, in_bytes=seed % 2 == 1)
    for path, promise in played(world, rng, 15, largest_bytes=100).items():
        assert promise.most_behind(UNITS, (1, 100)) <= MOST_BEHIND + world.inside(path), (path, world.document)


@pytest.mark.parametrize("seed", first_of(4, range(100)))
def test_guarantees_go_first_and_the_rest_is_divided_by_weight(seed: int) -> None:
    """Each tenant has one namespace, so who goes first is told by its bucket; the rest is L3's, as ever."""
    rng = random.Random(seed)
    names = [f"t{at}" for at in range(rng.randint(2, 6))]
    rates = {name: rng.choice((0, 0, 1, 7, 15)) for name in names}
    weights = {name: rng.choice((1, 1, 2, 9)) for name in names}
    tenants: dict[str, Any] = {
        name: {"weight": weights[name], **({"guaranteed_messages_per_second": rate} if rate else {})}
        for name, rate in rates.items()
    }
    job, buckets = job_of(100, **tenants), {name: PromisedBucket(rate * 1_000) for name, rate in rates.items()}
    messages(job, dict.fromkeys(names, 2_000))  # the job's burst is gone
    buckets = {name: replace(bucket, balance_micro=_held(job, name)) for name, bucket in buckets.items()}
    fluid, went, came = Fluid({(name,): weight for name, weight in weights.items()}), Counter[str](), Counter[str]()
    for _ in range(15):
        after_ms = rng.choice((100, 400, 1_000, 2_500))
        waiting = {name: job.waiting[f"{name}/x"] + 200 for name in names}
        served = job.batch([(f"{name}/x", 1) for name in names for _ in range(200)], after_ms)
        for name, bucket in buckets.items():
            first, all_of_it = bucket.first(after_ms, waiting[name]), served.get(f"{name}/x", (0, 0))[0]
            assert all_of_it >= first, name
            went[name] += all_of_it - first
            came[name] = went[name] + job.waiting[f"{name}/x"]
        had, have = ({Path((name,)): float(count) for name, count in each.items()} for each in (went, came))
        fluid.serve(have, had, {})
        assert max(fluid.ideal[(name,)] - went[name] for name in names) <= 4


def _held(job: Job, name: str, dimension: Dimension = Dimension.MESSAGES) -> int:
    """Return the balance of a tenant's guarantee."""
    guarantees, held = job.policy.guarantees, job.state.shared.guaranteed_micro
    scope = 1 + job.policy.tenant_names.to_pylist().index(name)
    return 0 if guarantees is None or held is None else int(held[guarantees.scope == scope, dimension].sum())


def test_one_that_was_idle_is_served_in_the_batch_of_its_first_row() -> None:
    job = job_of(100, acme={"guaranteed_messages_per_second": 60}, blue={"weight": 1000})
    assert messages(job, {"blue": 2_000}, 3)["blue"] == 1_000 + 200 + 1
    assert messages(job, {"acme": 1, "blue": 2_000})["acme"] == 1
    assert messages(job, {"acme": 500, "blue": 2_000})["acme"] >= 60


def test_what_is_not_asked_for_is_lent_and_not_kept() -> None:
    job = job_of(100, acme={"guaranteed_messages_per_second": 60}, blue={"weight": 1000})
    messages(job, {"acme": 0, "blue": 500}, 12)
    assert messages(job, {"acme": 200, "blue": 500})["acme"] == 61  # a second's, and the one that overdraws it
    assert messages(job, {"acme": 100, "blue": 500}, 10)["acme"] == 600


def test_guarantee_owes_nothing_of_what_it_says_nothing_of() -> None:
    job = job_of(100, acme={"guaranteed_messages_per_second": 60}, blue={"weight": 1000})
    messages(job, {"acme": 500, "blue": 2_000}, 3)
    assert _held(job, "acme") < 0 == _held(job, "acme", Dimension.BYTES)


def test_large_message_of_a_guarantee_is_repaid_before_the_next() -> None:
    job = Job.of({
        "job": {"publish": {"bytes_per_second": 1_000, "burst_seconds": 1}},
        "tenants": {"acme": {"publish": {"guaranteed_bytes_per_second": 100}}, "blue": {"publish": {"weight": 1000}}},
    })  # fmt: skip
    job.batch([("blue/x", 10)] * 1_000, 1_000)
    job.batch([("acme/x", 500)] * 20, 1_000)
    held = []
    for _ in range(6):
        held.append(_held(job, "acme", Dimension.BYTES) // MICRO)
        job.batch([], 1_000)
    assert held == [-400, -300, -200, -100, -500, -400]  # what is borrowed meanwhile is not charged


def in_debt(rate: int, repaid_s: int, **tenants: Values) -> Job:
    """Return a job of so many bytes a second that repays a large message of a stranger in so many seconds."""
    job = Job.of({
        "job": {"publish": {"bytes_per_second": rate, "burst_seconds": 10}},
        "tenants": {name: {"publish": quota} for name, quota in tenants.items()},
    })  # fmt: skip
    job.batch([("big/x", (10 + repaid_s) * rate)], 1_000)
    return job


@pytest.mark.parametrize("burst_seconds", [10, 100])
def test_claims_of_a_time_of_debt_are_divided_by_what_is_guaranteed(burst_seconds: int) -> None:
    """Not by weight: else the light one would have nothing for as long as the heavy one keeps its claim."""
    half = {"guaranteed_bytes_per_second": 500}
    job = in_debt(1_000, 100, light=half, heavy=half | {"weight": 1000, "burst_seconds": burst_seconds})
    served = []
    for _ in range(120):
        batch = job.batch([(name, 10) for name in ("light/x", "heavy/x") for _ in range(60)], 1_000)
        served.append(batch.get("light/x", (0, 0))[1])
    assert served[-18:] == [500] * 18


@pytest.mark.parametrize("seed", first_of(3, range(100)))
def test_claim_has_its_part_of_what_is_there_in_every_batch(seed: int) -> None:
    """The part is by what is guaranteed; the claims that go before it may overdraw theirs by a message each."""
    rng = random.Random(seed)
    cuts = sorted(rng.random() for _ in range(rng.randint(2, 6)))
    rate, largest = 3_000 * len(cuts), 100
    guaranteed = {f"t{at}": int(rate * (cut - before)) for at, (before, cut) in enumerate(pairwise([0.0, *cuts]))}
    quotas = {name: {"guaranteed_bytes_per_second": claim} for name, claim in guaranteed.items()}
    bursts = {name: rng.choice((2, 10, 100)) for name in quotas}
    more = {name: {"weight": rng.choice((1, 10, 1000)), "burst_seconds": bursts[name]} for name in quotas}
    job = in_debt(rate, 10, **{name: quotas[name] | more[name] for name in quotas})
    seen = 0
    for _ in range(30):
        claims = {name: _held(job, name, Dimension.BYTES) for name in quotas}
        has = int(job.state.shared.balance_micro[0, Dimension.BYTES])
        rows = [(f"{name}/x", rng.choice((1, 50, largest))) for name in (*quotas, "other") for _ in range(100)]
        elapsed_ms = rng.choice((100, 500, 1_000))
        served = job.batch(rows if len(job.state.queue) < 5_000 else [], elapsed_ms)
        has = min(has + rate * elapsed_ms * 1_000, 10 * rate * MICRO) // MICRO
        for name, claim in guaranteed.items():
            part, earned = has * claim // rate, claim * min(elapsed_ms, 1_000 * min(10, bursts[name])) * 1_000
            claimed = min(claims[name] + earned, claim * bursts[name] * MICRO) // MICRO
            if has >= 0 and claimed >= part and job.waiting[f"{name}/x"]:
                seen += 1
                assert served.get(f"{name}/x", (0, 0))[1] >= part - len(quotas) * largest
    assert seen


def test_weight_of_nine_gets_no_more_than_what_is_left() -> None:
    """A guarantee is no lead: the rest is divided as among those who were guaranteed nothing."""
    job = job_of(100, acme={"guaranteed_messages_per_second": 60}, blue={"weight": 3})
    messages(job, {"acme": 2_000, "blue": 2_000})
    served = messages(job, {"acme": 500, "blue": 500}, 20)
    assert served == {"acme": 20 * (60 + 10), "blue": 20 * 30}


@pytest.mark.parametrize(("claims", "short"), [
    ("namespaces", "tenants"), ("namespaces", "resource_groups"), ("namespaces", "job"),
    ("tenants", "resource_groups"), ("tenants", "job"), ("resource_groups", "job"),
])  # fmt: skip
def test_guarantee_is_kept_whichever_scope_above_runs_short(claims: str, short: str) -> None:
    """A rival of the largest weight is beside it in the scope that runs short, and floods it."""
    rival = {"tenants": "acme/y", "resource_groups": "blue/y", "job": "cora/y"}[short]
    document: Values = {
        "job": {"publish": {}},
        "resource_groups": {"gold": {"publish": {}}, "iron": {"publish": {"weight": 1000}}},
        "tenants": {
            "acme": {"resource_group": "gold", "publish": {}},
            "blue": {"resource_group": "gold", "publish": {"weight": 1000}}, "cora": {"resource_group": "iron"},
        },
        "namespaces": {"acme/x": {"publish": {}}, "acme/y": {"publish": {"weight": 1000}}},
    }  # fmt: skip
    named = {"job": "", "resource_groups": "gold", "tenants": "acme", "namespaces": "acme/x"}
    limited = document[short] if short == "job" else document[short][named[short]]
    limited["publish"] |= {"messages_per_second": 20, "burst_seconds": 2}
    document[claims][named[claims]]["publish"]["guaranteed_messages_per_second"] = 10
    job, served = Job.of(document), Counter[str]()
    for second in range(13):
        batch = job.batch([(name, 1) for name in ("acme/x", rival) for _ in range(60)], 1_000)
        served.update({name: count for name, (count, _) in batch.items() if second >= 3})
    assert served["acme/x"] >= 10 * 10 - MOST_BEHIND
    assert served["acme/x"] + served[rival] <= 10 * 20 + 1


def test_guarantee_earns_in_a_pause_no_more_than_the_scopes_above_keep_of_it() -> None:
    """Else it would go first with the tokens of a minute that the job has lost, and another would wait as long."""
    job = job_of(
        20, acme={"guaranteed_messages_per_second": 10, "burst_seconds": 100, "weight": 1000},
        blue={"guaranteed_messages_per_second": 10},
    )  # fmt: skip
    messages(job, {"acme": 2_000, "blue": 2_000})
    job.batch([], 60_000)
    assert messages(job, {}, seconds=20)["blue"] >= 20 * 10 - MOST_BEHIND - 1


@pytest.mark.parametrize("job", [{}, {"request_percentage": 50, "on_excess": "observe"}])
def test_guarantee_of_what_no_scope_above_holds_back_takes_part_in_nothing(job: Values) -> None:
    """Else it would go when an unrelated namespace gets a quota on time, of which nothing is guaranteed here."""
    document = {
        "job": {"publish": job},
        "resource_groups": {"g": {"publish": {"messages_per_second": 20, "burst_seconds": 1}}},
        "tenants": {
            "acme": {"publish": {"guaranteed_messages_per_second": 10, "guaranteed_request_percentage": 0}},
            "blue": {"publish": {"weight": 1000}},
        },
        "defaults": {"resource_group": "g"},
    }  # fmt: skip
    timed = {**document, "namespaces": {"cora/x": {"publish": {"request_percentage": 1}}}}
    served = [messages(Job.of(each), {"acme": 20, "blue": 20}, 14)["acme"] for each in (document, timed)]
    assert served[0] == served[1] >= 14 * 10


def test_namespaces_divide_what_their_tenant_is_guaranteed_by_weight() -> None:
    job = Job.of({
        "job": {"publish": {"messages_per_second": 100, "burst_seconds": 1}},
        "tenants": {"acme": {"publish": {"guaranteed_messages_per_second": 90}}},
        "namespaces": {
            "acme/a": {"publish": {"weight": 2}}, "acme/b": {"publish": {"guaranteed_messages_per_second": 30}}
        },
    })  # fmt: skip
    served: Counter[str] = Counter()
    for second in range(22):
        batch = job.batch([(name, 1) for name in ("acme/a", "acme/b", "blue/c") for _ in range(200)], 1_000)
        served.update({name: count for name, (count, _) in batch.items() if second > 1})
    # 30 go first; of the tenant's other 60 two thirds are a's; of the last 10 the tenant has half, divided alike
    assert abs(served["acme/a"] - 20 * (40 + 10 / 3)) <= 6
    assert abs(served["acme/b"] - 20 * (30 + 20 + 5 / 3)) <= 6


def test_tenants_divide_by_weight_what_their_group_is_guaranteed() -> None:
    """It is a message in each batch, and a rival of the largest weight takes all else."""
    job = Job.of({
        "job": {"publish": {"messages_per_second": 2, "burst_seconds": 1}},
        "resource_groups": {
            "g": {"publish": {"guaranteed_messages_per_second": 1}}, "h": {"publish": {"weight": 1000}}
        },
        "tenants": {
            "acme": {"resource_group": "g", "publish": {"weight": 3}}, "blue": {"resource_group": "g"},
        },
        "defaults": {"resource_group": "h"},
    })  # fmt: skip
    messages(job, {"cora": 50})
    served = messages(job, {"acme": 5, "blue": 5, "cora": 5}, 11)
    assert (served["acme"], served["blue"]) == (9, 3)  # the first batch has an earlier claim, too


def test_tenant_is_guaranteed_nothing_in_another_group() -> None:
    job = Job.of({
        "resource_groups": {name: {"publish": {"messages_per_second": 50, "burst_seconds": 1}} for name in "gh"},
        "tenants": {
            "acme": {"resource_group": "g", "publish": {"guaranteed_messages_per_second": 40}},
            "blue": {"resource_group": "h", "publish": {"weight": 4}},
        },
        "namespaces": {"acme/h": {"resource_group": "h"}},
    })  # fmt: skip
    job.batch([(name, 1) for name in ("acme/h", "blue/x") for _ in range(900)], 1_000)
    served: Counter[str] = Counter()
    for _ in range(10):
        served.update({name: count for name, (count, _) in job.batch([], 1_000).items()})
    assert served == {"acme/h": 100, "blue/x": 400}


@pytest.mark.parametrize("on_excess", ["reject", "delay"])
def test_group_that_rejects_takes_what_is_guaranteed_before_it_rejects_anything(on_excess: str) -> None:
    job = Job.of({
        "resource_groups": {"g": {"publish": {"messages_per_second": 20, "burst_seconds": 1, "on_excess": on_excess}}},
        "defaults": {"resource_group": "g"},
        "tenants": {"acme": {"publish": {"guaranteed_messages_per_second": 10}}},
    })  # fmt: skip
    messages(job, {"blue": 1_000})
    assert messages(job, {"acme": 9, "blue": 1_000}, 20)["acme"] == 9 * 20


def test_kueues_documented_example_has_our_numbers_beside_it() -> None:
    """kueue.sigs.k8s.io/docs/concepts/cluster_queue: two queues in a cohort, of nominal quotas of 9 and 12.

    ======================================================  =====  =========================
    Kueue                                                   CPUs   here, messages a second
    ======================================================  =====  =========================
    a alone, unused quota of b is borrowed                  9+12   21: the job's limit
    a alone with ``borrowingLimit: 1``                      9+1    10: its own limit
    b alone                                                 12+9   21
    both have pending workloads: nominal quotas are met     9, 12  9 and 12
    a third queue of nominal 0, b idle: 12 are borrowed     -      a 9+3, c 9 by weights 1, 3
    ======================================================  =====  =========================

    Kueue reclaims what was borrowed by preemption; here a row that has left is gone, so it is taken back by the next.
    """
    a, b = {"guaranteed_messages_per_second": 9}, {"guaranteed_messages_per_second": 12}

    def a_second(offers: dict[str, int], **tenants: Values) -> dict[str, int]:
        job = job_of(21, **tenants)
        messages(job, dict.fromkeys(offers, 300))
        return {name: round(count / 20) for name, count in messages(job, offers, 20).items()}

    some = 30
    assert a_second({"a": some}, a=a, b=b) == {"a": 21}
    assert a_second({"a": some}, a=a | {"messages_per_second": 10}, b=b) == {"a": 10}
    assert a_second({"b": some}, a=a, b=b) == {"b": 21}
    assert a_second({"a": some, "b": some}, a=a | {"weight": 7}, b=b) == {"a": 9, "b": 12}
    assert a_second({"a": some, "c": some}, a=a, b=b, c={"weight": 3}) == {"a": 12, "c": 9}


def test_job_guarantees_the_least_part_that_it_has_of_the_quotas_on_the_way() -> None:
    policy = compile_policy(parse_document({
        "job": {"publish": {"messages_per_second": 100}},
        "resource_groups": {"g": {"publish": {"messages_per_second": 80}}},
        "tenants": {"acme": {"resource_group": "g", "publish": {"guaranteed_messages_per_second": 40}}},
    }), "publish")  # fmt: skip
    for job, tenant, group, part in ((100, UNLIMITED, 80, 1), (50, UNLIMITED, 20, 0.25), (25, UNLIMITED, 80, 0.25)):
        share = np.full((3, 4), UNLIMITED)
        share[:, 0] = [each * 1_000 if each > 0 else each for each in (job, tenant, group)]
        assert guaranteed_rates(policy, share)[0].tolist() == [40_000 * part, UNLIMITED, UNLIMITED, UNLIMITED]
    assert guaranteed_rates(policy, np.zeros((3, 4), dtype=np.int64))[0, 0] == 0
    whole = {"guaranteed_messages_per_second": "1.024"}  # a power of two in micro-messages a millisecond
    policy = compile_policy(parse_document({
        "job": {"publish": {"messages_per_second": "1.024"}}, "tenants": {"acme": {"publish": whole}},
    }), "publish")  # fmt: skip
    assert guaranteed_rates(policy, np.zeros((2, 4), dtype=np.int64))[0, 0] == 0


def test_guarantee_keeps_its_debt_when_the_policy_changes() -> None:
    claims = {"guaranteed_messages_per_second": 5}

    def policy_of(*names: str) -> Any:
        tenants = {name: {"publish": claims} for name in names}
        job = {"publish": {"messages_per_second": 99}}
        return compile_policy(parse_document({"job": job, "tenants": tenants, "namespaces": tenants}), "publish")

    before, after = policy_of("acme", "blue"), policy_of("blue", "cora")
    held = np.arange(16).reshape(4, 4) - 20
    carried = carried_guarantees(held, before, after)
    assert carried is not None
    assert carried[:, 0].tolist() == [held[1, 0], 0, held[3, 0], 0]
