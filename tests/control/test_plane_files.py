"""What the control plane keeps: made again as it was, refused when damaged, forgotten when old; and its slices."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_throttle.control.epochs import NO_EPOCH, EpochName
from spark_throttle.control.feedback import newest_batch, read_reports
from spark_throttle.core.names.sharding import shard_of, slice_of
from spark_throttle.core.quota import NEVER_MS, CompiledPolicy
from spark_throttle.errors import DamagedError, EpochMissingError, StoredFormatError
from spark_throttle.policy.compile import compile_policy, revision_of
from spark_throttle.policy.model import PolicyDocument
from tests.control.queries import SHARDS, Query, per_second


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path / "control")


# Replay (law L6)


def scenario(query: Query) -> Iterator[None]:
    """Yield before each trigger of a history with traffic, a pause, a quota change and a partial batch."""
    for step in range(12):
        if query.name != NO_EPOCH:
            shards = [1] if step == 7 else range(SHARDS)
            event_ms = query.now_ms + 700 if step % 3 else NEVER_MS
            query.batch(
                *(query.report(s, {f"t{s}/n": (step * 7, step)}, waiting=step, next_event_ms=event_ms) for s in shards)
            )
        if step == 5:
            query.policies.set({"job": per_second(30), "resource_groups": {"iron": per_second(9)}})
        query.now_ms += 1_000 if step != 9 else 86_400_000
        yield


@pytest.mark.slow
def test_restart_anywhere_makes_the_same_epoch(query: Query, tmp_path: Path) -> None:
    for step, _ in enumerate(scenario(query)):
        copied = tmp_path / f"copy{step}"
        if query.path.exists():
            shutil.copytree(query.path, copied)
        other = Query(copied, query.policies, query.now_ms, name=query.name)
        query.trigger(0)
        other.trigger(0)
        assert other.name == query.name
        for name in ("epochs", "policies"):
            assert {p.name: p.read_bytes() for p in (copied / name).iterdir()} == {
                p.name: p.read_bytes() for p in (query.path / name).iterdir()
            }


def test_epoch_that_was_made_and_not_logged_is_made_again(query: Query) -> None:
    query.trigger()
    query.batch(query.report(0, {"a/x": (5, 5)}), query.report(1))
    before = query.name
    first = query.trigger()
    query.name = before
    assert query.trigger(0) == first
    query.name = before
    query.restart()
    assert query.trigger(0) == first
    query.name = before
    later = query.trigger(1)
    assert later.number == first.number
    assert later != first
    assert query.plane.epochs.load(first).number == query.plane.epochs.load(later).number


def test_checkpoint_that_was_rolled_back_does_not_count_batches_that_will_run_again(query: Query) -> None:
    query.trigger()
    query.batch(query.report(0, {"a/x": (10, 0)}), query.report(1))
    first = query.name
    query.trigger(0)
    assert query.tokens(0) == 90
    query.batch(query.report(0, {"a/x": (80, 0)}), query.report(1))
    query.trigger(0)
    query.name, query.next_batch = first, 1
    query.restart()
    query.trigger(0)
    assert query.tokens(0) == 90
    query.batch(query.report(0, {"a/x": (1, 0)}), query.report(1))
    query.trigger(0)
    assert query.tokens(0) == 89


# Files


def test_missing_epoch_file_names_the_file_and_the_remedy(query: Query) -> None:
    name = query.trigger()
    (query.path / "epochs" / name.file).unlink()
    query.restart()
    with pytest.raises(EpochMissingError, match=rf"epoch 1, .*{name.file} is missing: restore the file"):
        query.trigger()


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:9], lambda b: b[:50] + b"!" + b[51:], lambda _: b""])
def test_truncated_or_altered_epoch_file_is_refused(query: Query, damage: Callable[[bytes], bytes]) -> None:
    name = query.trigger()
    path = query.path / "epochs" / name.file
    path.write_bytes(damage(path.read_bytes()))
    query.restart()
    with pytest.raises(DamagedError, match=name.file):
        query.trigger()


def test_missing_or_damaged_policy_revision_is_refused(query: Query) -> None:
    name = query.trigger()
    query.quiet_batch()
    query.policies.set({"job": per_second(7)})
    (path,) = (query.path / "policies").iterdir()
    content = path.read_bytes()
    path.write_bytes(content[:100])
    query.restart()
    with pytest.raises(StoredFormatError, match=path.name):
        query.trigger()
    path.unlink()
    with pytest.raises(EpochMissingError, match=rf"epoch {name.number}, .*{path.name}"):
        query.trigger()
    path.write_bytes(content)
    assert query.trigger().number == 2


def test_replayed_epoch_keeps_its_policy_although_another_is_in_force(query: Query) -> None:
    first = query.trigger()
    query.policies.set({"job": per_second(1)})
    query.restart()
    found = query.plane.epochs.policy_for(NO_EPOCH, first)
    assert found is not None
    assert found.shared.rate_micro_per_ms[0].tolist() == [100_000, -1]


def test_old_reports_and_epochs_are_removed(query: Query) -> None:
    query.trigger()
    for _ in range(5):
        query.batch(query.report(0, {"a/x": (1, 1)}), query.report(1))
        query.trigger()
    assert sorted(read_reports(query.directory, after_batch=-1)) == [3, 4]
    assert newest_batch(query.directory) == 4
    epochs = query.path / "epochs"
    (epochs / "000000000042-0000000000000000").write_bytes(b"")
    query.plane.forget_before(EpochName(301, ""))
    assert len(list(epochs.iterdir())) == 7
    query.plane.forget_before(EpochName(300, ""))
    assert [path.name[:12] for path in epochs.iterdir()] == []


def test_epochs_of_all_batches_that_spark_retains_are_kept(tmp_path: Path) -> None:
    query = Query(tmp_path, batches_retained=1_000)
    query.trigger()
    epochs = query.path / "epochs"
    for number in (99, 100, 101):
        (epochs / f"{number:012}-0000000000000000-0").write_bytes(b"")
    query.plane.forget_before(EpochName(1_200, ""))
    assert sorted(int(path.name[:12]) for path in epochs.iterdir()) == [100, 101]


@pytest.mark.slow
def test_revisions_that_no_kept_epoch_names_are_removed(query: Query) -> None:
    query.trigger()
    for number in range(5):
        query.policies.set({"job": per_second(10 + number)})
        query.batch(query.report(0, {"a/x": (1, 1)}), query.report(1))
        query.trigger()
    policies = query.path / "policies"
    assert len(list(policies.iterdir())) == 6
    query.plane.forget_before(EpochName(200, ""))
    assert len(list(policies.iterdir())) == 6
    query.plane.forget_before(EpochName(300, ""))
    (left,) = policies.iterdir()
    assert left.name == revision_of(query.policies.snapshot.document, "publish")
    query.policies.set({"job": per_second(10)})
    query.batch(query.report(0, {"a/x": (1, 1)}), query.report(1))
    query.trigger()
    assert len(list(policies.iterdir())) == 2  # a revision that comes back is written again


@pytest.mark.slow
def test_memory_holds_the_revisions_of_two_epochs(query: Query) -> None:
    query.trigger()
    for number in range(20):
        query.policies.set({"job": per_second(10 + number)})
        query.batch(query.report(0, {"a/x": (1, 1)}), query.report(1))
        query.trigger()
    assert len(query.plane.epochs._compiled) <= 2


def test_unchanged_policies_are_compiled_once(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def counted(document: PolicyDocument, direction: str) -> CompiledPolicy:
        compiled.append(direction)
        return compile_policy(document, "publish")

    monkeypatch.setattr("spark_throttle.control.plane.compile_policy", counted)
    query.trigger()
    query.quiet_batch()
    for _ in range(20):
        query.trigger(10)
    assert compiled == ["publish"]
    assert query.policies.asked == 21


# Slices


def test_every_namespace_is_in_the_slice_of_its_own_shard_alone() -> None:
    names = [f"t{i}/n{i}" for i in range(50)]
    document = {
        "namespaces": {name: per_second(i + 1) for i, name in enumerate(names)},
        "defaults": per_second(77),
        "job": per_second(3),
    }
    policy = compile_policy(PolicyDocument.model_validate(document), "publish")
    slices = [slice_of(policy, shard, 4) for shard in range(4)]
    found = [part.namespace_names.to_pylist() for part in slices]
    assert sorted(name for part in found for name in part) == sorted(names)
    for shard, part in enumerate(slices):
        assert (shard_of(part.namespace_names, 4) == shard).all()
        rates = part.namespace_limits.rate_micro_per_ms[:, 0].tolist()
        assert rates == [1000 * (names.index(name) + 1) for name in found[shard]] + [77_000]
        assert len(part.namespace_windows) == len(part.namespace_group) == len(rates)
        assert part.shared is policy.shared


def test_shard_is_the_crc_32_of_the_name() -> None:
    # zlib.crc32(b"acme/orders") % 7, as Spark's pmod(crc32(name), 7)
    assert shard_of(pa.array(["acme/orders", "", "ü/日本"]), 7).tolist() == [3, 0, 1]
