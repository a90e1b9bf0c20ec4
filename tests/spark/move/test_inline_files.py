"""Files that travel with their digests: each row leaves once, and the state holds no more than what waits."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from spark_throttle.errors import DamagedError
from spark_throttle.spark.move import held_files
from spark_throttle.spark.move.answer import decided_in
from spark_throttle.spark.move.cutting import FILE, ROW
from spark_throttle.spark.move.decider import DigestDecider
from spark_throttle.spark.move.queue_frames import QueueStorage
from spark_throttle.spark.move.stager import StagingPlace
from spark_throttle.spark.move.waiting_files import InlineFiles, InlineRows, inline_files_of
from spark_throttle.spark.rows.digest import PLACE, ROW_BITS
from tests.effort import thorough_after
from tests.oracle.worlds import Namespace, limit, make_policy
from tests.spark.move.decided_worlds import DecidedJob
from tests.spark.move.test_lives_of_a_staged_job import POLICY, drain, drawn
from tests.spark.move.worlds import Event, dealt, places_of_tasks

if TYPE_CHECKING:
    from collections.abc import Sequence


SLOW = make_policy(default=Namespace(limit(messages_per_second=1)))


@dataclass
class InlineJob(DecidedJob):
    """A job whose executors cannot write, as long as `is_inline`."""

    is_inline: bool = True

    @property
    def place(self) -> StagingPlace:
        return replace(self.waiting, is_inline=self.is_inline)

    @property
    def decider(self) -> DigestDecider:
        if not self.is_inline:
            return super().decider
        queue = QueueStorage(str(self.control), self.kept_turns, None)
        return DigestDecider(queue, self.kept_turns, keeps_order=True, inline=self.place)

    def attempt(self, batch: int, deal: Sequence[Sequence[Event]], stop: str | None = None) -> bool:
        """Run a batch; the sink takes it unless it has it."""
        if not self.is_inline:
            return super().attempt(batch, deal, stop)
        frames, self.states[batch + 1] = self.decide(batch, self.stage(batch, deal))
        decided = decided_in((row["kind"], row["frame"]) for row in frames.rows)
        assert decided.answer is not None
        read = InlineRows(self.waiting)([pa.record_batch({"frame": pa.array(decided.inline, pa.binary())})])
        found = {(row[FILE], row[ROW]): row for rows in read for row in rows.to_pylist()}
        name_of = {file.number: file.name for file in decided.answer.files}
        ranked = [place for table in decided.admitted for place in table.column(PLACE).to_pylist()]
        tasks = places_of_tasks(decided.answer, np.array(ranked, dtype=np.int64))
        places = [place for task in tasks for place in task.tolist()]
        rows = [found[name_of[place >> ROW_BITS], place & ((1 << ROW_BITS) - 1)] for place in places]
        self.left.setdefault(batch, rows)
        return True

    def in_state(self, batch: int) -> InlineFiles:
        """Return the files in the state that a batch loads."""
        return inline_files_of(self.states[batch][3])


@pytest.mark.parametrize("seed", thorough_after(2, range(4)))
def test_each_row_leaves_once_and_files_in_the_state_are_cut_and_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(held_files, "_MANY_LEFTOVERS", 3)
    dice, job, offered, seen = random.Random(seed), InlineJob(tmp_path, SLOW), Counter[Event](), set[str]()
    for batch in range(8):
        events = drawn(dice, batch)
        offered += Counter(events)
        for _ in range(dice.randrange(1, 3)):  # the state of all attempts but the last is committed over
            job.attempt(batch, dealt(events, 3, dice))
        names = job.in_state(batch + 1).names
        assert set(names) == job.held(batch + 1).in_state()
        seen |= {kind for kind in ("-rest-", "-pack-") for name in names if kind in name}
    assert "-pack-" in seen
    last = drain(job, 8)
    assert job.committed == offered
    assert job.in_state(last).names == ()
    assert job.staged_files() == set()


def test_files_in_the_state_go_to_the_control_directory_when_executors_can_write(tmp_path: Path) -> None:
    dice, job = random.Random(1), InlineJob(tmp_path, POLICY)
    events = drawn(dice, 0)
    job.attempt(0, dealt(events, 2, dice))
    names = set(job.in_state(1).names)
    assert names
    job.is_inline = False
    job.decide(1, job.stage(1, []))
    assert job.staged_files() == names, "an attempt that is killed leaves what the next one writes again"
    assert job.attempt(1, [])
    assert job.in_state(2).names == ()
    drain(job, 2)
    assert job.committed == Counter(events)


def test_file_that_is_not_in_the_state_is_an_error_and_no_silence() -> None:
    with pytest.raises(DamagedError, match="the file b is not there"):
        InlineFiles(("a",), (b"",)).only(["a", "b"])
