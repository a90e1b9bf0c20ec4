"""A namespace's rows leave one task in the order of their turns, whether their files are read as they lie or sorted."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_throttle.spark.delta import table_files
from spark_throttle.spark.move import held_files, leaving, stager
from spark_throttle.spark.move.decider import DigestDecider
from spark_throttle.spark.move.leaving import files_in_order
from spark_throttle.spark.move.queue_frames import QueueStorage
from spark_throttle.spark.move.stager import StagingPlace
from spark_throttle.spark.move.upkeep import Upkeep
from spark_throttle.spark.sinks.payload import StagedPayload, StagedRows
from spark_throttle.spark.sinks.targets import Target
from tests.effort import thorough_after
from tests.oracle.worlds import Namespace, limit, make_policy
from tests.spark.move.worlds import SCHEMA, Event, StagedJob, sent

POLICY = make_policy(default=Namespace(limit(messages_per_second=3)))
FREE = make_policy()


@dataclass
class TopicJob(StagedJob):
    """A job in the order of the rows' numbers, into a sink that depends on order and takes no files."""

    is_ordered: bool = True
    queued: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """The rows of each namespace that came and did not leave, in the order in which they must."""

    read: Counter[str] = field(default_factory=Counter)
    """How many files were read as they lie, and how many were sorted."""

    @property
    def place(self) -> StagingPlace:
        return self.waiting

    @property
    def decider(self) -> DigestDecider:
        return DigestDecider(QueueStorage(str(self.control), self.kept_turns, 200), self.kept_turns, keeps_order=True)

    def restart(self) -> None:
        super().restart()
        unused: Any = None
        self._payload = StagedPayload(Upkeep(str(self.control), self.kept_turns), SCHEMA, unused, self.waiting, 2)

    def taken(self, batch: int, deal: Sequence[Sequence[Event]]) -> StagedRows:
        """Run an attempt at a batch up to its sink."""
        frames, self.states[batch + 1] = self.decide(batch, self.stage(batch, deal))
        return self._payload.take(frames, batch)  # type: ignore[arg-type]

    def sends(self, rows: StagedRows) -> dict[str, list[int]]:
        """Return the rows of each namespace as they are sent; one whose rows are in two tasks has no order."""
        found = dict[str, list[int]]()
        for task in sent(self._payload, rows):
            mine = defaultdict[str, list[int]](list)
            for name, number in task:
                mine[name].append(number)
            assert not found.keys() & mine.keys()
            found |= mine
        return found

    def run(self, batch: int, deal: Sequence[Sequence[Event]]) -> dict[str, list[int]]:
        """Run a batch, and compare what is sent with the oracle: the first of what waits and what came."""
        rows = self.taken(batch, deal)
        for name, number in sorted((event for part in deal for event in part), key=lambda event: event[1]):
            self.queued[name].append(number)
        found = self.sends(rows)
        for name, numbers in found.items():
            queued = self.queued[name]
            assert numbers == queued[: len(numbers)], (batch, name)
            del queued[: len(numbers)]
        if rows.answer is not None:
            self.read.update(
                "as it lies" if file.lies_in_order else "sorted" for file in rows.answer.files if file.admitted
            )
        rows.confirm()
        return found


def layout(dice: random.Random, events: list[Event]) -> list[list[Event]]:
    """Return rows dealt to tasks: by their namespaces, but for a few, or anyhow; in order, nearly in order, or not."""
    tasks = dice.randint(1, 4)
    strays = dice.choice([0.0, 0.0, 0.05, 1.0])
    deal: list[list[Event]] = [[] for _ in range(tasks)]
    for event in events:
        deal[dice.randrange(tasks) if dice.random() < strays else hash_of(event[0]) % tasks].append(event)
    for part in deal:
        match dice.choice(["in order", "by namespace", "two swapped", "shuffled"]):
            case "by namespace":  # each namespace in its order, the file not
                part.sort(key=lambda event: event[0])
            case "two swapped" if len(part) > 1:
                at = dice.randrange(len(part) - 1)
                part[at], part[at + 1] = part[at + 1], part[at]
            case "shuffled":
                dice.shuffle(part)
    return [part for part in deal if part]


def hash_of(name: str) -> int:
    return sum(name.encode())


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few rows be worth a rest, and few files a pack."""
    monkeypatch.setattr(held_files, "_KEPT_SHARE", 1)
    monkeypatch.setattr(held_files, "_MANY_LEFTOVERS", 3)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("seed", thorough_after(5, range(12)))
def test_rows_of_a_namespace_leave_one_task_in_the_order_of_their_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice = random.Random(seed)
    if dice.random() < 0.5:  # a task writes several files
        monkeypatch.setattr(stager, "FILE_BYTES", 200)
    job = TopicJob(tmp_path, dice.choice([POLICY, POLICY, FREE]))
    for batch in range(7):
        count = dice.choice([0, 4, 30, 60])
        events = [(f"t{dice.randrange(6)}/n", batch * 100 + number) for number in range(count)]
        if dice.random() < 0.3:  # an attempt that failed had other files
            job.taken(batch, layout(dice, events))
        job.run(batch, layout(dice, events))
    for batch in range(7, 60):
        if not any(job.queued.values()):
            break
        job.run(batch, [])
    assert not any(job.queued.values())


def test_files_of_namespaces_of_their_own_are_read_as_they_lie(tmp_path: Path) -> None:
    job = TopicJob(tmp_path, POLICY)
    first = [[("a/n", n) for n in range(4)], [("b/n", n) for n in range(2)]]
    assert job.run(0, first) == {"a/n": [0, 1, 2, 3], "b/n": [0, 1]}
    assert job.read == {"as it lies": 2}


def test_files_that_share_a_namespace_are_sorted_and_no_others(tmp_path: Path) -> None:
    job = TopicJob(tmp_path, FREE)
    job.run(0, [[("a/n", 0), ("b/n", 1)], [("b/n", 2), ("c/n", 3)], [("d/n", 4), ("e/n", 5)]])
    assert job.read == {"as it lies": 1, "sorted": 2}


def test_file_with_a_namespace_of_which_rows_leave_that_waited_is_sorted(tmp_path: Path) -> None:
    job = TopicJob(tmp_path, make_policy(namespaces={"slow/n": Namespace(limit(messages_per_second=3))}))
    job.run(0, [[("slow/n", n) for n in range(8)]])
    job.read.clear()
    job.run(1, [[("slow/n", 10), ("a/n", 11)], [("b/n", 12)]])
    assert job.read == {"as it lies": 2, "sorted": 1}, "of the namespace that waits, no new row leaves"
    job.read.clear()
    assert job.run(2, [[("slow/n", 20), ("a/n", 21)]]) == {"slow/n": [7, 10, 20], "a/n": [21]}
    assert job.read == {"as it lies": 1, "sorted": 3}, "rows of its tenant lie apart"


def test_target_that_waits_for_answers_gets_as_many_tasks_as_can_run(tmp_path: Path) -> None:
    def function(_rows: object, _batch: int) -> None: ...

    job = TopicJob(tmp_path, FREE)
    rows = job.taken(0, [[("a/n", 0), ("a/n", 1)], [("b/n", 2)]])
    targets = function, Target("throttle_paced"), Target("kafka")
    assert [len(rows.as_given(target)[0]) for target in targets] == [2, 2, 2]
    rows = job.taken(1, [[("a/n", 3), ("a/n", 4), ("b/n", 5)]])
    assert [len(rows.as_given(target)[0]) for target in targets] == [0, 0, 1]
    (number,) = {file.number for file in rows.as_given(Target("kafka"))[0]}
    assert (rows.as_given(function)[1] - (number << 32)).tolist() == [0, 1, 2]


def test_rows_in_order_within_each_namespace_need_no_order_among_namespaces() -> None:
    named = pa.chunked_array([pa.array(["a", "a", "b", "b"]).dictionary_encode()])
    nothing = pa.array([], pa.string())
    assert files_in_order({7: named}, {7: np.array([2, 0, 3, 1])}, nothing) == {7}
    assert files_in_order({7: named}, {7: np.array([2, 1, 3, 0])}, nothing) == frozenset()


def test_rows_that_stay_do_not_count(tmp_path: Path) -> None:
    named = {number: pa.chunked_array([pa.array(["a", "b"]).dictionary_encode()]) for number in (1, 2)}
    leaves = {1: np.array([0]), 2: np.array([1])}
    assert files_in_order(named, leaves, pa.array(["c"])) == {1, 2}
    assert files_in_order(named, leaves, pa.array(["a"])) == {2}


def test_names_of_several_frames_are_told_apart() -> None:
    parts = [pa.array(["a", "b"]).dictionary_encode(), pa.array(["b", None, "a"]).dictionary_encode()]
    leaves = {0: np.array([0, 1, 2, 4])}
    assert files_in_order({0: pa.chunked_array(parts)}, leaves, pa.array([], pa.string())) == {0}
    assert files_in_order({0: pa.chunked_array(parts)}, {0: np.array([4, 0])}, pa.array([], pa.string())) == set()


def test_file_in_order_has_one_row_group_which_no_tasks_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 3_000_000
    form = table_files.FileForm(pa.schema([("n", pa.int32())]))
    with (tmp_path / "file").open("wb") as sink:
        table_files.write_parquet(sink, pa.table({"n": pa.array(np.arange(rows, dtype=np.int32))}), form)
    assert pq.ParquetFile(tmp_path / "file").num_row_groups == 1
    named, nothing = pa.chunked_array([pa.array(["a", "a"]).dictionary_encode()]), pa.array([], pa.string())
    monkeypatch.setattr(leaving, "ROW_GROUP_ROWS", 1)
    assert files_in_order({0: named}, {0: np.array([0, 1])}, nothing) == frozenset()
