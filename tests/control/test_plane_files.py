"""Files of the control plane are made again as they were, refused when damaged, forgotten when old."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_throttle.checkpoint.batch_records import CHARGES, REPORT, records
from spark_throttle.control.charges import write_charges
from spark_throttle.control.epochs import NO_EPOCH, EpochName, logged_epoch
from spark_throttle.control.reports import Reports
from spark_throttle.core.quota import NEVER_MS, CompiledPolicy
from spark_throttle.core.time_charges import TimeCharges
from spark_throttle.errors import DamagedError, EpochMissingError, StoredFormatError
from spark_throttle.files.storage import Directory
from spark_throttle.policy.compile import compile_policy, revision_of
from spark_throttle.policy.model import PolicyDocument
from tests.control.queries import Query, per_second


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path / "control")


# Replay (law L6)


def scenario(query: Query) -> Iterator[None]:
    """Yield before each trigger of a history with traffic, a pause, a quota change and a batch that brings no epoch."""
    for step in range(12):
        if query.name != NO_EPOCH:
            due_ms = query.now_ms + 700 if step % 3 else NEVER_MS
            used = {f"t{number}/n": (step * 7, step) for number in range(2)}
            query.batch(query.report(used, waiting=step, due_ms=due_ms) if step != 7 else None)
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
    query.busy_batch(5, waiting=1, due_ms=query.now_ms)
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
    assert found.shared.rate_micro_per_ms[0].tolist() == [100_000, -1, -1, -1]


def test_run_prunes_at_its_first_commit_and_after_every_hundred(query: Query) -> None:
    name = query.trigger()
    old = query.path / "epochs" / "000000000000-0000000000000000-0"
    for number in range(301):
        old.write_bytes(b"")
        query.plane.forget_before(EpochName(201, name.file))
        assert old.exists() == (number % 100 != 0)
    query.restart()
    query.trigger()
    query.plane.forget_before(EpochName(201, name.file))
    assert not old.exists()


@pytest.mark.slow
def test_many_batches_without_an_epoch_leave_no_more_files_than_a_checkpoint_may_need(query: Query) -> None:
    """Of each batch there is a report and, as functions are metered, what it was charged."""
    name = query.trigger()
    for batch in range(450):
        write_charges(query.directory, batch, TimeCharges.of({"a/x": 5}), part="f.0")
        query.busy_batch()
        assert query.trigger() == name
        if batch % 30 == 29:
            query.restart()  # as a query that is started for what is there
            query.trigger(0)
        query.plane.forget_before(name)
    assert {path.name for path in (query.path / "epochs").iterdir()} == {name.file}
    for kind in (REPORT, CHARGES):
        assert 100 <= len(records(query.directory, kind)) <= 330


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
        query.busy_batch()
        query.trigger()
    policies = query.path / "policies"
    assert len(list(policies.iterdir())) == 6
    query.plane.epochs.forget_before(EpochName(200, ""), query.epoch.revision)
    assert len(list(policies.iterdir())) == 6
    query.plane.epochs.forget_before(EpochName(300, ""), query.epoch.revision)
    (left,) = policies.iterdir()
    assert left.name == revision_of(query.policies.snapshot.document, "publish")
    query.policies.set({"job": per_second(10)})
    query.busy_batch()
    query.trigger()
    assert len(list(policies.iterdir())) == 2  # a revision that comes back is written again


@pytest.mark.slow
def test_memory_holds_the_revisions_of_two_epochs(query: Query) -> None:
    query.trigger()
    for number in range(20):
        query.policies.set({"job": per_second(10 + number)})
        query.busy_batch()
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


@pytest.mark.parametrize(
    ("offsets", "number"),
    [
        (['{"seconds":3}', '{"epoch":7,"file":"000000000007-5f"}'], 7),
        (['{"control":{"epoch":7,"file":"000000000007-5f"},"references":1}'], 7),
        (['{"epoch":7}'], None),
        (['{"epoch":7,"file":"000000000007-5f"}'] * 2, None),
    ],
)
def test_the_epoch_of_a_batch_is_the_one_that_its_offsets_name(
    tmp_path: Path, offsets: list[str], number: int | None
) -> None:
    checkpoint = Directory(str(tmp_path))
    checkpoint.write("offsets/3", "\n".join(["v1", "{}", *offsets]).encode())
    found = logged_epoch(checkpoint, 3)
    assert (None if found is None else found.number) == number


def test_run_that_starts_reads_the_last_two_reports_and_then_those_that_come(tmp_path: Path) -> None:
    query = Query(tmp_path / "control")
    for _ in range(5):
        query.trigger()
        query.busy_batch()
    reports = Reports(query.directory, lambda: None)
    assert len(reports.take_in(query.epoch)) == 2
    query.busy_batch()
    assert len(reports.take_in(query.epoch)) == 1
