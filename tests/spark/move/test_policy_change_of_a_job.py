"""A whole job without Spark through changes of its policies: the control plane, its decider, and what comes of it."""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_throttle.control.epochs import NO_EPOCH, EpochName
from spark_throttle.control.plane import ControlPlane
from spark_throttle.control.reports import write_report
from spark_throttle.core.quota import OnExcess
from spark_throttle.files.storage import Directory
from spark_throttle.policy.compile import revision_of
from spark_throttle.policy.source import PolicySnapshot
from spark_throttle.record import pack
from spark_throttle.spark.move.decider_batch import run_batch
from spark_throttle.store.policy_location import load_policies
from tests.effort import crossed
from tests.spark.move.played import START_MS, column, with_helpers


class Job:
    """A job that is played by hand; it follows whatever `policies` was set to last."""

    def __init__(self, folder: Path, policies: dict[str, Any]) -> None:
        self.directory, self.now_ms, self.batches = Directory(str(folder)), START_MS, 0
        self.set(policies)
        self.plane = ControlPlane(self.directory, self, "publish", lambda: self.now_ms)
        self.epoch = NO_EPOCH
        self.state: bytes | None = None

    def set(self, policies: dict[str, Any]) -> None:
        document = load_policies(policies)
        self.snapshot = PolicySnapshot(document, revision_of(document), None)

    def current(self) -> PolicySnapshot:
        return self.snapshot

    def trigger(self, rows: dict[str, int] | None = None, *, after_ms: int = 1_000) -> Counter[str]:
        """Run a batch that brings so many rows of each namespace; return how many of each were admitted."""
        self.now_ms += after_ms
        epoch = self.plane.next_epoch(self.epoch)
        row = self._control_row(epoch) if epoch != self.epoch else None
        self.epoch = epoch
        names = [name for name, count in (rows or {}).items() for _ in range(count)]
        table = with_helpers(pa.table({"name": names}), names, [1] * len(names)) if names else None
        arrived = [] if table is None else [table]
        outcome = run_batch(self.state, row, arrived, now_ms=self.now_ms, is_explained=False)
        self.state = outcome.state
        write_report(self.directory, self.batches, outcome.usage)
        self.batches += 1
        return Counter(str(name) for name in column(outcome.admitted, "name"))

    def _control_row(self, name: EpochName) -> bytes:
        epochs = self.plane.epochs
        epoch, policy = epochs.load(name), epochs.policy_for(self.epoch, name)
        packed = None if policy is None else pack(policy)
        return pack(epoch.control_row(packed, epochs.policy(epoch)))


def group_of(rate: float) -> dict[str, Any]:
    quota = {"messages_per_second": rate, "burst_seconds": 1 if rate >= 1 else 2}
    return {"resource_groups": {"g": {"publish": quota}}, "defaults": {"resource_group": "g"}}


@pytest.mark.slow
@pytest.mark.parametrize("low", [0.001, 0.01, 1])
def test_raised_quota_serves_all_alike_from_the_next_batches_on(tmp_path: Path, low: float) -> None:
    job = Job(tmp_path, group_of(low))
    job.trigger({"a/x": 900, "b/y": 900})
    job.trigger()
    job.set(group_of(50))
    served = sum((job.trigger() for _ in range(10)), Counter())
    assert abs(served["a/x"] - served["b/y"]) <= 2
    assert served.total() >= 9 * 50


@pytest.mark.slow
def test_tenants_that_move_to_a_faster_group_are_served_there_at_once(tmp_path: Path) -> None:
    def moved_to(group: str) -> dict[str, Any]:
        slow = {"messages_per_second": 0.01, "burst_seconds": 100}
        fast = {"messages_per_second": 50, "burst_seconds": 1}
        return {
            "resource_groups": {"slow": {"publish": slow}, "fast": {"publish": fast}},
            "tenants": {name: {"resource_group": group} for name in "ab"} | {"c": {"resource_group": "fast"}},
        }

    job = Job(tmp_path, moved_to("slow"))
    job.trigger({"a/x": 900, "b/y": 900})
    job.trigger()
    job.set(moved_to("fast"))
    served = job.trigger({"c/z": 900})
    served = sum((job.trigger() for _ in range(10)), served)
    assert max(served.values()) - min(served[name] for name in ("a/x", "b/y", "c/z")) <= 2


def quota_at(level: str, on_excess: str) -> dict[str, Any]:
    scope = {"publish": {"messages_per_second": 10, "burst_seconds": 1, "on_excess": on_excess}}
    documents: dict[str, dict[str, Any]] = {
        "namespace": {"namespaces": {"a/x": scope}},
        "tenant": {"tenants": {"a": scope}},
        "group": {"resource_groups": {"g": scope}, "defaults": {"resource_group": "g"}},
        "job": {"job": scope},
    }
    return documents[level]


CHANGES = [change for change in product((each.name.lower() for each in OnExcess), repeat=2) if len(set(change)) == 2]


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(("change", "level"), crossed(CHANGES, ["namespace", "tenant", "group", "job"], of=2))
def test_action_that_changes_serves_the_quota_from_two_bursts_on(
    tmp_path: Path, change: tuple[str, str], level: str
) -> None:
    """Whatever passed in a dry run of a minute at five times the quota, nothing of it is owed beyond a burst."""
    before, after = change
    job = Job(tmp_path, quota_at(level, before))
    for _ in range(20):
        job.trigger({"a/x": 150}, after_ms=3_000)
    job.set(quota_at(level, after))
    for _ in range(3):
        job.trigger({"a/x": 50})
    served = sum((job.trigger({"a/x": 50}) for _ in range(10)), Counter())
    assert served["a/x"] == 500 if after == "observe" else 98 <= served["a/x"] <= 102


def test_namespace_and_group_start_full_with_their_first_limit(tmp_path: Path) -> None:
    quota = {"publish": {"messages_per_second": 100, "burst_seconds": 9}}
    for first, then in (
        (group_of(1), {**group_of(1_000), "namespaces": {"a/x": quota}}),
        ({"namespaces": {"a/x": quota}}, {"namespaces": {"a/x": quota}, "tenants": {"a": quota}}),
    ):
        job = Job(tmp_path / str(len(then)), first)
        job.trigger({"a/x": 5}, after_ms=60_000)
        job.trigger(after_ms=60_000)
        job.set(then)
        assert job.trigger({"a/x": 700}, after_ms=60_000)["a/x"] >= 700


def test_time_before_a_change_is_paid_at_the_rate_of_then(tmp_path: Path) -> None:
    def quota(rate: float) -> dict[str, Any]:
        scope = {"publish": {"messages_per_second": rate, "burst_seconds": 1_000 / rate}}
        return {"namespaces": {"a/x": scope}, "job": scope}

    job = Job(tmp_path, quota(1))
    assert job.trigger({"a/x": 5_000})["a/x"] == 1_001
    job.set(quota(1_000))
    # A burst of 1,000 both times, and a second between them at 1 a second.
    assert job.trigger(after_ms=1_000)["a/x"] <= 2
    assert job.trigger(after_ms=500)["a/x"] in range(499, 502)
