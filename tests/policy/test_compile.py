"""Documents as columns: order, resolution, exact numbers, revisions."""

from __future__ import annotations

import numpy as np
import pytest

from spark_throttle.core.quota import (
    MAX_BURST_TOKENS,
    MICRO,
    UNBOUNDED,
    UNLIMITED,
    CompiledPolicy,
    Dimension,
    OnExcess,
    Overflow,
    QueueBounds,
)
from spark_throttle.errors import ConfigurationError, PolicyError
from spark_throttle.policy.compile import compile_policy, revision_of
from spark_throttle.policy.model import PolicyDocument
from spark_throttle.store.policy_location import load_policies

POLICY = load_policies("""
resource_groups:
  silver: {publish: {messages_per_second: 30}}
  gold: {publish: {bytes_per_second: 1MiB, burst_seconds: 2, weight: 4, on_excess: observe}}
tenants:
  zeta: {}
  acme: {resource_group: gold, publish: {messages_per_second: 0.2, on_excess: reject}}
namespaces:
  zeta/a: {resource_group: silver, publish: {messages_per_second: 5}}
  acme/b: {resource_group: silver}
  acme: {write_throttling: 20K*delay*100, write_throttling_by_size: 7*reject*8, read_throttling: 3*delay*4}
  acme/a/deep: {dispatch: {messages_per_second: 7}}
  zeta/b: {}
  other/a: {}
defaults: {resource_group: gold, publish: {messages_per_second: 0}, write_throttling: "1*delay*2,1*reject*3"}
job: {publish: {bytes_per_second: 1000}}
queue: {messages: 10, bytes: 64KiB, age_seconds: 1.5, on_overflow: fail}
""")


@pytest.fixture(scope="module")
def publish() -> CompiledPolicy:
    return compile_policy(POLICY, "publish")


def test_names_stand_in_the_order_of_their_bytes(publish: CompiledPolicy) -> None:
    assert publish.group_names.to_pylist() == ["gold", "silver"]
    assert publish.tenant_names.to_pylist() == ["acme", "zeta"]
    assert publish.namespace_names.to_pylist() == ["acme", "acme/a/deep", "acme/b", "other/a", "zeta/a", "zeta/b"]


def test_shared_scopes_are_the_job_then_tenants_then_groups(publish: CompiledPolicy) -> None:
    assert publish.shared.rate_micro_per_ms.tolist() == [
        [UNLIMITED, 1_000_000, UNLIMITED, UNLIMITED],
        [200, UNLIMITED, UNLIMITED, UNLIMITED],
        [UNLIMITED, UNLIMITED, UNLIMITED, UNLIMITED],
        [UNLIMITED, 2**20 * 1000, UNLIMITED, UNLIMITED],
        [30_000, UNLIMITED, UNLIMITED, UNLIMITED],
    ]
    assert publish.shared.weight.tolist() == [1, 1, 1, 4, 1]
    assert publish.shared.on_excess.tolist() == [
        OnExcess.DELAY,
        OnExcess.REJECT,
        OnExcess.DELAY,
        OnExcess.OBSERVE,
        OnExcess.DELAY,
    ]


def test_burst_is_the_rate_over_burst_seconds_and_0_where_unlimited(publish: CompiledPolicy) -> None:
    assert publish.shared.burst_micro.tolist() == [
        [0, 10_000 * MICRO, 0, 0],
        [2 * MICRO, 0, 0, 0],
        [0, 0, 0, 0],
        [0, 2 * 2**20 * MICRO, 0, 0],
        [300 * MICRO, 0, 0, 0],
    ]


def test_default_stands_behind_the_named_namespaces(publish: CompiledPolicy) -> None:
    assert len(publish.namespace_limits) == len(publish.namespace_names) + 1
    assert publish.namespace_limits.rate_micro_per_ms[:, Dimension.MESSAGES].tolist() == [-1, -1, -1, -1, 5000, -1, 0]
    assert len(publish.namespace_windows) == len(publish.namespace_group) == len(publish.namespace_names) + 1


def test_zero_is_limited_and_absent_is_not(publish: CompiledPolicy) -> None:
    assert publish.namespace_limits.is_limited[-1].tolist() == [True, False, False, False]
    assert publish.namespace_limits.burst_micro[-1].tolist() == [0, 0, 0, 0]


def test_named_namespace_has_its_own_group_else_its_tenants_else_none(publish: CompiledPolicy) -> None:
    gold, silver, none = 0, 1, -1
    assert publish.tenant_group.tolist() == [gold, none]
    # acme, acme/a/deep: the tenant's; acme/b, zeta/a: own; other/a, zeta/b: none, although defaults names one.
    assert publish.namespace_group.tolist() == [gold, gold, silver, none, silver, none, gold]


@pytest.mark.parametrize("own", ["gold", "silver"])
def test_own_group_overrides_the_tenants(own: str) -> None:
    document = load_policies(
        {
            "resource_groups": {"gold": {}, "silver": {}},
            "tenants": {"a": {"resource_group": "silver"}, "b": {"resource_group": "gold"}},
            "namespaces": {"a/x": {"resource_group": own}, "b/x": {"resource_group": own}},
        }
    )
    position = ["gold", "silver"].index(own)
    assert compile_policy(document, "publish").namespace_group.tolist() == [position, position, -1]


def test_publish_takes_the_write_rules_by_messages_and_by_bytes(publish: CompiledPolicy) -> None:
    windows = publish.namespace_windows
    assert windows.delay_units.tolist() == [[20_480, 0], *[[0, 0]] * 5, [1, 0]]
    assert windows.delay_ms.tolist() == [[100, 0], *[[0, 0]] * 5, [2, 0]]
    assert windows.reject_units.tolist() == [[0, 7], *[[0, 0]] * 5, [1, 0]]
    assert windows.reject_ms.tolist() == [[0, 8], *[[0, 0]] * 5, [3, 0]]


def test_dispatch_takes_the_read_rule_and_its_own_quotas() -> None:
    dispatch = compile_policy(POLICY, "dispatch")
    assert dispatch.namespace_windows.delay_units.tolist() == [[3, 0], *[[0, 0]] * 6]
    assert not dispatch.shared.is_limited.any()
    assert dispatch.namespace_limits.rate_micro_per_ms[1].tolist() == [7000, UNLIMITED, UNLIMITED, UNLIMITED]


def test_queue_bounds_are_of_the_whole_job(publish: CompiledPolicy) -> None:
    assert publish.queue == QueueBounds(10, 65_536, 1500, Overflow.FAIL)


def test_empty_policy_has_a_job_and_a_default_without_limits() -> None:
    empty = compile_policy(PolicyDocument(), "publish")
    assert len(empty.shared) == len(empty.namespace_limits) == 1
    assert not empty.shared.is_limited.any()
    assert not empty.namespace_limits.is_limited.any()
    assert empty.namespace_group.tolist() == [-1]
    assert empty.tenant_group.tolist() == []
    assert len(empty.tenant_names) == len(empty.group_names) == len(empty.namespace_names) == 0
    assert empty.queue == QueueBounds(1_000_000, 256 * 2**20, None, Overflow.REJECT)


def test_columns_are_int64_and_contiguous(publish: CompiledPolicy) -> None:
    limits, windows = publish.namespace_limits, publish.namespace_windows
    columns = [
        *(limits.rate_micro_per_ms, limits.burst_micro, limits.on_excess, limits.weight),
        *(windows.delay_units, windows.delay_ms, windows.reject_units, windows.reject_ms),
        *(publish.tenant_group, publish.namespace_group),
    ]
    for column in columns:
        assert column.dtype == np.int64
        assert column.flags.c_contiguous


def test_largest_burst_stays_inside_int64() -> None:
    document = load_policies("job: {publish: {bytes_per_second: 1TiB, burst_seconds: 1}}")
    assert compile_policy(document, "publish").shared.burst_micro.tolist() == [[0, MAX_BURST_TOKENS * MICRO, 0, 0]]


@pytest.mark.parametrize(
    ("namespace", "tenant"),
    [
        ("acme/x", "acme"),
        ("acme", "acme"),
        ("acme/x/y", "acme"),
        ("acme/x\ny/z", "acme"),
        ("a\nb/c", "a\nb"),
    ],
)
def test_tenant_is_the_part_before_the_first_slash(namespace: str, tenant: str) -> None:
    document = load_policies(
        {
            "resource_groups": {"gold": {}},
            "tenants": {tenant: {"resource_group": "gold"}, "x": {}},
            "namespaces": {namespace: {}},
        }
    )
    assert compile_policy(document, "publish").namespace_group.tolist() == [0, -1]


def test_namespace_without_a_tenant_name_has_no_tenant() -> None:
    assert compile_policy(load_policies({"namespaces": {"/x": {}}}), "publish").namespace_group.tolist() == [-1, -1]


def test_revision_names_the_content_and_the_direction() -> None:
    text = "{tenants: {b: {publish: {bytes_per_second: 1MiB}}, a: {}}}"
    same = "{tenants: {a: {publish: {}}, b: {publish: {bytes_per_second: 1048576.0, burst_seconds: 10s}}}}"
    other = "{tenants: {b: {publish: {bytes_per_second: 1MB}}, a: {}}}"
    assert revision_of(load_policies(text)) == revision_of(load_policies(same))
    assert revision_of(load_policies(text)) != revision_of(load_policies(other))
    revisions = {compile_policy(load_policies(text), direction).revision for direction in ("publish", "dispatch")}
    assert len(revisions) == 2
    assert all(len(revision) == 16 and int(revision, 16) >= 0 for revision in revisions)
    assert revision_of(load_policies(text), "publish") in revisions


def test_named_but_unlimited_is_another_revision_than_unnamed() -> None:
    assert revision_of(load_policies("{namespaces: {a: {}}}")) != revision_of(PolicyDocument())


def test_revision_is_the_same_in_every_release() -> None:
    assert revision_of(POLICY, "publish") == "857551f39b90119c"


def test_revision_has_the_keys_that_decide_though_names_look_like_one_that_does_not() -> None:
    said, silent = ({f"say {text}": {"locked": True}} for text in ('a,"locked":true', "a"))
    assert revision_of(load_policies({"namespaces": said})) != revision_of(load_policies({"namespaces": silent}))
    bounded = load_policies({"job": {"publish": {"max_message_bytes": 1}}})
    assert revision_of(bounded) != revision_of(PolicyDocument())


def test_bounds_on_messages_stand_where_any_scope_has_one(publish: CompiledPolicy) -> None:
    assert not publish.shared.settings
    assert not publish.namespace_limits.settings
    document = load_policies("{tenants: {a: {publish: {max_message_bytes: 1MiB}}}, job: {dispatch: {weight: 2}}}")
    compiled = compile_policy(document, "publish")
    assert compiled.shared.settings["max_message_bytes"].tolist() == [UNBOUNDED, 2**20]
    assert not compiled.namespace_limits.settings
    assert not compile_policy(document, "dispatch").shared.settings


def test_time_quotas_stand_where_any_scope_has_one(publish: CompiledPolicy) -> None:
    assert not publish.has_time
    document = load_policies(
        "{tenants: {a: {publish: {request_percentage: 250, burst_seconds: 2}}}, job: {dispatch: {weight: 2}}}"
    )
    compiled = compile_policy(document, "publish")
    assert compiled.shared.rate_micro_per_ms[:, Dimension.TIME].tolist() == [-1, 2_500_000]
    assert compiled.shared.burst_micro[:, Dimension.TIME].tolist() == [0, 5_000_000_000]
    assert not compiled.namespace_limits.has_time
    assert not compile_policy(document, "dispatch").has_time


def test_revision_names_a_time_quota_where_there_is_one() -> None:
    timed = load_policies({"job": {"publish": {"request_percentage": 50}}})
    assert revision_of(timed) != revision_of(PolicyDocument())


def test_unknown_direction_is_an_error_with_a_hint() -> None:
    with pytest.raises(ConfigurationError, match="did you mean publish"):
        compile_policy(POLICY, "publish_")  # type: ignore[arg-type]


@pytest.mark.slow
def test_many_namespaces_compile_as_each_would_alone() -> None:
    count = 2000
    document = load_policies(
        {
            "namespaces": {
                f"t{number % 7}/n{number}": {
                    "publish": {"messages_per_second": number / 8, "weight": number % 1000 + 1}
                }
                for number in range(count)
            }
        }
    )
    compiled = compile_policy(document, "publish")
    for position, name in enumerate(compiled.namespace_names.to_pylist()):
        number = int(name.partition("/n")[2])
        assert compiled.namespace_limits.rate_micro_per_ms[position].tolist() == [
            number * 125,
            UNLIMITED,
            UNLIMITED,
            UNLIMITED,
        ]
        assert compiled.namespace_limits.weight[position] == number % 1000 + 1


def test_globs_stand_behind_the_names_most_specific_first() -> None:
    policy = compile_policy(
        load_policies("namespaces: {'*': {}, b/y: {}, 'acme/*': {}, a/x: {}, 'acme/b*': {publish: {weight: 3}}}"),
        "publish",
    )
    assert policy.namespace_names.to_pylist() == ["a/x", "b/y"]
    assert policy.glob_patterns.to_pylist() == ["acme/b*", "acme/*", "*"]
    assert policy.namespace_limits.weight.tolist() == [1, 1, 3, 1, 1, 1]
    assert (len(policy.namespace_limits), policy.default_rule) == (6, 5)


def test_exemptions_are_names_and_globs_with_one_rule_without_limits() -> None:
    policy = compile_policy(
        load_policies("{exempt: ['infra/*', a/x], defaults: {publish: {messages_per_second: 1}}}"), "publish"
    )
    assert policy.exempt_names.to_pylist() == ["a/x"]
    assert policy.exempt_globs.to_pylist() == ["infra/*"]
    assert policy.namespace_limits.rate_micro_per_ms.tolist() == [[-1, -1, -1, -1], [1000, -1, -1, -1]]
    assert (policy.exempt_rule, policy.default_rule) == (0, 1)


def test_too_many_globs_are_refused_unless_they_mean_whole_tenants() -> None:
    document: dict[str, object] = {"namespaces": {f"t{i}/*": {} for i in range(2000)}}
    assert len(compile_policy(load_policies(document), "publish").glob_patterns) == 2000
    with pytest.raises(PolicyError, match=r"namespaces: 1001 globs other than tenant/\* exceed the 1000 allowed"):
        load_policies({"namespaces": {f"t{i}*": {} for i in range(1001)}})
