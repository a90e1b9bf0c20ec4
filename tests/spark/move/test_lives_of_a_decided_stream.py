"""Whatever attempt at a batch of a decided stream is killed, wherever, and whoever goes on: each row leaves once."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from spark_throttle.core.quota import OnExcess
from spark_throttle.errors import DamagedError
from spark_throttle.spark.move import decider, held_files
from tests.effort import thorough_after
from tests.oracle.worlds import Namespace, limit, make_policy
from tests.spark.move.decided_worlds import COMMITTED, CUT, DECIDED, HALF_CUT, HALF_LEFT, LEFT, STOPS, DecidedJob
from tests.spark.move.test_lives_of_a_staged_job import account, drain, drawn
from tests.spark.move.worlds import Event, dealt

POLICY = make_policy(default=Namespace(limit(messages_per_second=3)))


@pytest.fixture
def job(tmp_path: Path) -> DecidedJob:
    return DecidedJob(tmp_path, POLICY)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few rows be worth a rest, and few files a pack."""
    monkeypatch.setattr(held_files, "_KEPT_SHARE", 1)
    monkeypatch.setattr(held_files, "_MANY_LEFTOVERS", 3)


def copies(job: DecidedJob) -> dict[str, bytes]:
    """Return the rests and packs, with their bytes."""
    found = (job.control / "staged").glob("*")
    return {path.name: path.read_bytes() for path in found if "-rest-" in path.name or "-pack-" in path.name}


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("seed", thorough_after(3, range(12)))
def test_each_row_leaves_once_whatever_is_killed(job: DecidedJob, seed: int) -> None:
    dice, offered = random.Random(seed), Counter[Event]()
    for batch in range(8):
        events = drawn(dice, batch) if dice.random() < 0.8 else []
        offered += Counter(events)
        pieces = job.stage(batch, dealt(events, dice.randint(1, 4), dice))
        for _ in range(dice.randrange(4)):
            if dice.random() < 0.5:
                job.task(batch, pieces, dice.choice(STOPS[1:]))
            else:
                job.attempt(batch, dealt(events, dice.randint(1, 4), dice), dice.choice(STOPS))
        assert job.task(batch, pieces) if dice.random() < 0.5 else job.attempt(batch, dealt(events, 3, dice))
        if dice.random() < 0.3:
            job.zombie(batch, dealt(events, dice.randint(1, 4), dice))
        account(job, batch, offered)
    drain(job, 8)
    assert job.committed == offered


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("stop", [DECIDED, HALF_CUT, CUT, HALF_LEFT, LEFT, COMMITTED])
def test_task_that_runs_again_gives_the_same_rows_and_writes_the_same_bytes(job: DecidedJob, stop: str) -> None:
    events = [(f"t{n % 4}/n", n) for n in range(40)]
    for batch in range(4):
        assert job.attempt(batch, dealt(events, 3, random.Random(batch)))
    pieces, known = job.stage(4, dealt([(f"new-{ns}", n) for ns, n in events], 3, random.Random(4))), copies(job)
    job.task(4, pieces, stop)
    first, rows = copies(job), job.left.pop(4, None)
    assert job.task(4, pieces)
    again = copies(job)
    assert first.items() <= again.items()
    assert any("-rest-" in name for name in again.keys() - known.keys())
    assert any("-pack-" in name for name in again)
    assert rows is None or rows == job.left[4]


@pytest.mark.usefixtures("few")
def test_copies_that_a_zombies_state_names_and_nobody_made_are_made_by_the_next_batch(job: DecidedJob) -> None:
    events = [(f"t{n}/n", n) for n in range(3) for _ in range(12)]
    assert job.attempt(0, [events])
    job.zombie(0, [events[:9], events[9:]])
    named = set(job.held(1).copy)
    assert named
    assert not named & job.staged_files()
    assert job.attempt(1, [], HALF_CUT) is False
    assert job.attempt(1, [])
    assert named <= job.staged_files()
    drain(job, 2)
    assert job.committed == Counter(events)


def test_file_that_a_batch_emptied_goes_in_the_next_and_not_before(job: DecidedJob) -> None:
    assert job.attempt(0, [[("t/n", n) for n in range(3)]])
    (emptied,) = job.staged_files()
    assert job.attempt(1, [[("t/n", n) for n in range(3, 6)]], LEFT) is False
    assert emptied not in job.staged_files(), "its rows left in a batch that is committed"
    assert job.attempt(1, [[("t/n", n) for n in range(3, 6)]])
    assert job.committed == Counter(("t/n", n) for n in range(6))


@pytest.mark.usefixtures("few")
def test_rows_of_a_namespace_leave_before_those_that_came_later(job: DecidedJob) -> None:
    for batch in range(5):
        assert job.attempt(batch, dealt([("slow/n", batch * 10 + n) for n in range(6)], 2, random.Random(batch)))
    assert any("-pack-" in name for name in job.held(5).copy)
    drain(job, 5)
    left = [row["n"] // 10 for _, rows in sorted(job.left.items()) for row in rows]
    assert left == sorted(left)
    assert len(left) == 30


def test_rejected_rows_have_their_reason_and_admitted_rows_their_delay(tmp_path: Path) -> None:
    never = Namespace(limit(messages_per_second=0, on_excess=OnExcess.REJECT))
    job = DecidedJob(
        tmp_path, make_policy(namespaces={"never/n": never}, default=Namespace(limit(messages_per_second=3)))
    )
    assert job.attempt(0, [[(name, n) for n in range(6) for name in ("never/n", "t/n")]])
    drain(job, 1)
    found = {(row["ns"], row["n"]): row["throttle"] for rows in job.left.values() for row in rows}
    assert {found["never/n", n]["verdict"] for n in range(6)} == {"REJECT"}
    assert {found["never/n", n]["reason"] for n in range(6)} == {"quota"}
    assert {found["t/n", n]["verdict"] for n in range(6)} == {"ADMIT"}
    assert {found["t/n", n]["delayed_ms"] for n in range(6)} == {0, 1000}


def test_checkpoint_that_is_put_back_finds_its_files(job: DecidedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's part alone is put back, as many batches as files are kept for; so are the files of the sink."""
    monkeypatch.setattr(decider, "SWEPT_EVERY", 1)
    job.kept_turns = 5
    events = [("t/n", n) for n in range(20)]
    assert job.attempt(0, [events])
    state, left = job.states[1], dict(job.left)
    for batch in range(1, 6):
        assert job.attempt(batch, [])
    job.states, job.left = {1: state}, left
    drain(job, 1)
    assert job.committed == Counter(events)


@pytest.mark.usefixtures("few")
def test_checkpoint_that_is_put_back_finds_the_files_of_which_the_rows_were_packed_since(
    job: DecidedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decider, "SWEPT_EVERY", 1)
    job.kept_turns = 6
    events, left = [(f"t{n}/n", n) for n in range(2) for _ in range(36)], []
    for batch in range(6):
        assert job.attempt(batch, [events[batch * 12 :][:12]])
        left.append(dict(job.left))
    unpacked = [batch for batch in range(1, 7) if not any("-pack-" in name for name in job.held(batch).copy)]
    put_back = max(unpacked)
    state = job.states[put_back]
    assert put_back < 6, "rows are packed"
    for batch in range(6, put_back + 6):
        assert job.attempt(batch, [])
    job.states, job.left = {put_back: state}, left[put_back - 1]
    for batch in range(put_back, 6):
        assert job.attempt(batch, [events[batch * 12 :][:12]])
    drain(job, 6)
    assert job.committed == Counter(events)


@pytest.mark.usefixtures("few")
def test_pack_stays_while_rows_of_any_of_its_files_wait(tmp_path: Path) -> None:
    slow = Namespace(limit(messages_per_second=1))
    job = DecidedJob(
        tmp_path, make_policy(namespaces={"slow/n": slow}, default=Namespace(limit(messages_per_second=3)))
    )
    job.kept_turns = 1
    fast, slow_ones = [("t/n", n) for n in range(24)], [("slow/n", n) for n in range(16)]
    for batch in range(4):
        assert job.attempt(batch, [fast[batch::4], slow_ones[batch::4]])
    assert any("-pack-" in name for name in job.held(4).copy)
    drain(job, 4)
    assert job.committed == Counter(fast + slow_ones)


def test_no_file_is_swept_that_a_zombie_staged_while_the_hint_was_gone(
    job: DecidedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decider, "SWEPT_EVERY", 1)
    job.kept_turns = 2
    events = [(f"t{n}/n", n) for n in range(3) for _ in range(48)]
    for batch in range(4):
        assert job.attempt(batch, [events[batch::8]])
    (job.control / "staging-hint.json").unlink()
    staged = job.stage(4, [events[4::8]])
    assert job.attempt(4, [events[4::8]])
    _, job.states[5] = job.decide(4, staged)
    for batch in range(5, 8):
        assert job.attempt(batch, [events[batch::8]])
    drain(job, 8)
    assert job.committed == Counter(events)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("damage", ["another's", "short", "empty"])
def test_file_of_waiting_rows_that_is_another_one_is_an_error_with_its_remedy(job: DecidedJob, damage: str) -> None:
    for batch in range(2):
        assert job.attempt(batch, [[("t/n", n) for n in range(9)]] if batch == 0 else [])
    (name,) = job.held(2).copy
    file = job.control / "staged" / name
    if damage == "another's":
        pq.write_table(pa.table({"ns": ["t/n"] * 9, "n": list(range(9))}), file)
    else:
        file.write_bytes(file.read_bytes()[:-9] if damage == "short" else b"")
    with pytest.raises(DamagedError, match="restore it from a backup"):
        job.attempt(2, [])


def test_file_that_is_gone_is_an_error_and_no_silence(job: DecidedJob) -> None:
    assert job.attempt(0, [[("t/n", n) for n in range(9)]])
    for name in job.staged_files():
        (job.control / "staged" / name).unlink()
    with pytest.raises(DamagedError, match=r"which has rows that leave, is damaged: .* restore it from a backup"):
        job.attempt(1, [])
