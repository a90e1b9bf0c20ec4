"""L3 across shards: of flows that stay backlogged in different shards, none gets ahead by more than messages, for ever.

The service of a flow is counted as in `test_admission_fairness`: the dominant of messages and bytes, each by the
group's rate and the flow's weight. Where a flow is alone in its shard, the bound is a message of each of the two. A
flow that shares its shard with one of larger messages waits for a message of that one in addition.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from spark_throttle.core.lending.advances import carried_advance, scopes_that_stand

from spark_throttle.core.quota import NEVER_MS, CompiledPolicy
from spark_throttle.core.usage import UsageReport
from spark_throttle.testing.oracle.worlds import Limit, Namespace, limit, make_policy
from tests.core.lending.test_shared_quota import START_MS, Job
from tests.effort import crossed

BYTES_PER_SECOND = 10_000


@dataclass
class Contest:
    """Flows of one group, each always backlogged with messages of its size, one a shard but for the last shard."""

    sizes: tuple[int, ...]
    weights: tuple[int, ...]
    shards: int
    messages_per_second: int | None = None
    job: Job = field(init=False)
    served_messages: dict[str, int] = field(init=False)
    history: list[list[Fraction]] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = [f"t{number}/n" for number in range(len(self.sizes))]
        policy = make_policy(
            groups={
                "gold": limit(
                    bytes_per_second=BYTES_PER_SECOND, messages_per_second=self.messages_per_second, burst_seconds=2
                )
            },
            namespaces={
                name: Namespace(limit(weight=weight), "gold") for name, weight in zip(names, self.weights, strict=True)
            },
        )
        place = {name: min(number, self.shards - 1) for number, name in enumerate(names)}
        self.job = Job(policy, place, self.shards)
        self.served_messages = dict.fromkeys(names, 0)

    def run(self, batches: int) -> None:
        waiting = dict.fromkeys(self.served_messages, 0)
        for _ in range(batches):
            offer = {}
            for name, size in zip(waiting, self.sizes, strict=True):
                enough = 2 + 4 * BYTES_PER_SECOND // size
                offer[name] = (max(0, enough - waiting[name]), size)
            got = self.job.batch(offer)
            for report in self.job.reports.values():
                waiting |= dict(zip(report.names.to_pylist(), report.waiting[:, 0].tolist(), strict=True))
            for name in waiting:
                self.served_messages[name] += got[name]
            assert all(waiting.values()), "every flow must stay backlogged"
            self.history.append([self.service(name, at) for at, name in enumerate(waiting)])

    def service(self, name: str, at: int) -> Fraction:
        return self.served_messages[name] * self.message(at)

    def message(self, at: int) -> Fraction:
        """Return the service that one message of a flow is."""
        of_bytes = Fraction(self.sizes[at], BYTES_PER_SECOND)
        of_messages = Fraction(1, self.messages_per_second) if self.messages_per_second else Fraction(0)
        return max(of_bytes, of_messages) / self.weights[at]

    def gap(self, one: int, other: int, *, since: int = 3) -> Fraction:
        """Return how much the difference of two flows' services ever changed by."""
        gaps = [services[one] - services[other] for services in self.history[since:]]
        return max(gaps) - min(gaps)


FLOWS = [
    ((1_000, 1_000), (1, 1)),
    ((1_000, 60_000), (1, 1)),
    ((60_000, 1_000), (1, 1)),
    ((700, 60_000), (3, 1)),
    ((1_000, 90_000), (1, 20)),
    ((500, 7_000, 40_000), (1, 2, 1)),
]
"""Sizes and weights of the flows of a contest."""


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(("flows", "place"), crossed(FLOWS, [(2, None), (3, 40), (8, None), (64, 40)], of=3))
def test_l3_large_messages_in_one_shard_take_no_more_than_their_part_for_ever(
    flows: tuple[tuple[int, ...], tuple[int, ...]], place: tuple[int, int | None]
) -> None:
    (sizes, weights), (shards, messages_per_second) = flows, place
    contest = Contest(sizes, weights, max(shards, len(sizes)), messages_per_second)
    contest.run(100 if shards < 64 else 20)
    for one in range(len(sizes)):
        for other in range(one):
            assert contest.gap(one, other) <= contest.message(one) + contest.message(other)


@pytest.mark.thorough
@pytest.mark.slow
def test_l3_flow_waits_for_a_message_of_its_shards_largest_and_no_longer_as_time_goes_on() -> None:
    contest = Contest((5_000, 1_000, 60_000, 100), (1, 1, 1, 1), 2)
    contest.run(300)
    for one in range(4):
        for other in range(one):
            assert contest.gap(one, other) <= 3 * contest.message(2)
            assert contest.gap(one, other, since=150) <= 3 * contest.message(2)


@pytest.mark.thorough
@pytest.mark.slow
def test_l3_mixture_of_two_scarce_resources_in_one_shard_costs_it_a_few_hundredths() -> None:
    contest, batches = Contest((5_000, 1_000, 60_000, 100), (1, 1, 1, 1), 2, 50), 200
    contest.run(batches)
    for one in range(4):
        for other in range(one):
            assert contest.gap(one, other) <= 3 * contest.message(2) + Fraction(batches * 5, 100)


@pytest.mark.thorough
@pytest.mark.slow
def test_l3_a_message_of_100_seconds_is_repaid_by_its_shard_alone() -> None:
    contest = Contest((100, 1_000_000), (1, 1), 2, 50)
    contest.run(450)
    assert contest.gap(0, 1) <= 2 * (contest.message(0) + contest.message(1))
    assert contest.gap(0, 1, since=225) <= contest.message(0) + contest.message(1)


@pytest.mark.slow
def test_l3_at_one_message_an_epoch_shards_take_turns_by_weight() -> None:
    contest = Contest((10, 10, 10), (5, 1, 3), 3, messages_per_second=1)
    contest.run(80)
    for one in range(3):
        for other in range(one):
            assert contest.gap(one, other) <= 2 * (contest.message(one) + contest.message(other))


@pytest.mark.slow
def test_what_all_shards_ask_for_together_is_lent_when_it_is_there() -> None:
    contest = Contest((1_000, 60_000), (1, 1), 2)
    contest.run(40)
    assert np.abs(contest.job.lending.advance_micro).max() > 0  # type: ignore[union-attr]
    for _ in range(60):
        contest.job.batch({})
    assert contest.job.lending is not None
    assert not contest.job.lending.advance_micro.any()


# Under change


def policy_of(*, rate: int = 10, weight: int = 1, group: str = "gold", revision: str = "1") -> CompiledPolicy:
    return make_policy(
        groups={"gold": limit(messages_per_second=rate), "iron": Limit((1_000, 1_000), (1, 1))},
        namespaces={"a/x": Namespace(limit(weight=weight), group)},
        revision=revision,
    )


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (policy_of(revision="2"), [0, 1, 2]),
        (policy_of(rate=11, revision="2"), [0, -1, 2]),
        (policy_of(weight=2, revision="2"), [-1, -1, 2]),
        (policy_of(group="iron", revision="2"), [0, -1, -1]),
    ],
)
def test_scope_stands_unless_its_limits_its_flows_or_their_weights_changed(
    after: CompiledPolicy, expected: list[int]
) -> None:
    before = policy_of()
    job = Job(before, {"a/x": 0}, 1)
    job.batch({"a/x": (50, 1)})
    was = list(job.reports.values())
    again = Job(after, {"a/x": 0}, 1)
    again.batch({"a/x": (50, 1)})
    assert scopes_that_stand(before, after, was, list(again.reports.values())).tolist() == expected


def report_of(groups: list[int], ahead_milli: list[int]) -> UsageReport:
    """Return the report of shard 0 whose flows are in `groups` and ahead by thousandths of a message."""
    n = len(groups)
    ahead, nothing = np.zeros((n, 2), dtype=np.int64), np.zeros((n, 2), dtype=np.int64)
    ahead[:, 0] = ahead_milli
    return UsageReport(
        0, 1, "1", START_MS, pa.array([f"a/{k}" for k in range(n)]), np.full(n, -1), np.array(groups),
        np.ones(n, dtype=np.int64), nothing, nothing, nothing, nothing, nothing, nothing[:, 0], nothing[:, 0],
        NEVER_MS, ahead_milli=ahead,
    )  # fmt: skip


def test_shard_is_ahead_in_a_changed_scope_by_what_its_flows_owe() -> None:
    before, after = policy_of(rate=10), policy_of(rate=11, revision="2")
    report = report_of([0, 0, 1], [600, 200, 900])
    advance_micro = np.array([[[0, 0], [400_000, 0], [100_000, -5]]])
    carried = carried_advance(advance_micro, before, after, [report], [replace(report, revision="2")])
    # Of 0.4 messages, by which the shard is ahead in the first group, its flows owe 0.3 and 0.1; iron is as it was.
    assert carried[0, 1, 0] == pytest.approx(400_000, abs=2_000)
    assert carried[0, 2].tolist() == [100_000, -5]


def test_what_a_flow_owes_goes_with_it_to_another_scope() -> None:
    before, after = policy_of(rate=10), policy_of(rate=11, group="iron", revision="2")
    report = report_of([0, 0], [600, 200])
    advance_micro = np.array([[[0, 0], [400_000, 0], [0, 0]]])
    moved = replace(report, revision="2", group=np.array([1, 0]))
    carried = carried_advance(advance_micro, before, after, [report], [moved])
    assert carried[0, :, 0].tolist() == pytest.approx([0, 100_000, 300_000], abs=2_000)


def test_what_no_flow_accounts_for_is_forgotten_with_a_change() -> None:
    before, after = policy_of(rate=10), policy_of(rate=11, revision="2")
    report = report_of([0], [250])
    advance_micro = np.array([[[0, 0], [9_000_000, 0], [0, 0]]])
    carried = carried_advance(advance_micro, before, after, [report], [replace(report, revision="2")])
    assert carried[0, 1].tolist() == [250_000, 0]


def test_change_keeps_the_part_of_a_token_that_rounding_withheld_from_a_shard() -> None:
    before, after = policy_of(rate=10), policy_of(rate=11, revision="2")
    report = report_of([0, 0], [0, 0])
    advance_micro = np.array([[[-5_000_000, 0], [-400_000, 0], [0, 0]]])
    carried = carried_advance(advance_micro, before, after, [report], [replace(report, revision="2")])
    assert carried[0, 1].tolist() == [-400_000, 0]


def test_shard_that_was_further_behind_keeps_one_token_of_it() -> None:
    before, after = policy_of(rate=10), policy_of(rate=11, revision="2")
    report = report_of([0, 0, 0], [0, 0, 0])
    advance_micro = np.array([[[0, 0], [-7_000_000, -9_000_000], [0, 0]]])
    carried = carried_advance(advance_micro, before, after, [report], [replace(report, revision="2")])
    assert carried[0, 1].tolist() == [-1_000_000, -1_000_000]


def test_flow_takes_its_part_of_what_its_shard_was_behind_to_another_scope() -> None:
    before, after = policy_of(rate=10), policy_of(rate=11, group="iron", revision="2")
    report = report_of([0, 0], [0, 0])
    advance_micro = np.array([[[0, 0], [-400_000, 0], [0, 0]]])
    moved = replace(report, revision="2", group=np.array([1, 0]))
    carried = carried_advance(advance_micro, before, after, [report], [moved])
    assert carried[0, :, 0].tolist() == [0, -200_000, -200_000]
