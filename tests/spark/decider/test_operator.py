"""The function that Spark calls, with Spark's own state object and pandas pieces, and no JVM."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pandas as pd
import pyarrow as pa
import pytest

from spark_throttle.core.usage import unpack_usage
from spark_throttle.errors import ConfigurationError, UnknownVersionError
from spark_throttle.record import FORMAT
from spark_throttle.spark.decider.decider_batch import THROTTLE
from spark_throttle.spark.decider.operator import Decider
from spark_throttle.spark.rows.frames import FrameKind, decode, encode
from spark_throttle.testing.oracle.worlds import Namespace, limit, make_policy
from tests.spark.decider.played import START_MS, control_block, group_state, with_helpers

KEY = 0
POLICY = make_policy(job=limit(messages_per_second=100), default=Namespace(limit(messages_per_second=5)))

Row = tuple[FrameKind, bytes]


def arrivals(ids: list[int]) -> pa.Table:
    payload = pa.table({"id": pa.array(ids), "text": [f"é{i}" if i % 2 else None for i in ids]})
    return with_helpers(payload, [f"t/{i % 3}" for i in ids], [10] * len(ids))


def pieces(rows: list[Row], rng: random.Random) -> Iterator[pd.DataFrame]:
    """Yield the rows in any order, cut anywhere, empty pieces among them."""
    rows = rng.sample(rows, len(rows))
    while rows:
        n = rng.randrange(3)
        yield pd.DataFrame({"key": KEY, "kind": [k for k, _ in rows[:n]], "frame": [f for _, f in rows[:n]]})
        rows = rows[n:]


def run(
    rows: list[Row],
    state: tuple[int, bytes] | None,
    *,
    now_ms: int = START_MS,
    seed: int = 0,
) -> tuple[list[Row], tuple[int, bytes]]:
    """Return the frames that leave, and the state."""
    group = group_state(state, now_ms)
    out = list(Decider()((KEY,), pieces(rows, random.Random(seed)), group))
    assert all(list(frame.columns) == ["kind", "frame"] for frame in out)
    version, block = group.get
    found = [(FrameKind(k), bytes(f)) for frame in out for k, f in zip(frame["kind"], frame["frame"], strict=True)]
    return found, (int(version), bytes(block))


def batch(ids: list[int], *, step: int, is_epoch: bool = True) -> list[Row]:
    """Return what reaches the decider: a control row, and arrivals in frames of a few rows."""
    table = arrivals(ids)
    rows = [(FrameKind.ROWS, f) for start in range(0, len(ids), 7) for f in encode(table.slice(start, 7))]
    block = control_block(POLICY if step == 0 else None, epoch=step + 1, now_ms=START_MS + 1_000 * step)
    return rows + ([(FrameKind.CONTROL, block)] if is_epoch else [])


def ids_of(rows: list[Row], kind: FrameKind) -> list[int]:
    return [i for k, frame in rows if k == kind for i in decode(frame).column("id").to_pylist()]


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
        rows, state = run(batch(list(range(9 * step, 9 * step + 9)) if step < 5 else [], step=step), state,
                          now_ms=START_MS + 1_000 * step)  # fmt: skip
        assert [kind for kind, _ in rows].count(FrameKind.USAGE) == 1
        assert rows[-1][0] == FrameKind.USAGE
        report = unpack_usage(rows[-1][1], "it")
        assert (report.epoch, report.now_ms) == (step + 1, START_MS + 1_000 * step)
        left += ids_of(rows, FrameKind.ADMITTED)
    assert sorted(left) == list(range(45))
    assert state is not None
    assert state[0] == FORMAT


def test_rejected_rows_are_explained_and_admitted_ones_are_not() -> None:
    table = with_helpers(pa.table({"id": [1, 2]}), ["t/1", None], [1, 1])
    control = (FrameKind.CONTROL, control_block(POLICY))
    rows, _ = run([control, (FrameKind.ROWS, encode(table)[0])], None)
    columns = {kind: decode(frame).column_names for kind, frame in rows[:-1]}
    assert columns == {FrameKind.REJECTED: ["id", THROTTLE], FrameKind.ADMITTED: ["id"]}


def test_batch_without_a_control_row_is_decided_by_what_stands() -> None:
    _, state = run(batch([], step=0), None)
    rows, _ = run(batch([1, 2, 3], step=1, is_epoch=False), state, now_ms=START_MS + 1)
    assert ids_of(rows, FrameKind.ADMITTED) == [1, 2, 3]
    assert unpack_usage(rows[-1][1], "it").epoch == 1


def test_state_of_a_newer_version_is_refused_by_its_number() -> None:
    with pytest.raises(UnknownVersionError, match=rf"version {FORMAT + 1} .* up to {FORMAT}"):
        run(batch([1], step=1), (FORMAT + 1, b"whatever"))


def test_arrivals_before_any_control_row_are_an_error_with_a_remedy() -> None:
    with pytest.raises(ConfigurationError, match="the decider has no state and its batch brings no policy"):
        run(batch([1], step=0, is_epoch=False), None)


def test_state_is_updated_before_the_first_frame_is_handed_out() -> None:
    # Spark stops pulling when a task is cancelled; what was handed out belongs to a state that is known.
    group = group_state(None, START_MS)
    out = Decider()((KEY,), pieces(batch([1, 2], step=0), random.Random(0)), group)
    assert not group.exists
    next(out)
    assert group.exists
