"""Calls that are kept: found by the batch after theirs and by no other, and no query begins that would leave them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_throttle.checkpoint.offset_log import OffsetLog
from spark_throttle.checkpoint.unsent import (
    UnsentCalls,
    forget_unsent,
    note_given_up,
    noted_given_up,
    read_unsent,
    refuse_other_target,
    write_unsent,
)
from spark_throttle.errors import UnsentCallsError
from spark_throttle.files.storage import Directory

CALLS = UnsentCalls("http://api/events", 3, [b"some", b"more"])
NONE = UnsentCalls("http://api/events", 0, [])


class Checkpoint:
    def __init__(self, root: Path) -> None:
        self.spark, self.control = Directory(str(root)), Directory(str(root / "throttle"))
        self.root = root

    def plan(self, batch: int, at_ms: int) -> None:
        (self.root / "offsets").mkdir(parents=True, exist_ok=True)
        lines = ["v1", json.dumps({"batchTimestampMs": at_ms}), "{}"]
        (self.root / "offsets" / str(batch)).write_text("\n".join(lines))

    def refuse(self, committed: int, logged: int, target: str | None) -> None:
        refuse_other_target(self.control, self.spark, OffsetLog(logged, committed), target)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path)


def test_calls_come_back_as_they_were_and_only_for_the_batch_of_that_time(checkpoint: Checkpoint) -> None:
    write_unsent(checkpoint.control, 7, 1_000, CALLS)
    write_unsent(checkpoint.control, 7, 2_000, UnsentCalls("f", 1, [b"of another history"]))
    assert read_unsent(checkpoint.control, 7, 1_000) == CALLS
    assert read_unsent(checkpoint.control, 7, 3_000) is None
    assert read_unsent(checkpoint.control, 6, 1_000) is None


def test_batch_that_is_run_again_and_leaves_nothing_takes_its_file_away(checkpoint: Checkpoint) -> None:
    write_unsent(checkpoint.control, 7, 1_000, CALLS)
    write_unsent(checkpoint.control, 7, 1_000, NONE)
    assert read_unsent(checkpoint.control, 7, 1_000) is None
    write_unsent(checkpoint.control, 7, 1_000, NONE)  # without a file


@pytest.mark.parametrize("target", [None, "http://other/events"])
@pytest.mark.parametrize(("committed", "logged"), [(7, 7), (7, 8), (6, 7)])
def test_query_that_would_leave_kept_calls_is_refused_with_a_remedy(
    checkpoint: Checkpoint, committed: int, logged: int, target: str | None
) -> None:
    for batch in (6, 7, 8):
        checkpoint.plan(batch, 100 * batch)
    checkpoint.refuse(committed, logged, target)
    write_unsent(checkpoint.control, 7, 700, CALLS)
    checkpoint.refuse(committed, logged, "http://api/events")
    with pytest.raises(
        UnsentCallsError, match=r"3 messages that http://api/events did not take .* paced\(…\)"
    ) as error:
        checkpoint.refuse(committed, logged, target)
    assert "option('throttle.unsent', 'redirect')" in str(error.value)
    assert error.value.__reduce__() == (UnsentCallsError, (3, 7, "http://api/events", target, error.value.file))


def test_calls_of_an_undone_history_stop_nobody(checkpoint: Checkpoint) -> None:
    checkpoint.plan(7, 700)
    write_unsent(checkpoint.control, 7, 650, CALLS)
    write_unsent(checkpoint.control, 9, 900, CALLS)
    checkpoint.refuse(7, 7, None)
    checkpoint.refuse(-1, -1, None)


def test_files_are_kept_for_the_batches_to_which_a_checkpoint_can_be_put_back(checkpoint: Checkpoint) -> None:
    for batch in (1, 48, 49, 50, 99, 400):
        write_unsent(checkpoint.control, batch, 1_000 + batch, CALLS)
    forget_unsent(checkpoint.control, batch=99, batches_kept=50)
    assert len(checkpoint.control.names("unsent")) == 6
    forget_unsent(checkpoint.control, batch=100, batches_kept=51)
    left = [int(name.partition("-")[0]) for name in checkpoint.control.names("unsent")]
    assert left == [49, 50, 99, 400]  # 400 is of an undone history, or of one that is put back again


def test_a_note_of_what_is_given_up_is_of_one_attempt_of_one_history_and_is_forgotten(checkpoint: Checkpoint) -> None:
    assert noted_given_up(checkpoint.control, 7, 1_000) is None
    note_given_up(checkpoint.control, 7, 1_000, [])
    note_given_up(checkpoint.control, 7, 2_000, ["q/7/i/b/0", "q/7/i/a/0"])
    assert noted_given_up(checkpoint.control, 7, 1_000) == frozenset()
    assert noted_given_up(checkpoint.control, 7, 2_000) == frozenset({"q/7/i/a/0", "q/7/i/b/0"})
    forget_unsent(checkpoint.control, batch=100, batches_kept=50)
    assert noted_given_up(checkpoint.control, 7, 2_000) is None
