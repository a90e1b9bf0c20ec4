"""Law L4: a batch is planned for waiting rows when one of them can leave or expire, and not otherwise."""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.control.queries import per_second
from tests.control.whole_job import Rows, WholeJob
from tests.effort import examples

OFF = {"publish": {"messages_per_second": 0}}
MANY: Rows = [(f"acme/n{i}", 10) for i in range(40)]

SHUT: dict[str, dict[str, object]] = {
    "group above a tenant": {
        "resource_groups": {"off": OFF},
        "tenants": {"acme": {"resource_group": "off", **per_second(0.2, burst_seconds=10)}},
    },
    "job above a group": {
        "job": OFF,
        "resource_groups": {"gold": per_second(1, burst_seconds=2)},
        "defaults": {"resource_group": "gold"},
    },
    "group above namespaces": {
        "resource_groups": {"off": OFF},
        "defaults": {"resource_group": "off", **per_second(0.5)},
    },
    "tenant below a group": {
        "resource_groups": {"gold": per_second(0.2, burst_seconds=10)},
        "tenants": {"acme": {"resource_group": "gold", **OFF}},
    },
    "namespaces below a group": {
        "resource_groups": {"gold": per_second(0.2, burst_seconds=10)},
        "defaults": {"resource_group": "gold", **OFF},
    },
    "bytes of the job": {
        "job": {"publish": {"bytes_per_second": 0}},
        "tenants": {"acme": per_second(0.2, burst_seconds=10)},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHUT)
def test_rows_under_a_scope_of_rate_0_plan_no_batch(kind: str, tmp_path: Path) -> None:
    job = WholeJob(tmp_path, SHUT[kind])
    job.trigger(MANY)
    assert [job.trigger() for _ in range(100)] == [None] * 100
    assert job.plane.wait_ms() is None
    assert (job.waiting, job.admitted) == (len(MANY), [])


@pytest.mark.slow
def test_rows_under_a_scope_of_rate_0_go_when_it_has_a_rate(tmp_path: Path) -> None:
    job = WholeJob(tmp_path, SHUT["group above a tenant"])
    job.trigger(MANY)
    job.policies.set({"resource_groups": {"off": per_second(5)}, "tenants": {"acme": {"resource_group": "off"}}})
    assert job.trigger()
    for _ in range(20):
        job.trigger()
    assert job.waiting == 0


@pytest.mark.slow
def test_observing_scope_of_rate_0_holds_nothing(tmp_path: Path) -> None:
    off = {"publish": {"messages_per_second": 0, "on_excess": "observe"}}
    job = WholeJob(tmp_path, {"job": off, "tenants": {"acme": per_second(2)}})
    job.trigger(MANY)
    for _ in range(30):
        job.trigger()
    assert job.waiting == 0


@pytest.mark.slow
def test_rows_that_only_age_will_move_plan_one_batch_when_they_expire(tmp_path: Path) -> None:
    job = WholeJob(tmp_path, SHUT["group above a tenant"] | {"queue": {"age_seconds": 60}})
    job.trigger(MANY)
    job.trigger(after_ms=1)
    moved = [moved for _ in range(100) if (moved := job.trigger()) is not None]
    assert moved == [len(MANY)]


def test_slow_tenant_has_as_many_batches_as_admissions(tmp_path: Path) -> None:
    job = WholeJob(tmp_path, {"tenants": {"acme": per_second(0.2, burst_seconds=5)}})
    assert job.trigger([*MANY, *MANY, *MANY]) == 2
    moved = [moved for _ in range(3_000) if (moved := job.trigger(after_ms=100)) is not None]
    assert moved == [1] * 60


def test_query_is_idle_after_a_burst_that_fits(tmp_path: Path) -> None:
    job = WholeJob(tmp_path, {"tenants": {"acme": per_second(100)}})
    assert job.trigger(MANY) == len(MANY)
    assert [job.trigger(after_ms=100) for _ in range(300)] == [None] * 300


def test_change_of_policy_brings_one_batch(tmp_path: Path) -> None:
    job = WholeJob(tmp_path, {"tenants": {"acme": per_second(100)}})
    job.trigger(MANY)
    for rate in (50, 200):
        job.policies.set({"tenants": {"acme": per_second(rate)}})
        assert [job.trigger() for _ in range(10)] == [0] + [None] * 9


def test_every_batch_that_brings_no_row_moves_one(tmp_path: Path) -> None:
    """Rows wait for a slow group, a slower tenant and their age; batches with rows come in between."""
    document = {
        "resource_groups": {"gold": per_second(3, burst_seconds=2)},
        "tenants": {"acme": {"resource_group": "gold", **per_second(0.7)}, "blue": {"resource_group": "gold"}},
        "queue": {"age_seconds": 40},
    }
    rng, job = random.Random(7), WholeJob(tmp_path, document)
    job.trigger(MANY)
    moved = []
    for _ in range(1_000):
        count = rng.choice((0,) * 40 + (1, 5))
        found = job.trigger([(rng.choice(("acme/x", "blue/y")), 10)] * count, after_ms=rng.choice((1, 20, 130)))
        moved += [found] if not count and found is not None else []
    assert len(moved) > 30
    assert min(moved) > 0


SLOW = (0, 0.001, 0.03, 0.2, 1, 3.333, 17)
limits = st.fixed_dictionaries(
    {},
    optional={
        "messages_per_second": st.sampled_from(SLOW),
        "bytes_per_second": st.sampled_from((0, 0.5, 7, 1_000)),
        "on_excess": st.sampled_from(("delay", "delay", "delay", "observe")),
    },
).map(lambda fields: {"publish": {**fields, "burst_seconds": 3}} if fields.keys() - {"on_excess"} else {})


@st.composite
def nested(draw: st.DrawFn) -> dict[str, object]:
    """Return policies in which all namespaces are of one tenant, of one group."""
    age = draw(st.sampled_from(({}, {}, {"queue": {"age_seconds": 45}})))
    return {
        "job": draw(limits),
        "resource_groups": {"gold": draw(limits)},
        "tenants": {"acme": {"resource_group": "gold", **draw(limits)}},
        "defaults": draw(limits),
        **age,
    }


@pytest.mark.slow
@examples(12)
@given(nested(), st.lists(st.integers(1, 400), min_size=1, max_size=12), st.data())
def test_at_the_event_a_row_leaves_or_expires_and_none_could_before(
    document: dict[str, object], sizes: list[int], data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        job = WholeJob(Path(folder), document)
        job.trigger([(f"acme/n{i % 5}", size) for i, size in enumerate(sizes)])
        for _ in range(6):
            assert job.trigger(after_ms=0) is None
            wait_ms = job.plane.wait_ms()
            if wait_ms is None or not job.waiting:
                break
            early_ms = data.draw(st.integers(0, wait_ms - 1))
            job.now_ms += early_ms
            assert job.trigger(after_ms=0) is None
            assert not moved_if_planned(job)
            job.now_ms += wait_ms - 1 - early_ms
            assert not moved_if_planned(job)
            assert job.trigger(after_ms=1)


def moved_if_planned(job: WholeJob) -> int:
    """Return how many rows would leave or expire in a batch that is planned now though none is due."""
    other = WholeJob(job.path, job.document, job.now_ms, name=job.name, state=job.state)
    other.plane.next_epoch(job.name)
    other.plane._is_due = lambda *_: True  # type: ignore[method-assign]
    outcome = other.decide(other.plane.next_epoch(job.name), ())
    return sum(table.num_rows for table in (*outcome.admitted, *outcome.rejected))
