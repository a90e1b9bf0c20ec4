"""Whatever attempt at a batch is killed, wherever, and however rows are dealt: each row is written once."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from spark_throttle.core.quota import Int64s, OnExcess
from spark_throttle.spark.move import decider, held_files, upkeep
from spark_throttle.spark.move.answer import FileAnswer
from spark_throttle.spark.move.waiting_files import places_in
from tests.effort import thorough_after
from tests.oracle.worlds import Namespace, limit, make_policy
from tests.spark.move.worlds import COPIED, DECIDED, STOPS, Event, StagedJob, dealt

POLICY = make_policy(default=Namespace(limit(messages_per_second=3)))
_BATCHES_TO_DRAIN = 60


@pytest.fixture
def job(tmp_path: Path) -> StagedJob:
    return StagedJob(tmp_path, POLICY)


def drawn(dice: random.Random, batch: int) -> list[Event]:
    """Return the rows of a batch: of some namespaces, many of them twins."""
    return [(f"t{dice.randrange(6)}/n{dice.randrange(2)}", batch * 100 + dice.randrange(8)) for _ in range(30)]


def drain(job: StagedJob, batch: int) -> int:
    """Run batches without rows until nothing waits; return the next one."""
    for each in range(batch, batch + _BATCHES_TO_DRAIN):
        assert job.attempt(each, [])
        if not len(job.held(each + 1)):
            return each + 1
    raise AssertionError(f"rows wait still: {job.held(batch + _BATCHES_TO_DRAIN).name}")


def account(job: StagedJob, batch: int, offered: Counter[Event]) -> None:
    """Hold that after a batch each row that was offered is written or waits, and none is doubled."""
    assert job.committed.total() + int(job.held(batch + 1).waiting.sum()) == offered.total()
    assert not job.committed - offered


@pytest.mark.parametrize("seed", thorough_after(3, range(12)))
def test_each_row_is_written_once_whatever_is_killed(job: StagedJob, seed: int) -> None:
    dice, offered = random.Random(seed), Counter[Event]()
    for batch in range(8):
        events = drawn(dice, batch) if dice.random() < 0.8 else []
        offered += Counter(events)
        for _ in range(dice.randrange(3)):
            job.attempt(batch, dealt(events, dice.randint(1, 4), dice), dice.choice(STOPS))
            if dice.random() < 0.5:
                job.restart()
        assert job.attempt(batch, dealt(events, dice.randint(1, 4), dice))
        if dice.random() < 0.3:
            job.zombie(batch, dealt(events, dice.randint(1, 4), dice))
        account(job, batch, offered)
    drain(job, 8)
    assert job.committed == offered


def test_zombies_state_is_followed_though_the_driver_never_saw_its_files(job: StagedJob) -> None:
    events = [("t/n", n) for n in range(12)]
    assert job.attempt(0, [events])
    driver_knew = job.held(1).name
    job.zombie(0, [events[:5], events[5:]])
    assert set(job.held(1).name).isdisjoint(driver_knew)
    assert drain(job, 1) > 2
    assert job.committed == Counter(events)


def test_batch_that_is_run_again_decides_the_same_of_rows_dealt_otherwise(job: StagedJob) -> None:
    dice = random.Random(3)
    events = drawn(dice, 0)
    reports = []
    for tasks in (1, 2, 7):
        frames, _ = job.decide(0, job.stage(0, dealt(events, tasks, dice)))
        reports.append(frames.rows[-1])
    assert reports[1:] == reports[:1] * 2


def test_cut_file_stays_until_the_next_batch_has_loaded_the_state(job: StagedJob) -> None:
    events = [("t/n", n) for n in range(12)]
    assert job.attempt(0, [events])
    ((cut, is_outside),) = job.held(1).over
    assert is_outside
    assert (job.table / cut).exists()
    assert job.attempt(1, [])
    assert not (job.table / cut).exists()


def test_rows_of_a_tenant_that_was_short_lie_apart_in_the_next_batch(job: StagedJob) -> None:
    waits, leaves = [("slow/n", n) for n in range(12)], [(f"t{n}/n", 1) for n in range(5)]
    assert job.attempt(0, [waits])
    assert job.attempt(1, [[*leaves, *waits]])
    held = job.held(2)
    assert held.outside.tolist() == [1, 0]
    assert held.copy[1] == "", "most of its rows wait: it stays as it is"
    assert not held.over, "no file of the table was cut"


def test_no_file_of_the_table_goes_that_the_table_took_though_a_zombies_state_has_it_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor is lost: one file is staged anew, and a zombie has its forerunner. So other twins leave."""
    dice, cut = random.Random(1), set[str]()
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=dice.getrandbits(128)))
    kept = [[("t/n", 3)], *([(f"u{n}/n", 9)] for n in range(6))]
    for seed in range(12):
        job, anew = StagedJob(tmp_path / str(seed), POLICY, is_ordered=True), [[("t/n", n) for n in range(4)]]
        pieces = job.stage(0, kept)
        job.finish(0, [*pieces, *job.stage(0, anew)[1:]])
        taken = {Path(uri).name for uri in DeltaTable(job.table).file_uris()}
        _, job.states[1] = job.decide(0, [*pieces, *job.stage(0, anew)[1:]])
        cut |= taken & {name for name, _ in job.held(1).over}
        drain(job, 1)
        assert job.committed == Counter(row for task in [*kept, *anew] for row in task)
    assert cut


def test_copy_that_lacks_a_row_which_a_zombies_state_has_waiting_there_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor is lost, as above: of two twins, one waits by the driver's answer, and the other by the state."""
    dice, lacks = random.Random(1), 0
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=dice.getrandbits(128)))
    kept, anew = [[("t/n", n) for n in (0, 3, 9)]], [[("t/n", n) for n in (1, 2, 3)]]
    for seed in range(16):
        job = StagedJob(tmp_path / str(seed), POLICY, is_ordered=True)
        pieces = job.stage(0, kept)
        dice.shuffle(anew[0])
        job.finish(0, [*pieces, *job.stage(0, anew)[1:]])
        waited = dict(zip(job.held(1).name, job.held(1).waiting.tolist(), strict=True))
        dice.shuffle(anew[0])
        _, job.states[1] = job.decide(0, [*pieces, *job.stage(0, anew)[1:]])
        now = dict(zip(job.held(1).name, job.held(1).waiting.tolist(), strict=True))
        lacks += any(waited.get(name, count) < count for name, count in now.items())
        job.restart()
        drain(job, 1)
        assert job.committed == Counter(row for task in [*kept, *anew] for row in task)
    assert lacks


def test_copies_that_this_process_made_are_not_read_to_see_that_they_are_there(
    job: StagedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[str]()

    def noted(root: str, name: str) -> dict[str, Int64s]:
        read.append(name)
        return places_in(root, name)

    monkeypatch.setattr(upkeep, "places_in", noted)
    assert job.attempt(0, [[("t/n", n) for n in range(20)]])
    assert job.attempt(1, [])
    assert not read
    job.restart()
    assert job.attempt(1, [])
    assert len(read) == 1


def test_orphans_go_when_no_checkpoint_can_be_put_back_so_far(job: StagedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decider, "SWEPT_EVERY", 5)
    job.kept_turns = 3
    job.restart()
    waits = [("slow/n", n) for n in range(40)]
    assert job.attempt(0, [waits])
    job.attempt(1, [waits[:9]], COPIED)
    job.attempt(1, [waits[:9]], DECIDED)
    (job.control / "staged" / ".000000000001-rest-part-0.parquet.ab").write_bytes(b"half")
    orphans = job.staged_files() - job.held(1).known()
    for batch in range(1, 12):
        assert job.attempt(batch, [])
    assert orphans
    assert not orphans & job.staged_files()
    assert job.staged_files() <= job.held(12).known()
    drain(job, 12)
    assert job.committed == Counter(waits)


def test_files_with_few_waiting_rows_are_packed_and_every_row_still_leaves_once(
    job: StagedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_files, "_MANY_LEFTOVERS", 3)
    offered = Counter[Event]()
    for batch in range(8):
        events = [("slow/n", batch * 10 + n) for n in range(6)]
        offered += Counter(events)
        job.attempt(batch, dealt(events, 3, random.Random(batch)), COPIED)
        assert job.attempt(batch, dealt(events, 2, random.Random(batch)))
    assert any("-pack-" in name for name in job.held(8).copy)
    drain(job, 8)
    assert job.committed == offered


def test_file_stays_as_long_as_a_checkpoint_may_be_put_back_to_it(
    job: StagedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decider, "SWEPT_EVERY", 1)
    job.kept_turns = 5
    job.restart()
    assert job.attempt(0, [[("t/n", n) for n in range(20)]])
    (file,) = job.held(1).copy
    emptied = drain(job, 1) - 1
    for batch in range(emptied + 1, emptied + 8):
        assert (file in job.staged_files()) == (batch <= emptied + 5), batch
        assert job.attempt(batch, [])


def test_rejected_rows_are_not_copied_with_those_that_wait(tmp_path: Path) -> None:
    never = Namespace(limit(messages_per_second=0, on_excess=OnExcess.REJECT))
    policy = make_policy(namespaces={"never/n": never}, default=Namespace(limit(messages_per_second=3)))
    job = StagedJob(tmp_path, policy)
    assert job.attempt(0, [[(name, n) for n in range(8) for name in ("never/n", "t/n")]])
    (rest,) = job.held(1).copy
    copied = pq.read_table(tmp_path / "control" / "staged" / rest)
    assert set(copied.column("ns").to_pylist()) == {"t/n"}
    assert copied.num_rows == job.held(1).waiting.sum() > 0


def test_only_a_file_of_this_batch_leaves_whole() -> None:
    file = FileAnswer("a", True, 3, 0, 7, True, "", 3, None, "", None, "", None)
    assert [replace(file, is_new=is_new, admitted=n).is_admitted_whole for is_new in (True, False) for n in (3, 2)] == [
        True, False, False, False,
    ]  # fmt: skip
