"""Guarantees that cannot be kept at once are refused, with the numbers and the names."""

from __future__ import annotations

from typing import Any

import pytest

from spark_throttle.errors import PolicyError
from spark_throttle.policy.codec import parse_document
from spark_throttle.policy.compile import compile_policy

Values = dict[str, Any]


def publish(**quota: float) -> Values:
    return {"publish": quota}


def claim(rate: float, **more: Any) -> Values:
    return {"publish": {"guaranteed_messages_per_second": rate}, **more}


JOB: Values = {"job": publish(messages_per_second=100)}
SOON: Values = {"until": "2026-12-04T18:00:00Z", "reason": "tried"}


@pytest.mark.parametrize(("values", "path", "said"), [
    ({**JOB, "tenants": {"a": claim(60), "b": claim(50)}}, "job.publish.messages_per_second",
     "110 are guaranteed of its 100 (tenants.a 60, tenants.b 50); guarantee 10 less, or give it more"),
    ({**JOB, "resource_groups": {"g": claim(70)}, "tenants": {"a": claim(31)}}, "job.publish.messages_per_second",
     "101 are guaranteed of its 100 (resource_groups.g 70, tenants.a 31)"),
    ({"resource_groups": {"g": claim(5)}, "tenants": {"a": claim(6, resource_group="g")}},
     "resource_groups.g.publish.guaranteed_messages_per_second", "6 are guaranteed of its 5 (tenants.a 6)"),
    ({"resource_groups": {"g": publish(messages_per_second=5)}, "defaults": {"resource_group": "g"},
      "tenants": {"a": claim(6)}}, "resource_groups.g.publish.messages_per_second", "6 are guaranteed of its 5"),
    ({"tenants": {"a": claim(5)}, "namespaces": {"a/x": claim(3), "a/y": claim(3)}},
     "tenants.a.publish.guaranteed_messages_per_second", "6 are guaranteed of its 5 (namespaces.a/x 3, namespaces.a/y"),
    ({**JOB, "namespaces": {f"a/{each}": claim(30) for each in range(4)}}, "job.publish.messages_per_second",
     "120 are guaranteed of its 100 (namespaces.a/0 30, namespaces.a/1 30, namespaces.a/2 30 and 1 more)"),
    ({"resource_groups": {"g": {}}, "tenants": {"a": publish(messages_per_second=5)},
      "namespaces": {"a/x": claim(3), "a/y": claim(3, resource_group="g")}},
     "tenants.a.publish.messages_per_second", "6 are guaranteed of its 5"),
    ({"tenants": {"a": publish(messages_per_second=5, guaranteed_messages_per_second=6)}},
     "tenants.a.publish.guaranteed_messages_per_second",
     "6 is more than its own messages_per_second of 5 allows; guarantee no more than that"),
    ({"job": publish(messages_per_second=100, bytes_per_second=7), "tenants": {"a": claim(6)}}, "tenants.a.publish",
     "and nothing is said of it: what is guaranteed could take all of that; add guaranteed_bytes_per_second"),
    ({"resource_groups": {"g": {"fair_between": "namespaces"}}, "tenants": {"a": claim(1, resource_group="g")}},
     "tenants.a.publish", "resource_groups.g divides between namespaces, not between tenants; guarantee it to the"),
    ({"job": {**publish(messages_per_second=100), "exception": {**SOON, **publish(messages_per_second=5)}},
      "tenants": {"a": claim(6)}}, "job.publish.messages_per_second",
     "while exceptions are in force: 6 are guaranteed of its 5"),
    ({"job": {**publish(messages_per_second=5), "exception": {**SOON, **publish(messages_per_second=100)}},
      "tenants": {"a": claim(6)}}, "job.publish.messages_per_second", "6 are guaranteed of its 5"),
    ({"tenants": {"a": {"publish": {"guaranteed_messages_per_second": 10**9, "burst_seconds": 10**6}}}},
     "tenants.a.publish.burst_seconds", "is a burst over"),
])  # fmt: skip
def test_guarantee_that_cannot_be_kept_is_refused(values: Values, path: str, said: str) -> None:
    with pytest.raises(PolicyError) as refused:
        parse_document(values)
    assert refused.value.path == path
    assert said in refused.value.problem


@pytest.mark.parametrize("values", [
    {**JOB, "tenants": {"a": claim(60), "b": claim(40)}},
    {**JOB, "resource_groups": {"g": claim(60)}, "tenants": {"a": claim(60, resource_group="g"), "b": claim(40)}},
    {**JOB, "tenants": {"a": claim(100)}, "namespaces": {"a/x": claim(100)}},
    {"job": {"dispatch": {"messages_per_second": 1}}, "tenants": {"a": claim(60)}},
])  # fmt: skip
def test_guarantees_that_use_all_of_a_quota_are_taken(values: Values) -> None:
    parse_document(values)


def test_guarantees_are_columns_with_the_scopes_above_them() -> None:
    policy = compile_policy(parse_document({
        "job": {"publish": {"messages_per_second": 100, "burst_seconds": 2}},
        "resource_groups": {"g": publish(guaranteed_messages_per_second=50, guaranteed_bytes_per_second=7)},
        "tenants": {"a": claim(30, resource_group="g"), "b": {}},
        "namespaces": {"a/x": claim(20), "b/y": claim(0.5)},
    }), "publish")  # fmt: skip
    found = policy.guarantees
    assert found is not None
    assert found.level.tolist() == [1, 2, 0, 0]
    assert found.scope.tolist() == [1, 3, -1, -1]
    assert found.rule.tolist() == [-1, -1, 0, 1]
    assert found.way.tolist() == [[1, 3, 0], [-1, 3, 0], [1, 3, 0], [2, -1, 0]]
    assert found.rate_micro_per_ms.tolist() == [
        [30_000, -1, -1, -1], [50_000, -1, -1, -1], [20_000, -1, -1, -1], [500, -1, -1, -1],
    ]  # fmt: skip
    assert found.burst_ms.tolist() == [10_000] * 4
    assert found.earning_ms.tolist() == [[2_000, 10_000, 10_000, 10_000]] * 4


def test_policy_without_guarantees_has_no_column_of_them() -> None:
    assert compile_policy(parse_document(JOB), "publish").guarantees is None
