"""A policy file that changes, breaks, goes and comes back."""

from __future__ import annotations

import logging
import os
import pickle
from pathlib import Path

import pytest

from spark_throttle.errors import ConfigurationError, PolicyError
from spark_throttle.policy.source import SETTLING_NS, PolicyFile

CHANGED_NS = 1_700_000_000_000_000_000
LATER_NS = CHANGED_NS + 1000 * SETTLING_NS


def write(path: Path, weight: object, *, changed_ns: int = CHANGED_NS) -> None:
    path.write_text(f"job: {{publish: {{weight: {weight}}}}}")
    os.utime(path, ns=(changed_ns, changed_ns))


def weight_of(policies: PolicyFile) -> int:
    return policies.current().document.job.publish.weight


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    write(path, 1)
    return path


@pytest.fixture
def policies(path: Path) -> PolicyFile:
    return PolicyFile(path, clock_ns=lambda: LATER_NS)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every path whose content is read, in order."""
    seen: list[Path] = []
    read_bytes = Path.read_bytes

    def counted(path: Path) -> bytes:
        seen.append(path)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", counted)
    return seen


@pytest.fixture
def errors(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.ERROR, logger="spark_throttle.policy.source")
    return caplog


def test_unchanged_file_is_read_once_and_gives_the_same_snapshot(policies: PolicyFile, reads: list[Path]) -> None:
    first = policies.current()
    assert all(policies.current() is first for _ in range(100))
    assert len(reads) == 1


def test_changed_file_is_in_force_at_the_next_call(path: Path, policies: PolicyFile) -> None:
    before = policies.current()
    write(path, 2, changed_ns=CHANGED_NS + 1)
    after = policies.current()
    assert after.document.job.publish.weight == 2
    assert after.revision != before.revision
    assert after.problem is None


def test_file_replaced_by_rename_with_the_same_time_and_size_is_seen(path: Path, policies: PolicyFile) -> None:
    assert weight_of(policies) == 1
    write(path.with_suffix(".new"), 2)
    path.with_suffix(".new").rename(path)
    assert weight_of(policies) == 2


def test_change_within_one_tick_of_the_file_systems_clock_is_seen(path: Path) -> None:
    now_ns = CHANGED_NS + SETTLING_NS - 1
    policies = PolicyFile(path, clock_ns=lambda: now_ns)
    assert weight_of(policies) == 1
    write(path, 2)  # the same inode, size and time
    assert weight_of(policies) == 2


def test_touched_file_keeps_its_snapshot(path: Path, policies: PolicyFile) -> None:
    before = policies.current()
    write(path, 1, changed_ns=CHANGED_NS + 1)
    assert policies.current() is before


def test_rewording_keeps_the_revision(path: Path, policies: PolicyFile) -> None:
    before = policies.current()
    path.write_text("# the same\njob:\n  publish:\n    weight: 1\n")
    assert policies.current().revision == before.revision


def test_broken_file_keeps_the_last_good_policy_and_says_so_once(
    path: Path, policies: PolicyFile, reads: list[Path], errors: pytest.LogCaptureFixture
) -> None:
    before = policies.current()
    write(path, 0, changed_ns=CHANGED_NS + 1)
    snapshots = [policies.current() for _ in range(100)]
    assert len(reads) == 2
    assert snapshots[0].document is before.document
    assert snapshots[0].revision == before.revision
    assert snapshots[0].problem is not None
    assert "job.publish.weight: 0 is less than 1" in snapshots[0].problem
    (record,) = errors.records
    assert "job.publish.weight: 0 is less than 1" in record.getMessage()
    assert f"revision {before.revision} stays in force" in record.getMessage()


def test_each_distinct_broken_content_is_logged(
    path: Path, policies: PolicyFile, errors: pytest.LogCaptureFixture
) -> None:
    policies.current()
    for step, content in enumerate([0, 0, 1001, "oops"], start=1):
        write(path, content, changed_ns=CHANGED_NS + step)
        policies.current()
    assert len(errors.records) == 3


def test_mended_file_is_in_force_without_a_problem(path: Path, policies: PolicyFile) -> None:
    policies.current()
    write(path, 0, changed_ns=CHANGED_NS + 1)
    policies.current()
    write(path, 3, changed_ns=CHANGED_NS + 2)
    assert weight_of(policies) == 3
    assert policies.current().problem is None


def test_file_put_back_as_it_was_clears_the_problem(path: Path, policies: PolicyFile) -> None:
    before = policies.current()
    write(path, 0, changed_ns=CHANGED_NS + 1)
    assert policies.current().problem
    write(path, 1, changed_ns=CHANGED_NS + 2)
    assert policies.current() == before


def test_emptied_file_lifts_no_limit(path: Path, policies: PolicyFile) -> None:
    policies.current()
    path.write_text("")
    assert weight_of(policies) == 1
    assert "the document is empty" in str(policies.current().problem)


def test_missing_file_keeps_the_last_good_policy_until_it_is_back(
    path: Path, policies: PolicyFile, errors: pytest.LogCaptureFixture
) -> None:
    """<https://github.com/apache/pulsar/issues/22504>: no policies after a move."""
    before = policies.current()
    away = path.with_suffix(".away")
    path.rename(away)
    assert policies.current().document is before.document
    assert "cannot read the policy file" in str(policies.current().problem)
    assert len(errors.records) == 1
    away.rename(path)
    assert policies.current() == before
    assert policies.current().problem is None


def test_file_that_is_missing_at_first_is_a_configuration_error(tmp_path: Path) -> None:
    policies = PolicyFile(tmp_path / "policy.yaml")
    with pytest.raises(ConfigurationError, match=r"cannot read the policy file .*policy\.yaml"):
        policies.current()
    write(policies.path, 5)
    assert weight_of(policies) == 5


def test_directory_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="directory"):
        PolicyFile(tmp_path).current()


def test_file_that_is_broken_at_first_is_an_error_at_every_call(path: Path, policies: PolicyFile) -> None:
    write(path, 0)
    for _ in range(2):
        with pytest.raises(PolicyError, match="0 is less than 1") as caught:
            policies.current()
        assert caught.value.path == "job.publish.weight"
        assert str(path) in caught.value.problem
    write(path, 2)
    assert weight_of(policies) == 2


def test_followed_file_survives_pickling(path: Path) -> None:
    policies = PolicyFile(str(path))
    before = policies.current()
    copied = pickle.loads(pickle.dumps(policies))  # noqa: S301 - our own bytes
    assert copied.current() == before
    write(path, 2, changed_ns=CHANGED_NS + 1)
    assert weight_of(copied) == 2
