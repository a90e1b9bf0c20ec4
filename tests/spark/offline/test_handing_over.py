"""A simulated job goes on with another number of shards: nothing is lost, doubled or forgiven, whatever dies."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable

import pytest

from spark_throttle.checkpoint.manifest import Manifest, bound_manifest
from spark_throttle.core.codec import unpack_shard
from spark_throttle.errors import CheckpointMismatchError, ConfigurationError, DamagedError, ThrottleError
from spark_throttle.testing import SimulatedJob
from spark_throttle.testing.simulation.disk import CRASH_POINTS, CrashPoint, MemoryDirectory

pytestmark = pytest.mark.slow

NAMES = [f"t/n{number}" for number in range(9)]
LIMITS = {
    "tenants": {"t": {"publish": {"messages_per_second": 20, "burst_seconds": 1}}},
    "defaults": {"publish": {"messages_per_second": 4, "bytes_per_second": 3_000, "burst_seconds": 2}},
}


class Killed(BaseException):
    """The death of the process that hands the shards over."""


def backlogged(shards: int, *, batches: int = 3, rows: int = 12, **settings: int) -> SimulatedJob:
    """Return a job in which rows wait; if some hundred of each namespace came, most of them in files."""
    job = SimulatedJob(LIMITS, shards, **settings)  # type: ignore[arg-type] # the settings that are numbers
    for _ in range(batches):
        job.offer([(name, 100) for name in NAMES] * rows)
        job.trigger(1_000)
    return job


def manifest_of(job: SimulatedJob) -> Manifest:
    return bound_manifest(MemoryDirectory(job.checkpoint.control, lambda _: None, job.place))


def drained(job: SimulatedJob) -> list[int]:
    """Let all rows go, and return them by the order in which they left."""
    job.set_policies({"version": 1})
    for _ in range(3):
        job.trigger(1_000)
    return [row.id for row in job.admitted]


def is_whole(job: SimulatedJob) -> bool:
    """Return whether every row has left once, and in order within its namespace."""
    left = drained(job)
    of_namespace = {name: [row.id for row in job.admitted if row.namespace == name] for name in NAMES}
    in_order = all(rows == sorted(rows) for rows in of_namespace.values())
    return in_order and sorted(left) == list(range(len(job.outside.source))) and not job.waiting


def balances(job: SimulatedJob) -> dict[str, list[int]]:
    """Return what every namespace holds, in micro-tokens."""
    states = job.checkpoint.states[job.checkpoint.committed]
    flows = [unpack_shard(block, "a state").state.flows for block in states.values()]
    return {name: held for each in flows for name, held in zip(each.names.to_pylist(), each.balance_micro.tolist(),
                                                                strict=True)}  # fmt: skip


@pytest.mark.parametrize(("former", "shards"), [(2, 5), (5, 2), (3, 1), (1, 3), (2, 64)])
def test_every_row_leaves_once_and_in_order(former: int, shards: int, caplog: pytest.LogCaptureFixture) -> None:
    job = backlogged(former)
    waited = {name: [row.id for row in job.waiting if row.namespace == name] for name in NAMES}
    job.reshard(shards)
    job.offer([(name, 100) for name in NAMES])
    with caplog.at_level(logging.WARNING):
        batch = job.restart() or job.trigger(1_000)
    assert batch is not None
    assert "no usage report" not in caplog.text
    states = job.checkpoint.states[job.checkpoint.committed]
    assert sorted(states) == list(range(shards)), "the states of former shards are forgotten"
    for shard, block in states.items():
        names = unpack_shard(block, "a state").state.flows.names.to_pylist()
        assert {zlib.crc32(name.encode()) % shards for name in names} <= {shard}
    left = {row.id for row in batch.admitted}
    for name in NAMES:
        still = [row.id for row in job.waiting if row.namespace == name]
        assert still[:-1] == [row for row in waited[name] if row not in left], "its last row is new"
    assert is_whole(job)


@pytest.mark.parametrize("shards", [1, 7])
def test_tenant_and_namespaces_get_what_one_bucket_allows(shards: int) -> None:
    """Over a span of seconds: the rate, the burst, and a message of overdraft for each shard of either number."""
    job, same = backlogged(3), backlogged(3)
    begun, since_ms = len(job.admitted), job.steady_ms
    job.reshard(shards)
    job.restart()
    for _ in range(10):
        for each in (job, same):
            each.trigger(500)
    seconds = (job.steady_ms - since_ms) / 1000
    got, would_get = len(job.admitted) - begun, len(same.admitted) - begun
    assert got <= 20 * (seconds + 1) + 3 + shards
    assert abs(got - would_get) <= 3 + shards
    for name in NAMES:
        assert sum(row.namespace == name for row in job.admitted[begun:]) <= 4 * (seconds + 2) + 2


def test_debts_of_namespaces_are_not_forgotten() -> None:
    job = SimulatedJob({"defaults": {"publish": {"bytes_per_second": 100, "burst_seconds": 1}}}, 2)
    job.offer([(name, 10_000) for name in NAMES] * 2)
    job.trigger(1_000)
    owed = balances(job)
    assert min(held[1] for held in owed.values()) < -9_000_000_000
    job.reshard(5)
    job.restart()
    job.offer([("t/new", 1)])
    job.trigger(0)
    assert {name: held for name, held in balances(job).items() if name != "t/new"} == owed


@pytest.mark.parametrize("at", CRASH_POINTS)
def test_first_batch_that_dies_runs_again_the_same(at: CrashPoint) -> None:
    job = backlogged(3)
    job.reshard(2)
    job.restart()
    job.offer([(name, 100) for name in NAMES])
    job.crash(at)
    job.trigger(1_000)
    job.restart()
    attempts: dict[int, set[str]] = {}
    for batch in job.attempts:
        attempts.setdefault(batch.number, set()).add(batch.digest)
    assert all(len(digests) == 1 for digests in attempts.values())
    assert is_whole(job)


def test_tool_that_dies_anywhere_leaves_the_checkpoint_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_throttle.testing.simulation.job.INLINE_BYTES", 200)
    writes, written = [0], MemoryDirectory.write
    job = backlogged(3, batches=2, rows=300)
    whole = job.clone(with_sinks=True, is_elsewhere=False)
    counted = _dying(writes, None, written)
    with monkeypatch.context() as patched:
        patched.setattr(MemoryDirectory, "write", counted)
        whole.reshard(2)
    assert writes[0] > 2 + 1 + 1, "files of waiting rows, and two states, their list and the manifest"
    for last in range(writes[0]):
        copy = job.clone(with_sinks=True, is_elsewhere=False)
        with monkeypatch.context() as patched:
            patched.setattr(MemoryDirectory, "write", _dying([0], last, written))
            with pytest.raises(Killed):
                copy.reshard(2)
        assert manifest_of(copy).shards == 3
        again = copy.clone(with_sinks=True, is_elsewhere=False)
        again.reshard(2)
        assert again.checkpoint.control == whole.checkpoint.control, "the same bytes under the same names"
        copy.shards = 3
        copy.restart()
        assert is_whole(copy)


def _dying(
    writes: list[int], last: int | None, write: Callable[[MemoryDirectory, str, bytes], None]
) -> Callable[[MemoryDirectory, str, bytes], None]:
    """Return a function that writes until it has written `last` files, and dies at the next."""

    def written(directory: MemoryDirectory, name: str, content: bytes) -> None:
        if writes[0] == last:
            raise Killed
        writes[0] += 1
        write(directory, name, content)

    return written


def test_number_may_be_changed_back_or_again_before_any_batch() -> None:
    job = backlogged(3)
    as_it_was = dict(job.checkpoint.control)
    job.reshard(5)
    job.reshard(3)
    assert job.checkpoint.control["manifest.json"] == as_it_was["manifest.json"]
    job.reshard(5)
    job.reshard(2)
    assert [(each.former_shards, each.batch) for each in manifest_of(job).reshardings] == [(3, 2)]
    job.restart()
    job.trigger(1_000)
    job.reshard(4)
    assert [(each.former_shards, each.batch) for each in manifest_of(job).reshardings] == [(3, 2), (2, 3)]
    job.restart()
    job.trigger(1_000)
    assert is_whole(job)


@pytest.mark.parametrize("shards", [0, 4_097, 3])
def test_number_that_is_none_or_the_same_is_refused(shards: int) -> None:
    job = backlogged(3)
    with pytest.raises(ConfigurationError, match=r"give a number from 1 to 4096|has 3 shards already"):
        job.reshard(shards)
    job.shards = 3
    job.restart()
    assert is_whole(job)


def test_batch_that_is_not_committed_is_finished_first() -> None:
    job = backlogged(3)
    job.crash("before commit")
    job.trigger(1_000)
    with pytest.raises(ConfigurationError, match="is not committed"):
        job.reshard(2)
    job.restart()
    job.reshard(2)
    job.restart()
    assert is_whole(job)


def test_checkpoint_that_is_put_back_to_before_the_change_needs_its_control_directory() -> None:
    job = backlogged(3)
    job.trigger(1_000)
    job.reshard(2)
    job.restart()
    job.trigger(1_000)
    job.put_back(2)
    with pytest.raises(CheckpointMismatchError, match=r"is of 2 shards since batch 4.* start with 3 shards"):
        job.restart()


def test_waiting_rows_in_files_are_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_throttle.testing.simulation.job.INLINE_BYTES", 200)
    job = backlogged(2, batches=2, rows=300)
    former = {name for name in job.checkpoint.control if name.startswith("queue/")}
    job.reshard(3)
    handed_over = {name for name in job.checkpoint.control if name.startswith("queue/")} - former
    assert {name.split("/")[1] for name in handed_over} == {"0", "1", "2"}
    for name in former:
        del job.checkpoint.control[name]
    job.restart()
    assert is_whole(job)


def test_newer_checkpoint_with_the_control_directory_of_before_is_refused() -> None:
    job = backlogged(3)
    before = dict(job.checkpoint.control)
    job.reshard(2)
    job.restart()
    job.trigger(1_000)
    job.stop()
    job.checkpoint.control = before
    for shards in (2, 3):
        job.shards = shards
        with pytest.raises(ThrottleError):
            job.restart() or job.trigger(1_000)


def test_states_that_are_not_those_that_were_handed_over_end_the_first_batch() -> None:
    """As those of a batch before, with the same epoch, in a checkpoint that was put back alone."""
    job = backlogged(3)
    states = job.checkpoint.states
    job.reshard(2)
    committed = job.checkpoint.committed
    states[committed] = states[committed] | {1: states[committed - 1][1]}
    written = len(job.admitted), len(job.written)
    job.restart()
    with pytest.raises(CheckpointMismatchError, match="the state of the key 1 is not the one that was handed over"):
        job.trigger(1_000)
    assert (len(job.admitted), len(job.written)) == written


@pytest.mark.parametrize("ending", [".json", ".00001-"])
def test_handover_that_is_gone_or_altered_is_damage(ending: str) -> None:
    job = backlogged(3)
    job.reshard(2)
    control = job.checkpoint.control
    (name,) = [name for name in control if name.startswith("handover/") and ending in name]
    kept = control.pop(name)
    job.restart()
    with pytest.raises(DamagedError, match="it is gone"):
        job.trigger(1_000)
    control[name] = kept[:-3] + b"xxx"
    with pytest.raises(DamagedError):
        job.restart() or job.trigger(1_000)
    control[name] = kept
    job.restart()
    assert is_whole(job)


def test_what_no_batch_can_need_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handover by the epochs, and the former shards' files of waiting rows by theirs."""
    monkeypatch.setattr("spark_throttle.control.epochs._PRUNED_EVERY", 5)
    job = backlogged(3, rows=300, batches_retained=3)
    former = {name for name in job.checkpoint.control if name.startswith("queue/")}
    assert former
    job.reshard(2)
    job.restart()
    for _ in range(2):
        job.trigger(1_000)
    assert former <= job.checkpoint.control.keys()
    for _ in range(30):
        job.trigger(1_000)
    left = job.checkpoint.control.keys()
    assert not former & left
    assert not [name for name in left if name.startswith("handover/")]
    assert is_whole(job)


def test_handing_over_writes_the_manifest_last() -> None:
    job = backlogged(2)
    names: list[str] = []
    written = MemoryDirectory.write

    def noted(directory: MemoryDirectory, name: str, content: bytes) -> None:
        names.append(name)
        written(directory, name, content)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MemoryDirectory, "write", noted)
        job.reshard(3)
    folders = [name.partition("/")[0] for name in names]
    assert folders == sorted(folders, key=["queue", "handover", "manifest.json"].index)
    assert folders[-1] == "manifest.json"
