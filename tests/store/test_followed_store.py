"""A policy store that changes, breaks, goes and comes back while a job follows it."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from spark_throttle.control.epochs import NO_EPOCH
from spark_throttle.control.notes import NextPolicies, read_next_policies
from spark_throttle.control.plane import ControlPlane
from spark_throttle.errors import ConfigurationError, PolicyError, StoreUnavailableError
from spark_throttle.files.storage import Directory
from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.followed_store import FollowedStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author, Change

ANN = Author("ann")
FIVE = {"publish": {"messages_per_second": 5}}
TEN = {"publish": {"messages_per_second": 10}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(path: Path) -> DeltaStore:
    return DeltaStore.create(str(path))


@pytest.fixture
def service(store: DeltaStore) -> PolicyService:
    service = PolicyService(store, clock_ms=lambda: 0)
    service.put("job", "", FIVE, ANN)
    return service


@pytest.fixture
def followed(service: PolicyService, path: Path) -> FollowedStore:
    followed = FollowedStore(f"delta:{path}")
    followed.current()
    return followed


def rate(followed: FollowedStore) -> int:
    return int(followed.current().document.job.publish.messages_per_second or -1)


def test_unchanged_store_gives_the_same_snapshot(followed: FollowedStore) -> None:
    assert followed.current() is followed.current()
    assert followed.current().store_revision == 1


@pytest.mark.slow
def test_restored_store_is_read_though_its_newest_revision_has_the_same_number(tmp_path: Path, path: Path) -> None:
    service = PolicyService(DeltaStore.create(str(path)), clock_ms=lambda: 0)
    service.put("job", "", FIVE, ANN)
    shutil.copytree(path, tmp_path / "backup")
    service.put("job", "", {"publish": {"messages_per_second": 7}}, ANN)
    followed = FollowedStore(f"delta:{path}")
    assert rate(followed) == 7
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "backup", path)
    PolicyService(DeltaStore(str(path)), clock_ms=lambda: 0).put("job", "", TEN, ANN)
    assert (rate(followed), followed.current().store_revision) == (10, 2)


def test_committed_change_is_seen_at_the_next_look(followed: FollowedStore, service: PolicyService) -> None:
    service.put("job", "", TEN, ANN)
    assert rate(followed) == 10
    assert followed.current().store_revision == 2


def test_deleted_store_keeps_the_last_good_revision_and_says_so_once(
    followed: FollowedStore, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """<https://github.com/apache/pulsar/issues/22504>: no policies after a move."""
    shutil.rmtree(path)
    with caplog.at_level(logging.ERROR):
        assert rate(followed) == 5
        assert rate(followed) == 5
    problem = followed.current().problem
    assert problem is not None
    assert "is not available" in problem
    (record,) = caplog.records
    assert record.getMessage().endswith("revision 1 stays in force")


def test_store_that_comes_back_is_followed_again(followed: FollowedStore, service: PolicyService, path: Path) -> None:
    away = path.with_name("away")
    path.rename(away)
    assert followed.current().problem is not None
    away.rename(path)
    assert followed.current().problem is None
    service.put("job", "", TEN, ANN)
    assert rate(followed) == 10


@pytest.mark.slow
def test_store_that_another_replaces_is_followed_after_it_was_missed(followed: FollowedStore, path: Path) -> None:
    shutil.rmtree(path)
    other = PolicyService(DeltaStore.create(str(path)), clock_ms=lambda: 0)
    other.put("job", "", TEN, ANN)
    problem = followed.current().problem
    assert problem is not None
    assert "another table has taken its place" in problem
    assert rate(followed) == 10


@pytest.mark.slow
@pytest.mark.parametrize("body", ['{"publish":{"weight":0}}', "{", '{"newer":1}', '{"resource_group":"gone"}'])
def test_revision_that_cannot_be_applied_keeps_the_last_good_one(
    followed: FollowedStore, service: PolicyService, body: str
) -> None:
    service.store.commit([Change("namespace", "acme/x", body)], expected_revision=1, author=ANN, at_ms=0)
    assert rate(followed) == 5
    snapshot = followed.current()
    assert snapshot.problem is not None
    assert "acme/x" in snapshot.problem
    assert snapshot.store_revision == 1
    service.store.commit([Change("namespace", "acme/x", None)], expected_revision=2, author=ANN, at_ms=0)
    assert followed.current().problem is None
    assert followed.current().store_revision == 3


def test_store_that_never_was_there_is_an_error(path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="make one with `spark-throttle policy apply --init`"):
        FollowedStore(f"delta:{path}").current()


def test_store_that_never_could_be_applied_is_an_error(store: DeltaStore, path: Path) -> None:
    store.commit([Change("job", "", '{"publish":{"weight":0}}')], expected_revision=0, author=ANN, at_ms=0)
    with pytest.raises(PolicyError, match=r"job\.publish\.weight"):
        FollowedStore(f"delta:{path}").current()


def test_table_that_is_no_store_is_an_error(tmp_path: Path) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    write_deltalake(str(tmp_path / "other"), pa.table({"a": [1]}))
    with pytest.raises(ConfigurationError, match="is not a policy store"):
        FollowedStore(f"delta:{tmp_path / 'other'}").current()


@pytest.mark.slow
def test_change_is_due_in_the_next_batch_and_the_job_says_what_it_follows(
    followed: FollowedStore, service: PolicyService, tmp_path: Path, path: Path
) -> None:
    directory = Directory(str(tmp_path / "control"))
    plane = ControlPlane(directory, followed, "publish", lambda: 1_000)
    first = plane.next_epoch(NO_EPOCH)
    service.put("job", "", TEN, ANN)
    second = plane.next_epoch(first)
    assert second.number == first.number + 1
    policy = plane.epochs.policy_for(first, second)
    assert policy is not None
    assert policy.shared.rate_micro_per_ms.tolist() == [[10_000, -1, -1, -1]]
    assert read_next_policies(directory) == NextPolicies(policy.revision, 2, None)
    shutil.rmtree(path)
    plane.next_epoch(second)
    said = read_next_policies(directory)
    assert said is not None
    assert (said.revision, said.store_revision) == (policy.revision, 2)
    assert said.problem is not None
