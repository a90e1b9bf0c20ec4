"""L3: between flows of one group that stay backlogged, weighted dominant service differs by the SFQ bound at most.

The service of a flow is the virtual time that its admitted tokens take: tokens / (rate of the group x its own
weight), the larger of the two dimensions. Start-time fair queueing serves the lowest start tag, so at the end of
every batch the finish tag of each backlogged flow lies at or past the virtual time, by no more than its own last
message. Between two such moments, two flows' services differ by at most one largest message of each:

    |W_f - W_g| <= l_f / (R w_f) + l_g / (R w_g)

The margin beyond that bound is rounding alone: a flow's tags are rounded by less than one unit of 2**-30 s in each
batch, and turns are taken in units of the group's weight.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_throttle.core.quota import MAX_BURST_TOKENS, MICRO, UNLIMITED, CompiledPolicy
from spark_throttle.testing.oracle.decider import Decider
from spark_throttle.testing.oracle.reference_bucket import VT_SECOND
from spark_throttle.testing.oracle.reference_rules import DIMENSIONS
from spark_throttle.testing.oracle.worlds import (
    Limit,
    Namespace,
    Tenant,
    limit,
    make_policy,
)

law = settings(max_examples=max(1, settings().max_examples // 3))

NAMES = ("acme/a", "acme/b", "acme/c", "acme/d")
MESSAGE_RATES = st.sampled_from((1_000, 7_000, 30_000))
BYTE_RATES = st.sampled_from((300_000, 1_000_000, 2**30 + 1))
WEIGHTS = st.lists(st.sampled_from((1, 1, 2, 3, 7)), min_size=len(NAMES), max_size=len(NAMES))
GROUP_WEIGHTS = st.sampled_from((1, 5))
LARGEST_MICRO = MAX_BURST_TOKENS * MICRO
"""A burst that no tokens of a batch exceed."""

BATCHES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4_000)), min_size=1, max_size=5)
"""Tokens that each batch begins with: messages and bytes."""

Sizes = list[list[int]]
"""The sizes of each flow's messages, which repeat."""


def service_by_batch(
    rates: tuple[int, int], group_weight: int, weights: list[int], sizes: Sizes, batches: list[tuple[int, int]]
) -> list[list[Fraction]]:
    """Return, after each batch, the dominant virtual time that every flow was served, all being backlogged."""
    policy = make_policy(
        groups={"gold": Limit(rates, (LARGEST_MICRO, LARGEST_MICRO), weight=group_weight)},
        namespaces={
            name: Namespace(limit(weight=weight), group="gold") for name, weight in zip(NAMES, weights, strict=True)
        },
    )
    # A batch can admit one message more than there are tokens, and bytes are admitted in messages of at least 100.
    backlog = sum(messages + in_bytes // 100 + 2 for messages, in_bytes in batches)
    rows = [
        (name, sizes_of[i % len(sizes_of)]) for i in range(backlog) for name, sizes_of in zip(NAMES, sizes, strict=True)
    ]
    tags = [(rates, weight) for weight in weights]
    return service_under(policy, rows, tags, [{"gold": tokens} for tokens in batches])


def service_under(
    policy: CompiledPolicy,
    rows: list[tuple[str, int]],
    tags: list[tuple[tuple[int, int], int]],
    batches: list[dict[str, tuple[float, float]]],
) -> list[list[Fraction]]:
    """Return, after each batch, the virtual time that every flow was served, by the rates and weights of `tags`.

    All `rows` come with the first batch, and no flow may run out of them; `batches` has the tokens of shared scopes.
    """
    served = {name: [0, 0] for name in NAMES}
    decider = Decider("kernel", policy)
    history = [[Fraction(0)] * len(NAMES)]
    for at_ms, tokens in enumerate(batches):
        decider.batch(at_ms, [] if at_ms else rows, tokens)
        for name, usage in decider.plan.usage.items():
            for d in DIMENSIONS:
                served[name][d] += usage.admitted[d]
        assert {row.namespace for row in decider.plan.state.queue} == set(NAMES), "every flow must stay backlogged"
        history.append([dominant(served[name], *of) for name, of in zip(NAMES, tags, strict=True)])
    return history


def dominant(tokens: list[int], rates: tuple[int, int], weight: int) -> Fraction:
    """Return the virtual time of `tokens`, exactly."""
    return max(Fraction(tokens[d] * 1_000 * VT_SECOND, rates[d] * weight) for d in DIMENSIONS if rates[d] != UNLIMITED)


def assert_fair(history: list[list[Fraction]], largest: list[Fraction], *, group_weight: int) -> None:
    """Check the bound between any two moments."""
    margin = (len(history) + 1) * (group_weight + 2)
    for earlier, later in combinations(history, 2):
        service = [after - before for before, after in zip(earlier, later, strict=True)]
        for f, g in combinations(range(len(NAMES)), 2):
            assert abs(service[f] - service[g]) <= largest[f] + largest[g] + margin


SIZES = st.lists(st.lists(st.integers(100, 1_000), min_size=1, max_size=4), min_size=len(NAMES), max_size=len(NAMES))


@pytest.mark.slow
@law
@given(MESSAGE_RATES, GROUP_WEIGHTS, WEIGHTS, BATCHES)
def test_l3_messages_are_divided_by_weight(
    rate: int, group_weight: int, weights: list[int], batches: list[tuple[int, int]]
) -> None:
    rates = (rate, UNLIMITED)
    history = service_by_batch(rates, group_weight, weights, [[100]] * len(NAMES), [(n, 0) for n, _ in batches])
    largest = [dominant([1, 0], rates, weight) for weight in weights]
    assert_fair(history, largest, group_weight=group_weight)


@pytest.mark.slow
@law
@given(BYTE_RATES, GROUP_WEIGHTS, WEIGHTS, SIZES, BATCHES)
def test_l3_bytes_are_divided_by_weight_whatever_the_sizes(
    rate: int, group_weight: int, weights: list[int], sizes: Sizes, batches: list[tuple[int, int]]
) -> None:
    rates = (UNLIMITED, rate)
    history = service_by_batch(rates, group_weight, weights, sizes, [(0, n) for _, n in batches])
    largest = [dominant([0, max(of)], rates, weight) for of, weight in zip(sizes, weights, strict=True)]
    assert_fair(history, largest, group_weight=group_weight)


@pytest.mark.slow
@law
@given(MESSAGE_RATES, BYTE_RATES, GROUP_WEIGHTS, WEIGHTS, SIZES, BATCHES)
def test_l3_dominant_shares_are_equal_for_flows_of_one_size(
    message_rate: int,
    byte_rate: int,
    group_weight: int,
    weights: list[int],
    sizes: Sizes,
    batches: list[tuple[int, int]],
) -> None:
    # One size a flow: its dominant dimension never changes, and what is carried of the other never decides.
    rates = (message_rate, byte_rate)
    sizes = [of[:1] for of in sizes]
    history = service_by_batch(rates, group_weight, weights, sizes, batches)
    largest = [dominant([1, of[0]], rates, weight) for of, weight in zip(sizes, weights, strict=True)]
    assert_fair(history, largest, group_weight=group_weight)


GROUP_RATES = st.lists(st.sampled_from((100_000, 100_000, 300_000, 2_000_000)), min_size=2, max_size=2)


GROUP_LIMITS = st.sampled_from(("bytes", "messages", "both"))


@pytest.mark.slow
@law
@given(
    st.sampled_from(("job", "tenant")),
    st.tuples(GROUP_LIMITS, GROUP_LIMITS),
    GROUP_RATES,
    st.lists(GROUP_WEIGHTS, min_size=2, max_size=2),
    WEIGHTS,
    SIZES,
    st.lists(st.integers(0, 4_000), min_size=1, max_size=8),
)
def test_l3_namespaces_of_groups_that_share_a_short_scope_are_served_by_weight_and_their_groups_weight(
    short: str,
    limits: tuple[str, str],
    group_rates: list[int],
    group_weights: list[int],
    weights: list[int],
    sizes: Sizes,
    batches: list[int],
) -> None:
    """The job's limit on bytes, or a tenant's over two groups, is short for ever; no group is, whatever it limits."""
    limited = Limit((UNLIMITED, 50_000), (0, LARGEST_MICRO))
    groups = {
        name: Limit(
            (UNLIMITED if limits_of == "bytes" else 90_000, UNLIMITED if limits_of == "messages" else rate),
            (0 if limits_of == "bytes" else LARGEST_MICRO, 0 if limits_of == "messages" else LARGEST_MICRO),
            weight=weight,
        )
        for name, limits_of, rate, weight in zip("ab", limits, group_rates, group_weights, strict=True)
    }
    of_group = list("aabb")
    policy = make_policy(
        job=limited if short == "job" else Limit(),
        tenants={"acme": Tenant(limited if short == "tenant" else Limit())},
        groups=groups,
        namespaces={
            name: Namespace(limit(weight=weight), group=group)
            for name, weight, group in zip(NAMES, weights, of_group, strict=True)
        },
    )
    backlog = sum(in_bytes // 100 + 2 for in_bytes in batches)
    rows = [(name, own[i % len(own)]) for i in range(backlog) for name, own in zip(NAMES, sizes, strict=True)]
    tags = [
        ((UNLIMITED, 50_000), weight * group_weights["ab".index(group)])
        for group, weight in zip(of_group, weights, strict=True)
    ]
    plenty = dict.fromkeys(("", "acme", "a", "b"), (1e9, 1e9))
    scope = "" if short == "job" else "acme"
    history = service_under(policy, rows, tags, [plenty | {scope: (0, n)} for n in batches])
    largest = [dominant([0, max(own)], *of) for own, of in zip(sizes, tags, strict=True)]
    assert_fair(history, largest, group_weight=max(group_weights))


@pytest.mark.slow
@law
@given(MESSAGE_RATES, WEIGHTS, st.integers(1, 30), st.integers(1, 30))
def test_l3_who_was_idle_gets_no_credit(rate: int, weights: list[int], alone: int, shared: int) -> None:
    """A flow that joins takes turns from then on, as if the others had not been served before."""
    rates = (rate, UNLIMITED)
    policy = make_policy(
        groups={"gold": Limit(rates, (LARGEST_MICRO, 0))},
        namespaces={name: Namespace(limit(weight=w), group="gold") for name, w in zip(NAMES, weights, strict=True)},
    )
    first, joins = NAMES[:2]
    decider = Decider("kernel", policy)
    decider.batch(0, [(first, 1)] * 64, {"gold": (alone, 0)})
    decider.batch(1, [(joins, 1)] * 64, {"gold": (shared, 0)})
    served = decider.admitted()
    assert sum(served.values()) == shared + 1
    service = [dominant([served[name], 0], rates, weight) for name, weight in zip(NAMES[:2], weights[:2], strict=True)]
    largest = [dominant([1, 0], rates, weight) for weight in weights[:2]]
    assert abs(service[0] - service[1]) <= sum(largest) + 4
