"""Processing time of a shared scope is divided by time, whatever its namespaces' messages cost."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import pytest

from spark_throttle.core.epoch import Epoch
from spark_throttle.record import unpack
from spark_throttle.testing.simulation.job import SimulatedJob
from spark_throttle.testing.simulation.query import Costs, SimulatedBatch
from spark_throttle.testing.simulation.rows import Row
from tests.effort import first_of

pytestmark = pytest.mark.slow

MS = 1_000_000
"""Nanoseconds in a millisecond."""

HALF = {"request_percentage": 50, "burst_seconds": 2}
PLACES: dict[str, dict[str, Any]] = {
    "group of two tenants": {"resource_groups": {"gold": {"publish": HALF}}, "defaults": {"resource_group": "gold"}},
    "job": {"job": {"publish": HALF}},
    "tenant": {"tenants": {"acme": {"publish": HALF}}},
}


def costs(each_ms: Mapping[str, int]) -> Costs:
    """Return the cost of rows that take so many milliseconds each, by namespace."""

    def cost_ns(rows: Sequence[Row]) -> Mapping[str, int]:
        messages = Counter(str(row.namespace) for row in rows)
        return {name: count * each_ms[name] * MS for name, count in messages.items()}

    return cost_ns


def messages_of(batches: Sequence[SimulatedBatch]) -> Counter[str]:
    """Return how many messages of every namespace were admitted."""
    return Counter(str(row.namespace) for batch in batches for row in batch.admitted)


def played(job: SimulatedJob, seconds: int, per_second: Mapping[str, int]) -> list[SimulatedBatch]:
    """Return the batches of some seconds in which namespaces offer so many rows each."""
    batches = []
    for _ in range(seconds):
        job.offer([(name, 100) for name, count in per_second.items() for _ in range(count)])
        batch = job.trigger(after_ms=1_000)
        batches += [batch] if batch is not None else []
    return batches


def used_ms(batches: Sequence[SimulatedBatch], each_ms: Mapping[str, int]) -> dict[str, int]:
    """Return the processing time that the rows of every namespace took."""
    messages = Counter(str(row.namespace) for batch in batches for row in batch.admitted)
    return {name: messages[name] * cost_ms for name, cost_ms in each_ms.items()}


@pytest.mark.parametrize("place", PLACES)
def test_two_of_whom_one_is_ten_times_as_dear_get_half_of_the_time_each(place: str) -> None:
    each_ms = {"acme/x": 10, "acme/y" if place == "tenant" else "blue/x": 1}
    job = SimulatedJob(PLACES[place], cost_ns=costs(each_ms))
    per_second = dict(zip(each_ms, (60, 300), strict=True))  # of which 25 and 250 pass
    played(job, 10, per_second)
    found = used_ms(played(job, 12, per_second), each_ms)
    assert list(found.values()) == pytest.approx([3_000, 3_000], rel=0.1)


def test_time_that_the_cheap_one_does_not_want_is_the_dear_ones() -> None:
    each_ms = {"acme/x": 10, "blue/x": 1}
    job = SimulatedJob(PLACES["group of two tenants"], cost_ns=costs(each_ms))
    played(job, 10, {"acme/x": 60, "blue/x": 100})
    found = used_ms(played(job, 12, {"acme/x": 60, "blue/x": 100}), each_ms)
    assert found["blue/x"] == pytest.approx(12 * 100, rel=0.1)  # some waited from before
    assert found["acme/x"] == pytest.approx(12 * 400, rel=0.1)


def fair_ms(quota_ms: int, wanted_ms: Mapping[str, int], weight: Mapping[str, int]) -> dict[str, Fraction]:
    """Return the weighted max-min parts of a quota: nobody gets more than wanted, the others as their weights say."""
    parts: dict[str, Fraction] = {}
    while len(parts) < len(wanted_ms):
        rest = [name for name in wanted_ms if name not in parts]
        level = (quota_ms - sum(parts.values())) / Fraction(sum(weight[name] for name in rest))
        sated = [name for name in rest if wanted_ms[name] <= level * weight[name]]
        parts |= {name: Fraction(wanted_ms[name]) for name in sated} or {name: level * weight[name] for name in rest}
    return parts


@pytest.mark.parametrize("seed", first_of(1, range(6)))
def test_time_is_divided_as_a_slow_division_of_time_says(seed: int) -> None:
    """A part may be off by a tenth and a few messages: prices are those of the batch before."""
    rng, seconds = random.Random(seed), 20
    names = [f"t{at}/n" for at in range(rng.randint(2, 5))]
    each_ms = {name: rng.choice((1, 2, 5, 20, 40)) for name in names}
    weight = {name: rng.choice((1, 1, 2, 5)) for name in names}
    wanted_ms = {name: rng.choice((40, 600, 600, 600)) for name in names}
    document = PLACES["group of two tenants"] | {
        "tenants": {name[:2]: {"resource_group": "gold", "publish": {"weight": weight[name]}} for name in names}
    }
    job = SimulatedJob(document, cost_ns=costs(each_ms))
    per_second = {name: wanted_ms[name] // each_ms[name] for name in names}
    played(job, 12, per_second)
    found = used_ms(played(job, seconds, per_second), each_ms)
    asked_ms = {name: per_second[name] * each_ms[name] for name in names}
    for name, part_ms in fair_ms(500, asked_ms, weight).items():
        assert abs(found[name] - part_ms * seconds) <= part_ms * seconds / 10 + 5 * each_ms[name], (name, found)


def together(job: SimulatedJob, each_ms: int) -> None:
    """Let a batch take 40 ms, and so long for each row; the first after a start, and each tenth, takes 5 s more."""
    batches = itertools.count()
    job.common_ns = lambda rows: (40 + each_ms * len(rows) + (0 if next(batches) % 10 else 5_000)) * MS


@pytest.mark.thorough
def test_batch_that_takes_long_for_few_rows_makes_nobody_dear() -> None:
    """Of eight alike, those served in such a batch got one row while the others got hundreds."""
    names = [f"acme/{at}" for at in range(8)]
    job = SimulatedJob({"tenants": {"acme": {"publish": HALF}}})
    together(job, 2)
    played(job, 20, dict.fromkeys(names, 60))  # of all eight, 250 pass
    batches = played(job, 40, dict.fromkeys(names, 60))
    messages = Counter(str(row.namespace) for batch in batches for row in batch.admitted)
    assert min(messages[name] for name in names) > 100
    # A row that is alone in its batch takes 42 ms, as long as 19 of those that share one: so at either end of the time.
    assert max(messages.values()) - min(messages[name] for name in names) <= 2 * 19


def test_window_of_another_tenant_does_not_hold_up_what_a_batch_takes_together() -> None:
    """A tenant that sends nothing has a window of an hour: the quota of the job was used by less than half."""
    admitted = []
    for tenants in ({}, {"zoo": {"publish": {"request_percentage": 1_000, "burst_seconds": 3_600}}}):
        job = SimulatedJob(PLACES["job"] | {"tenants": tenants}, cost_ns=costs({"acme/x": 10, "blue/x": 1}))
        together(job, 0)
        admitted.append([len(batch.admitted) for batch in played(job, 15, {"acme/x": 60, "blue/x": 300})])
    assert admitted[0] == admitted[1]


WIDE = {"resource_groups": {"gold": {"publish": {"request_percentage": 500, "burst_seconds": 3_600}}}}
"""A group that is never short of time, with a window of an hour."""

SHORT = {"request_percentage": 5, "burst_seconds": 1}


@pytest.mark.parametrize("is_own", [False, True])
def test_window_of_a_wider_scope_holds_no_quota_below_its_own(is_own: bool) -> None:
    """Rows that became 100 times as cheap used 1 % of a tenant's quota, or of a namespace's own, for hours."""
    narrow: dict[str, Any] = {"tenants": {"acme": {"publish": SHORT, "resource_group": "gold"}}}
    if is_own:
        narrow = {"namespaces": {"acme/*": {"publish": SHORT, "resource_group": "gold"}}}
    names = ["acme/x", "acme/y"]
    job = SimulatedJob(WIDE | narrow, cost_ns=costs(dict.fromkeys(names, 100)))
    played(job, 3, dict.fromkeys(names, 3))
    job.cost_ns = costs(dict.fromkeys(names, 1))
    played(job, 40, dict.fromkeys(names, 30))  # what the dear rows took beyond the quota is repaid
    found = messages_of(played(job, 6, dict.fromkeys(names, 60)))
    assert found.total() == pytest.approx(6 * 50 * (2 if is_own else 1), rel=0.05)
    assert abs(found["acme/x"] - found["acme/y"]) <= 3


def test_tenant_is_divided_as_its_own_window_says_where_a_wider_scope_has_time_for_all() -> None:
    """One that was dear some windows ago, and is as cheap as its equal, got a hundredth of the time for an hour."""
    document = WIDE | {"tenants": {"acme": {"publish": SHORT, "resource_group": "gold"}}}
    job = SimulatedJob(document, cost_ns=costs({"acme/x": 20, "acme/y": 1}))
    played(job, 4, {"acme/x": 4, "acme/y": 30})
    job.cost_ns = costs({"acme/x": 1, "acme/y": 1})
    played(job, 8, {"acme/x": 30, "acme/y": 30})
    found = messages_of(played(job, 10, {"acme/x": 40, "acme/y": 40}))
    assert abs(found["acme/x"] - found["acme/y"]) <= 3
    assert found.total() == pytest.approx(10 * 50, rel=0.05)


def test_burst_that_nobody_expected_is_divided_as_the_shortest_window_says() -> None:
    """One that was dear some windows ago, and is as cheap as its equal, was refused nearly all for an hour.

    Each burst comes after a second of few rows, in which no scope is short of time.
    """
    refusing = SHORT | {"on_excess": "reject"}
    document = WIDE | {"tenants": {"acme": {"publish": refusing, "resource_group": "gold"}}}
    job = SimulatedJob(document, cost_ns=costs({"acme/x": 40, "acme/y": 1}))
    played(job, 3, {"acme/x": 1, "acme/y": 5})
    job.cost_ns = costs({"acme/x": 1, "acme/y": 1})
    played(job, 8, {"acme/x": 8, "acme/y": 8})
    found = Counter[str]()
    for count in (4, 60) * 4:
        found += messages_of(played(job, 1, {"acme/x": count, "acme/y": count}))
    assert abs(found["acme/x"] - found["acme/y"]) <= 8


@pytest.mark.thorough
def test_scope_is_divided_by_time_soon_after_a_dear_batch_however_long_its_window() -> None:
    """A batch of a minute for 60 rows leaves a debt of half a minute of half a core. They were served by messages."""
    job = SimulatedJob({"job": {"publish": HALF | {"burst_seconds": 60}}}, cost_ns=costs({"acme/x": 10, "blue/x": 1}))
    batches = itertools.count()
    job.common_ns = lambda rows: 60_000 * MS if rows and next(batches) == 0 else 0
    played(job, 1, {"acme/x": 30, "blue/x": 30})
    job.trigger(after_ms=60_000)
    played(job, 12, {"acme/x": 60, "blue/x": 400})
    found = used_ms(played(job, 12, {"acme/x": 60, "blue/x": 400}), {"acme/x": 10, "blue/x": 1})
    assert found["acme/x"] == pytest.approx(found["blue/x"], rel=0.1)


def test_what_a_batch_takes_together_is_divided_by_messages_and_the_rest_by_time() -> None:
    """A row takes 2 ms in any case, and one of the first namespace 6 ms more: for one of it come four of the other."""
    job = SimulatedJob(PLACES["job"], cost_ns=costs({"acme/x": 6, "blue/x": 0}))
    job.common_ns = lambda rows: 2 * len(rows) * MS
    played(job, 10, {"acme/x": 300, "blue/x": 300})
    batches = played(job, 12, {"acme/x": 300, "blue/x": 300})
    messages = Counter(str(row.namespace) for batch in batches for row in batch.admitted)
    assert messages["blue/x"] == pytest.approx(4 * messages["acme/x"], rel=0.05)
    assert 8 * messages["acme/x"] + 2 * messages["blue/x"] == pytest.approx(12 * 500, rel=0.1)


def test_scope_that_runs_short_of_messages_first_is_divided_by_messages() -> None:
    gold = {"publish": {"messages_per_second": 20, "request_percentage": 50, "burst_seconds": 2}}
    document = {"resource_groups": {"gold": gold}, "defaults": {"resource_group": "gold"}}
    each_ms = {"acme/x": 10, "blue/x": 1}
    job = SimulatedJob(document, cost_ns=costs(each_ms))
    played(job, 5, dict.fromkeys(each_ms, 40))
    found = used_ms(played(job, 12, dict.fromkeys(each_ms, 40)), each_ms)
    assert found == {"acme/x": pytest.approx(12 * 100, rel=0.05), "blue/x": pytest.approx(12 * 10, rel=0.05)}


def test_epoch_pins_what_was_measured_of_those_who_pass_a_limit_on_time() -> None:
    each_ms = {"acme/x": 10, "blue/x": 1}
    for document, names in (
        (PLACES["job"], ["acme/x", "blue/x"]),
        ({"namespaces": {"acme/*": {"publish": HALF}}}, ["acme/x"]),
        ({"job": {"publish": HALF | {"on_excess": "observe"}}}, ["acme/x", "blue/x"]),
    ):
        job = SimulatedJob(document, cost_ns=costs(each_ms))
        played(job, 3, dict.fromkeys(each_ms, 20))
        path = max(path for path in job.checkpoint.control if path.startswith("epochs/"))
        time = unpack(Epoch, job.checkpoint.control[path], path).time
        assert time is not None
        found = dict(zip(time.measured.names.to_pylist(), time.measured.measured_ns.tolist(), strict=True))
        assert found == {name: 20 * each_ms[name] * MS for name in names}
        assert time.measured.estimated_ns.tolist() == list(found.values())  # at the price of the batch before
        assert time.measured.messages.tolist() == [20] * len(names)


# One dear message, and cheap ones beside it


@pytest.mark.parametrize("place", PLACES)
def test_one_dear_message_holds_up_cheap_ones_no_longer_than_its_debt(place: str) -> None:
    """A message of 6 s leaves a debt of less, which half a core pays in 12 s; then those that wait have the time."""
    cheap = "acme/y" if place == "tenant" else "blue/x"
    each_ms = {"acme/x": 6_000, cheap: 1}
    job = SimulatedJob(PLACES[place], cost_ns=costs(each_ms))
    played(job, 5, {cheap: 300})
    job.offer([("acme/x", 100)])
    job.trigger(after_ms=1_000)
    played(job, 12, {cheap: 300})
    found = used_ms(played(job, 20, {cheap: 300}), each_ms)
    assert found[cheap] >= 20 * 300
    assert len(job.waiting) <= 300


@pytest.mark.thorough
def test_dear_messages_do_not_take_what_is_left_to_cheap_ones_that_wait() -> None:
    """Both have a backlog: a second of half a core is half a dear message and 250 cheap ones, and no more."""
    each_ms = {"acme/x": 500, "blue/x": 1}
    job = SimulatedJob(PLACES["group of two tenants"], cost_ns=costs(each_ms))
    played(job, 10, {"blue/x": 600})
    spent_ms, worst_ms = 0, 0
    for second in range(1, 26):
        each = sum(used_ms(played(job, 1, {"acme/x": 2, "blue/x": 300}), each_ms).values())
        spent_ms, worst_ms = spent_ms + each, max(worst_ms, each)
        assert spent_ms <= 500 * second + 1_000 + worst_ms
    assert worst_ms <= 1_000 + 2 * 500


def test_equals_stay_equal_when_a_dear_message_changes_the_price_of_their_scope() -> None:
    each_ms = {"acme/x": 60_000, "blue/x": 5, "blue/y": 5, "blue/z": 5}
    job = SimulatedJob(PLACES["group of two tenants"], cost_ns=costs(each_ms))
    equals = {name: 60 for name in each_ms if name != "acme/x"}
    for _ in range(2):
        played(job, 7, equals)
        job.offer([("acme/x", 100)])
        job.trigger(after_ms=1_000)
        found = used_ms(played(job, 15, equals), each_ms)
        del found["acme/x"]
        assert max(found.values()) - min(found.values()) <= 2 * 5
