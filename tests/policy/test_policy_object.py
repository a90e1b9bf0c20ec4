"""A policy file on an object store that changes, breaks, goes and comes back; the store is a directory here."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyarrow import fs

from spark_throttle.errors import ConfigurationError, PolicyError
from spark_throttle.policy.source import OBJECT_SETTLING_MS, OBJECT_STALE_MS, PolicyObject

CHANGED_S = 1_700_000_000


@dataclass
class Bucket:
    """A store that tells times by the second, and can be out of reach."""

    root: Path
    now_ms: int = -5_000_000
    opened: list[str] = field(default_factory=list)
    is_away: bool = False

    def open(self, uri: str) -> tuple[fs.FileSystem, str]:
        self.opened.append(uri)
        if self.is_away:
            raise OSError("connection refused")
        return fs.SubTreeFileSystem(str(self.root), fs.LocalFileSystem()), uri.removeprefix("s3://b/")

    def put(self, weight: object, *, changed_s: int = CHANGED_S) -> None:
        (self.root / "p.yaml").write_text(f"job: {{publish: {{weight: {weight}}}}}")
        os.utime(self.root / "p.yaml", (changed_s, changed_s))

    def follow(self) -> PolicyObject:
        return PolicyObject("s3://b/p.yaml", clock_ms=lambda: self.now_ms, open_at=self.open)

    def settle(self, policies: PolicyObject) -> None:
        policies.current()
        self.now_ms += OBJECT_SETTLING_MS
        policies.current()


def weight_of(policies: PolicyObject) -> int:
    return policies.current().document.job.publish.weight


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    bucket = Bucket(tmp_path)
    bucket.put(1)
    return bucket


def test_unchanged_object_gives_the_same_snapshot_and_is_not_read(bucket: Bucket) -> None:
    policies = bucket.follow()
    bucket.settle(policies)
    before = policies.current()
    bucket.put(2)  # as no store does: of one time and size
    assert all(policies.current() is before for _ in range(100))


def test_changed_object_is_in_force_at_the_next_call(bucket: Bucket) -> None:
    policies = bucket.follow()
    bucket.settle(policies)
    before = policies.current()
    bucket.put(2, changed_s=CHANGED_S + 1)
    assert weight_of(policies) == 2
    assert policies.current().revision != before.revision


def test_change_within_a_second_of_the_stores_clock_is_seen(bucket: Bucket) -> None:
    policies = bucket.follow()
    assert weight_of(policies) == 1
    bucket.now_ms += OBJECT_SETTLING_MS - 1
    assert weight_of(policies) == 1
    bucket.put(2)
    assert weight_of(policies) == 2


def test_object_whose_time_never_changes_is_read_again_after_a_minute(bucket: Bucket) -> None:
    policies = bucket.follow()
    bucket.settle(policies)
    bucket.put(2)
    bucket.now_ms += OBJECT_STALE_MS
    assert weight_of(policies) == 2


def test_broken_object_keeps_the_last_good_policy_and_says_so(bucket: Bucket) -> None:
    policies = bucket.follow()
    before = policies.current()
    bucket.put(0)
    after = policies.current()
    assert after.document is before.document
    assert "job.publish.weight: 0 is less than 1" in str(after.problem)
    bucket.put(3)
    assert weight_of(policies) == 3
    assert policies.current().problem is None


def test_store_out_of_reach_keeps_the_last_good_policy_and_is_opened_anew(bucket: Bucket) -> None:
    policies = bucket.follow()
    before = policies.current()
    (bucket.root / "p.yaml").unlink()
    assert "cannot read the policy file 's3://b/p.yaml': there is no such object" in str(policies.current().problem)
    bucket.is_away = True
    after = policies.current()
    assert after.document is before.document
    assert "connection refused" in str(after.problem)
    bucket.is_away = False
    bucket.put(4)
    assert weight_of(policies) == 4
    assert len(bucket.opened) == 3


def test_object_that_is_not_there_at_first_is_an_error_until_it_is(bucket: Bucket) -> None:
    (bucket.root / "p.yaml").unlink()
    policies = bucket.follow()
    with pytest.raises(ConfigurationError, match=r"cannot read the policy file 's3://b/p.yaml': .*give the URI"):
        policies.current()
    bucket.put(0)
    with pytest.raises(PolicyError, match="0 is less than 1"):
        policies.current()
    bucket.put(5)
    assert weight_of(policies) == 5
