"""The function that Spark calls, with Spark's own state object and pandas pieces, and no JVM."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from spark_throttle.core.usage import unpack_usage
from spark_throttle.errors import ConfigurationError, UnknownVersionError
from spark_throttle.record import FORMAT, unpack
from spark_throttle.spark.move.answer import Answer, decided_in, mask_of
from spark_throttle.spark.move.decider import DigestDecider
from spark_throttle.spark.move.held_files import IN_STATE, HeldFiles
from spark_throttle.spark.move.queue_frames import QueueStorage
from spark_throttle.spark.rows.digest import PLACE, ROW_BITS, StagedFile, digest_frames, positions
from spark_throttle.spark.rows.frames import THROTTLE, TIE, FrameKind, decode, payload
from tests.oracle.worlds import Namespace, limit, make_policy
from tests.spark.move.played import START_MS, State, control_block, group_state, state_in, with_helpers

KEY = 0
POLICY = make_policy(job=limit(messages_per_second=100), default=Namespace(limit(messages_per_second=5)))

DECIDER = DigestDecider(QueueStorage("", inline_bytes=None), 100, keeps_order=True)
"""A decider that keeps all places in its state."""

Row = tuple[FrameKind, bytes]


def digests(table: pa.Table, name: str = "a", *, rows: int | None = None) -> list[Row]:
    """Return the digest of a file of rows; of a file of the source if it has more `rows` than those."""
    file = StagedFile(name, False, rows or table.num_rows, 1, "", is_source=rows is not None)
    helpers = table.drop_columns(payload(table).column_names)
    return [
        (FrameKind(kind), frame)
        for batch in digest_frames(file, helpers)
        for kind, frame in zip(batch.column("kind").to_pylist(), batch.column("frame").to_pylist(), strict=True)
    ]


def arrivals(ids: list[int]) -> pa.Table:
    return with_helpers(pa.table({"id": pa.array(ids, pa.int64())}), [f"t/{i % 3}" for i in ids], [10] * len(ids))


def pieces(rows: list[Row], rng: random.Random) -> Iterator[pd.DataFrame]:
    """Yield the rows in any order, cut anywhere, empty pieces among them."""
    rows = rng.sample(rows, len(rows))
    while rows:
        n = rng.randrange(3)
        yield pd.DataFrame({"key": KEY, "kind": [k for k, _ in rows[:n]], "frame": [f for _, f in rows[:n]]})
        rows = rows[n:]


def run(
    rows: list[Row],
    state: State | None,
    *,
    now_ms: int = START_MS,
    seed: int = 0,
) -> tuple[list[Row], State]:
    """Return the frames that leave, and the state."""
    group = group_state(state, now_ms)
    out = list(DECIDER((KEY,), pieces(rows, random.Random(seed)), group))
    assert all(list(frame.columns) == ["kind", "frame"] for frame in out)
    found = [(FrameKind(k), bytes(f)) for frame in out for k, f in zip(frame["kind"], frame["frame"], strict=True)]
    return found, state_in(group)


def batch(ids: list[int], *, step: int, is_epoch: bool = True) -> list[Row]:
    """Return what reaches the decider: a control row, and the digests of files of a few rows."""
    table = arrivals(ids)
    parts = [table.slice(start, 7) for start in range(0, len(ids), 7)]
    rows = [row for at, part in enumerate(parts) for row in digests(part, f"{step:03d}-{at:03d}")]
    block = control_block(POLICY if step == 0 else None, epoch=step + 1, now_ms=START_MS + 1_000 * step)
    return rows + ([(FrameKind.CONTROL, block)] if is_epoch else [])


def ids_of(rows: list[Row], kind: FrameKind) -> list[int]:
    """Return the numbers of rows in the order of their arrival: those of seven rows a file, the last one full too."""
    places = [place for k, frame in rows if k == kind for place in decode(frame).column(PLACE).to_pylist()]
    if kind == FrameKind.ADMITTED:
        (answer,) = (unpack(Answer, frame, "it") for k, frame in rows if k == FrameKind.ANSWER)
        lying = [file for file in answer.files if file.admitted and file.lies_in_order]
        for file in lying:
            is_mine = [True] * file.rows if file.admitted_bits is None else mask_of(file.admitted_bits, file.rows)
            places += [(file.number << ROW_BITS) + at for at, mine in enumerate(is_mine) if mine]
    return [7 * (place >> 32) + place % 2**32 for place in places]


@pytest.mark.slow
def test_output_and_state_are_the_same_bytes_for_any_order_and_pieces() -> None:
    state = None
    for step in range(5):
        rows, now_ms = batch(list(range(40 * step, 40 * step + 40)), step=step), START_MS + 1_000 * step
        outcomes = [run(rows, state, now_ms=now_ms, seed=seed) for seed in range(5)]
        assert all(outcome == outcomes[0] for outcome in outcomes[1:])
        state = outcomes[0][1]


def test_batch_run_again_from_the_old_state_gives_the_same_bytes() -> None:
    first, state = run(batch(list(range(30)), step=0), None)
    again = batch(list(range(30, 60)), step=1)
    once = run(again, state, now_ms=START_MS + 1_000, seed=1)
    assert run(again, state, now_ms=START_MS + 1_000, seed=2) == once
    assert run(again, state, now_ms=START_MS + 2_000, seed=2) != once
    assert ids_of(first, FrameKind.ADMITTED)


@pytest.mark.slow
def test_all_rows_leave_once_and_the_report_comes_last() -> None:
    state, left = None, list[int]()
    for step in range(30):
        rows, state = run(batch(list(range(14 * step, 14 * step + 14)) if step < 5 else [], step=step), state,
                          now_ms=START_MS + 1_000 * step)  # fmt: skip
        assert [kind for kind, _ in rows].count(FrameKind.USAGE) == 1
        assert rows[-1][0] == FrameKind.USAGE
        report = unpack_usage(rows[-1][1], "it")
        assert (report.epoch, report.now_ms) == (step + 1, START_MS + 1_000 * step)
        left += ids_of(rows, FrameKind.ADMITTED)
    assert sorted(left) == list(range(70))
    assert state is not None
    assert state[0] == FORMAT


def test_rejected_rows_are_explained_and_admitted_ones_are_not() -> None:
    table = with_helpers(pa.table({"id": [1, 2]}), ["t/1", None], [1, 1])
    control = (FrameKind.CONTROL, control_block(POLICY))
    rows, _ = run([control, *digests(table)], None)
    columns = {kind: decode(frame).column_names for kind, frame in rows[1:-1]}
    assert columns == {FrameKind.REJECTED: [PLACE, THROTTLE]}
    assert ids_of(rows, FrameKind.ADMITTED) == [0]


def test_batch_without_a_control_row_is_decided_by_what_stands() -> None:
    _, state = run(batch([], step=0), None)
    rows, _ = run(batch([1, 2, 3], step=1, is_epoch=False), state, now_ms=START_MS + 1)
    assert ids_of(rows, FrameKind.ADMITTED) == [0, 1, 2]
    assert unpack_usage(rows[-1][1], "it").epoch == 1


def test_state_of_a_newer_version_is_refused_by_its_number() -> None:
    with pytest.raises(UnknownVersionError, match=rf"version {FORMAT + 1} .* up to {FORMAT}"):
        run(batch([1], step=1), (FORMAT + 1, b"whatever", b"", None))


def test_arrivals_before_any_control_row_are_an_error_with_a_remedy() -> None:
    with pytest.raises(ConfigurationError, match="the decider has no state and its batch brings no policy"):
        run(batch([1], step=0, is_epoch=False), None)


def test_state_is_updated_before_the_first_frame_is_handed_out() -> None:
    # Spark stops pulling when a task is cancelled; what was handed out belongs to a state that is known.
    group = group_state(None, START_MS)
    out = DECIDER((KEY,), pieces(batch([1, 2], step=0), random.Random(0)), group)
    assert not group.exists
    next(out)
    assert group.exists


def source_file(kept: list[int], number: int, names: list[str]) -> list[Row]:
    """Return the digest of a file of the source with ten rows, of which the stream keeps some."""
    rows = with_helpers(pa.table({"id": kept}), names, [10] * len(kept))
    ties = pa.array([(number << 32) + row for row in kept], pa.int64())
    rows = rows.set_column(rows.column_names.index(TIE), TIE, ties)
    return [row for at in (0, 2) for row in digests(rows.slice(at, 2), f"{number:012d}-file", rows=10)]


def test_waiting_rows_of_a_source_file_are_copied_and_those_that_the_stream_drops_count_nowhere() -> None:
    policy = make_policy(default=Namespace(limit(messages_per_second=1, burst_seconds=0)))
    came = source_file([1, 4, 6, 9], 17, ["t/a", "t/a", "t/b", "t/a"])
    rows, state = run([(FrameKind.CONTROL, control_block(policy)), *came], None)
    answer = answer_of(rows)
    (file,) = answer.files
    assert (file.name, file.rows, file.is_new, file.is_admitted_whole) == ("000000000017-file", 10, True, False)
    waiting = [row for row in (1, 4, 6, 9) if row not in admitted_of(rows)]
    assert np.flatnonzero(mask_of(file.rest_bits or b"", 10)).tolist() == waiting
    held = unpack(HeldFiles, state[2], IN_STATE)
    assert (held.waiting.tolist(), held.waiting_positions.tolist()) == ([len(waiting)], [sum(waiting)])
    assert held.copy == (file.rest,)
    assert answer.read is not None
    assert (answer.read.messages, answer.read.positions) == (4, 20)


def test_source_file_of_which_no_row_waits_is_nobodys_to_keep_or_to_delete() -> None:
    policy = make_policy()
    rows, state = run([(FrameKind.CONTROL, control_block(policy)), *source_file([1, 4], 3, ["t/a"] * 2)], None)
    assert admitted_of(rows) == [1, 4]
    held = unpack(HeldFiles, state[2], IN_STATE)
    assert (len(held), held.known()) == (0, set())


def admitted_of(rows: list[Row]) -> list[int]:
    """Return the positions of the admitted rows in their files."""
    tables = [decode(frame) for kind, frame in rows if kind == FrameKind.ADMITTED]
    return sorted(row for table in tables for row in positions(table.column(PLACE).to_numpy()).tolist())


def answer_of(rows: list[Row]) -> Answer:
    found = decided_in(rows).answer
    assert found is not None
    return found
